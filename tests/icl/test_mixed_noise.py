"""Mixed noise: diagonal layers by hand and as attention, their fit, ridge regressions, the posterior; scaled inputs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from icl import Tasks, exact_moments, gd_plus_plus, half_mse, predict_batch, sample_tasks, sequences, vmap_tasks
from icl.models.constructions import diagonal_layers
from icl.problems import mixed_noise
from icl.problems.mixed_noise import (
    MixedNoise,
    TunedRidge,
    constant_penalty,
    estimated_variance,
    fit_diagonal,
    gd_plus_plus_rates,
    ridge_baselines,
    sample_mixed_noise,
    tuned_ridge,
)
from icl.solvers.closed_form import optimal_rate, sampled_moments

# compiled whole, which takes less time than compiling every operation
posterior_mean = jax.jit(mixed_noise.posterior_mean, static_argnums=1)
predict_diagonal, ridge_batch = jax.jit(mixed_noise.predict_diagonal), jax.jit(mixed_noise.ridge_batch)
LAW = MixedNoise(dim=3, context=8, levels=3.0)
BATCH, SIGMA = jax.jit(lambda key: sample_mixed_noise(key, LAW, 600))(jax.random.key(0))
FOUR = jax.tree.map(lambda leaf: leaf[..., :4], BATCH)
RATES = np.array([[-0.03, 0.02, -0.09, 0.01], [-0.01, -0.02, -0.05, 0.02]])


def test_diagonal_layers_are_the_loop_of_the_paper_and_attention():
    ours = predict_diagonal(jnp.asarray(RATES), FOUR)
    for n, (X, Y, x_q, _) in enumerate(zip(*sequences(FOUR), strict=True)):
        X, y = np.vstack([X, x_q]), np.append(np.asarray(Y)[:, 0], 0.0)
        for xx, xy, yx, yy in RATES:
            moved, target = X.copy(), y.copy()
            for j in range(9):
                for i in range(8):
                    moved[j] += xx * X[i] * (X[i] @ X[j]) + xy * X[i] * y[i] * y[j]
                    target[j] += yx * y[i] * (X[i] @ X[j]) + yy * y[i] ** 2 * y[j]
            X, y = moved, target
        assert float(ours[0, n]) == pytest.approx(-y[-1], rel=1e-10)
    np.testing.assert_allclose(jax.jit(predict_batch)(diagonal_layers(RATES, 3), FOUR), ours, rtol=1e-10)


def test_two_of_the_four_scalars_are_gd_plus_plus():
    rates = np.where([True, False, True, False], RATES, 0.0)
    etas, gammas = jnp.asarray(-8 * rates[:, 2]), jnp.asarray(-rates[:, 0])
    theirs = jax.jit(vmap_tasks(lambda s: gd_plus_plus(s, etas, gammas, steps=2)[-1]))(FOUR)
    np.testing.assert_allclose(predict_diagonal(jnp.asarray(rates), FOUR), theirs, rtol=1e-10)


def test_one_layer_of_gd_plus_plus_is_the_optimal_single_layer():
    rates = gd_plus_plus_rates(jax.random.key(1), LAW, 1)
    noise = float(np.sqrt(np.mean(np.square(LAW.support))))
    expected = optimal_rate(dataclasses.replace(LAW.tasks, noise=noise)) / LAW.context
    assert -rates[0, 2] == pytest.approx(expected, rel=0.02) and not rates[0, [1, 3]].any()  # of 5,000 contexts


@pytest.mark.slow
def test_four_scalars_fit_no_worse_than_two_and_no_better_than_the_posterior():
    start = gd_plus_plus_rates(jax.random.key(1), LAW, 2, contexts=200)
    two = fit_diagonal(BATCH, start, plus_plus=True)
    four = fit_diagonal(BATCH, two.rates)
    assert (two.rates[:, [1, 3]] == 0).all() and (two.rates[-1, 0], four.rates[-1, 0]) == (start[-1, 0],) * 2
    began = float(half_mse(predict_diagonal(jnp.asarray(start), BATCH), BATCH.y_q))
    best = float(half_mse(posterior_mean(BATCH, LAW), BATCH.y_q))
    assert best < four.loss < two.loss <= began
    again = float(half_mse(predict_diagonal(jnp.asarray(four.rates), BATCH), BATCH.y_q))
    assert four.loss == pytest.approx(again, rel=1e-12)
    with pytest.raises(ValueError, match="not finite"):
        fit_diagonal(BATCH, np.full((9, 4), 1e30))


def test_ridge_predictions_are_scikit_learn_s():
    ours = ridge_batch(FOUR, SIGMA[:4] ** 2)
    for n, (X, Y, x_q, _) in enumerate(zip(*map(np.asarray, sequences(FOUR)), strict=True)):
        model = Ridge(alpha=float(SIGMA[n]) ** 2, fit_intercept=False).fit(X, Y[:, 0])
        assert float(ours[0, n]) == pytest.approx(model.predict(x_q[None])[0], rel=1e-8)


def test_the_noise_is_estimated_without_bias():
    """Of 4000 tasks with 5 degrees of freedom each: sqrt(2 / 5 / 4000) = 1 %."""
    batch = sample_tasks(jax.random.key(2), dataclasses.replace(LAW.tasks, noise=2.0), 4000)
    assert float(jnp.mean(estimated_variance(batch))) == pytest.approx(4.0, rel=0.04)


def test_tuned_penalties_have_the_lowest_loss_of_their_kind():
    constant, tuned, variance = constant_penalty(BATCH), tuned_ridge(BATCH), estimated_variance(BATCH)

    def loss(penalty):
        return float(half_mse(ridge_batch(BATCH, penalty), BATCH.y_q))

    assert all(loss(jnp.full(600, constant)) <= loss(jnp.full(600, constant * factor)) for factor in (0.8, 1.25))
    best = loss(tuned.penalty(variance)) / (1 + 1e-5)  # Nelder-Mead stops at 1e-6 in the loss
    for m, t in ((0.8, 1.0), (1.25, 1.0), (1.0, 0.6), (1.0, 1.6)):
        assert best <= loss(TunedRidge(tuned.multiplier * m, tuned.threshold * t).penalty(variance))
    assert best <= loss(variance)


def test_the_posterior_mean_is_bayes_rule_on_a_grid():
    law = MixedNoise(dim=2, context=4, levels=(0.5, 2.0))
    batch, _ = sample_mixed_noise(jax.random.key(3), law, 5)
    ours = posterior_mean(batch, law)
    for n, (X, Y, x_q, _) in enumerate(zip(*map(np.asarray, sequences(batch)), strict=True)):
        weights, answers, y = [], [], Y[:, 0]
        for sigma in law.support:
            cov = X @ X.T + sigma**2 * np.eye(4)
            weights.append(np.exp(-y @ np.linalg.solve(cov, y) / 2) / np.sqrt(np.linalg.det(cov)))
            answers.append(x_q @ X.T @ np.linalg.solve(cov, y))
        assert float(ours[0, n]) == pytest.approx(np.average(answers, weights=weights), rel=1e-8)


def test_predictors_stand_in_the_order_that_theory_says():
    """On the tasks they were fitted to: the oracle knows most, then the posterior, then what is tuned."""
    told = {name: float(half_mse(jax.jit(predict)(BATCH), BATCH.y_q)) for name, predict in ridge_baselines(BATCH, LAW).items()}
    oracle = float(half_mse(ridge_batch(BATCH, SIGMA**2), BATCH.y_q))
    assert oracle < told["posterior mean"] < told["ridge, tuned"] < told["ridge"]


def test_levels_are_drawn_as_asked():
    _, sigma = sample_mixed_noise(jax.random.key(0), MixedNoise(dim=2, context=4, levels=4.0), 4000)
    assert 0 <= float(sigma.min()) and float(sigma.max()) <= 4 and float(sigma.mean()) == pytest.approx(2, abs=0.08)
    _, sigma = sample_mixed_noise(jax.random.key(0), MixedNoise(dim=2, context=4, levels=(1.0, 3.0)), 4000)
    assert set(sigma.tolist()) == {1.0, 3.0} and float(jnp.mean(sigma == 1.0)) == pytest.approx(0.5, abs=0.04)


def test_scaled_coordinates_have_the_moments_that_the_closed_form_reads():
    tasks = Tasks(dim=3, context=5, scales=(2.0, 1.0, 0.5), noise=0.3)
    exact = exact_moments(tasks)
    X = jnp.moveaxis(sample_tasks(jax.random.key(0), tasks, 40_000).X, -1, 0)
    sampled = jax.jit(sampled_moments)(X, v=0.09)
    # 200,000 inputs: 1/sqrt of that for L, some times more for the fourth moments
    np.testing.assert_allclose(sampled.L, exact.L, atol=0.02 * float(exact.L.max()))
    np.testing.assert_allclose(sampled.SCS, exact.SCS, atol=0.03 * float(exact.SCS.max()))
