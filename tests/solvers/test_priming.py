"""The priming scan against a loop, and the solution as a separate intercept.

Tolerances: float64 sums of some tens of logarithms of order 10, 1e-11; accuracies are counts and must be equal.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from jexplicit.nn.networks import SoftmaxStack, initial_state, network_step
from jexplicit.nn.training import objective
from jexplicit.solvers.explicit import explicit_solution, priming_number
from jexplicit.solvers.priming import fit_intercept, intercept_logits, log_intercept, priming_scan

GOAL = objective("softmax_cross_entropy")
M, D, N = 700, 6, 3  # more images than one block of the scan


def problem(seed=0, M=M):
    """Positive features of differing norms, and labels that they say something of."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(N, M, p=[0.5, 0.3, 0.2])
    centres = np.random.default_rng(99).gamma(1.0, 2.0, (N, D))
    H = centres[labels] * rng.gamma(1.0, 1.0, (M, D)) + 0.1
    Y = reference.one_hot(labels, N)
    return H, Y, labels, H.T @ Y


@pytest.mark.parametrize(
    "images, dtype",
    [(M, np.float64), (3, np.float32), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((M, np.float32), (3, np.float64)))],
)
def test_the_scan_is_the_loop_over_k(images, dtype):
    H, _, labels, F = problem(M=images)
    F, K = F + 0.1 * (images == 3), np.array([1.0, 1.5, 2, 5, 17, 100])  # three images do not show all classes
    scan = priming_scan(
        jax.device_put(np.asarray(H, dtype)), jax.device_put(np.asarray(F, dtype)), jax.device_put(labels), jax.device_put(K)
    )
    loop = [reference.accuracy(H @ reference.explicit_solution(F, k), labels) for k in K]
    assert len(set(loop)) > 2 or images == 3  # K matters here
    assert scan.accuracy.dtype == dtype
    if dtype == np.float64:
        np.testing.assert_array_equal(scan.accuracy, loop)
    np.testing.assert_array_equal(scan.K, K)


def test_the_explicit_solution_is_a_frozen_log_f_with_an_intercept():
    H, _, _, F = problem(M=300)
    for K in (1, 3, 105.1):
        separate = jax.jit(lambda H, F, K=K: intercept_logits(H, F, log_intercept(F, K)))(jax.device_put(H), jax.device_put(F))
        U = np.asarray(explicit_solution(jax.device_put(F), K))
        np.testing.assert_allclose(separate, H @ U, rtol=0, atol=1e-11 * 100)  # logits of order 100


def test_the_gradient_of_the_intercept_is_the_column_sum_of_the_general_gradient():
    H, Y, _, F = map(jax.device_put, problem(M=300))

    def loss(log_w):
        return -jnp.sum(Y * jax.nn.log_softmax(intercept_logits(H, F, log_w)))

    log_w = np.asarray(log_intercept(F, 7.0))
    logits = np.asarray(H) @ (np.log(F) + log_w[None, :])
    general = np.asarray(H).T @ (np.exp([reference.log_softmax(row) for row in logits]) - np.asarray(Y))
    found = jax.jit(jax.grad(loss))(jax.device_put(log_w))
    np.testing.assert_allclose(found, general.sum(axis=0), rtol=0, atol=1e-11 * np.abs(H).sum())


def test_training_from_the_warm_start_is_training_what_is_added_to_a_frozen_log_f():
    """Sec. 5: W in log F + W, started at 1 ⊗ log w, and U, started at the explicit solution, take the same steps."""
    H, Y, _, F = map(jax.device_put, problem(M=300))
    K, optimizer = float(priming_number(H)), optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-30)

    class Added(SoftmaxStack):
        def __call__(self, x, *, train=False):
            return x @ jnp.log(F) + super().__call__(x, train=train)

    def begin(U):
        return initial_state({"params": {"layer_1": {"kernel": U}}, "batch_stats": {}}, optimizer)

    step, step_of_added = (jax.jit(network_step(model, GOAL, optimizer)) for model in (SoftmaxStack(N), Added(N)))
    general, separate = begin(explicit_solution(F, K)), begin(jnp.zeros_like(F) + log_intercept(F, K)[None, :])
    for _ in range(20):
        general, loss = step(general, (H, Y))
        separate, its_loss = step_of_added(separate, (H, Y))
        np.testing.assert_allclose(loss, its_loss, rtol=1e-10)  # the two sums round differently, and 20 steps add that up
    U, W = (np.asarray(state.params["layer_1"]["kernel"]) for state in (general, separate))
    np.testing.assert_allclose(U, np.log(F) + W, rtol=0, atol=1e-9)
    assert np.abs(U - np.asarray(explicit_solution(F, K))).max() > 0.1  # it did move


def test_the_fitted_intercept_is_a_minimum():
    H, Y, _, F = map(jax.device_put, problem(M=300))
    fitted = fit_intercept(H, Y, F, K=float(priming_number(H)), sweeps=6000)
    log_w = (np.asarray(fitted.U) - np.log(F))[0]
    np.testing.assert_allclose(fitted.U, np.log(F) + log_w[None, :], rtol=0, atol=1e-11)  # only the intercept moved

    def loss(log_w):
        return -jnp.sum(Y * jax.nn.log_softmax(intercept_logits(H, F, log_w))) / 300

    slope = jax.jit(jax.grad(loss))
    assert np.abs(slope(jax.device_put(log_w))).max() < 1e-6  # the starting point's is 0.1 to 1
    assert np.abs(slope(log_intercept(F, float(priming_number(H))))).max() > 1e-2
    assert np.all(np.diff(fitted.losses) <= 1e-13)
