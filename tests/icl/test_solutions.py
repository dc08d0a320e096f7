"""Layers without training: best layers and rates, laws of eigenvalues, finitely many tasks; against simulation and formulas."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats
from drawn import LAWS, arrays, ones_of, random_layers, task, within_error
from reference import gd_plus_plus as gd_plus_plus_loop

from icl import FiniteTasks, Sequence, Tasks, closed_form, descent_layers, discrete_mmse, diversity_curve, rates
from icl.attention import gd_plus_plus, head_layer, head_tensor, predict, predict_batch
from icl.closed_form import crossing, diversity_threshold, gaussian_tasks, limiting_excess, one_step_loss, optimal_rate
from icl.rates import Spectrum, context_eigenvalues, spectral_law
from icl.tasks import sample_tasks, vmap_tasks
from launch.icl.solved import steps_per_layer

# compiled whole, which takes less time than compiling every operation
exact_moments, sampled_moments = jax.jit(closed_form.exact_moments), jax.jit(closed_form.sampled_moments)
optimal_solution, solution_loss = jax.jit(closed_form.optimal_solution), jax.jit(closed_form.solution_loss)
token_moments, heads_loss = closed_form.token_moments, closed_form.heads_loss
slope_of, solution_slope = jax.jit(jax.grad(heads_loss)), jax.jit(jax.grad(closed_form.solution_loss))
errors_of, residual_of = rates.spectral_errors, rates.residual
PAPER = Tasks(dim=10, context=10)
ILL = Tasks(dim=3, context=5, outputs=2, scales=(2.0, 1.0, 0.25), noise=0.2, weight_scale=1.5)
GAUSS: Any = {"inputs": "normal", "input_range": 12**0.5}  # of variance 1
RNG = np.random.default_rng(0)


def test_one_step_loss_is_what_simulation_gives_and_lowest_at_the_optimal_rate():
    assert optimal_rate(PAPER) / 10 == pytest.approx(0.606061, abs=5e-7)  # the paper's
    assert one_step_loss(PAPER, optimal_rate(PAPER)) == pytest.approx(0.206229, abs=5e-7)
    laplace: Any = {"dim": 4, "context": 3, "inputs": "laplace", "weight_scale": 2.0, "noise": 0.3}
    one_pair: Any = {"dim": 1, "context": 1, "outputs": 2, "noise": 0.2}
    for law in (laplace, one_pair):
        tasks, batch = Tasks(**law), task(1, **{"outputs": 1, "input_range": 1.0, **law}, batch=(100_000,))
        X, Y, x_q = arrays(batch)
        step = np.einsum("nmb,ndb,db->mb", Y, X, x_q, optimize=True) / len(X)  # of rate 1, from zero
        eta = optimal_rate(tasks)
        for by in (1.0, 0.6):
            losses = np.sum((by * eta * step - np.asarray(batch.y_q)) ** 2, axis=0) / 2
            assert within_error(losses, one_step_loss(tasks, by * eta))
        assert one_step_loss(tasks, 0.9 * eta) == pytest.approx(one_step_loss(tasks, 1.1 * eta), rel=1e-12)  # of a parabola


@pytest.mark.parametrize("inputs", sorted(LAWS))
def test_moments_are_those_of_samples_with_any_covariances_and_noise_and_the_optimum_has_no_slope(inputs):
    A, B = np.random.default_rng(1).normal(size=(2, 3, 3))
    C, tasks = jax.device_put(B @ B.T), Tasks(dim=3, context=5, inputs=inputs, input_range=12**0.5, noise=0.4)
    exact = exact_moments(tasks, factor=jax.device_put(A), C=C)
    X, *_ = arrays(task(2, 3, 5, 1, (50_000,), inputs=inputs, input_range=12**0.5))
    sampled = sampled_moments(jax.device_put(np.einsum("nib,ji->bnj", X, A)), C=C, v=0.16)
    np.testing.assert_allclose(sampled.L, exact.L, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(sampled.SCS, exact.SCS, rtol=0.03, atol=0.03 * np.abs(np.asarray(exact.SCS)).max())
    np.testing.assert_allclose(solution_slope(optimal_solution(exact), exact), np.zeros((3, 3)), atol=1e-9)
    if inputs == "normal":  # the optimum of Zhang et al.
        L = A @ A.T
        expected = np.linalg.inv((1 + 1 / 5) * L + np.trace(L) / 5 * np.eye(3))
        ours = optimal_solution(exact_moments(Tasks(dim=3, context=5, inputs="normal"), factor=jax.device_put(A)))
        np.testing.assert_allclose(ours, expected, rtol=1e-9)


# The law of eigenvalues, and rates


@pytest.fixture(scope="module")
def law() -> Spectrum:
    return spectral_law(jax.random.key(0), PAPER, 20_000)


@pytest.fixture(scope="module")
def by_depth(law) -> dict[bool, list[rates.Polynomial]]:
    """1 to 5 layers of GD++, recurrent and separate."""
    return {tied: rates.optimal_polynomials(law, PAPER, layers=5, tied=tied) for tied in (True, False)}


def test_the_residual_polynomial_is_that_of_gd_plus_plus_and_chebyshev_s_triples_an_angle_in_every_layer():
    one, eta, gamma = task(8), [5.0, 9.0, 7.0], [0.03, 0.02, 0.05]
    X, Y, x_q = arrays(one)
    values, U = np.linalg.eigh(X.T @ X)
    W = np.linalg.lstsq(X, Y, rcond=None)[0].T
    r = residual_of(values, np.array(eta), np.array(gamma), 6)
    expected = W @ (np.eye(4) - U @ np.diag(r) @ U.T) @ x_q
    np.testing.assert_allclose(gd_plus_plus_loop(X, Y, x_q, eta, gamma), expected, rtol=1e-10)
    theta = np.linspace(1e-3, np.pi / 2, 999)
    for K in (1, 2, 5):
        r = residual_of(7 * np.sin(theta) ** 2, *rates.chebyshev_rates(7.0, 10, K), 10)
        # a rounding error of θ grows three-fold a layer
        np.testing.assert_allclose(r, np.sin(3**K * theta) / (3**K * np.sin(theta)), atol=1e-15 * 9**K)


def test_the_loss_over_a_law_is_the_simulated_loss():
    """Over weights, query and noise; several outputs, and inputs of different scales."""
    eta, gamma, batch = np.array([2.0, 3.0]), np.array([0.1, 0.3]), sample_tasks(jax.random.key(6), ILL, 50_000)
    descended = jax.jit(vmap_tasks(lambda one: gd_plus_plus(one, eta, gamma, steps=2)[-1]))(batch)
    losses = np.sum(np.asarray(descended - batch.y_q) ** 2, axis=0) / 2
    law = spectral_law(jax.random.key(7), ILL, 50_000)
    expected = np.sum(np.asarray(errors_of(law.values, law.weights, eta, gamma, ILL)) ** 2)
    assert within_error(losses, expected, errors=5)  # the error of the law is smaller: weights are integrated out


def test_a_law_sums_up_its_contexts(law):
    """Means of functions over all eigenvalues, the query's share of them, and zeros where there are fewer pairs than inputs."""
    values, _ = context_eigenvalues(jax.random.key(0), PAPER, 20_000)
    for f in (lambda v: v, lambda v: v**2, lambda v: 1 / (0.01 + v), lambda v: (1 - 0.6 * v) ** 2):
        expected = PAPER.variance * f(values).sum(axis=1).mean()
        assert law.weights @ f(law.values) == pytest.approx(expected, rel=2e-3)  # cells are 0.5 % wide
    assert law.bound > values.max() and law.values.max() <= law.bound
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


