"""Mixed noise: diagonal layers by hand and as attention, their fit, ridge regressions, the posterior; scaled inputs."""

import dataclasses

import jax
import numpy as np
import pytest
from drawn import arrays, ones_of, task
from reference import gd_plus_plus as gd_plus_plus_loop
from sklearn.linear_model import Ridge

from icl import Sequence, diversity, predict_batch
from icl.attention import diagonal_layers
from icl.closed_form import optimal_rate

# compiled whole, which takes less time than compiling every operation
posterior_mean = jax.jit(diversity.posterior_mean, static_argnums=1)
predict_diagonal, ridge_batch = jax.jit(diversity.predict_diagonal), jax.jit(diversity.ridge_batch)
estimated_variance = jax.jit(diversity.estimated_variance)
LAW = diversity.MixedNoise(dim=3, context=8, levels=3.0)
SIGMA = 3 * np.random.default_rng(1).uniform(size=600)
RATES = np.array([[-0.03, 0.02, -0.09, 0.01], [-0.01, -0.02, -0.05, 0.02]])


def tasks_of(number: int = 600) -> Sequence:
    """Tasks of the law, whose noise has these levels."""
    batch = task(0, 3, 8, 1, (600,), inputs="normal", input_range=12**0.5)
    noise = SIGMA * np.random.default_rng(2).normal(size=(8, 1, 600))
    batch = batch._replace(Y=np.asarray(batch.Y) + noise)
    return Sequence(*(jax.device_put(np.asarray(leaf)[..., :number]) for leaf in batch))


@pytest.fixture(scope="module")
def many():
    return tasks_of()


@pytest.fixture(scope="module")
def four():
    return tasks_of(4)


def loss_of(answers, batch) -> float:
    return float(((np.asarray(answers) - np.asarray(batch.y_q)) ** 2).sum(axis=0).mean() / 2)


def test_diagonal_layers_are_the_loop_of_the_paper_and_attention(four):
    ours = np.asarray(predict_diagonal(jax.device_put(RATES), four))
    for n, one in enumerate(ones_of(four)):
        X, Y, x_q = arrays(one)
        X, y = np.vstack([X, x_q]), np.append(Y[:, 0], 0.0)
        for xx, xy, yx, yy in RATES:
            moved, target = X.copy(), y.copy()
            for j in range(9):
                for i in range(8):
                    moved[j] += xx * X[i] * (X[i] @ X[j]) + xy * X[i] * y[i] * y[j]
                    target[j] += yx * y[i] * (X[i] @ X[j]) + yy * y[i] ** 2 * y[j]
            X, y = moved, target
        assert ours[0, n] == pytest.approx(-y[-1], rel=1e-10)
    layers = jax.jit(diagonal_layers, static_argnums=1)(jax.device_put(RATES), 3)
    np.testing.assert_allclose(predict_batch(layers, four), ours, rtol=1e-10)


def test_two_of_the_four_scalars_are_gd_plus_plus(four):
    rates = np.where([True, False, True, False], RATES, 0.0)
    ours = np.asarray(predict_diagonal(jax.device_put(rates), four))
    for n, one in enumerate(ones_of(four)):
        theirs = gd_plus_plus_loop(*arrays(one), list(-8 * rates[:, 2]), list(-rates[:, 0]))
        np.testing.assert_allclose(ours[:, n], theirs, rtol=1e-10)


def test_one_layer_of_gd_plus_plus_is_the_optimal_single_layer():
    rates = diversity.gd_plus_plus_rates(jax.random.key(1), LAW, 1)
    noise = float(np.sqrt(np.mean(np.square(LAW.support))))
    expected = optimal_rate(dataclasses.replace(LAW.tasks, noise=noise)) / LAW.context
    assert -rates[0, 2] == pytest.approx(expected, rel=0.02) and not rates[0, [1, 3]].any()  # of 5,000 contexts


@pytest.mark.slow
def test_four_scalars_fit_no_worse_than_two_and_no_better_than_the_posterior(many):
    start = diversity.gd_plus_plus_rates(jax.random.key(1), LAW, 2, contexts=200)
    two = diversity.fit_diagonal(many, start, plus_plus=True)
    four = diversity.fit_diagonal(many, two.rates)
    assert (two.rates[:, [1, 3]] == 0).all() and (two.rates[-1, 0], four.rates[-1, 0]) == (start[-1, 0],) * 2
    began = loss_of(predict_diagonal(jax.device_put(start), many), many)
    assert loss_of(posterior_mean(many, LAW), many) < four.loss < two.loss <= began
    again = loss_of(predict_diagonal(jax.device_put(four.rates), many), many)
    assert four.loss == pytest.approx(again, rel=1e-12)
    with pytest.raises(ValueError, match="not finite"):
        diversity.fit_diagonal(many, np.full((9, 4), 1e30))


