"""Autoencoders: closed forms against NumPy and scikit-learn, training against the closed form, anomalies and memories.

Float64: 1e-10 for factorisations of small well-conditioned matrices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.decomposition import PCA

from jexplicit.nn.networks import (
    FullyConnected,
    add_noise,
    anomaly_auc,
    contraction,
    init_variables,
    initial_state,
    iterate_map,
    linear_autoencoder,
    network_step,
    recall,
    reconstruction_errors,
)
from jexplicit.nn.training import objective

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)) @ RNG.normal(size=(3, 6)) + 0.1 * RNG.normal(size=(20, 6))
# compiled whole, which takes less time than compiling every operation
reconstructed = jax.jit(lambda X, k, Z: linear_autoencoder(X, k)(Z), static_argnums=1)


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


def test_anomalies_are_found_where_reconstruction_fails():
    strange = RNG.normal(size=(20, 6)) * X.std()
    normal, anomalous = (errors_of(reconstructed(X, 3, part), part) for part in (X, strange))
    by_pairs = np.mean(anomalous[:, None] > normal[None])
    assert anomaly_auc(jax.device_put(normal), jax.device_put(anomalous)) == pytest.approx(by_pairs) and by_pairs > 0.95


def test_contraction_is_of_the_jacobian():
    A = RNG.normal(size=(4, 4))
    found = contraction(lambda x: jax.device_put(A) @ x, jax.device_put(RNG.normal(size=(2, 4))))
    np.testing.assert_allclose(found[0], np.linalg.svd(A, compute_uv=False)[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], np.abs(np.linalg.eigvals(A)).max(), rtol=1e-10)
    z = np.array([0.3, -0.2])
    np.testing.assert_allclose(contraction(jnp.tanh, jax.device_put(z[None]))[0], (1 - np.tanh(z) ** 2).max(), rtol=1e-10)


def test_an_over_parameterised_network_remembers_its_examples():
    """Three examples, 40 hidden units for 6 features, small first weights: the map contracts, and starts nearby come back."""
    memories = X[:3]
    model = FullyConnected((40, 40), 6, dtype=jnp.float64)
    small = jax.tree.map(lambda W: jax.device_put(0.4 * np.asarray(W)), init_variables(model, jax.random.key(0), memories))
    state, _ = fitted(model, "squared_error", optax.adam(3e-3), small, memories, 1500)

    def f(x):
        return model.apply({"params": state.params}, x[None])[0]

    assert errors_of(iterate_map(f, jax.device_put(memories), 1), memories).max() < 1e-4
    assert contraction(f, jax.device_put(memories))[1].max() < 1
    starts = jax.jit(add_noise, static_argnums=(2, 3))(jax.random.key(1), jax.device_put(memories), 0.1, 4)
    noise = (np.asarray(starts) - np.repeat(memories, 4, axis=0)) / memories.std()
    assert noise.std() == pytest.approx(0.1, rel=0.4)  # of 72 numbers: a standard error of 8 %
    back = recall(iterate_map(f, starts, 200), jax.device_put(memories), tolerance=0.05)
    np.testing.assert_array_equal(back, np.repeat(np.eye(3, dtype=bool), 4, axis=0))
