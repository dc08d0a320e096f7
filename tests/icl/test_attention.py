"""Attention and the descent that it is compared with: loops, constructions, invariances, limits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import attention_layer, descent_step, transformer_block
from reference import gd_plus_plus as gd_plus_plus_loop
from sklearn.linear_model import Ridge

import icl.models.attention as stacks
from icl import (
    AttentionLayer,
    Sequence,
    Tasks,
    descent_layers,
    head_maps,
    init_layers,
    line_search,
    sample_tasks,
    sequences,
    squared_error,
    tokens,
)
from icl.models import batched as batches
from icl.models.constructions import softmax_descent_layer, softmax_layers
from icl.solvers import descent
from icl.solvers.descent import paper_rates

# compiled whole, which takes less time than compiling every operation
predict = jax.jit(stacks.predict, static_argnames=("depth", "clip", "softmax", "layernorm"))
roll_out = jax.jit(stacks.roll_out, static_argnames=("steps", "y_only"))
predict_batch = jax.jit(batches.predict_batch, static_argnames=("depth", "clip", "softmax", "layernorm"))
gradient_descent = jax.jit(descent.gradient_descent, static_argnames="steps")
gd_plus_plus = jax.jit(descent.gd_plus_plus, static_argnames="steps")
ridge = jax.jit(descent.ridge)
gradient = jax.jit(jax.grad(squared_error))
EXACT: Any = {"rtol": 1e-12, "atol": 1e-12}  # float64, sums of a few hundred terms of order 1


def task(seed: int = 0, dim: int = 4, context: int = 6, outputs: int = 2, **more) -> Sequence:
    return sample_tasks(jax.random.key(seed), Tasks(dim=dim, context=context, outputs=outputs, input_range=2.0, **more))


def random_layers(seed: int, width: int, layers: int, heads: int = 1) -> AttentionLayer:
    return init_layers(jax.random.key(seed), width, layers=layers, heads=heads, scale=0.5)


def heads_of(layers: AttentionLayer, n: int) -> list[tuple[np.ndarray, ...]]:
    """The heads of layer n, as the loops take them."""
    return [tuple(np.asarray(W)[n, h] for W in layers) for h in range(layers.P.shape[1])]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_stack_is_the_loop_of_the_paper(layers):
    one, weights = task(), random_layers(1, 6, layers, 2)
    E = np.asarray(tokens(one))
    for n in range(2):
        E = attention_layer(E, heads_of(weights, min(n, layers - 1)), damping=0.7)
    np.testing.assert_allclose(predict(weights, one, depth=2, damping=0.7), -E[-1, 4:], **EXACT)


@pytest.mark.parametrize(
    ("layers", "heads", "depth", "clip", "dtype", "context"),  # of tokens of 6 coordinates: sums come in another order past 6
    [(1, 2, 2, 0.8, jnp.float64, 6), (1, 2, 2, 0.8, jnp.float64, 7), (2, 1, 2, None, jnp.float32, 6)],
)
def test_the_batched_form_is_the_form_for_one_sequence(layers, heads, depth, clip, dtype, context):
    batch = sample_tasks(jax.random.key(0), Tasks(dim=4, context=context, outputs=2, input_range=2.0), 9, dtype=dtype)
    weights = jax.tree.map(lambda w: w.astype(dtype), random_layers(1, 6, layers, heads))

    @functools.partial(jax.value_and_grad, has_aux=True)
    def by_one(weights):
        answers = jax.vmap(lambda s: predict(weights, s, depth=depth, clip=clip))(sequences(batch)).T
        return jnp.sum(answers**2), answers

    @functools.partial(jax.value_and_grad, has_aux=True)
    def by_all(weights):
        answers = predict_batch(weights, batch, depth=depth, clip=clip)
        return jnp.sum(answers**2), answers

    tolerance: Any = EXACT if dtype == jnp.float64 else {"rtol": 2e-4, "atol": 2e-5}  # a hundred roundings of 6e-8 each, thrice
    ((_, ours), our_gradient), ((_, theirs), their_gradient) = jax.jit(lambda w: (by_all(w), by_one(w)))(weights)
    np.testing.assert_allclose(ours, theirs, **tolerance)
    for a, b in zip(our_gradient, their_gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=10 * tolerance["rtol"], atol=50 * tolerance["atol"])


@pytest.mark.parametrize(("layers", "softmax", "layernorm"), [(1, True, True), (2, (True, False), False), (2, True, True)])
def test_softmax_and_layer_normalisation_are_the_loop_of_the_paper(layers, softmax, layernorm):
    """Layers of their own do not normalise what the first of them reads. The loop's MLPs are zero."""
    batch = sample_tasks(jax.random.key(0), Tasks(dim=4, context=6), 3)
    weights, no_mlp = random_layers(1, 5, layers, 2), tuple(map(np.zeros, ((1, 5), 1, (5, 1), 5)))
    ours = predict_batch(weights, batch, softmax=softmax, layernorm=layernorm)
    for n, one in enumerate(map(Sequence._make, zip(*sequences(batch), strict=True))):
        E = np.asarray(tokens(one))
        for k in range(layers):
            options = {"softmax": np.broadcast_to(softmax, 2)[k], "normalise": (layernorm and (k > 0 or layers == 1), False)}
            E = transformer_block(E, heads_of(weights, k), no_mlp, **options)
        np.testing.assert_allclose(ours[:, n], -E[-1, 4:], **EXACT)
        np.testing.assert_allclose(predict(weights, one, softmax=softmax, layernorm=layernorm), -E[-1, 4:], **EXACT)