REFERENCES = {  # layers, tied, GD++ -> loss
    **{(1, True, True): 0.20623, (2, True, False): 0.15659, (5, True, False): 0.1086, (2, False, False): 0.14125},
    **{(2, True, True): 0.1105, (3, True, True): 0.0778, (5, True, True): 0.0517, (2, False, True): 0.0920},
}


def test_layers_reach_the_reference_losses(law, by_depth):
    contexts, _ = context_eigenvalues(jax.random.key(1), PAPER, 50_000)  # others
    for (layers, tied, plus_plus), loss in REFERENCES.items():
        found = by_depth[tied][layers - 1]
        if not plus_plus:
            found = rates.optimal_polynomials(law, PAPER, layers=layers, tied=tied, plus_plus=False)[-1]
        assert found.loss == pytest.approx(loss, rel=0.01)  # of 20,000 contexts
        measured = rates.evaluate_polynomial(contexts, found, PAPER)
        assert abs(measured.loss - loss) <= 4 * measured.standard_error + 1e-4  # the last digit, and the tail's share
        assert list(measured.quantiles) == sorted(set(measured.quantiles))
    one, two = by_depth[True][:2]
    assert two.gamma[0] == pytest.approx(0.179, rel=0.04)  # as of trained transformers
    assert one.eta[0] == pytest.approx(optimal_rate(PAPER), rel=0.005) and one.gamma.tolist() == [0.0]  # of 20,000 contexts


