"""Classes of functions: their moments, baselines against outside libraries, prefixes, shifts, the causal model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.neighbors import KNeighborsRegressor

from icl.models.transformer import CausalTransformer, interleave
from icl.problems.function_classes import (
    KINDS,
    FunctionClass,
    Prompts,
    at_every_prefix,
    averaging_estimator,
    function_baselines,
    lasso,
    least_squares,
    nearest_neighbours,
    newton,
    sample_function,
    sample_prompt,
)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_have_the_power_that_losses_are_divided_by(kind):
    law = FunctionClass(kind, dim=5, points=4)
    y = jax.jit(jax.vmap(law.sample))(jax.random.split(jax.random.key(0), 8000)).y
    # the largest fourth moments are those of quadratic functions; 4 values of one function go together
    assert float(jnp.mean(y**2)) == pytest.approx(law.power, rel=0.12)


def test_sparse_weights_and_trees_are_what_they_say():
    x = jnp.linspace(-1, 1, 5)
    for n in range(4):
        f = sample_function(jax.random.key(n), FunctionClass("sparse", dim=5, nonzero=2))
        slopes = np.array([float(f(row)) for row in jnp.eye(5)])
        assert np.count_nonzero(slopes) == 2 and float(f(x)) == pytest.approx(slopes @ np.asarray(x), rel=1e-10)
        tree = jax.vmap(sample_function(jax.random.key(n), FunctionClass("tree", dim=3)))
        points = jax.random.normal(jax.random.key(9), (400, 3))
        assert 2 <= len(set(np.asarray(tree(points)).tolist())) <= 8  # of 16 leaves, those that 3 coordinates can tell apart
        np.testing.assert_array_equal(tree(points), tree(3 * points))  # signs alone are asked


PROMPT = jax.jit(lambda key: sample_prompt(key, FunctionClass("noisy", dim=4, points=12)))(jax.random.key(0))


def test_baselines_are_the_outside_libraries_at_every_prefix():
    X, y = (np.asarray(leaf) for leaf in PROMPT)

    def said(predictor):
        return np.asarray(jax.jit(lambda prompt: at_every_prefix(predictor, prompt))(PROMPT))

    squares, near, means = map(said, (least_squares, nearest_neighbours, averaging_estimator))
    sparse = said(lambda *seen: lasso(*seen, alpha=0.1, sweeps=300))
    assert not any(answers[0] for answers in (squares, near, means, sparse))  # nothing seen
    for t in range(1, 12):
        assert squares[t] == pytest.approx(np.linalg.lstsq(X[:t], y[:t], rcond=None)[0] @ X[t], rel=1e-6)
        neighbours = KNeighborsRegressor(min(3, t)).fit(X[:t], y[:t])
        assert near[t] == pytest.approx(neighbours.predict(X[t][None])[0], rel=1e-10)
        if t > 4:  # one minimum
            model = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(X[:t], y[:t])
            assert sparse[t] == pytest.approx(model.predict(X[t][None])[0], abs=1e-6)
        assert means[t] == pytest.approx(y[:t] @ X[:t] / t @ X[t], rel=1e-10)


def test_newton_s_steps_are_the_loop_and_tend_to_least_squares():
    X, y = PROMPT
    x, seen = jnp.ones(4), jnp.ones(12)
    A = np.asarray(X.T @ X)
    M = A / np.abs(A).sum(axis=1).max() ** 2
    for steps in range(4):
        expected = M @ np.asarray(X.T @ y) @ np.ones(4)
        assert float(newton(X, y, seen, x, steps=steps)) == pytest.approx(expected, rel=1e-10)
        M = 2 * M - M @ A @ M
    assert float(newton(X, y, seen, x, steps=30)) == pytest.approx(float(least_squares(X, y, seen, x)), rel=1e-8)
    assert float(newton(0 * X, 0 * y, 0 * seen, x)) == 0


def test_answers_at_a_prefix_depend_on_that_prefix_alone():
    for predictor in function_baselines("sparse").values():
        slope = jax.jit(jax.jacrev(lambda y, p=predictor: at_every_prefix(p, PROMPT._replace(y=y))))(PROMPT.y)
        assert not np.triu(np.asarray(slope)).any()


def test_the_causal_model_answers_from_what_came_before():
    """The gradient of answer t is exactly zero in later points and in y_t and later values, and not zero in earlier ones."""
    model = CausalTransformer(width=8, layers=2, heads=2, dtype=jnp.float64)
    X, y = PROMPT.X[None, :5], PROMPT.y[None, :5]
    params = jax.jit(model.init)(jax.random.key(0), X, y)
    by_X, by_y = jax.jit(jax.jacrev(lambda X, y: model.apply(params, X, y)[0], argnums=(0, 1)))(X, y)
    by_X, by_y = np.abs(np.asarray(by_X[:, 0])).sum(axis=-1), np.asarray(by_y[:, 0])
    assert not np.triu(by_X, 1).any() and not np.triu(by_y).any()
    assert (np.tril(by_X) != 0).sum() == 15 and (np.tril(by_y, -1) != 0).sum() == 10
    tokens = interleave(X, y)
    np.testing.assert_array_equal(tokens[0, ::2], X[0])
    np.testing.assert_array_equal(tokens[0, 1::2, 0], y[0])


def test_the_loss_of_prompts_is_the_mean_over_prefixes():
    problem = Prompts(FunctionClass(dim=2, points=3), lambda params, X, y: params * y)
    batch = problem.sample(jax.random.key(0), 7)
    assert batch.X.shape == (3, 2, 7) and batch.y.shape == (3, 7)
    assert float(problem.loss(jnp.array(0.5), batch)) == pytest.approx(float(jnp.mean(batch.y**2)) / 8)


def test_shifts_are_what_they_say():
    law, key = FunctionClass(dim=4, points=9), jax.random.key(5)
    plain = sample_prompt(key, law)

    def shifted(shift, law=law):
        return np.asarray(sample_prompt(key, law, shift).X)

    same = shifted("random quadrants")
    assert (np.sign(same[:-1]) == np.sign(same[0])).all()
    other = shifted("opposite quadrants")
    assert (np.sign(other[-1]) == -np.sign(other[0])).all()
    short = shifted("orthogonal query", FunctionClass(dim=4, points=4))
    np.testing.assert_allclose(short[:-1] @ short[-1], 0, atol=1e-12)
    seen = shifted("query seen")
    assert (seen[:-1] == seen[-1]).all(axis=1).sum() == 1
    assert np.linalg.matrix_rank(shifted("half subspace"), tol=1e-8) == 2
    many = jax.jit(jax.vmap(lambda key: sample_prompt(key, law, "skewed").X))(jax.random.split(key, 200))
    assert (many**2).mean() == pytest.approx(1, rel=0.1)  # 7200 squares, most of them of one direction
    np.testing.assert_allclose(shifted("x times 3"), 3 * plain.X)
    np.testing.assert_allclose(sample_prompt(key, law, "y times 1/3").y, plain.y / 3)
    noise = np.asarray(sample_prompt(key, law, "noise").y - plain.y)
    assert 0.3 < noise.std() < 2
