"""Online estimation: expected losses in closed form against other formulas and simulation, the Kalman filter, the samplers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl import (
    Streams,
    Tasks,
    delta_rule,
    kalman_filter,
    linear_attention,
    mesa_recursion,
    one_step_loss,
    optimal_rate,
    recurrences,
)
from icl.recurrences import Dynamics

# compiled whole, which takes less time than compiling every operation
hebbian_losses = jax.jit(recurrences.hebbian_losses, static_argnums=0, static_argnames="forgetting")
delta_losses = jax.jit(recurrences.delta_losses, static_argnums=(0, 1))
ridge_losses = jax.jit(recurrences.ridge_losses, static_argnums=0)
DRIFT = Streams(dim=3, tokens=12, outputs=2, noise=0.4, memory=0.9, variances=(0.5, 1.0, 2.0))


@functools.cache
def sampled(streams, number=4000, seed=0):
    """Many streams, and their targets."""
    return jax.jit(jax.vmap(streams.sample))(jax.random.split(jax.random.key(seed), number))


def losses_of(layers, streams, number=4000):
    """Half the squared errors of every layer of `layers(stream)`, a list: [number, T] each."""

    @jax.jit
    @jax.vmap
    def one(stream, targets):
        return [jnp.mean((outputs - targets) ** 2, axis=-1) / 2 for outputs in layers(stream)]

    return list(map(np.asarray, one(*sampled(streams, number))))


def assert_expected(losses, expected):
    """Within 5 standard errors at every position: by chance once in 10⁵ tests of 12 positions."""
    errors = losses.std(axis=0) / np.sqrt(len(losses))
    assert (np.abs(losses.mean(axis=0) - np.asarray(expected)) < 5 * errors).all()


def test_linear_attention_loses_what_its_closed_form_says():
    found = {g: jax.tree.map(np.asarray, hebbian_losses(DRIFT, forgetting=g)) for g in (1.0, 0.8)}

    def layers(s):
        outputs = {g: factors[:, None] * linear_attention(s, forgetting=g) for g, (factors, _) in found.items()}
        return [by * one for one in outputs.values() for by in (1.0, 2.0)]

    losses = losses_of(layers, DRIFT)
    for (_, expected), own, other in zip(found.values(), losses[::2], losses[1::2], strict=True):
        assert_expected(own, expected)
        assert (other.mean(axis=0) > own.mean(axis=0)).all()


def test_it_is_one_step_of_descent_where_nothing_drifts():
    factors, losses = map(np.asarray, hebbian_losses(Streams(dim=4, tokens=9, noise=0.3)))
    for t in range(9):
        tasks = Tasks(dim=4, context=t + 1, inputs="normal", input_range=12**0.5, weight_scale=0.5, noise=0.3)
        assert float(losses[t]) == pytest.approx(one_step_loss(tasks, optimal_rate(tasks)), rel=1e-12)
        assert float(factors[t]) == pytest.approx(optimal_rate(tasks) / (t + 1), rel=1e-12)


def test_the_delta_rule_loses_what_its_closed_form_says():
    found = [tuple(map(np.asarray, delta_losses(DRIFT, rate))) for rate in (None, 0.12)]
    layers = lambda s: [0.9 * delta_rule(s, rates, forgetting=0.9) for rates, _ in found]  # noqa: E731
    for (rates, expected), losses in zip(found, losses_of(layers, DRIFT), strict=True):
        assert_expected(losses, expected)
        assert [_delta_recursion(DRIFT, rates[: t + 1]) for t in range(12)] == pytest.approx(expected.tolist(), rel=1e-12)
    rates, expected = found[0]
    for t in range(12):  # each rate has the lowest next loss
        assert all(_delta_recursion(DRIFT, [*rates[:t], by * rates[t]]) > expected[t] for by in (0.9, 1.1))


def _delta_recursion(streams, rates):
    """The last loss of given rates, by explicit sums over the coordinates."""
    lam, d = np.asarray(streams.spectrum), streams.dim
    e = [1 / d] * d
    for beta in map(float, rates):
        total = sum(x * y for x, y in zip(lam, e, strict=True)) + streams.noise**2
        e = [x * (1 - 2 * beta * v + 2 * beta**2 * v**2) + beta**2 * v * total for x, v in zip(e, lam, strict=True)]
        e = [streams.memory**2 * x + (1 - streams.memory**2) / d for x in e]
    return sum(x * v for x, v in zip(e, lam, strict=True)) / 2


def test_ridge_loses_what_the_limit_of_many_inputs_says():
    """Given the inputs the loss is ½ σ² tr Λ (XᵀX + σ² d I)⁻¹. To 2 % at d = 30: the limit is off by terms of 1/d."""
    rng, d = np.random.default_rng(0), 30
    streams = Streams(dim=d, tokens=90, outputs=30, variances=tuple(np.linspace(0.2, 1.8, d).tolist()))
    expected, spectrum = np.asarray(ridge_losses(streams)), np.asarray(streams.spectrum)
    for t in (1, 15, 30, 45, 90):
        traces = []
        for _ in range(200):
            X = rng.normal(size=(t, d)) * np.sqrt(spectrum)
            traces.append(np.trace(np.diag(spectrum) @ np.linalg.inv(X.T @ X + streams.penalty * np.eye(d))))
        assert np.mean(traces) * streams.noise**2 / 2 == pytest.approx(expected[t - 1], rel=0.02)
    (losses,) = losses_of(lambda s: [mesa_recursion(s, streams.penalty)], streams, 50)
    assert losses.mean() == pytest.approx(expected.mean(), rel=0.03)  # the mean of 4500 queries of 30 outputs
    long = np.asarray(ridge_losses(Streams(dim=5, tokens=20_000, noise=0.5)))
    assert float(long[-1]) == pytest.approx(0.25 * 5 / 20_000 / 2, rel=1e-3)
    assert (np.diff(long) < 0).all()


def test_the_kalman_filter_is_the_posterior_mean_of_the_joint_gaussian():
    """Cov(w_s, w_t) = a^|s-t| I/d: the posterior mean of w_{T+1} from the covariances of all that was seen, at every token."""
    stream = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[0]), sampled(DRIFT)[0])
    ours = np.asarray(jax.jit(kalman_filter)(stream, DRIFT.noise, DRIFT.memory))
    K, V, Q = map(np.asarray, stream)
    for t in range(1, DRIFT.tokens + 1):
        s = np.arange(t)
        seen = DRIFT.memory ** np.abs(s[:, None] - s[None]) * (K[:t] @ K[:t].T) / 3 + DRIFT.noise**2 * np.eye(t)
        cross = DRIFT.memory ** (t - s) * (K[:t] @ Q[t - 1]) / 3
        np.testing.assert_allclose(ours[t - 1], cross @ np.linalg.solve(seen, V[:t]), rtol=0, atol=1e-12)


def test_without_drift_the_kalman_filter_is_the_mesa_layer_and_with_it_no_estimator_is_better():
    stream = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[0]), sampled(DRIFT)[0])
    still = jax.jit(lambda s: (kalman_filter(s, 0.4, 1.0), mesa_recursion(s, 0.4**2 * 3)))(stream)
    np.testing.assert_allclose(*still, rtol=0, atol=1e-12)
    assert Streams(dim=3, tokens=12, outputs=2, noise=0.4).penalty == pytest.approx(0.4**2 * 3)

    def layers(s):
        others = [0.9 * mesa_recursion(s, DRIFT.penalty, forgetting=g) for g in (1.0, 0.8)]
        return [kalman_filter(s, DRIFT.noise, DRIFT.memory), *others]

    best, *others = (losses.mean(axis=0)[2:] for losses in losses_of(layers, DRIFT))
    assert all((other > best).all() for other in others)


def test_streams_are_what_they_say():
    streams = Streams(dim=2, tokens=40, outputs=3, noise=0.5, memory=0.8, variances=(1.0, 4.0))
    (K, V, Q), targets = jax.tree.map(np.asarray, sampled(streams, 1000))
    np.testing.assert_array_equal(K[:, 1:], Q[:, :-1])
    np.testing.assert_allclose(K.var(axis=(0, 1)), streams.spectrum, rtol=0.04)
    noise = V[:, 1:] - targets[:, :-1]
    assert noise.std() == pytest.approx(0.5, rel=0.02) and targets.var() == pytest.approx(2.5, rel=0.06)
    assert np.mean(noise * targets[:, :-1]) == pytest.approx(0, abs=0.01)
    repeated = Streams(dim=1, tokens=2, noise=1e-9, memory=0.8)  # w_1 and w_3 from y = w x
    (K, V, Q), last = jax.tree.map(np.asarray, sampled(repeated, 50_000, seed=1))
    first, third = V[:, 0] / K[:, 0], last[:, 1] / Q[:, 1]
    assert np.mean(first * third) == pytest.approx(0.64, abs=0.03)
    assert np.mean(third**2) == pytest.approx(1, abs=0.04)


def test_dynamical_systems_are_what_they_say():
    sample = jax.jit(Dynamics(dim=3, tokens=30, noise=0.1).sample, static_argnums=1)
    (K, V, Q), targets = jax.tree.map(np.asarray, sample(jax.random.key(0), jnp.float64))
    W = np.linalg.lstsq(Q, targets, rcond=None)[0].T
    np.testing.assert_allclose(W @ W.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(Q @ W.T, targets, atol=1e-12)
    np.testing.assert_array_equal(V, Q)
    assert np.std(V - K @ W.T) == pytest.approx(0.1, rel=0.3)
    same, _ = jax.eval_shape(lambda key: sample(key, jnp.float32), jax.random.key(0))
    assert same.K.dtype == np.float32
