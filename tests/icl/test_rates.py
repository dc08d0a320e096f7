"""Layers without training: closed forms, Chebyshev's rates, the law of eigenvalues, the best layers by depth; Newton.

Oracles are reference numbers, other formulas, least squares and simulation.
"""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from drawn import arrays, task, within_error
from reference import gd_plus_plus as gd_plus_plus_loop

from icl import Sequence, Tasks, closed_form, rates
from icl.closed_form import one_step_loss, optimal_rate
from icl.rates import Spectrum, context_eigenvalues, spectral_law
from icl.tasks import sample_tasks
from launch.icl.rates import loss_of as mean_loss
from launch.icl.rates import steps_per_layer

# compiled whole, which takes less time than compiling every operation
exact_moments, sampled_moments = jax.jit(closed_form.exact_moments), jax.jit(closed_form.sampled_moments)
optimal_solution, solution_loss = jax.jit(closed_form.optimal_solution), jax.jit(closed_form.solution_loss)
PAPER = Tasks(dim=10, context=10)


def test_the_paper_s_setting():
    assert optimal_rate(PAPER) / 10 == pytest.approx(0.606061, abs=5e-7)
    assert one_step_loss(PAPER, optimal_rate(PAPER)) == pytest.approx(0.206229, abs=5e-7)


def descent_losses(batch: Sequence, eta: float) -> np.ndarray:
    """Half the squared error of one step from zero on every task."""
    X, Y, x_q = arrays(batch)
    answers = eta / len(X) * np.einsum("nmb,ndb,db->mb", Y, X, x_q, optimize=True)
    return np.sum((answers - np.asarray(batch.y_q)) ** 2, axis=0) / 2


def test_one_step_loss_is_what_simulation_gives_and_lowest_at_the_optimal_rate():
    laplace: Any = {"dim": 4, "context": 3, "inputs": "laplace", "weight_scale": 2.0, "noise": 0.3}
    one_pair: Any = {"dim": 1, "context": 1, "outputs": 2, "noise": 0.2}
    for law in (laplace, one_pair):
        tasks, batch = Tasks(**law), task(1, **{"outputs": 1, "input_range": 1.0, **law}, batch=(100_000,))
        eta = optimal_rate(tasks)
        for factor in (1.0, 0.6):
            assert within_error(descent_losses(batch, factor * eta), one_step_loss(tasks, factor * eta))
        least, *around = (one_step_loss(tasks, factor * eta) for factor in (1, 0.9, 1.1))  # of a parabola
        assert around[0] == pytest.approx(around[1], rel=1e-12) and least < around[0]


def test_gaussian_inputs_of_any_covariance_have_the_optimum_of_zhang_et_al():
    A, N = np.random.default_rng(0).normal(size=(3, 3)), 5
    L = A @ A.T
    expected = np.linalg.inv((1 + 1 / N) * L + np.trace(L) / N * np.eye(3))
    ours = optimal_solution(exact_moments(Tasks(dim=3, context=N, inputs="normal"), factor=jax.device_put(A)))
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_moments_are_those_of_samples_with_any_covariances_and_noise():
    """And the loss at G by simulation, and no other G beside the optimum has a lower one."""
    rng = np.random.default_rng(1)
    A, B, G = rng.normal(size=(3, 3, 3))
    slope = jax.jit(jax.grad(closed_form.solution_loss))
    for inputs in ("uniform", "normal", "laplace"):
        tasks = Tasks(dim=3, context=5, inputs=inputs, input_range=12**0.5, noise=0.4)
        exact = exact_moments(tasks, factor=jax.device_put(A), C=jax.device_put(B @ B.T))
        X, _, x_q = arrays(task(2, 3, 5, 1, (50_000,), inputs=inputs, input_range=12**0.5))
        X, x_q, w = np.einsum("nib,ji->bnj", X, A), (A @ x_q).T, rng.normal(size=(50_000, 3)) @ B.T
        y = np.einsum("bni,bi->bn", X, w) + 0.4 * rng.normal(size=X.shape[:2])
        answers = np.einsum("bi,ij,bnj,bn->b", x_q, G, X, y, optimize=True) / 5
        sampled = sampled_moments(jax.device_put(X), C=jax.device_put(B @ B.T), v=0.16)
        np.testing.assert_allclose(sampled.L, exact.L, rtol=0.02, atol=0.02)
        np.testing.assert_allclose(sampled.SCS, exact.SCS, rtol=0.03, atol=0.03 * np.abs(np.asarray(exact.SCS)).max())
        losses = (answers - np.sum(w * x_q, axis=1)) ** 2 / 2
        assert within_error(losses, solution_loss(jax.device_put(G), exact))
        np.testing.assert_allclose(slope(optimal_solution(exact), exact), np.zeros((3, 3)), atol=1e-9)


