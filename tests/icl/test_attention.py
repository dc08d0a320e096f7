"""Tasks and attention, and the descent that it is compared with: laws, loops, constructions, invariances, limits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import arrays, ones_of, task
from reference import attention_layer, attention_update, descent_step
from reference import gd_plus_plus as gd_plus_plus_loop
from sklearn.linear_model import Ridge

from icl import descent, descent_layers, squared_error
from icl.attention import AttentionLayer, init_layers, predict, predict_batch, roll_out, softmax_layers
from icl.descent import gd_plus_plus, gradient_descent
from icl.tasks import KURTOSIS, Sequence, Tasks, contract, draw, sample_tasks, sequences, tokens


def drawn(seed: int, tasks: Tasks, *batch: int) -> Sequence:
    return jax.tree.map(np.asarray, sample_tasks(jax.random.key(seed), tasks, *batch))


@pytest.mark.parametrize("inputs", sorted(KURTOSIS))
def test_inputs_have_the_variance_and_kurtosis_that_the_closed_form_reads(inputs):
    tasks = Tasks(dim=5, context=9, inputs=inputs, input_range=2.0)
    x = drawn(0, tasks, 20_000).X
    n = x.size  # 900,000 draws: the variance is off by some sqrt((kurtosis - 1) / n) = 0.25 % of itself at most
    assert x.mean() == pytest.approx(0, abs=4 * np.sqrt(tasks.variance / n))
    assert x.var() == pytest.approx(tasks.variance, rel=4 * np.sqrt((KURTOSIS[inputs] - 1) / n))
    # the fourth moment of a Laplace law is off by sqrt(E[x^8] / n) / E[x^4] = 0.9 %
    assert np.mean(x**4) / x.var() ** 2 == pytest.approx(KURTOSIS[inputs], rel=0.04)


def test_uniform_inputs_fill_their_range_and_weights_and_noise_have_their_scale():
    tasks = Tasks(dim=3, context=4, outputs=2, input_range=3.0, weight_scale=2.0, noise=0.5)
    batch = drawn(1, tasks, 50_000)
    assert 1.49 < batch.X.max() <= 1.5 and -1.5 <= batch.x_q.min() < -1.49
    # E[y_q²] = d s c²; the context's y have the noise's variance too. 100,000 squares of kurtosis < 6
    clean, noisy = 3 * tasks.variance * 4, 3 * tasks.variance * 4 + 0.25
    assert np.mean(batch.y_q**2) == pytest.approx(clean, rel=0.03)
    assert np.mean(batch.Y**2) == pytest.approx(noisy, rel=0.03)


def test_answers_are_linear_in_the_inputs_of_one_task_and_a_batch_is_many_of_them():
    one, many = (drawn(2, Tasks(dim=3, context=20, outputs=2), *batch) for batch in ((), (4,)))
    for X, Y, x_q, y_q in (one, *(tuple(leaf[..., n] for leaf in many) for n in range(4))):
        W = np.linalg.lstsq(X, Y, rcond=None)[0].T
        np.testing.assert_allclose(X @ W.T, Y, atol=1e-12)
        np.testing.assert_allclose(W @ x_q, y_q, atol=1e-12)
    assert [leaf.shape + (4,) for leaf in one] == [leaf.shape for leaf in many]
    assert len({float(value) for value in many.y_q[0]}) == 4
    by_task = jax.tree.map(np.asarray, sequences(Sequence(*map(jax.device_put, many))))
    np.testing.assert_array_equal(by_task.X, np.moveaxis(np.asarray(many.X), -1, 0))
    np.testing.assert_array_equal(by_task.y_q, many.y_q.T)


def test_tokens_put_y_behind_x_and_the_query_last():
    leaves = [[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]], [7.0, 8.0], [9.0]
    one = Sequence(*(jax.device_put(np.array(leaf)) for leaf in leaves))
    assert tokens(one).tolist() == [[1, 2, 5], [3, 4, 6], [7, 8, 0]]
    assert np.asarray(tokens(one, jax.device_put(np.array([[1.0, -1.0]]))))[-1].tolist() == [7, 8, 1]


def test_contractions_are_products_of_matrices_and_so_is_their_gradient():
    A, B, G = (np.random.default_rng(0).normal(size=shape) for shape in ((4, 3, 5), (4, 2, 5), (3, 2, 5)))

    @jax.jit
    def found(A, B, G):
        product, backward = jax.vjp(contract, A, B)
        return product, *backward(G)

    of_A, of_B = np.einsum("kjb,ijb->kib", B, G), np.einsum("kib,ijb->kjb", A, G)
    for ours, theirs in zip(found(A, B, G), (np.einsum("kib,kjb->ijb", A, B), of_A, of_B), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


KEY = functools.cache(lambda: jax.random.key(3))


@pytest.mark.parametrize("shape", [(), (2, 3, 7)])
def test_a_vector_has_the_numbers_of_any_shape(shape):
    samplers = jax.random.uniform, jax.random.normal, jax.random.laplace, jax.random.exponential

    @jax.jit
    def both(key):
        return [(draw(f, key, shape, dtype=jnp.float32), f(key, shape, jnp.float32)) for f in samplers]

    for ours, theirs in both(KEY()):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_initial_weights_are_those_of_variance_scaling(dtype):
    shape, scale = (2, 3, 4, 4), 0.01

    @jax.jit
    def theirs(key):
        init = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal", batch_axis=(0, 1))
        keys = jax.random.split(key, 4)
        return [init(keys[n], shape, dtype) for n in range(4)]

    weights = theirs(KEY())
    layers = init_layers(KEY(), 4, layers=2, heads=3, scale=scale, dtype=dtype)
    rounding = 4 * float(np.finfo(dtype).eps)  # a product of two roundings, in either order
    for ours, expected in zip(layers, weights, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=rounding)


# compiled whole, which takes less time than compiling every operation
ridge = jax.jit(descent.ridge)
EXACT: Any = {"rtol": 1e-12, "atol": 1e-12}  # float64, sums of a few hundred terms of order 1
W0 = np.random.default_rng(9).normal(size=(2, 4))


def random_layers(seed: int, width: int, layers: int, heads: int = 1) -> AttentionLayer:
    """Weights of standard deviation `sqrt(1 / (2 width))`."""
    weights = np.random.default_rng(seed).normal(size=(4, layers, heads, width, width)) / (2 * width) ** 0.5
    return AttentionLayer(*map(jax.device_put, weights))


def heads_of(layers: AttentionLayer, n: int) -> list[tuple[np.ndarray, ...]]:
    """The heads of layer n, as the loops take them."""
    return [tuple(np.asarray(W)[n, h] for W in layers) for h in range(layers.P.shape[1])]


@pytest.mark.parametrize("context", [6, 7])  # tokens of 6 coordinates: sums come in another order past 6
def test_a_stack_is_the_loop_of_the_paper(context):
    one = task(context=context)
    for layers in (1, 2):
        weights, E = random_layers(1, 6, layers, 2), np.asarray(tokens(one))
        for n in range(2):
            E = attention_layer(E, heads_of(weights, min(n, layers - 1)), damping=0.7)
        np.testing.assert_allclose(predict(weights, one, depth=2, damping=0.7), -E[-1, 4:], **EXACT)


@pytest.mark.parametrize(("layers", "softmax"), [(1, True), (2, (True, False))])
def test_softmax_is_the_loop_of_the_paper(layers, softmax):
    batch = task(batch=(3,))
    weights = random_layers(1, 6, layers, 2)
    ours = np.asarray(predict_batch(weights, batch, softmax=softmax))
    for n, one in enumerate(ones_of(batch)):
        E = np.asarray(tokens(one))
        for k in range(layers):
            E = attention_update(E, heads_of(weights, k), softmax=np.broadcast_to(softmax, 2)[k], normalise=False)
        np.testing.assert_allclose(ours[:, n], -E[-1, 4:], **EXACT)
        np.testing.assert_allclose(predict(weights, one, softmax=softmax), -E[-1, 4:], **EXACT)


softmax_answers = jax.jit(
    lambda linear, sharpness, batch: predict_batch(softmax_layers(linear, 6, sharpness=sharpness), batch, softmax=True)
)


def test_two_softmax_heads_of_opposite_signs_are_a_step_on_centred_inputs():
    """To second order in the sharpness: a tenth of it is a hundredth of the difference."""
    batch = task(batch=(4,), input_range=1.0)
    X, Y, x_q = arrays(batch)
    step = 0.7 / 6 * np.einsum("nmb,ndb,db->mb", Y, X - X.mean(axis=0), x_q)
    linear = descent_layers(4, 6, 0.7, outputs=2)
    apart = [np.abs(np.asarray(softmax_answers(linear, sharpness, batch)) - step).max() for sharpness in (0.1, 0.01)]
    assert apart[0] < 1e-4 and apart[1] == pytest.approx(apart[0] / 100, rel=0.05)


def test_softmax_layers_are_linear_ones_on_keys_that_are_centred():
    """Layers of GD++ by a loop over tokens; the rest is of the order of the sharpness squared, 1e-4 of updates below 1."""
    linear = descent_layers(4, 6, np.array([0.7, 1.5]), gamma=np.array([0.1, 0.3]), outputs=2)
    batch = task(batch=(4,))
    found = np.asarray(softmax_answers(linear, np.array([0.01, 0.02]), batch))
    for n, one in enumerate(ones_of(batch)):
        E = np.asarray(tokens(one))
        for k in range(2):
            ((W_K, W_Q, W_V, P),) = heads_of(linear, k)
            keys, values = E[:-1] @ W_K.T, E[:-1] @ W_V.T
            E = E + (E @ W_Q.T) @ (keys - keys.mean(axis=0)).T @ values @ P.T
        np.testing.assert_allclose(found[:, n], -E[-1, 4:], atol=1e-4)


@pytest.mark.parametrize(("dim", "outputs", "context"), [(1, 1, 1), (4, 2, 6)])
def test_one_layer_is_one_step_of_gradient_descent(dim, outputs, context):
    one = task(3, dim, context, outputs)
    X, Y, x_q = arrays(one)
    for start in (W0[:outputs, :dim], np.zeros((outputs, dim))):
        W1, given = descent_step(start, X, Y, 0.3), jax.device_put(start)
        layer = descent_layers(dim, context, 0.3, W0=given)
        np.testing.assert_allclose(predict(layer, one, W0=given), W1 @ x_q, **EXACT)
        np.testing.assert_allclose(np.asarray(gradient_descent(one, 0.3, W0=given))[0], W1 @ x_q, **EXACT)
        slope = jax.jit(jax.grad(squared_error))(given, one.X, one.Y)
        np.testing.assert_allclose(start - 0.3 * np.asarray(slope), W1, **EXACT)


def test_l_layers_are_l_steps():
    one = task(4)
    X, Y, x_q = arrays(one)
    W, etas = W0, np.array([0.5, 0.9, 0.2])
    path = np.asarray(gradient_descent(one, etas, steps=3, W0=jax.device_put(W0)))
    for n, eta in enumerate(etas):
        W = descent_step(W, X, Y, eta)
        np.testing.assert_allclose(path[n], W @ x_q, **EXACT)
    layers = descent_layers(4, 6, etas, W0=jax.device_put(W0))
    np.testing.assert_allclose(predict(layers, one, W0=jax.device_put(W0)), W @ x_q, **EXACT)
    tied, W = descent_layers(4, 6, 0.3, outputs=2), np.zeros((2, 4))
    for _ in range(4):
        W = descent_step(W, X, Y, 0.3)
    np.testing.assert_allclose(predict(tied, one, depth=4), W @ x_q, **EXACT)


def test_gd_plus_plus_is_the_loop_and_its_layers():
    one, eta, gamma = task(5), [0.5, 0.8, 0.3], [0.02, 0.05, 0.9]
    expected = gd_plus_plus_loop(*arrays(one), eta, gamma)
    etas = np.array(eta)
    np.testing.assert_allclose(np.asarray(gd_plus_plus(one, etas, np.array(gamma), steps=3))[-1], expected, **EXACT)
    layers = descent_layers(4, 6, etas, gamma=np.array(gamma), outputs=2)
    np.testing.assert_allclose(predict(layers, one), expected, **EXACT)
    without = gd_plus_plus(one, etas, np.zeros(3), steps=3)
    np.testing.assert_allclose(without, gradient_descent(one, etas, steps=3), **EXACT)
    last_gamma = np.asarray(gd_plus_plus(one, etas, np.array([0.02, 0.05, -7.0]), steps=3))[-1]
    np.testing.assert_allclose(last_gamma, expected, **EXACT)


def test_preconditioned_descent_is_its_layer():
    one, G = task(6), np.random.default_rng(1).normal(size=(4, 4))
    X, Y, x_q = arrays(one)
    ours = np.asarray(gradient_descent(one, 0.4, steps=3, preconditioner=jax.device_put(G)))[-1]
    W = np.zeros((2, 4))
    for _ in range(3):
        W = W + (descent_step(W, X, Y, 0.4) - W) @ G
    np.testing.assert_allclose(ours, W @ x_q, **EXACT)
    layer = descent_layers(4, 6, 0.4, outputs=2, preconditioner=jax.device_put(G))
    np.testing.assert_allclose(predict(layer, one, depth=3), ours, **EXACT)


def test_ridge_meets_least_squares_and_descent_that_has_converged():
    one = task(7)
    X, Y, x_q = arrays(one)
    W = np.linalg.lstsq(X, Y, rcond=None)[0].T
    np.testing.assert_allclose(ridge(one, 0.0), W @ x_q, **EXACT)
    np.testing.assert_allclose(np.asarray(gradient_descent(one, 1.5, steps=3000))[-1], W @ x_q, atol=1e-9)
    fitted = Ridge(alpha=0.7, fit_intercept=False).fit(X, Y)
    np.testing.assert_allclose(ridge(one, 0.7), fitted.predict(x_q[None])[0], **EXACT)


def test_roll_out_is_a_damped_stack_of_the_same_layer():
    one = task()
    gd, plus_plus = (descent_layers(4, 6, 0.5, gamma=gamma, outputs=2) for gamma in (0.0, 0.1))
    first, turning = (jax.tree.map(lambda w: jax.device_put(np.asarray(w)[0]), layers) for layers in (gd, plus_plus))
    path = np.asarray(roll_out(first, one, steps=3, damping=0.75))
    np.testing.assert_allclose(path[-1], predict(gd, one, depth=3, damping=0.75), **EXACT)
    np.testing.assert_allclose(path, gradient_descent(one, np.full(3, 0.75 * 0.5), steps=3), **EXACT)
    np.testing.assert_allclose(roll_out(turning, one, steps=3)[-1], predict(plus_plus, one, depth=3), **EXACT)


def test_answers_are_finite_for_zero_and_for_huge_inputs_with_the_token_clip():
    weights = jax.tree.map(lambda w: jax.device_put(np.asarray(w, np.float32)), random_layers(1, 6, 1))
    for scale in (0.0, 1e9):
        one = jax.tree.map(lambda leaf, scale=scale: jax.device_put(np.asarray(scale * np.asarray(leaf), np.float32)), task())
        answer = np.asarray(predict(weights, one, depth=4, clip=10.0))
        batch = predict_batch(
            weights, jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[..., None]), one), depth=4, clip=10.0
        )
        assert np.isfinite(answer).all() and np.abs(answer).max() <= 10 and np.isfinite(batch).all()
        if scale == 0:
            assert not answer.any() and not gradient_descent(one, 1.0).any() and not ridge(one, 0.1).any()
