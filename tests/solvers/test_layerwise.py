"""The solution layer by layer, against naive Bayes and a loop, and such a stack as a network that is trained.

Tolerances: sums of some hundred logarithms of order 10 in float64, 1e-10; float32 leaves 1e-4.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from sklearn.naive_bayes import MultinomialNB

from jexplicit.nn.networks import SoftmaxStack, init_variables, network_outputs
from jexplicit.solvers.explicit import SoftmaxLayer, solve_layers, stack_logits
from jexplicit.solvers.sweeps import iterative_scaling_sweeps

M, D, N = 300, 6, 3
SLOW, REST = pytest.mark.slow, [(1, np.float64, 1e-10), (3, np.float32, 1e-4)]


def problem(K=None, dtype=np.float64):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.minimum(np.arange(M) % 4, N - 1))  # classes of different sizes: else K says nothing
    H = rng.gamma(1.0, 1.0, (M, D)) * (1 + rng.random((N, D)))[labels] + 0.05
    if K is not None:
        H *= K / H.sum(axis=1, keepdims=True)
    return jax.device_put(np.asarray(H, dtype)), jax.device_put(np.asarray(reference.one_hot(labels, N), dtype)), labels


def log_predictions(logits):
    return np.array([reference.log_softmax(row) for row in np.asarray(logits)])


@pytest.mark.parametrize("K", [4.0, pytest.param(1.0, marks=SLOW)])
def test_one_layer_on_rows_of_norm_k_is_scikit_learns_multinomial_naive_bayes(K):
    H, Y, labels = problem(K)
    solved = solve_layers(H, Y, [SoftmaxLayer()])
    assert [float(k) for k in solved.K] == pytest.approx([K])
    oracle = MultinomialNB(alpha=0, force_alpha=True).fit(np.asarray(H), labels)
    ours = log_predictions(stack_logits(solved.params, H))
    np.testing.assert_allclose(ours, oracle.predict_log_proba(np.asarray(H)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "layers, dtype, tolerance",
    [(3, np.float64, 1e-10), (1, np.float32, 1e-4), *(pytest.param(*case, marks=SLOW) for case in REST)],
)
def test_every_layer_is_the_papers_solution_of_its_own_inputs(layers, dtype, tolerance):
    H, Y, _ = problem(dtype=dtype)
    solved = solve_layers(H, Y, [SoftmaxLayer()] * layers)
    inputs, targets = np.asarray(H, np.float64), np.asarray(Y, np.float64)
    decoders = []
    for U in solved.params:
        K = max(1.0, np.abs(inputs).sum(axis=1).mean())
        decoders.append(reference.explicit_solution(reference.generalized_cooccurrences(inputs, targets), K))
        np.testing.assert_allclose(U, decoders[-1], rtol=0, atol=tolerance)
        inputs = np.exp(log_predictions(inputs @ decoders[-1]))
    expected = reference.softmax_stack(np.asarray(H, np.float64), decoders)
    np.testing.assert_allclose(stack_logits(solved.params, H), expected, rtol=0, atol=100 * tolerance)


def test_layers_may_have_their_own_activation_and_solver():
    H, Y, _ = problem()

    def scaled(H, Y, K):
        return iterative_scaling_sweeps(H, Y, jnp.zeros((H.shape[1], Y.shape[1])), sweeps=3).U

    solved = solve_layers(H, Y, [SoftmaxLayer(activation=lambda z: 1 + jax.nn.sigmoid(z)), SoftmaxLayer(solve=scaled)])
    hidden = 1 + jax.nn.sigmoid(H @ solved.params[0])
    np.testing.assert_array_equal(solved.params[1], scaled(hidden, Y, 1.0))
    assert solved.K[1] == pytest.approx(float(hidden.sum(axis=1).mean()))


def variables(decoders):
    return {"params": {f"layer_{n}": {"kernel": U} for n, U in enumerate(decoders, 1)}, "batch_stats": {}}


@pytest.mark.parametrize("layers", [3, pytest.param(1, marks=SLOW)])
def test_solved_decoders_are_the_weights_of_a_network(layers):
    H, Y, _ = problem()
    solved = solve_layers(H, Y, [SoftmaxLayer()] * layers).params
    model = SoftmaxStack(N, layers, dtype=jnp.float64)
    assert jax.tree.map(jnp.shape, init_variables(model, jax.random.key(0), H)) == jax.tree.map(jnp.shape, variables(solved))
    np.testing.assert_allclose(network_outputs(model, variables(solved), H), stack_logits(solved, H), rtol=0, atol=1e-11)