def test_the_least_loss_of_a_degree_is_that_of_least_squares_and_no_solved_layers_are_below_it(law, by_depth):
    """r = 1 + x q(x) with free coefficients of q; and a random law, where rounding has no order to follow."""
    for degree in (0, 1, 2, 4, 9):
        rng = np.random.default_rng(degree)
        some = Spectrum(np.sort(rng.uniform(0, 3, 60)), rng.uniform(0.1, 1, 60), 3.0)
        A = (some.values[:, None] / 3) ** np.arange(1, degree + 1) * np.sqrt(some.weights)[:, None]
        b = -np.sqrt(some.weights)
        wanted = 1.5**2 * ((A @ np.linalg.lstsq(A, b, rcond=None)[0] - b) ** 2).sum()
        least = rates.least_loss(some, Tasks(dim=3, outputs=2, weight_scale=1.5), degree)
        assert least == pytest.approx(wanted, rel=1e-7)  # the condition of the powers
    for K, solved in enumerate(by_depth[False], 1):
        least = rates.least_loss(law, PAPER, (3**K - 1) // 2)
        assert least <= solved.loss * (1 + 1e-9) and solved.loss < 1.05 * least
    assert by_depth[False][0].loss == pytest.approx(rates.least_loss(law, PAPER, 1), rel=1e-9)  # of degree 1 it is all there is
    two = Spectrum(np.array([0.0, 1.0, 2.0]), np.array([0.5, 1.0, 1.0]), 2.0)  # all but those at 0 are fitted
    assert [rates.least_loss(two, Tasks(), degree) for degree in (2, 9)] == pytest.approx([0.25, 0.25])


def test_the_residual_of_newton_is_that_of_the_iteration_and_steps_are_interpolated():
    X = np.random.default_rng(0).normal(size=(7, 4))
    A = X.T @ X
    values, U = np.linalg.eigh(A)
    residual, M = rates.newton_residual, np.eye(4) / values[-1]
    for k in range(8):
        np.testing.assert_allclose(U @ np.diag(residual(values, float(k))) @ U.T, np.eye(4) - M @ A, atol=1e-12)
        M = 2 * M - M @ A @ M
    losses = np.array([1.0, 0.1, 0.001])
    assert rates.equivalent_steps(losses, 0.01) == pytest.approx(1.5) and rates.equivalent_steps(losses, 1e-4) is None
    rows = [{"layers": n, "newton_steps_identity": k} for n, k in enumerate((99.0, 5.0, 8.0, 11.0, None), 1)]
    assert steps_per_layer(rows) == pytest.approx(3) and np.isnan(steps_per_layer(rows[:2]))


# Finitely many tasks and the Bayes optimum

sample = jax.jit(lambda tasks, key, number: tasks.sample(key, number), static_argnums=(0, 2))
LAPLACE: Any = {"inputs": "laplace", "input_range": 12**0.5}  # of variance 1, whose fourth moments matter most
TASKS = Tasks(dim=3, context=4, **LAPLACE, noise=0.5)


@functools.cache
def weights() -> np.ndarray:
    """Five tasks, [5, 3]."""
    return np.asarray(FiniteTasks(TASKS, 5).weights())


@functools.cache
def few(tasks: Tasks = TASKS, number: int = 5):
    """The moments of these tasks."""
    return token_moments(tasks, jax.device_put(weights()[:number]))


@functools.cache
def every(tasks: Tasks = TASKS):
    """The moments of all tasks."""
    return token_moments(tasks, *gaussian_tasks(tasks))


@jax.jit
def solutions(moments):
    """The tensors of the best layers with any number of heads and with one, and the one head."""
    head = closed_form.one_head_solution(moments)
    return closed_form.all_heads_solution(moments), head.tensor, head


def tensor_of(G) -> np.ndarray:
    """The tensor of `ŷ = x_qᵀ G Xᵀ y / N`."""
    H = np.zeros((len(G) + 1, len(G) + 1, len(G)))
    H[-1, :-1] = np.asarray(G).T
    return H


def token_products(batch: Any) -> np.ndarray:
    """Z of every task, [B, D, D]."""
    E = np.concatenate([np.asarray(batch.X), np.asarray(batch.Y)], axis=1)
    return np.einsum("nab,ncb->bac", E, E) / len(E)


def loss_at(H, moments) -> float:
    return float(heads_loss(jax.device_put(H), moments))


def test_sequences_are_of_the_tasks_and_more_tasks_have_the_fewer():
    W = weights()
    np.testing.assert_array_equal(FiniteTasks(TASKS, 2).weights(), W[:2])
    quiet = FiniteTasks(Tasks(dim=3, context=4, weight_scale=2.0), 5)
    X, Y, x_q, y_q = map(np.asarray, sample(quiet, jax.random.key(1), 3000))
    found = (np.linalg.pinv(np.moveaxis(X, -1, 0)) @ np.moveaxis(Y, -1, 0))[..., 0]
    distances = np.linalg.norm(found[:, None] - 2 * W, axis=2)
    assert distances.min(axis=1).max() < 1e-6  # contexts without noise; the worst-conditioned of 3000 loses some digits
    shares = np.bincount(distances.argmin(axis=1), minlength=5) / 3000
    np.testing.assert_allclose(shares, 0.2, atol=4 * np.sqrt(0.16 / 3000))  # four standard errors
    np.testing.assert_allclose(y_q[0], np.sum(found.T * x_q, axis=0), atol=1e-6)


def test_discrete_mmse_is_the_posterior_mean_also_of_exponents_of_thousands():
    """The second in float32."""
    W, batch = weights(), task(3, 3, 4, 1, (6,), noise=0.5)
    X, Y, x_q = arrays(batch)
    p = np.exp(-np.sum((Y - np.einsum("ndb,md->nmb", X, W)) ** 2, axis=0) / 0.5)  # [tasks, batch]
    found = jax.jit(closed_form.bayes_predictions)(batch, W, 0.25)
    np.testing.assert_allclose(found["dmmse"][0], np.sum(p * (W @ x_q), axis=0) / p.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["ridge"][0], [closed_form.ridge(one, 0.25)[0] for one in ones_of(batch)], rtol=1e-12)
    many = (30 * RNG.normal(size=(3000, 3))).astype(np.float32)
    X, x_q = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=3).astype(np.float32)
    one = Sequence(*map(jax.device_put, (X, (X @ many[2500])[:, None], x_q, many[2500:2501] @ x_q)))

    @jax.jit
    @jax.value_and_grad
    def mean(x_q):
        return discrete_mmse(one._replace(x_q=x_q), jax.device_put(many), jax.numpy.float32(0.01))[0]

    found, slope = mean(one.x_q)
    assert found.dtype == np.float32 and float(found) == pytest.approx(float(many[2500] @ x_q), rel=1e-5)
    np.testing.assert_allclose(slope, many[2500], rtol=1e-5)