def test_ridge_predictions_are_scikit_learn_s(four):
    ours = np.asarray(ridge_batch(four, jax.device_put(SIGMA[:4] ** 2)))
    for n, one in enumerate(ones_of(four)):
        X, Y, x_q = arrays(one)
        model = Ridge(alpha=SIGMA[n] ** 2, fit_intercept=False).fit(X, Y[:, 0])
        assert ours[0, n] == pytest.approx(model.predict(x_q[None])[0], rel=1e-8)


def test_the_noise_is_estimated_without_bias(four):
    """Of 4000 tasks with 5 degrees of freedom each: sqrt(2 / 5 / 4000) = 1 %. And it is what is left by least squares."""
    batch = task(2, 3, 8, 1, (4000,), inputs="normal", input_range=12**0.5, noise=2.0)
    found = np.asarray(estimated_variance(batch))
    assert found.mean() == pytest.approx(4.0, rel=0.04)
    X, Y, _ = arrays(batch)
    left = np.linalg.lstsq(X[..., 7], Y[:, 0, 7], rcond=None)[1]
    assert found[7] == pytest.approx(left[0] / 5, rel=1e-10)


def test_tuned_penalties_have_the_lowest_loss_of_their_kind_and_predictors_stand_in_the_order_that_theory_says(many):
    """On the tasks they were fitted to: the oracle knows most, then the posterior, then what is tuned."""
    constant, tuned, variance = (
        diversity.constant_penalty(many),
        diversity.tuned_penalty(many),
        np.asarray(estimated_variance(many)),
    )

    def loss(penalty):
        return loss_of(ridge_batch(many, jax.device_put(penalty)), many)

    def adaptive(m, t):
        return loss(m * np.maximum(variance, t))

    assert all(loss(np.full(600, constant)) <= loss(np.full(600, constant * factor)) for factor in (0.8, 1.25))
    best = adaptive(*tuned) / (1 + 1e-5)  # Nelder-Mead stops at 1e-6 in the loss
    for m, t in ((0.8, 1.0), (1.25, 1.0), (1.0, 0.6), (1.0, 1.6)):
        assert best <= adaptive(tuned[0] * m, tuned[1] * t)
    assert best <= loss(variance)
    baselines = diversity.ridge_baselines(many, LAW)
    answers = jax.jit(lambda batch: {name: predict(batch) for name, predict in baselines.items()})(many)
    told = {name: loss_of(answer, many) for name, answer in answers.items()}
    assert loss(SIGMA**2) < told["posterior mean"] < told["ridge, tuned"] < told["ridge"]
    expected = {"ridge": loss(np.full(600, constant)), "ridge, adaptive": loss(variance), "ridge, tuned": adaptive(*tuned)}
    assert {name: told[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_the_posterior_mean_is_bayes_rule_on_a_grid(four):
    law = diversity.MixedNoise(dim=3, context=8, levels=(0.5, 2.0))
    ours = np.asarray(posterior_mean(four, law))
    for n, one in enumerate(ones_of(four)):
        X, Y, x_q = arrays(one)
        weights, answers, y = [], [], Y[:, 0]
        for sigma in law.support:
            cov = X @ X.T + sigma**2 * np.eye(8)
            weights.append(np.exp(-y @ np.linalg.solve(cov, y) / 2) / np.sqrt(np.linalg.det(cov)))
            answers.append(x_q @ X.T @ np.linalg.solve(cov, y))
        assert ours[0, n] == pytest.approx(np.average(answers, weights=weights), rel=1e-8)


def test_levels_are_drawn_as_asked_and_are_those_of_the_noise():
    one, two = diversity.MixedNoise(dim=3, context=8, levels=4.0), diversity.MixedNoise(dim=3, context=8, levels=(1.0, 3.0))
    (batch, sigma), (_, other) = jax.tree.map(
        np.asarray, [diversity.sample_mixed_noise(jax.random.key(0), law, 4000) for law in (one, two)]
    )
    assert 0 <= sigma.min() and sigma.max() <= 4 and sigma.mean() == pytest.approx(2, abs=0.08)
    assert set(other.tolist()) == {1.0, 3.0} and np.mean(other == 1.0) == pytest.approx(0.5, abs=0.04)
    # variances of 5 degrees of freedom over the true ones: a mean of 1, and a standard error of 1 %
    assert np.mean(np.asarray(estimated_variance(Sequence(*map(jax.device_put, batch)))) / sigma**2) == pytest.approx(
        1, abs=0.04
    )
