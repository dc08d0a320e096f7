"""The solution layer by layer, against naive Bayes and a loop, and the gradients of networks on numeric features.

Tolerances: sums of some hundred logarithms of order 10 in float64, 1e-10; float32 leaves 1e-4.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from sklearn.naive_bayes import MultinomialNB

from jexplicit.nn.dense import (
    autodiff_gradient,
    cold_layers,
    hidden_logits,
    hidden_network,
    initial_state,
    layer_gradient,
    stack_gradient,
    training_step,
)
from jexplicit.solvers.iterative_scaling import scaling_sweeps
from jexplicit.solvers.layerwise import Layer, accuracy, solve_layers, stack_logits

M, D, N = 200, 7, 3


def problem(K=None, dtype=np.float64):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(M) % N)
    H = rng.gamma(1.0, 1.0, (M, D)) * (1 + rng.random((N, D)))[labels] + 0.05
    if K is not None:
        H *= K / H.sum(axis=1, keepdims=True)
    return jnp.asarray(H, dtype), jnp.asarray(reference.one_hot(labels, N), dtype), labels


def log_predictions(logits):
    return np.array([reference.log_softmax(row) for row in np.asarray(logits)])


@pytest.mark.parametrize("K", [1.0, 4.0])
def test_one_layer_on_rows_of_norm_k_is_scikit_learns_multinomial_naive_bayes(K):
    H, Y, labels = problem(K)
    solved = solve_layers(H, Y, [Layer()])
    assert solved.K == pytest.approx((K,))
    oracle = MultinomialNB(alpha=0, force_alpha=True).fit(np.asarray(H), labels)
    ours = log_predictions(stack_logits(solved.params, H))
    np.testing.assert_allclose(ours, oracle.predict_log_proba(np.asarray(H)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-4)])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_layer_is_the_papers_solution_of_its_own_inputs(layers, dtype, tolerance):
    H, Y, _ = problem(dtype=dtype)
    solved = solve_layers(H, Y, [Layer()] * layers)
    inputs, targets = np.asarray(H, np.float64), np.asarray(Y, np.float64)
    decoders = []
    for U in solved.params:
        K = max(1.0, np.abs(inputs).sum(axis=1).mean())
        decoders.append(reference.explicit_solution(reference.generalized_cooccurrences(inputs, targets), K))
        np.testing.assert_allclose(U, decoders[-1], rtol=0, atol=tolerance)
        inputs = np.exp(log_predictions(inputs @ decoders[-1]))
    expected = reference.softmax_stack(np.asarray(H, np.float64), decoders)
    np.testing.assert_allclose(stack_logits(solved.params, H), expected, rtol=0, atol=100 * tolerance)


def test_information_flows_only_forward():
    H, Y, _ = problem()
    two, three = (solve_layers(H, Y, [Layer()] * layers) for layers in (2, 3))
    for lower, same in zip(two.params, three.params[:2], strict=True):
        np.testing.assert_array_equal(lower, same)
    changed = solve_layers(H, Y, [Layer(), Layer(K=5.0), Layer()])
    np.testing.assert_array_equal(changed.params[0], three.params[0])
    assert float(jnp.abs(changed.params[2] - three.params[2]).max()) > 1e-3


def test_layers_may_have_their_own_activation_and_solver():
    H, Y, _ = problem()

    def scaled(H, Y, K):
        return scaling_sweeps(H, Y, jnp.zeros((H.shape[1], Y.shape[1])), sweeps=3, slack=False).U

    solved = solve_layers(H, Y, [Layer(activation=lambda z: 1 + jax.nn.sigmoid(z)), Layer(solve=scaled)])
    hidden = 1 + jax.nn.sigmoid(H @ solved.params[0])
    np.testing.assert_array_equal(solved.params[1], scaled(hidden, Y, 1.0))
    assert solved.K[1] == pytest.approx(float(hidden.sum(axis=1).mean()))


def test_renaming_the_classes_renames_the_columns():
    H, Y, _ = problem()
    order = jnp.array([2, 0, 1])
    logits = stack_logits(solve_layers(H, Y, [Layer(), Layer()]).params, H)
    renamed = stack_logits(solve_layers(H, Y[:, order], [Layer(), Layer()]).params, H)
    np.testing.assert_allclose(renamed, logits[:, order], rtol=0, atol=1e-10)


def test_impossible_layers_are_refused():
    H, Y, _ = problem()
    with pytest.raises(ValueError, match="no layer"):
        solve_layers(H, Y, [])
    with pytest.raises(ValueError, match="K = 0.5"):
        solve_layers(H, Y, [Layer(K=0.5)])
    with pytest.raises(ValueError, match="split signed features"):
        solve_layers(H, Y, [Layer(activation=lambda z: z - 100), Layer()])


def test_accuracy_counts_the_largest_logits():
    H, Y, labels = problem()
    logits = stack_logits(solve_layers(H, Y, [Layer()]).params, H)
    assert accuracy(logits, jnp.asarray(labels)) == pytest.approx(reference.accuracy(np.asarray(logits), labels), rel=1e-15)


def test_the_gradient_by_hand_is_the_loop_and_the_automatic_one():
    H, Y, labels = problem()
    params = cold_layers(jax.random.key(0), D, N, 1, jnp.float64)
    loss, (G,) = layer_gradient(params, (H, Y))
    expected = reference.gradient_of_loss(np.asarray(H), np.asarray(params[0]), labels)
    np.testing.assert_allclose(G, expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(
        loss, reference.negative_log_likelihood(np.asarray(H), np.asarray(params[0]), labels), rtol=1e-12
    )
    automatic, (its,) = autodiff_gradient(stack_logits)(params, (H, Y))
    np.testing.assert_allclose(its, G, rtol=0, atol=1e-11)
    np.testing.assert_allclose(automatic, loss, rtol=1e-14)


@pytest.mark.parametrize("kind", ["stack", "hidden"])
def test_the_automatic_gradient_is_the_difference_quotient(kind):
    H, Y, _ = problem()
    keys = jax.random.split(jax.random.key(1))
    if kind == "stack":
        params, logits = cold_layers(keys[0], D, N, 2, jnp.float64), stack_logits
    else:
        params, logits = hidden_network(keys[0], D, 5, N, jnp.float64), hidden_logits
    gradient = jax.jit(autodiff_gradient(logits))
    direction = jax.tree.map(lambda leaf: jax.random.normal(keys[1], leaf.shape, leaf.dtype), params)
    step = 1e-6

    def moved(sign):
        return gradient(jax.tree.map(lambda p, d: p + sign * step * d, params, direction), (H, Y))[0]

    slope = sum(jnp.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradient(params, (H, Y))[1], direction)), strict=True))
    # central differences err by step² times the third derivative, and by rounding, eps * loss / step = 1e-8
    np.testing.assert_allclose((moved(1) - moved(-1)) / (2 * step), slope, rtol=1e-5)


_traced_once: Any = chex.assert_max_traces(lambda params, batch: layer_gradient(params, batch), n=1)


def test_an_adagrad_step_by_hand_and_compiled_once():
    H, Y, labels = problem()
    U = cold_layers(jax.random.key(0), D, N, 1, jnp.float64)
    optimizer = optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-30)
    step, state = training_step(optimizer, _traced_once), initial_state(U, optimizer)
    ours, squares = np.asarray(U[0]), np.zeros((D, N))
    for _ in range(3):
        G = reference.gradient_of_loss(np.asarray(H), ours, labels) / M
        ours, squares = reference.adagrad_step(ours, G, squares, 0.1, 1e-30)
        state, _ = step(state, (H, Y))
    np.testing.assert_allclose(state.params[0], ours, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(U[0], cold_layers(jax.random.key(0), D, N, 1, jnp.float64)[0])  # not donated away


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_cold_layers_start_within_their_bounds(layers):
    params = cold_layers(jax.random.key(0), 100, 10, layers)
    assert [U.shape for U in params] == [(100, 10), *[(10, 10)] * (layers - 1)]
    for U, D in zip(params, (100, 10, 10), strict=False):
        assert 0.9 * D**-0.5 < float(jnp.abs(U).max()) <= D**-0.5
    assert stack_gradient(layers)(params, (jnp.ones((2, 100), jnp.float32), jnp.eye(10, dtype=jnp.float32)[:2]))[0] > 0