ILL = Tasks(dim=3, context=5, scales=(2.0, 1.0, 0.25), noise=0.2, weight_scale=1.5)


@pytest.fixture(scope="module")
def law() -> Spectrum:
    return spectral_law(jax.random.key(0), PAPER, 20_000)


@pytest.fixture(scope="module")
def fresh() -> np.ndarray:
    """Eigenvalues of other contexts."""
    return context_eigenvalues(jax.random.key(1), PAPER, 50_000)


@pytest.fixture(scope="module")
def by_depth(law) -> dict[bool, list[rates.Polynomial]]:
    """1 to 5 layers of GD++, recurrent and separate."""
    return {tied: rates.optimal_polynomials(law, PAPER, layers=5, tied=tied) for tied in (True, False)}


errors_of = jax.jit(rates.spectral_errors)


def loss_of(law: Spectrum, eta: np.ndarray, gamma: np.ndarray, tasks: Tasks) -> float:
    return float(np.sum(np.asarray(errors_of(law, eta, gamma, tasks)) ** 2))


def simulated(batch: Sequence, eta: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Half the squared error of GD++ on each of many tasks: inputs and targets move at once, the query with them."""
    X, Y, x_q = arrays(batch)
    X, Y, x, y_q = (np.moveaxis(leaf, -1, 0) for leaf in (X, Y, x_q, np.asarray(batch.y_q)))
    y = np.zeros_like(y_q)
    for e, g in zip(eta, gamma, strict=True):
        G, change = X.swapaxes(1, 2) @ X, e / X.shape[1] * Y.swapaxes(1, 2) @ X
        y, x = y - np.einsum("bmd,bd->bm", change, x), x - g * np.einsum("bij,bj->bi", G, x)
        X, Y = X - g * X @ G, Y - X @ change.swapaxes(1, 2)
    return np.sum((-y - y_q) ** 2, axis=1) / 2


residual_of = jax.jit(rates.residual, static_argnums=3)


def test_the_residual_polynomial_is_that_of_gd_plus_plus():
    one, eta, gamma = task(8), [5.0, 9.0, 7.0], [0.03, 0.02, 0.05]
    X, Y, x_q = arrays(one)
    values, U = np.linalg.eigh(X.T @ X)
    W = np.linalg.lstsq(X, Y, rcond=None)[0].T
    r = residual_of(values, np.array(eta), np.array(gamma), 6)
    expected = W @ (np.eye(4) - U @ np.diag(r) @ U.T) @ x_q
    np.testing.assert_allclose(gd_plus_plus_loop(X, Y, x_q, eta, gamma), expected, rtol=1e-10)


def test_chebyshev_rates_triple_an_angle_in_every_layer():
    bound, theta = 7.0, np.linspace(1e-3, np.pi / 2, 999)
    for K in (1, 2, 5):
        r = residual_of(bound * np.sin(theta) ** 2, *rates.chebyshev_rates(bound, 10, K), 10)
        # a rounding error of θ grows three-fold a layer
        np.testing.assert_allclose(r, np.sin(3**K * theta) / (3**K * np.sin(theta)), atol=1e-15 * 9**K)


def test_the_loss_over_a_law_is_the_simulated_loss():
    """Over weights, query and noise; several outputs, and inputs of different scales."""
    eta, gamma = np.array([2.0, 3.0]), np.array([0.1, 0.3])
    one_scale = Tasks(dim=4, context=6, outputs=2, weight_scale=1.5, noise=0.3)
    batches = (
        task(6, 4, 6, 2, (50_000,), input_range=1.0, weight_scale=1.5, noise=0.3),
        sample_tasks(jax.random.key(6), ILL, 50_000),
    )
    for tasks, batch in zip((one_scale, ILL), batches, strict=True):
        expected = loss_of(spectral_law(jax.random.key(7), tasks, 50_000), eta, gamma, tasks)
        # the error of the law's 50,000 contexts is smaller: weights are integrated out
        assert within_error(simulated(batch, eta, gamma), expected, errors=5)


def test_a_law_sums_up_its_contexts():
    """Means of functions over all eigenvalues, the query's share of them, and zeros where there are fewer pairs than inputs."""
    values = context_eigenvalues(jax.random.key(3), PAPER, 20_000)
    law = spectral_law(jax.random.key(3), PAPER, 20_000)
    for f in (lambda v: v, lambda v: v**2, lambda v: 1 / (0.01 + v), lambda v: (1 - 0.6 * v) ** 2):
        expected = PAPER.variance * f(values).sum(axis=1).mean()
        assert law.weights @ f(law.values) == pytest.approx(expected, rel=2e-3)  # cells are 0.5 % wide
    assert law.bound > values.max() and law.values.max() <= law.bound

    ill = spectral_law(jax.random.key(4), ILL, 50_000)
    L = np.array([float(std) ** 2 for std in ILL.input_stds])
    assert ill.weights.sum() == pytest.approx(L.sum(), rel=1e-9)
    assert ill.weights @ ill.values == pytest.approx(5 * (L**2).sum(), rel=0.01)  # E tr(L XᵀX) = N tr L², of 50,000 contexts

    few = spectral_law(jax.random.key(5), Tasks(dim=5, context=2), 1000)
    assert few.weights[few.values == 0].sum() == pytest.approx(0.6 * 5 / 12, rel=1e-9)


def test_both_ends_of_a_law_are_where_the_exact_one_has_them():
    """One Gaussian input, three pairs: λ/s is chi-squared. 20,000 contexts, ends far beyond what they show."""
    tasks = Tasks(dim=1, context=3, inputs="normal")
    law, exact = spectral_law(jax.random.key(0), tasks, 20_000), scipy.stats.chi2(3, scale=1 / 12)
    for below in exact.ppf([1e-7, 1e-5]):
        share = law.weights[law.values < below].sum() / law.weights.sum()
        assert share == pytest.approx(exact.cdf(below), rel=0.35)  # of the 50 lowest: 14 %
    assert law.bound == pytest.approx(exact.isf(1e-9), rel=0.3)  # extrapolated from the 50 highest: 14 % standard error


def test_losses_of_contexts_are_those_of_their_law(law, fresh):
    eta, gamma = np.array([6.0, 20.0]), np.array([0.2, 0.0])
    by_context = np.asarray(jax.jit(rates.losses_by_context)(fresh, eta, gamma, PAPER))
    assert by_context.mean() == pytest.approx(loss_of(law, eta, gamma, PAPER), rel=0.01)  # of 20,000 and 50,000 contexts
    found = rates.evaluate_polynomial(fresh, rates.Polynomial(eta, gamma, 0.0), PAPER)
    assert found.loss == pytest.approx(by_context.mean(), rel=1e-12)
    assert list(found.quantiles) == sorted(found.quantiles) and found.quantiles[0] < found.quantiles[-1]


@pytest.mark.parametrize(
    ("layers", "tied", "plus_plus", "loss"),
    [
        *((1, True, True, 0.20623), (2, True, False, 0.15659), (5, True, False, 0.1086), (2, False, False, 0.14125)),
        *((2, True, True, 0.1105), (3, True, True, 0.0778), (5, True, True, 0.0517), (2, False, True, 0.0920)),
    ],
)
def test_layers_reach_the_reference_losses(law, by_depth, fresh, layers, tied, plus_plus, loss):
    if plus_plus:
        found = by_depth[tied][layers - 1]
    else:
        found = rates.optimal_polynomials(law, PAPER, layers=layers, tied=tied, plus_plus=False)[-1]
    assert found.loss == pytest.approx(loss, rel=0.01)  # of 20,000 contexts
    measured = rates.evaluate_polynomial(fresh, found, PAPER)
    assert abs(measured.loss - loss) <= 4 * measured.standard_error + 1e-4  # the references' last digit, and the tail's share


def test_one_layer_s_polynomial_is_the_closed_form(by_depth):
    found = by_depth[True][0]
    assert found.eta[0] == pytest.approx(optimal_rate(PAPER), rel=0.005)  # of 20,000 contexts
    assert found.gamma.tolist() == [0.0]


def test_no_rates_nearby_are_better(by_depth, law):
    """A change of any single rate by 1 % raises the loss, for layers that were fitted."""
    for tied, K in ((True, 5), (False, 3), (False, 4)):
        found = by_depth[tied][K - 1]
        best = loss_of(law, found.eta, found.gamma, PAPER)
        assert best == pytest.approx(found.loss, rel=1e-9)
        for changed, factor in itertools.product(np.ones((1, K)) if tied else np.eye(K), (0.99, 1.01)):
            scale = np.where(changed, factor, 1.0)
            for eta, gamma in ((found.eta * scale, found.gamma), (found.eta, found.gamma * scale)):
                # equal where it is the last γ, which has no effect; the solver's tolerance
                assert loss_of(law, eta, gamma, PAPER) >= best * (1 - 1e-6)


@pytest.mark.parametrize(
    ("context", "gamma", "papers"),
    [
        (10, 0.175, 0.179),
        pytest.param(25, 0.0994, 0.099, marks=pytest.mark.slow),
        pytest.param(50, 0.0560, 0.056, marks=pytest.mark.slow),
        (100, 0.0297, 0.029),
    ],
)
def test_gamma_of_the_best_two_recurrent_layers(context, gamma, papers):
    tasks = Tasks(dim=10, context=context)
    number = 8_000 if context == 10 else 2_000
    found = rates.optimal_polynomials(spectral_law(jax.random.key(0), tasks, number), tasks, layers=2, tied=True)[-1]
    assert found.gamma[0] == pytest.approx(gamma, rel=0.02)  # of a few thousand contexts
    assert found.gamma[0] == pytest.approx(papers, rel=0.04)  # trained transformers


@pytest.mark.parametrize("degree", [0, 1, 2, 4, 9])
def test_the_least_loss_of_a_degree_is_that_of_least_squares(degree):
    """r = 1 + x q(x) with free coefficients of q; and a random law, where rounding has no order to follow."""
    rng = np.random.default_rng(degree)
    law = Spectrum(np.sort(rng.uniform(0, 3, 60)), rng.uniform(0.1, 1, 60), 3.0)
    tasks = Tasks(dim=3, outputs=2, weight_scale=1.5)
    A = (law.values[:, None] / 3) ** np.arange(1, degree + 1) * np.sqrt(law.weights)[:, None]
    b = -np.sqrt(law.weights)
    c = np.linalg.lstsq(A, b, rcond=None)[0]
    wanted = 1.5**2 * 2 / 2 * ((A @ c - b) ** 2).sum()
    assert rates.least_loss(law, tasks, degree) == pytest.approx(wanted, rel=1e-7)  # the condition of the powers


def test_no_solved_layers_are_below_the_least_loss_of_their_degree(law, by_depth):
    for K, solved in enumerate(by_depth[False], 1):
        least = rates.least_loss(law, PAPER, (3**K - 1) // 2)
        assert least <= solved.loss * (1 + 1e-9) and solved.loss < 1.05 * least
    assert by_depth[False][0].loss == pytest.approx(rates.least_loss(law, PAPER, 1), rel=1e-9)  # of degree 1 it is all there is


def test_as_many_degrees_as_eigenvalues_fit_all_but_those_at_0():
    law = Spectrum(np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.0, 1.0]), 2.0)
    assert rates.least_loss(law, Tasks(), 2) == pytest.approx(0.25) and rates.least_loss(law, Tasks(), 9) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="without noise"):
        rates.least_loss(law, Tasks(noise=0.1), 2)
    with pytest.raises(ValueError, match="degree -1"):
        rates.least_loss(law, Tasks(), -1)


