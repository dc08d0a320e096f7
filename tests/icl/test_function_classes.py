"""Classes of functions: their moments, baselines against outside libraries, prefixes, shifts, the causal model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.neighbors import KNeighborsRegressor

from icl import problems
from icl.blocks import CausalTransformer, interleave

DRAWN = np.random.default_rng(0).normal(size=(12, 6))
X, Y = DRAWN[:, :4], DRAWN[:, :4] @ DRAWN[0, :4] + DRAWN[:, 4]  # 12 noisy values of a linear function


def prompt() -> problems.Prompt:
    return problems.Prompt(jax.device_put(X), jax.device_put(Y))


def test_functions_have_the_power_that_losses_are_divided_by():
    laws = [problems.FunctionClass(kind, dim=5, points=4) for kind in problems.KINDS]
    values = jax.jit(lambda keys: [jax.vmap(law.sample)(keys).y for law in laws])(jax.random.split(jax.random.key(0), 8000))
    for law, y in zip(laws, values, strict=True):
        # the largest fourth moments are those of quadratic functions; 4 values of one function go together
        assert np.mean(np.asarray(y) ** 2) == pytest.approx(law.power, rel=0.12)


def test_sparse_weights_and_trees_are_what_they_say():
    x, points = np.linspace(-1, 1, 5), np.random.default_rng(9).normal(size=(400, 3))
    rows = np.concatenate([np.eye(5), x[None]])

    @jax.jit
    def drawn(key):
        sparse = jax.vmap(problems.sample_function(key, problems.FunctionClass("sparse", dim=5, nonzero=2)))(
            jax.device_put(rows)
        )
        tree = jax.vmap(problems.sample_function(key, problems.FunctionClass("tree", dim=3)))
        return sparse, tree(jax.device_put(points)), tree(jax.device_put(3 * points))

    for n in range(4):
        (*slopes, value), tree, larger = map(np.asarray, drawn(jax.random.key(n)))
        assert np.count_nonzero(slopes) == 2 and value == pytest.approx(np.array(slopes) @ x, rel=1e-10)
        assert 2 <= len(set(tree.tolist())) <= 8  # of 16 leaves, those that 3 coordinates can tell apart
        np.testing.assert_array_equal(tree, larger)  # signs alone are asked


def test_baselines_are_the_outside_libraries_at_every_prefix():
    predictors = (
        problems.least_squares,
        problems.nearest_neighbours,
        problems.averaging_estimator,
        functools.partial(problems.lasso, alpha=0.1, sweeps=300),
    )
    said = jax.jit(lambda prompt: [problems.at_every_prefix(predictor, prompt) for predictor in predictors])(prompt())
    squares, near, means, sparse = map(np.asarray, said)
    assert not any(answers[0] for answers in (squares, near, means, sparse))  # nothing seen
    for t in range(1, 12):
        assert squares[t] == pytest.approx(np.linalg.lstsq(X[:t], Y[:t], rcond=None)[0] @ X[t], rel=1e-6)
        neighbours = KNeighborsRegressor(min(3, t)).fit(X[:t], Y[:t])
        assert near[t] == pytest.approx(neighbours.predict(X[t][None])[0], rel=1e-10)
        if t > 4:  # one minimum
            model = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X[:t], Y[:t])
            assert sparse[t] == pytest.approx(model.predict(X[t][None])[0], abs=1e-6)
        assert means[t] == pytest.approx(Y[:t] @ X[:t] / t @ X[t], rel=1e-10)


def test_newton_s_steps_are_the_loop_and_tend_to_least_squares():
    seen = np.ones(12)
    found = jax.jit(lambda X, y, x: [problems.newton(X, y, jax.device_put(seen), x, steps=steps) for steps in (0, 1, 2, 3, 30)])
    answers = [float(answer) for answer in found(X, Y, np.ones(4))]
    A = X.T @ X
    M = A / np.abs(A).sum(axis=1).max() ** 2
    for answer in answers[:4]:
        assert answer == pytest.approx(M @ X.T @ Y @ np.ones(4), rel=1e-10)
        M = 2 * M - M @ A @ M
    assert answers[4] == pytest.approx(np.linalg.lstsq(X, Y, rcond=None)[0].sum(), rel=1e-8)
    assert not any(map(float, found(0 * X, 0 * Y, np.ones(4))))


def test_answers_at_a_prefix_depend_on_that_prefix_alone():
    baselines = problems.function_baselines("sparse").values()
    answers = lambda y: [problems.at_every_prefix(p, prompt()._replace(y=y)) for p in baselines]  # noqa: E731
    for slope in jax.jit(jax.jacrev(answers))(Y):
        assert not np.triu(np.asarray(slope)).any()


def test_the_causal_model_answers_from_what_came_before():
    """The gradient of answer t is exactly zero in later points and in y_t and later values, and not zero in earlier ones."""
    model = CausalTransformer(width=8, layers=2, heads=2, dtype=jnp.float64)
    points = jax.device_put(X[None, :5]), jax.device_put(Y[None, :5])
    params = jax.jit(model.init)(jax.random.key(0), *points)
    slopes = jax.jit(jax.jacrev(lambda X, y: model.apply(params, X, y)[0], argnums=(0, 1)))(*points)
    by_X, by_y = (np.asarray(slope)[:, 0] for slope in slopes)
    by_X = np.abs(by_X).sum(axis=-1)
    assert not np.triu(by_X, 1).any() and not np.triu(by_y).any()
    assert (np.tril(by_X) != 0).sum() == 15 and (np.tril(by_y, -1) != 0).sum() == 10
    tokens = np.asarray(jax.jit(interleave)(*points))
    np.testing.assert_array_equal(tokens[0, ::2], X[:5])
    np.testing.assert_array_equal(tokens[0, 1::2, 0], Y[:5])


def test_the_loss_of_prompts_is_the_mean_over_prefixes():
    problem = problems.Prompts(problems.FunctionClass(dim=2, points=3), lambda params, X, y: params * y)
    batch = jax.jit(problem.sample, static_argnums=1)(jax.random.key(0), 7)
    assert batch.X.shape == (3, 2, 7) and batch.y.shape == (3, 7)
    assert float(jax.jit(problem.loss)(0.5, batch)) == pytest.approx(np.mean(np.asarray(batch.y) ** 2) / 8)


def test_shifts_are_what_they_say():
    law, few = problems.FunctionClass(dim=4, points=9), problems.FunctionClass(dim=4, points=4)
    shifts = {shift: few if shift == "orthogonal query" else law for shift in problems.SHIFTS}
    keys = jax.random.split(jax.random.key(5), 200)

    @jax.jit
    def drawn(key, keys):
        skewed = jax.vmap(lambda key: law.sample(key, "skewed").X)(keys)
        return {shift: law.sample(key, shift) for shift, law in shifts.items()}, skewed

    prompts, many = jax.tree.map(np.asarray, drawn(jax.random.key(5), keys))
    plain = prompts["none"]
    same, other = (np.sign(prompts[f"{name} quadrants"].X) for name in ("random", "opposite"))
    assert (same[:-1] == same[0]).all() and (other[:-1] == other[0]).all()
    assert (other[-1] == -other[0]).all()
    short = prompts["orthogonal query"].X
    np.testing.assert_allclose(short[:-1] @ short[-1], 0, atol=1e-12)
    seen = prompts["query seen"].X
    assert (seen[:-1] == seen[-1]).all(axis=1).sum() == 1
    assert np.linalg.matrix_rank(prompts["half subspace"].X, tol=1e-8) == 2
    assert (many**2).mean() == pytest.approx(1, rel=0.1)  # 7200 squares, most of them of one direction
    np.testing.assert_allclose(prompts["x times 3"].X, 3 * plain.X)
    np.testing.assert_allclose(prompts["y times 1/3"].y, plain.y / 3)
    noise = prompts["noise"].y - plain.y
    assert 0.3 < noise.std() < 2
