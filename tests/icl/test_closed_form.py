"""The optimal layers without training: reference numbers, other formulas, least squares, simulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import within_error

from icl import Tasks, descent_layers
from icl.models import attention
from icl.solvers import closed_form
from icl.solvers.closed_form import one_step_loss, optimal_rate
from icl.solvers.descent import gradient_descent
from icl.tasks import Sequence, sample_tasks, sequences

# compiled whole, which takes less time than compiling every operation
predict, exact_moments, sampled_moments = map(
    jax.jit, (attention.predict, closed_form.exact_moments, closed_form.sampled_moments)
)
optimal_solution, solution_loss = map(jax.jit, (closed_form.optimal_solution, closed_form.solution_loss))
least_squares_solution = jax.jit(closed_form.least_squares_solution, static_argnames="scalar")
PAPER = Tasks(dim=10, context=10)


@functools.partial(jax.jit, static_argnums=0)
def simulated_losses(predictor, batch: Sequence, *rates) -> jax.Array:
    """Half the squared error of every task, of `predictor(sequence, *rates)`."""
    answers = jax.vmap(lambda s: predictor(s, *rates))(sequences(batch))
    return jnp.sum((answers - batch.y_q.T) ** 2, axis=1) / 2


def one_step(sequence: Sequence, eta) -> jax.Array:
    return gradient_descent(sequence, eta)[-1]


def test_the_paper_s_setting():
    assert optimal_rate(PAPER) / 10 == pytest.approx(0.606061, abs=5e-7)
    assert one_step_loss(PAPER, optimal_rate(PAPER)) == pytest.approx(0.206229, abs=5e-7)


@pytest.mark.slow
def test_it_is_the_loss_of_200_000_tasks():
    losses = simulated_losses(one_step, sample_tasks(jax.random.key(5), PAPER, 200_000), optimal_rate(PAPER))
    assert losses.mean() == pytest.approx(0.2071, abs=0.0016)  # the reference, itself +- 0.0010, and four of our 0.0004
    assert within_error(losses, 0.206229)


@pytest.mark.parametrize(
    "tasks",
    [Tasks(dim=4, context=3, inputs="laplace", weight_scale=2.0, noise=0.3), Tasks(dim=1, context=1, outputs=2, noise=0.2)],
    ids=("laplace", "one pair"),
)
def test_one_step_loss_is_what_simulation_gives_and_lowest_at_the_optimal_rate(tasks):
    eta, batch = optimal_rate(tasks), sample_tasks(jax.random.key(1), tasks, 100_000)
    for factor in (1.0, 0.6):
        assert within_error(simulated_losses(one_step, batch, factor * eta), one_step_loss(tasks, factor * eta))
    assert jax.grad(lambda eta: one_step_loss(tasks, eta))(eta) == pytest.approx(0, abs=1e-12)


def test_out_of_distribution_numbers_of_descent():
    """Spec of the paper's Fig. 6a: U(-r/2, r/2) with the rate of r = 1, population values."""
    expected = {0.5: 0.082, 1.0: 0.197, 1.5: 1.09, 2.0: 8.31}  # of 1000 tasks, standard error some 3 %, at 2.0 5 %
    for r, loss in expected.items():
        assert one_step_loss(Tasks(input_range=r), optimal_rate(PAPER)) == pytest.approx(loss, rel=0.12)
    for c in (0.5, 3.0):  # by weight scale, loss times c squared
        scaled = one_step_loss(Tasks(weight_scale=c), optimal_rate(PAPER))
        assert scaled == pytest.approx(c**2 * one_step_loss(PAPER, optimal_rate(PAPER)), rel=1e-12)


def test_gaussian_inputs_of_any_covariance_have_the_optimum_of_zhang_et_al():
    rng = np.random.default_rng(0)
    A, N = rng.normal(size=(4, 4)), 7
    L = A @ A.T
    expected = np.linalg.inv((1 + 1 / N) * L + np.trace(L) / N * np.eye(4))
    ours = optimal_solution(exact_moments(Tasks(dim=4, context=N, inputs="normal"), factor=jnp.asarray(A)))
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@jax.jit
def simulated(batch: Sequence, key, A, B, G):
    """The moments of contexts whose inputs are turned by A, and the losses of G on tasks `w ~ N(0, B Bᵀ)`."""
    X = jnp.einsum("nib,ji->bnj", batch.X, A)
    keys = jax.random.split(key)
    w = jax.random.normal(keys[0], (len(X), 3)) @ B.T
    y = jnp.einsum("bni,bi->bn", X, w) + 0.4 * jax.random.normal(keys[1], X.shape[:2])
    x_q = (A @ batch.x_q).T
    answers = jnp.einsum("bi,ij,bnj,bn->b", x_q, G, X, y) / 5
    return sampled_moments(X, C=B @ B.T, v=0.16), (answers - jnp.sum(w * x_q, axis=1)) ** 2 / 2


@pytest.mark.parametrize("inputs", ["uniform", "normal", "laplace"])
def test_moments_are_those_of_samples_with_any_covariances_and_noise(inputs):
    """And the loss at G by simulation, and no other G beside the optimum has a lower one."""
    rng = np.random.default_rng(1)
    A, B, G = (jnp.asarray(rng.normal(size=(3, 3))) for _ in range(3))
    tasks = Tasks(dim=3, context=5, inputs=inputs, input_range=12**0.5, noise=0.4)
    exact = exact_moments(tasks, factor=A, C=B @ B.T)
    batch = sample_tasks(jax.random.key(2), tasks, 50_000)
    sampled, losses = simulated(batch, jax.random.key(3), A, B, G)
    np.testing.assert_allclose(sampled.L, exact.L, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(sampled.SCS, exact.SCS, rtol=0.03, atol=0.03 * float(jnp.abs(exact.SCS).max()))
    assert within_error(losses, float(solution_loss(G, exact)))
    best = optimal_solution(exact)
    np.testing.assert_allclose(jax.grad(solution_loss)(best, exact), jnp.zeros((3, 3)), atol=1e-9)


def test_least_squares_over_many_tasks_meets_the_closed_form():
    tasks = Tasks(dim=3, context=6)
    batch = sample_tasks(jax.random.key(4), tasks, 400_000)
    eta = optimal_rate(tasks)
    # a coefficient of the regression is off by some sqrt(loss / (E[feature²] T)) = 0.03; 4 of these
    np.testing.assert_allclose(least_squares_solution(batch), eta * np.eye(3), atol=0.12)
    assert least_squares_solution(batch, scalar=True)[0, 0] == pytest.approx(eta, rel=0.01)
    moments = optimal_solution(sampled_moments(jnp.moveaxis(batch.X, -1, 0)))
    np.testing.assert_allclose(moments, eta * np.eye(3), atol=0.02 * eta)


def test_the_closed_form_is_a_layer_of_attention():
    tasks = Tasks(dim=4, context=6, inputs="normal")
    G = optimal_solution(exact_moments(tasks, factor=jnp.asarray(np.random.default_rng(2).normal(size=(4, 4)))))
    one = sample_tasks(jax.random.key(0), tasks)
    answer = predict(descent_layers(4, 6, 1.0, preconditioner=G.T), one)
    np.testing.assert_allclose(answer, (one.x_q @ G @ one.X.T @ one.Y) / 6, rtol=1e-12)
