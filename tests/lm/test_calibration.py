"""Exponents of log-linear models, fitted on held-out positions.

Tolerances: a loss is a mean over some hundred positions of logits of order 10, right to 1e-13; its first and second derivatives
are means of rows of order 3 and of their products, right to 1e-12. An exponent is as far from the minimum as the gradient left
over, divided by the smallest curvature.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_linear as log_linear_loop
from scipy.optimize import minimize

from jexplicit.lm.fits.mixtures.calibration import fit_exponents
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.tables.storage import Dense, Sparse, SparseRows

pytestmark = pytest.mark.slow

N, M = 6, 150  # outputs; positions, more than two blocks


def sparse(table):
    """The entries of a table that are not 0."""
    r, i = np.nonzero(table)
    return Sparse(SparseRows(np.searchsorted(r, np.arange(len(table) + 1)), i.astype(np.int32), table[r, i]), N, N)


def random_problem(positions=M, seed=0, true=(0.8, 0.3, 0.5)):
    """Dense tables (two) and a sparse one, four features with three exponents, and targets drawn with the true ones."""
    rng = np.random.default_rng(seed)
    tables = [rng.normal(size=(rows, N)) * 1.5 for rows in (4, 5)]
    tables.append(rng.normal(size=(6, N)) * (rng.random((6, N)) < 0.5) * 2)
    tables = [tables[0], tables[1], tables[1], tables[2]]
    rows = np.stack([rng.integers(0 if g < 3 else -1, len(table), positions) for g, table in enumerate(tables)], axis=1)
    which = np.stack([np.zeros(positions, int), *rng.integers(1, 3, (2, positions)), np.full(positions, 2)], axis=1)
    W = np.stack([np.where(rows[:, g, None] >= 0, table[rows[:, g]], 0) for g, table in enumerate(tables)], axis=1)
    logits = np.einsum("mg,mgn->mn", np.array(true)[which], W)
    Y = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)  # a draw from the softmax
    return tables, Positions(rows, which), Y, W


def as_tables(tables, dtype=np.float64):
    return (*(Dense(jnp.asarray(table, dtype)) for table in tables[:3]), sparse(tables[3].astype(dtype)))


def loss_by_loop(a, tables, positions, Y, start, ridge):
    log_p = log_linear_loop(tables, a, *positions)
    return -np.mean([row[y] for row, y in zip(log_p, Y, strict=True)]) + ridge / 2 * sum((a - start) ** 2)


@jax.jit
def autodiff(a, positions, Y, W):
    """Gradient and Hessian of the loss, the penalty left out."""

    def loss(a):
        log_p = jax.nn.log_softmax(jnp.einsum("mg,mgn->mn", a[positions.exponents], W), axis=1)
        return -jnp.mean(jnp.take_along_axis(log_p, Y[:, None], axis=1))

    return jax.jit(lambda a: (jax.grad(loss)(a), jax.hessian(loss)(a)))(a)


def smallest_curvature(a, positions, Y, W):
    return np.linalg.eigvalsh(autodiff(a, positions, Y, W)[1])[0]


# The fit


def test_the_first_pass_measures_loss_and_gradient_at_the_start():
    tables, positions, Y, W = random_problem()
    start = np.array([0.2, -0.4, 1.0])
    first = fit_exponents(as_tables(tables), positions, Y, start, iterations=1)
    np.testing.assert_array_equal(first.exponents, start)
    assert first.loss == pytest.approx(loss_by_loop(start, tables, positions, Y, start, 0), abs=1e-13)
    gradient, _ = autodiff(start, positions, Y, W)
    assert first.gradient == pytest.approx(float(jnp.max(jnp.abs(gradient))), abs=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_the_second_pass_is_at_newton_s_step_from_autodiff(ridge):
    tables, positions, Y, W = random_problem()
    start = np.array([0.6, 0.2, 0.7])
    second = fit_exponents(as_tables(tables), positions, Y, start, ridge=ridge, iterations=2)
    gradient, hessian = autodiff(start, positions, Y, W)
    # the step is right to the rounding of the Hessian, 1e-12, over its smallest eigenvalue, above 0.01
    step = np.linalg.solve(hessian + ridge * np.eye(3), gradient)
    np.testing.assert_allclose(second.exponents, start - step, rtol=0, atol=1e-10)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_the_minimum_is_that_of_scipy(ridge):
    tables, positions, Y, _ = random_problem()
    start = np.array([1.0, 1.0, 0.0])
    fitted = fit_exponents(as_tables(tables), positions, Y, start, ridge=ridge, tolerance=1e-10)
    oracle = minimize(loss_by_loop, start, (tables, positions, Y, start, ridge), "BFGS", jac="3-point", options={"gtol": 1e-7})
    assert fitted.gradient < 1e-10
    # scipy's gradient, below 1e-7, over a curvature above 0.01; the loss is flat there, to the square of that
    np.testing.assert_allclose(fitted.exponents, oracle.x, rtol=0, atol=1e-5)
    penalised = fitted.loss + ridge / 2 * np.sum((fitted.exponents - start) ** 2)
    assert penalised == pytest.approx(oracle.fun, abs=1e-11)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_gradient_at_the_minimum_is_below_the_tolerance(dtype):
    tables, positions, Y, W = random_problem()
    fitted = fit_exponents(as_tables(tables, dtype), positions, Y, np.ones(3), ridge=0)
    exact = fit_exponents(as_tables(tables), positions, Y, np.ones(3), ridge=0, tolerance=1e-12)
    assert fitted.gradient < 1e-5
    # the tolerance 1e-5, and in float32 as much for rounding, over the smallest curvature
    atol = 2e-5 / smallest_curvature(exact.exponents, positions, Y, W)
    np.testing.assert_allclose(fitted.exponents, exact.exponents, rtol=0, atol=atol)


def test_without_a_penalty_the_minimum_does_not_depend_on_the_start_and_a_strong_one_keeps_it():
    tables, positions, Y, W = random_problem()
    starts = np.array([0.8, 0.3, 0.5]), np.array([5.0, -5.0, 5.0])
    near, far = (fit_exponents(as_tables(tables), positions, Y, start, ridge=0, tolerance=1e-11) for start in starts)
    atol = 2e-11 / smallest_curvature(near.exponents, positions, Y, W) + 1e-12
    np.testing.assert_allclose(far.exponents, near.exponents, rtol=0, atol=atol)
    kept = fit_exponents(as_tables(tables), positions, Y, starts[1], ridge=1e6)
    np.testing.assert_allclose(kept.exponents, starts[1], rtol=0, atol=1e-5)  # the gradient at the start, below 10, over 1e6


def heads_and_tails():
    """A coin of 4 to 1 in the table, and of 2 to 1 in the positions: the exponent is log 2 / log 4."""
    return [jnp.log(jnp.array([[0.8, 0.2]]))], Positions(np.zeros((3, 1), int), np.zeros((3, 1), int)), [0, 0, 1]


@pytest.mark.parametrize("start", [-3.0, 0.5, 6.0])
def test_an_exponent_of_a_coin_is_that_worked_by_hand(start):
    # from 6 Newton's first step goes to about -1000: steps are damped until one lowers the loss
    tables, positions, Y = heads_and_tails()
    fitted = fit_exponents(tables, positions, np.array(Y), np.array([start]), ridge=0, tolerance=1e-12)
    assert fitted.exponents[0] == pytest.approx(0.5, abs=1e-11)
    assert fitted.loss == pytest.approx(np.log(3) - 2 / 3 * np.log(2), abs=1e-13)


def test_a_start_at_the_minimum_takes_one_pass():
    tables, positions, Y = heads_and_tails()
    assert fit_exponents(tables, positions, np.array(Y), np.array([0.5]), tolerance=1e-12).passes == 1


def test_known_exponents_are_found_again_from_sampled_targets():
    true, many = np.array([0.8, 0.3, 0.5]), 4000
    tables, positions, Y, W = random_problem(positions=many, seed=1, true=true)
    fitted = fit_exponents(as_tables(tables), positions, Y, np.ones(3), ridge=0)
    information = many * np.asarray(autodiff(true, positions, Y, W)[1])
    error = np.sqrt(np.diag(np.linalg.inv(information)))  # of a maximum-likelihood estimate
    assert np.all(error < 0.03)
    assert np.all(np.abs(fitted.exponents - true) < 4 * error)


def test_an_exponent_that_no_position_reads_keeps_its_start():
    tables, positions, Y, _ = random_problem()
    unread = Positions(positions.rows, np.where(positions.exponents == 1, 3, positions.exponents))
    for ridge in (0.0, 1e-4):
        start = np.array([1.0, 0.37, 1.0, 1.0])
        fitted = fit_exponents(as_tables(tables), unread, Y, start, ridge=ridge, tolerance=1e-9)
        assert fitted.exponents[1] == pytest.approx(0.37, abs=1e-12)
        assert np.all(np.abs(fitted.exponents[[2, 3]] - 1) > 0.1)


def test_an_exponent_of_a_constant_row_keeps_its_start():
    tables, positions, Y, _ = random_problem()
    constant = (jnp.full((1, N), 2.0), *as_tables(tables))
    more = Positions(
        np.concatenate([np.zeros((M, 1), int), positions.rows], axis=1),
        np.concatenate([np.full((M, 1), 3), positions.exponents], axis=1),
    )
    fitted = fit_exponents(constant, more, Y, np.array([1, 1, 1, 0.37]), tolerance=1e-9)
    plain = fit_exponents(as_tables(tables), positions, Y, np.ones(3), tolerance=1e-9)
    # the rounding of its gradient, 1e-15, over a curvature of nothing but the penalty, 1e-4
    np.testing.assert_allclose(fitted.exponents, [*plain.exponents, 0.37], rtol=0, atol=1e-9)


def test_progress_counts_the_passes():
    tables, positions, Y, _ = random_problem()
    seen = []
    fitted = fit_exponents(as_tables(tables), positions, Y, np.ones(3), progress=lambda *done: seen.append(done))
    assert seen == [(done + 1, 30) for done in range(fitted.passes)]
    assert fitted.passes < 10  # Newton's method
