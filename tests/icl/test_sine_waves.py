"""Nonlinear regression: sine waves, features, the control's step, ridge regression on features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import attention_layer
from sklearn.linear_model import Ridge

from icl.models.attention import init_layers
from icl.problems import sine_waves
from icl.problems.sine_waves import Network, NonlinearRegression, Waves, features, init_network, ridge_on_features, sample_waves

# compiled whole, which takes less time than compiling every operation
encode, predict_waves = jax.jit(sine_waves.encode), jax.jit(sine_waves.predict_waves, static_argnames="depth")
WAVES = Waves(context=6)
NETWORK = jax.jit(lambda key: init_network(key, channels=5, hidden=7, scale=1.0))(jax.random.key(0))
BATCH = jax.jit(lambda key: sample_waves(key, WAVES, 4))(jax.random.key(1))


def wave_of(batch, n: int) -> tuple[float, float]:
    """Amplitude and phase of a task by least squares on sin x and cos x, which its values are a sum of."""
    x, y = (np.asarray(part[:, 0, n]) for part in (batch.X, batch.Y))
    basis = np.stack([np.sin(x), np.cos(x)], axis=1)
    (s, c), *_ = np.linalg.lstsq(basis, y, rcond=None)
    np.testing.assert_allclose(basis @ [s, c], y, atol=1e-12)
    return np.hypot(s, c), np.arctan2(c, s)


def test_waves_are_sines_of_the_asked_amplitudes_and_phases():
    batch = sample_waves(jax.random.key(0), Waves(context=400), 2000)
    assert -5 <= float(batch.X.min()) < -4.99 and 4.99 < float(batch.X.max()) <= 5
    for n in range(3):
        a, p = wave_of(batch, n)
        assert a == pytest.approx(0.1 + 0.4 * p / np.pi, abs=1e-9)  # one number gives both
        assert float(batch.y_q[0, n]) == pytest.approx(a * np.sin(float(batch.x_q[0, n]) + p), abs=1e-9)
    # E[y²]/2 is E[a²] (1/2 - a term of sin(10)) / 2; 0.0264 was measured with the paper's code
    assert float(jnp.mean(batch.Y**2)) / 2 == pytest.approx(0.0264, rel=0.03)


def test_independent_waves_have_phases_of_their_own():
    batch = sample_waves(jax.random.key(0), Waves(context=50, amplitude=(0.1, 5.0), independent=True), 400)
    amplitude, phase = np.array([wave_of(batch, n) for n in range(400)]).T
    assert 0.1 <= amplitude.min() < 0.3 and 4.8 < amplitude.max() <= 5
    assert abs(np.corrcoef(amplitude, phase)[0, 1]) < 0.2  # four standard deviations of 1/sqrt(400)


def test_features_are_the_residual_mlp_by_hand():
    encoder = NETWORK.encoder._replace(b1=jnp.linspace(-1, 1, 7), b2=jnp.linspace(0, 1, 5))
    token = np.array([0.7, -1.3])
    e = np.asarray(encoder.E) @ token
    h = np.asarray(encoder.W1) @ e + np.linspace(-1, 1, 7)
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))  # GELU, as jax.nn approximates it
    expected = e + np.asarray(encoder.W2) @ h + np.linspace(0, 1, 5)
    np.testing.assert_allclose(features(encoder, jnp.asarray(token)[:, None, None])[:, 0, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_control_is_descent_on_the_features(depth):
    said = predict_waves(NETWORK._replace(attention=None), BATCH, eta=0.3, depth=depth)
    context, query = (np.asarray(part) for part in encode(NETWORK.encoder, BATCH))
    for n in range(4):
        phi, r, q, W = context[:-1, :, n], context[-1, :, n], query[:, 0, n], np.zeros(4)
        for _ in range(depth):
            W = W - 0.3 / 6 * phi @ (phi.T @ W - r)
        np.testing.assert_allclose(said.initial[0, n], -q[-1], rtol=1e-12)
        np.testing.assert_allclose(said.final[0, n], -q[-1] + W @ q[:-1], rtol=1e-10)


def test_layers_of_attention_follow_one_another_and_one_may_be_applied_twice():
    layers = init_layers(jax.random.key(3), 5, layers=2, scale=0.5)
    said = predict_waves(NETWORK._replace(attention=layers), BATCH, depth=2)
    context, query = (np.asarray(part) for part in encode(NETWORK.encoder, BATCH))
    for n in range(4):
        E = np.concatenate([context[..., n], query[..., n]], axis=1).T
        for k in range(2):
            E = attention_layer(E, [tuple(np.asarray(W)[k, 0] for W in layers)])
        np.testing.assert_allclose(said.final[0, n], -E[-1, -1], rtol=1e-10)
    one = jax.tree.map(lambda W: W[:1], layers)
    twice = jax.tree.map(lambda W: jnp.concatenate([W, W]), one)
    recurrent, separate = (predict_waves(NETWORK._replace(attention=W), BATCH, depth=2) for W in (one, twice))
    np.testing.assert_allclose(recurrent.final, separate.final, rtol=1e-12)


def test_ridge_on_features_is_scikit_learn_s_and_without_penalty_least_squares():
    context, query = (np.asarray(part) for part in encode(NETWORK.encoder, BATCH))
    ours, limit = (ridge_on_features(NETWORK.encoder, BATCH, penalty)[0] for penalty in (0.05, 1e-10))
    for n in range(4):
        model = Ridge(alpha=0.05, fit_intercept=False).fit(context[:-1, :, n].T, context[-1, :, n])
        expected = -query[-1, 0, n] + model.predict(query[:-1, :, n].T)[0]
        assert float(ours[n]) == pytest.approx(expected, rel=1e-8)
    W = np.linalg.lstsq(context[:-1, :, 0].T, context[-1, :, 0], rcond=None)[0]
    # the penalty weighs on the flattest direction
    assert float(limit[0]) == pytest.approx(-query[-1, 0, 0] + W @ query[:-1, 0, 0], rel=1e-4)


def test_what_is_trained_has_a_gradient():
    gradient = jax.jit(jax.grad(NonlinearRegression(WAVES).loss))
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient(NETWORK, BATCH).attention))
    control = gradient(Network(NETWORK.encoder, None), BATCH)
    assert control.attention is None and float(jnp.abs(control.encoder.W1).max()) > 0