# Newton's iteration


def test_the_residual_is_that_of_the_iteration():
    X = np.random.default_rng(0).normal(size=(7, 4))
    A = X.T @ X
    values, U = np.linalg.eigh(A)
    residual, M = jax.jit(rates.newton_residual), np.eye(4) / values[-1]
    for k in range(8):
        np.testing.assert_allclose(U @ np.diag(np.asarray(residual(values, float(k)))) @ U.T, np.eye(4) - M @ A, atol=1e-12)
        M = 2 * M - M @ A @ M


def test_equivalent_steps_interpolate_logarithms():
    losses = np.array([1.0, 0.1, 0.001])
    assert rates.equivalent_steps(losses, 0.01) == pytest.approx(1.5) and rates.equivalent_steps(losses, 1e-4) is None


def test_the_loss_is_a_mean_over_contexts_and_the_slope_that_of_least_squares():
    weights, r = np.random.default_rng(0).normal(size=(2, 5, 3))
    expected = sum(w * x**2 for context in zip(weights, r, strict=True) for w, x in zip(*context, strict=True)) / 10
    assert float(jax.jit(mean_loss)(weights, r)) == pytest.approx(expected, rel=1e-12)
    K, steps = np.arange(2, 6), np.array([5.0, 9.0, 11.0, 15.0])
    slope = ((K - K.mean()) * (steps - steps.mean())).sum() / ((K - K.mean()) ** 2).sum()
    pairs = zip([1, *K.tolist(), 6], [99.0, *steps.tolist(), None], strict=True)
    rows = [{"layers": layers, "newton_steps_identity": k} for layers, k in pairs]
    assert steps_per_layer(rows) == pytest.approx(slope, rel=1e-12) and np.isnan(steps_per_layer(rows[:2]))