def test_two_softmax_heads_of_opposite_signs_are_a_step_on_centred_inputs():
    """To second order in the sharpness: a tenth of it is a hundredth of the difference."""
    batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5, outputs=2), 4)
    centred = batch.X - jnp.mean(batch.X, axis=0, keepdims=True)
    step = 0.7 / 5 * jnp.einsum("nmb,ndb,db->mb", batch.Y, centred, batch.x_q)
    apart = []
    for sharpness in (0.1, 0.01):
        layer = softmax_descent_layer(3, 5, 0.7, sharpness=sharpness, outputs=2)
        apart.append(float(jnp.abs(predict_batch(layer, batch, softmax=True) - step).max()))
    assert apart[0] < 1e-4 and apart[1] == pytest.approx(apart[0] / 100, rel=0.05)


def test_softmax_layers_are_linear_ones_on_keys_that_are_centred():
    """Layers of GD++ by a loop over tokens; the rest is of the order of the sharpness squared, 1e-4 of updates below 1."""
    linear = descent_layers(3, 5, jnp.array([0.7, 1.5]), gamma=jnp.array([0.1, 0.3]))
    batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
    found = predict_batch(softmax_layers(linear, 5, sharpness=jnp.array([0.01, 0.02])), batch, softmax=True)
    for n in range(4):
        E = np.concatenate([batch.X[:, :, n], batch.Y[:, :, n]], axis=1)
        E = np.concatenate([E, [[*batch.x_q[:, n], 0]]])
        for W_K, W_Q, W_V, P in zip(*(np.asarray(weights)[:, 0] for weights in linear), strict=True):
            keys, values = E[:-1] @ W_K.T, E[:-1] @ W_V.T
            E = E + (E @ W_Q.T) @ (keys - keys.mean(axis=0)).T @ values @ P.T
        np.testing.assert_allclose(found[:, n], -E[-1, 3:], atol=1e-4)


@pytest.mark.parametrize(("dim", "outputs", "context"), [(1, 1, 1), (3, 2, 5)])
def test_one_layer_is_one_step_of_gradient_descent(dim, outputs, context):
    one = task(3, dim, context, outputs)
    W0 = jax.random.normal(jax.random.key(9), (outputs, dim))
    for start in (W0, jnp.zeros_like(W0)):
        W1 = start - 0.3 * gradient(start, one.X, one.Y)
        layer = descent_layers(dim, context, 0.3, W0=start)
        np.testing.assert_allclose(predict(layer, one, W0=start), W1 @ one.x_q, **EXACT)
        np.testing.assert_allclose(gradient_descent(one, 0.3, W0=start)[-1], W1 @ one.x_q, **EXACT)
        np.testing.assert_allclose(W1, descent_step(np.asarray(start), np.asarray(one.X), np.asarray(one.Y), 0.3), **EXACT)


