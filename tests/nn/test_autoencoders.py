"""Autoencoders: closed forms against NumPy and scikit-learn, training against the closed form, anomalies and memories.

Float64: 1e-10 for factorisations of small well-conditioned matrices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.decomposition import PCA

from jexplicit.nn import studies
from jexplicit.nn.networks import FullyConnected, init_variables, initial_state, network_step
from jexplicit.nn.studies import (
    LinearAutoencoder,
    add_noise,
    anomaly_auc,
    contraction,
    descend_linear,
    iterate_map,
    off_span_gain,
    recall,
    reconstruction_errors,
)
from jexplicit.nn.training import objective

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)) @ RNG.normal(size=(3, 6)) + 0.1 * RNG.normal(size=(20, 6))
# compiled whole, which takes less time than compiling every operation
reconstructed = jax.jit(lambda X, k, Z: studies.linear_autoencoder(X, k)(Z), static_argnums=1)
projected = jax.jit(lambda X, Z: studies.pseudo_inverse_autoencoder(X)(Z))


def errors_of(outputs, X) -> np.ndarray:
    return np.sum((np.asarray(outputs) - np.asarray(X)) ** 2, axis=1) / 2


def test_the_linear_autoencoder_is_principal_components():
    centred, pca = X - X.mean(axis=0), PCA(2).fit(X)
    found = reconstructed(centred, 2, centred)
    np.testing.assert_allclose(found, pca.inverse_transform(pca.transform(X)) - pca.mean_, atol=1e-10)
    errors = jax.jit(reconstruction_errors)(found, centred)
    np.testing.assert_allclose(errors, errors_of(found, centred), rtol=1e-12)
    assert np.sum(errors) == pytest.approx(np.sum(np.linalg.svd(centred, compute_uv=False)[2:] ** 2) / 2)  # Eckart-Young


def fitted(model, goal, optimizer, variables, X, steps):
    """The state and losses of descent on all examples, compiled whole."""
    step = network_step(model, objective(goal), optimizer)

    @jax.jit
    def run(variables):
        return jax.lax.scan(lambda state, _: step(state, (X, X)), initial_state(variables, optimizer), length=steps)

    return run(variables)


def test_a_trained_linear_autoencoder_comes_to_the_solved_one():
    model = FullyConnected((2,), 6, activation="linear", bias=False, weights="glorot_normal", dtype=jnp.float64)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, 8000))
    _, losses = fitted(model, "squared_error", optimizer, init_variables(model, jax.random.key(0), X), X, 8000)
    losses, best = np.asarray(losses), errors_of(reconstructed(X, 2, X), X).sum()
    assert best * (1 - 1e-9) <= losses[-1] < 1.001 * best < losses[0]


def test_the_pseudo_inverse_is_the_projection_on_the_examples():
    few = X[:3]
    P = np.linalg.pinv(few) @ few
    outside = X[5] - X[5] @ P  # an anomaly: orthogonal to all examples
    found = np.asarray(projected(few, np.vstack([X, outside])))
    np.testing.assert_allclose(found[:-1], X @ P, atol=1e-10)
    np.testing.assert_allclose(found[:3], few, atol=1e-10)
    np.testing.assert_allclose(found[-1], 0, atol=1e-10)


def test_anomalies_are_found_where_reconstruction_fails():
    strange = RNG.normal(size=(20, 6)) * X.std()
    normal, anomalous = (errors_of(reconstructed(X, 3, part), part) for part in (X, strange))
    by_pairs = np.mean(anomalous[:, None] > normal[None])
    assert anomaly_auc(jax.device_put(normal), jax.device_put(anomalous)) == pytest.approx(by_pairs) and by_pairs > 0.95


def test_contraction_is_of_the_jacobian():
    A = RNG.normal(size=(4, 4))
    found = contraction(lambda x: jax.device_put(A) @ x, jax.device_put(RNG.normal(size=(2, 4))))
    np.testing.assert_allclose(found.singular, np.linalg.svd(A, compute_uv=False)[0], rtol=1e-10)
    np.testing.assert_allclose(found.spectral_radius, np.abs(np.linalg.eigvals(A)).max(), rtol=1e-10)
    z = np.array([0.3, -0.2])
    np.testing.assert_allclose(contraction(jnp.tanh, jax.device_put(z[None])).singular, (1 - np.tanh(z) ** 2).max(), rtol=1e-10)


def test_an_over_parameterised_network_remembers_its_examples():
    """Three examples, 40 hidden units for 6 features, small first weights: the map contracts, and starts nearby come back."""
    memories = X[:3]
    model = FullyConnected((40, 40), 6, dtype=jnp.float64)
    small = jax.tree.map(lambda W: jax.device_put(0.4 * np.asarray(W)), init_variables(model, jax.random.key(0), memories))
    state, _ = fitted(model, "squared_error", optax.adam(3e-3), small, memories, 1500)

    def f(x):
        return model.apply({"params": state.params}, x[None])[0]

    assert errors_of(iterate_map(f, jax.device_put(memories), 1), memories).max() < 1e-4
    assert contraction(f, jax.device_put(memories)).spectral_radius.max() < 1
    starts = jax.jit(add_noise, static_argnums=(2, 3))(jax.random.key(1), jax.device_put(memories), 0.1, 4)
    noise = (np.asarray(starts) - np.repeat(memories, 4, axis=0)) / memories.std()
    assert noise.std() == pytest.approx(0.1, rel=0.4)  # of 72 numbers: a standard error of 8 %
    back = recall(iterate_map(f, starts, 200), jax.device_put(memories), tolerance=0.05)
    np.testing.assert_array_equal(back, np.repeat(np.eye(3, dtype=bool), 4, axis=0))


def test_iterating_is_repeated_application():
    points = RNG.normal(size=(3, 2))
    found = [iterate_map(jnp.tanh, jax.device_put(points), steps) for steps in (3, 0)]
    np.testing.assert_allclose(found[0], np.tanh(np.tanh(np.tanh(points))), rtol=1e-12)
    np.testing.assert_array_equal(found[1], points)


def test_one_example_and_a_feature_that_never_changes():
    constant = np.array([[2.0, 0.0, 1.0]])
    for found in (reconstructed(constant, 1, constant), projected(constant, constant)):
        np.testing.assert_allclose(found, constant, atol=1e-12)


# As wide as the input: what the pseudo-inverse says, and what descent finds


def wide_start(scale):
    A, B = (jax.device_put(scale * W) for W in np.random.default_rng(3).normal(size=(2, 6, 6)))
    return LinearAutoencoder(A, B)


def test_descent_is_the_hand_written_one():
    f, few = wide_start(0.3), X[:3]
    A, B = np.array(f.A), np.array(f.B)
    s, a, b = (np.linalg.norm(W, 2) for W in (few, A, B))
    rate = 3 / (4 * s**2 * (1 + a**2 + b**2))
    for _ in range(5):
        error = few @ B.T @ A.T - few
        gradient_A, gradient_B = error.T @ (few @ B.T) / 3, A.T @ error.T @ few / 3
        A, B = A - rate * gradient_A, B - rate * gradient_B
    found = descend_linear(f, jax.device_put(few), 5)
    np.testing.assert_allclose(found.A, A, rtol=1e-10)
    np.testing.assert_allclose(found.B, B, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_every_start_fits_and_only_small_ones_end_at_the_projection(scale):
    few, start = X[:3], wide_start(scale)
    A, B = map(np.asarray, descend_linear(start, jax.device_put(few), 20_000))
    assert errors_of(few @ B.T @ A.T, few).mean() < 1e-8
    distance = np.linalg.norm(A @ B - np.linalg.pinv(few) @ few)
    assert distance < 0.02 if scale < 0.1 else distance > 0.5
    outside = np.linalg.svd(few)[2][3:]  # B does to them what it did at the start
    np.testing.assert_allclose(outside @ B.T, outside @ np.asarray(start.B).T, atol=1e-9)


def test_what_fits_already_stays():
    few, identity = jax.device_put(X[:3]), LinearAutoencoder(*map(jax.device_put, (np.eye(6), np.eye(6))))
    np.testing.assert_array_equal(descend_linear(identity, few, 5).A, identity.A)
    assert off_span_gain(identity, few) == pytest.approx(1, abs=1e-12)
    assert off_span_gain(LinearAutoencoder(jax.device_put(np.linalg.pinv(X[:3]) @ X[:3]), identity.B), few) < 1e-9