def test_without_the_other_blocks_and_for_all_tasks_losses_and_optimum_are_those_of_the_closed_form():
    C, G = weights().T @ weights() / 5, np.random.default_rng(1).normal(size=(3, 3))
    for tasks in (TASKS, Tasks(dim=3, context=4, noise=0.5, weight_scale=1.5, scales=(1.0, 0.5, 2.0))):
        some, whole = exact_moments(tasks, C=C), exact_moments(tasks)
        assert loss_at(tensor_of(G), few(tasks)) == pytest.approx(float(solution_loss(G, some)), rel=1e-12)
        slope = np.asarray(slope_of(tensor_of(optimal_solution(some)), few(tasks)))
        np.testing.assert_allclose(slope[-1, :-1], np.zeros((3, 3)), atol=1e-12)
        best = tensor_of(optimal_solution(whole))
        many, one, _ = solutions(every(tasks))
        # solved in float64 from a system of condition 1e3 to 1e4
        np.testing.assert_allclose(many, (best + best.swapaxes(0, 1)) / 2, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(one, best, rtol=1e-9, atol=1e-10)
        assert loss_at(best, every(tasks)) == pytest.approx(float(solution_loss(optimal_solution(whole), whole)), rel=1e-12)


def test_losses_are_those_of_simulation_on_the_tasks_and_on_fresh_ones():
    own, fresh = sample(FiniteTasks(TASKS, 5), jax.random.key(1), 100_000), task(8, 3, 4, 1, (100_000,), **LAPLACE, noise=0.5)
    for H in (*solutions(few())[:2], 0.1 * np.random.default_rng(2).normal(size=(4, 4, 3))):
        for batch, moments in ((own, few()), (fresh, every())):
            y = np.einsum("abj,Bab,jB->B", np.asarray(H), token_products(batch), np.asarray(batch.x_q), optimize=True)
            assert within_error((y - np.asarray(batch.y_q)[0]) ** 2 / 2, loss_at(H, moments))


@jax.jit
@jax.value_and_grad
def loss_of_head(head, moments):
    return heads_loss(head[0][:, None, None] * head[1][None], moments)


def test_no_layer_near_the_best_is_better():
    H, tensor, head = solutions(few())
    descent = optimal_solution(exact_moments(TASKS, C=weights().T @ weights() / 5))
    best = [loss_at(T, few()) for T in (H, tensor, tensor_of(descent))]
    assert best[0] < best[1] < best[2]  # each family has the next
    np.testing.assert_allclose(slope_of(H, few()), np.zeros(H.shape), atol=1e-12)
    for part in loss_of_head(tuple(head), few())[1]:
        np.testing.assert_allclose(part, np.zeros(part.shape), atol=1e-5)  # where alternating steps have come in 100 sweeps


def test_tensors_are_layers_of_attention():
    _, tensor, head = solutions(few())
    layer, batch = head_layer(head.p, head.A, TASKS.context), task(3, 3, 4, 1, (4,))
    y = np.einsum("abj,Bab,jB->B", tensor, token_products(batch), batch.x_q)
    np.testing.assert_allclose(np.asarray(predict_batch(layer, batch))[0], y, rtol=1e-12)
    np.testing.assert_allclose(head_tensor(layer, TASKS.context), tensor, rtol=1e-12)
    G = np.random.default_rng(4).normal(size=(3, 3))
    descent = descent_layers(3, 4, 1.0, preconditioner=jax.device_put(G.T))
    np.testing.assert_allclose(head_tensor(descent, 4), tensor_of(G), atol=1e-14)
    several, one = random_layers(11, 4, 1, 3), ones_of(batch)[0]
    expected = np.einsum("abj,ab,j->", head_tensor(several, 4), token_products(batch)[0], one.x_q)
    assert float(np.asarray(predict(several, one))[0]) == pytest.approx(float(expected), rel=1e-12)


def test_a_curve_is_the_solution_for_each_number_of_tasks():
    W, numbers = weights(), [1, 3, 5]
    curve = diversity_curve(TASKS, jax.device_put(W), numbers)
    for n, M in enumerate(numbers):
        many, one, _ = solutions(few(number=M))
        for losses, H in ((curve.one_head, one), (curve.all_heads, many)):
            assert float(losses.pretraining[n]) == pytest.approx(loss_at(H, few(number=M)), rel=1e-9)
            if M > 1:  # for one task many heads are best, and they differ on fresh ones
                assert float(losses.fresh[n]) == pytest.approx(loss_at(H, every()), rel=1e-6)
        G = optimal_solution(exact_moments(TASKS, C=W[:M].T @ W[:M] / M))
        assert float(curve.descent.fresh[n]) == pytest.approx(loss_at(tensor_of(G), every()), rel=1e-9)
    whole = exact_moments(TASKS)
    assert float(curve.limit) == pytest.approx(float(solution_loss(optimal_solution(whole), whole)), rel=1e-12)


def test_the_limit_of_large_d_is_met_at_some_size_and_the_threshold_grows_with_d():
    tasks = Tasks(dim=40, context=40, inputs="uniform", input_range=3.0, weight_scale=0.5, noise=0.4)
    whole = exact_moments(tasks)
    best = float(solution_loss(optimal_solution(whole), whole))
    for M in (10, 40, 200):
        draws = (0.5 * np.random.default_rng(seed).normal(size=(M, 40)) for seed in range(8))
        layers = [optimal_solution(exact_moments(tasks, C=some.T @ some / M)) for some in draws]
        excess = np.mean([float(solution_loss(G, whole)) for G in layers]) / best - 1
        # corrections of order 1/d; the mean of 8 draws is within 1 %
        assert excess == pytest.approx(float(limiting_excess(tasks, M)), rel=2.5 / 40)
    laws = [Tasks(dim=d, context=d, **GAUSS, noise=0.5) for d in (10, 1000, 2000)]
    found = [diversity_threshold(one) for one in laws]
    assert [float(limiting_excess(one, M)) for one, M in zip(laws, found, strict=True)] == pytest.approx([0.05] * 3, rel=1e-9)
    assert found[2] / found[1] == pytest.approx(2, rel=1e-2)  # the noise and the 1/N of γ matter less and less


def test_crossings_are_interpolated():
    assert crossing([1, 10, 100], [1.0, 0.1, 0.01], 0.03) == pytest.approx(10 / 0.3, rel=1e-12)  # 1/M
    assert crossing([2, 4], [0.01, 0.02], 0.1) == 2.0 and crossing([2, 4], [1.0, 0.2], 0.1) is None
    assert crossing([1, 2, 4, 8], [1.0, 0.05, 0.2, 0.05], 0.1) == pytest.approx(4 * 2**0.5, rel=1e-12)  # the last one