def test_the_layer_moves_every_context_target_by_the_step():
    one, W0 = task(3), jax.random.normal(jax.random.key(9), (2, 4))
    layer = descent_layers(4, 6, 0.3, W0=W0)
    change = -0.3 * gradient(W0, one.X, one.Y)
    E = attention_layer(np.asarray(tokens(one, W0)), heads_of(layer, 0))
    np.testing.assert_allclose(E[:-1], np.hstack([one.X, one.Y - one.X @ change.T]), **EXACT)


def test_l_layers_are_l_steps():
    one, W0 = task(4, context=20), jax.random.normal(jax.random.key(9), (2, 4))
    W, etas = W0, np.array([0.5, 0.9, 0.2])
    path = gradient_descent(one, jnp.asarray(etas), steps=3, W0=W0)
    for n, eta in enumerate(etas):
        W = W - eta * gradient(W, one.X, one.Y)
        np.testing.assert_allclose(path[n], W @ one.x_q, **EXACT)
    np.testing.assert_allclose(predict(descent_layers(4, 20, etas, W0=W0), one, W0=W0), W @ one.x_q, **EXACT)
    tied = descent_layers(4, 20, 0.3, outputs=2)
    np.testing.assert_allclose(predict(tied, one, depth=8), gradient_descent(one, 0.3, steps=8)[-1], **EXACT)


def test_gd_plus_plus_is_the_loop_and_its_layers():
    one, eta, gamma = task(5), [0.5, 0.8, 0.3], [0.02, 0.05, 0.9]
    expected = gd_plus_plus_loop(np.asarray(one.X), np.asarray(one.Y), np.asarray(one.x_q), eta, gamma)
    ours = gd_plus_plus(one, jnp.array(eta), jnp.array(gamma), steps=3)[-1]
    np.testing.assert_allclose(ours, expected, **EXACT)
    layers = descent_layers(4, 6, np.array(eta), gamma=np.array(gamma), outputs=2)
    np.testing.assert_allclose(predict(layers, one), expected, **EXACT)
    without = gd_plus_plus(one, jnp.array(eta), 0.0, steps=3)
    np.testing.assert_allclose(without, gradient_descent(one, jnp.array(eta), steps=3), **EXACT)
    last_gamma = gd_plus_plus(one, jnp.array(eta), jnp.array([0.02, 0.05, -7.0]), steps=3)[-1]
    np.testing.assert_allclose(last_gamma, expected, **EXACT)


def test_preconditioned_descent_is_its_layer():
    one, G = task(6), jax.random.normal(jax.random.key(1), (4, 4))
    ours = gradient_descent(one, 0.4, steps=3, preconditioner=G)[-1]
    W = np.zeros((2, 4))
    for _ in range(3):
        W = W + (descent_step(W, np.asarray(one.X), np.asarray(one.Y), 0.4) - W) @ np.asarray(G)
    np.testing.assert_allclose(ours, W @ np.asarray(one.x_q), **EXACT)
    layer = descent_layers(4, 6, 0.4, outputs=2, preconditioner=G)
    np.testing.assert_allclose(predict(layer, one, depth=3), ours, **EXACT)


def test_ridge_meets_least_squares_and_descent_that_has_converged():
    one = task(7, dim=3, context=12)
    W = np.linalg.lstsq(np.asarray(one.X), np.asarray(one.Y), rcond=None)[0].T
    np.testing.assert_allclose(ridge(one, 0.0), W @ one.x_q, **EXACT)
    np.testing.assert_allclose(gradient_descent(one, 1.0, steps=3000)[-1], W @ one.x_q, atol=1e-9)
    fitted = Ridge(alpha=0.7, fit_intercept=False).fit(np.asarray(one.X), np.asarray(one.Y))
    np.testing.assert_allclose(ridge(one, 0.7), fitted.predict(np.asarray(one.x_q)[None])[0], **EXACT)


