"""Nonlinear regression: sine waves, features, the control's step, ridge regression on features."""

import jax
import numpy as np
import pytest
from reference import attention_layer, descent_step
from sklearn.linear_model import Ridge

from icl import Sequence, problems
from icl.attention import AttentionLayer
from icl.problems import Encoder, Network, NonlinearRegression, Waves, ridge_on_features

# compiled whole, which takes less time than compiling every operation
predict_waves = jax.jit(problems.predict_waves, static_argnames="depth")
WAVES = Waves(context=6)
RNG = np.random.default_rng(0)
SHAPES = {"E": (5, 2), "W1": (7, 5), "b1": (7,), "W2": (5, 7), "b2": (5,)}
ENCODER = {name: RNG.normal(size=shape) / shape[-1] ** 0.5 for name, shape in SHAPES.items()}
LAYERS = RNG.normal(size=(4, 2, 1, 5, 5)) / 10**0.5
DRAWN = RNG.uniform(-5, 5, (7, 4))
VALUES = 0.3 * np.sin(DRAWN + 1)


def encoder() -> Encoder:
    return Encoder(**{name: jax.device_put(W) for name, W in ENCODER.items()})


def network(layers: np.ndarray | None = LAYERS) -> Network:
    return Network(encoder(), None if layers is None else AttentionLayer(*map(jax.device_put, layers)))


def batch() -> Sequence:
    return Sequence(*(jax.device_put(leaf) for leaf in (DRAWN[:6, None], VALUES[:6, None], DRAWN[6:], VALUES[6:])))


def features_loop(tokens: np.ndarray) -> np.ndarray:
    """The residual MLP of every token (x, y), GELU as jax.nn approximates it."""
    e = tokens @ ENCODER["E"].T
    h = e @ ENCODER["W1"].T + ENCODER["b1"]
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return e + h @ ENCODER["W2"].T + ENCODER["b2"]


def encoded(n: int) -> np.ndarray:
    """Features of task n, [pairs and query, channels]."""
    return features_loop(np.stack([DRAWN[:, n], np.append(VALUES[:6, n], 0)], axis=1))


def wave_of(batch, n: int) -> tuple[float, float]:
    """Amplitude and phase of a task by least squares on sin x and cos x, which its values are a sum of."""
    x, y = (np.asarray(part)[:, 0, n] for part in (batch.X, batch.Y))
    basis = np.stack([np.sin(x), np.cos(x)], axis=1)
    (s, c), *_ = np.linalg.lstsq(basis, y, rcond=None)
    np.testing.assert_allclose(basis @ [s, c], y, atol=1e-12)
    return np.hypot(s, c), np.arctan2(c, s)


def test_waves_are_sines_of_the_asked_amplitudes_and_phases():
    batch = jax.tree.map(np.asarray, Waves(context=400).sample(jax.random.key(0), 2000))
    assert -5 <= batch.X.min() < -4.99 and 4.99 < batch.X.max() <= 5
    for n in range(3):
        a, p = wave_of(batch, n)
        assert a == pytest.approx(0.1 + 0.4 * p / np.pi, abs=1e-9)  # one number gives both
        assert batch.y_q[0, n] == pytest.approx(a * np.sin(batch.x_q[0, n] + p), abs=1e-9)
    # E[y²]/2 is E[a²] (1/2 - a term of sin(10)) / 2; 0.0264 was measured with the paper's code
    assert np.mean(batch.Y**2) / 2 == pytest.approx(0.0264, rel=0.03)


def test_independent_waves_have_phases_of_their_own():
    batch = Waves(context=50, amplitude=(0.1, 5.0), independent=True).sample(jax.random.key(0), 400)
    amplitude, phase = np.array([wave_of(batch, n) for n in range(400)]).T
    assert 0.1 <= amplitude.min() < 0.3 and 4.8 < amplitude.max() <= 5
    assert abs(np.corrcoef(amplitude, phase)[0, 1]) < 0.2  # four standard deviations of 1/sqrt(400)


def test_features_are_the_residual_mlp_by_hand():
    context, query = jax.jit(problems.encode)(encoder(), batch())
    found = np.concatenate([context, query], axis=1)
    for n in range(4):
        np.testing.assert_allclose(found[:, :, n], encoded(n).T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_control_is_descent_on_the_features(depth):
    said = jax.tree.map(np.asarray, predict_waves(network(None), batch(), eta=0.3, depth=depth))
    for n in range(4):
        *context, q = encoded(n)
        phi, W = np.array(context), np.zeros((1, 4))
        for _ in range(depth):
            W = descent_step(W, phi[:, :-1], phi[:, -1:], 0.3)
        np.testing.assert_allclose(said.initial[0, n], -q[-1], rtol=1e-12)
        np.testing.assert_allclose(said.final[0, n], -q[-1] + W[0] @ q[:-1], rtol=1e-10)


def test_layers_of_attention_follow_one_another_and_one_may_be_applied_twice():
    for layers in (LAYERS, LAYERS[:, :1]):
        said = np.asarray(predict_waves(network(layers), batch(), depth=2).final)
        for n in range(4):
            E = encoded(n)
            for k in range(2):
                E = attention_layer(E, [tuple(W[min(k, layers.shape[1] - 1), 0] for W in layers)])
            np.testing.assert_allclose(said[0, n], -E[-1, -1], rtol=1e-10)


def test_ridge_on_features_is_scikit_learn_s_and_without_penalty_least_squares():
    fit = jax.jit(ridge_on_features)
    ours, limit = (np.asarray(fit(encoder(), batch(), penalty))[0] for penalty in (0.05, 1e-10))
    for n in range(4):
        phi = encoded(n)
        model = Ridge(alpha=0.05, fit_intercept=False).fit(phi[:-1, :-1], phi[:-1, -1])
        assert ours[n] == pytest.approx(-phi[-1, -1] + model.predict(phi[-1:, :-1])[0], rel=1e-8)
    phi = encoded(0)
    W = np.linalg.lstsq(phi[:-1, :-1], phi[:-1, -1], rcond=None)[0]
    # the penalty weighs on the flattest direction
    assert limit[0] == pytest.approx(-phi[-1, -1] + W @ phi[-1, :-1], rel=1e-4)


def test_what_is_trained_has_a_gradient():
    gradient = jax.jit(jax.grad(NonlinearRegression(WAVES).loss))
    found = gradient(network(LAYERS[:, :1]), batch())
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(found.attention))
    control = gradient(network(None), batch())
    assert control.attention is None and np.asarray(control.encoder.W1).any()
