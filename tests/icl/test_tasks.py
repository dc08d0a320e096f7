"""Tasks: their law, and sequences of tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import task

from icl.attention import init_layers
from icl.problems import init_network
from icl.tasks import KURTOSIS, Sequence, Tasks, contract, draw, map_pieces, sample_tasks, sequences, tokens


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


def test_the_mixture_has_the_frobenius_norm_it_was_asked_for():
    X = drawn(3, Tasks(inputs="mixture", input_range=2.5), 300).X
    np.testing.assert_allclose(np.sqrt(np.sum(X**2, axis=(0, 1))), 2.5, rtol=1e-12)
    skewed = X.min(axis=(0, 1)) > 0  # all 100 coordinates positive: the exponential
    assert 0.25 < skewed.mean() < 0.42  # a third of 300 tasks, 3 standard deviations of 0.027


def test_exponential_inputs_have_the_variance_and_are_not_centred():
    x = drawn(4, Tasks(inputs="exponential"), 5_000).X
    assert x.var() == pytest.approx(1 / 12, rel=0.02) and x.mean() == pytest.approx((1 / 12) ** 0.5, rel=0.01)


def test_a_batch_in_pieces_is_the_whole_batch():
    batch = task(batch=(7,))
    double = jax.jit(lambda batch: [map_pieces(lambda part: 2 * part.x_q, batch, piece) for piece in (1, 2, 7, 9)])
    for found in double(batch):
        np.testing.assert_array_equal(found, 2 * np.asarray(batch.x_q))


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


# Draws

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
        of_mlp = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal", in_axis=-1, out_axis=-2)
        return [init(keys[n], shape, dtype) for n in range(4)], of_mlp(keys[1], (7, 5), dtype)

    weights, W1 = theirs(KEY())
    layers = init_layers(KEY(), 4, layers=2, heads=3, scale=scale, dtype=dtype)
    rounding = 4 * float(np.finfo(dtype).eps)  # a product of two roundings, in either order
    for ours, expected in zip(layers, weights, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=rounding)
    W = jax.jit(lambda key: init_network(key, channels=5, hidden=7, scale=scale, layers=0, dtype=dtype).encoder.W1)(KEY())
    np.testing.assert_allclose(W, W1, rtol=rounding)