def test_the_query_is_not_among_the_keys():
    """The map from the query to its answer is then linear, as every layer's is given the context."""
    one, other, weights = task(0), task(1), random_layers(1, 6, 3)
    mixed = one._replace(x_q=2 * one.x_q - 3 * other.x_q)
    expected = 2 * predict(weights, one) - 3 * predict(weights, one._replace(x_q=other.x_q))
    np.testing.assert_allclose(predict(weights, mixed), expected, **EXACT)


def test_a_head_depends_on_its_two_maps_alone_and_not_on_their_scale():
    one, weights = task(), random_layers(2, 6, 2)
    M, R = head_maps(weights)
    eye = jnp.broadcast_to(jnp.eye(6), M.shape)
    scaled = AttentionLayer(3 * eye, M, R / 3, eye)
    np.testing.assert_allclose(predict(scaled, one), predict(weights, one), **EXACT)


def test_roll_out_is_a_damped_stack_of_the_same_layer():
    one, layer = task(), descent_layers(4, 6, 0.5, outputs=2)
    first = jax.tree.map(lambda w: w[0], layer)
    path = roll_out(first, one, steps=4, damping=0.75, y_only=True)
    for n in (1, 3):
        np.testing.assert_allclose(path[n - 1], predict(layer, one, depth=n, damping=0.75), **EXACT)
    np.testing.assert_allclose(path, gradient_descent(one, 0.75 * 0.5, steps=4), **EXACT)
    turning = jax.tree.map(lambda w: w[0], descent_layers(4, 6, 0.5, gamma=0.1, outputs=2))
    kept, moved = (roll_out(turning, one, steps=3, y_only=y_only) for y_only in (True, False))
    np.testing.assert_allclose(kept, gradient_descent(one, 0.5, steps=3), **EXACT)
    assert float(jnp.abs(kept - moved)[-1].max()) > 1e-3


@pytest.mark.parametrize("scale", [0.0, 1e9])
def test_answers_are_finite_for_zero_and_for_huge_inputs_with_the_token_clip(scale):
    one = jax.tree.map(lambda leaf: (scale * leaf).astype(jnp.float32), task())
    weights = jax.tree.map(lambda w: w.astype(jnp.float32), random_layers(1, 6, 1))
    answer = predict(weights, one, depth=4, clip=10.0)
    batch = predict_batch(weights, jax.tree.map(lambda leaf: leaf[..., None], one), depth=4, clip=10.0)
    assert np.isfinite(answer).all() and np.abs(answer).max() <= 10 and np.isfinite(batch).all()
    if scale == 0:
        assert not answer.any() and not gradient_descent(one, 1.0).any() and not ridge(one, 0.1).any()


def test_one_pair_and_one_input():
    one = Sequence(jnp.array([[2.0]]), jnp.array([[3.0]]), jnp.array([5.0]), jnp.array([7.0]))
    assert float(predict(descent_layers(1, 1, 0.25), one)[0]) == 0.25 * 3 * 2 * 5  # eta y x x_q
    assert float(ridge(one, 2.0)[0]) == 3 * 2 / (4 + 2) * 5


def test_line_search_finds_the_lowest_loss_of_its_grid():
    batch = sample_tasks(jax.random.key(0), Tasks(dim=4, context=6), 500)
    eta, losses = line_search(batch, steps=3, rates=paper_rates())
    assert len(losses) == 250 and float(paper_rates()[-1]) == pytest.approx(24.901)
    for n in (0, int(jnp.nanargmin(losses)), 100):
        answers = jax.vmap(lambda s, n=n: gradient_descent(s, paper_rates()[n], steps=3)[-1])(sequences(batch))
        np.testing.assert_allclose(losses[n], jnp.mean((answers - batch.y_q.T) ** 2) / 2, rtol=1e-10)
    assert eta == float(paper_rates()[jnp.nanargmin(losses)])
