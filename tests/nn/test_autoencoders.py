"""Autoencoders: closed forms against NumPy and scikit-learn, training against the closed form, anomalies and memories.

Float64: 1e-10 for factorisations of small well-conditioned matrices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.decomposition import PCA

from jexplicit.nn.networks import FullyConnected, init_variables
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.steps import initial_state, network_step
from jexplicit.nn.studies.autoencoders import (
    LinearAutoencoder,
    add_noise,
    anomaly_auc,
    cluster_agreement,
    contraction,
    descend_linear,
    iterate_map,
    linear_autoencoder,
    off_span_gain,
    pseudo_inverse_autoencoder,
    recall,
    reconstruction_errors,
)

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(20, 3)) @ RNG.normal(size=(3, 6)) + 0.1 * RNG.normal(size=(20, 6)))


def test_the_linear_autoencoder_is_principal_components():
    centred = X - X.mean(axis=0, keepdims=True)
    pca = PCA(2).fit(np.asarray(X))
    expected = pca.inverse_transform(pca.transform(np.asarray(X))) - pca.mean_
    np.testing.assert_allclose(linear_autoencoder(centred, 2)(centred), expected, atol=1e-10)
    errors = reconstruction_errors(linear_autoencoder(centred, 2)(centred), centred)
    singular = np.linalg.svd(np.asarray(centred), compute_uv=False)
    assert float(errors.sum()) == pytest.approx(np.sum(singular[2:] ** 2) / 2)  # Eckart-Young


def test_a_trained_linear_autoencoder_comes_to_the_solved_one():
    model = FullyConnected((2,), 6, activation="linear", bias=False, weights="glorot_normal", dtype=jnp.float64)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, 8000))
    step = network_step(model, objective("squared_error"), optimizer)
    state = initial_state(init_variables(model, jax.random.key(0), X), optimizer)
    batches = jax.tree.map(lambda part: jnp.broadcast_to(part, (8000, *part.shape)), (X, X))
    state, losses = jax.jit(jax.lax.scan, static_argnums=0)(step, state, batches)
    best = float(reconstruction_errors(linear_autoencoder(X, 2)(X), X).sum())
    assert best * (1 - 1e-9) <= float(losses[-1]) < 1.001 * best < float(losses[0])


def test_the_pseudo_inverse_is_the_projection_on_the_examples():
    few = X[:3]
    f = pseudo_inverse_autoencoder(few)
    np.testing.assert_allclose(f(few), few, atol=1e-10)
    expected = np.asarray(X) @ np.linalg.pinv(np.asarray(few)) @ np.asarray(few)
    np.testing.assert_allclose(f(X), expected, atol=1e-10)
    outside = X[5] - expected[5]  # an anomaly: orthogonal to all examples
    np.testing.assert_allclose(f(outside), 0, atol=1e-10)


def test_anomalies_are_found_where_reconstruction_fails():
    f = linear_autoencoder(X, 3)
    strange = jnp.asarray(RNG.normal(size=(15, 6))) * jnp.std(X)
    normal, anomalous = (reconstruction_errors(f(part), part) for part in (X, strange))
    by_pairs = np.mean(np.asarray(anomalous)[:, None] > np.asarray(normal)[None])
    assert anomaly_auc(normal, anomalous) == pytest.approx(by_pairs) and by_pairs > 0.95


def test_contraction_is_of_the_jacobian():
    A = jnp.asarray(RNG.normal(size=(4, 4)))
    found = contraction(lambda x: A @ x, jnp.asarray(RNG.normal(size=(2, 4))))
    np.testing.assert_allclose(found.singular, np.linalg.svd(np.asarray(A), compute_uv=False)[0], rtol=1e-10)
    np.testing.assert_allclose(found.spectral_radius, np.abs(np.linalg.eigvals(np.asarray(A))).max(), rtol=1e-10)
    z = jnp.array([0.3, -0.2])
    np.testing.assert_allclose(contraction(jnp.tanh, z[None]).singular, (1 - np.tanh(z) ** 2).max(), rtol=1e-10)


def test_an_over_parameterised_network_remembers_its_examples():
    """Three examples, 40 hidden units for 6 features, small first weights: the map contracts, and starts nearby come back."""
    memories = X[:3]
    model = FullyConnected((40, 40), 6, dtype=jnp.float64)
    optimizer = optax.adam(3e-3)
    step = network_step(model, objective("squared_error"), optimizer)
    small = jax.tree.map(lambda W: 0.4 * W, init_variables(model, jax.random.key(0), memories))
    state = initial_state(small, optimizer)
    batches = jax.tree.map(lambda part: jnp.broadcast_to(part, (1500, *part.shape)), (memories, memories))
    state, _ = jax.jit(jax.lax.scan, static_argnums=0)(step, state, batches)

    def f(x):
        return model.apply({"params": state.params}, x[None])[0]

    assert reconstruction_errors(jax.jit(jax.vmap(f))(memories), memories).max() < 1e-4
    assert contraction(f, memories).spectral_radius.max() < 1
    back = recall(iterate_map(f, add_noise(jax.random.key(1), memories, 0.1, 4), 200), memories, tolerance=0.05)
    np.testing.assert_array_equal(back, np.repeat(np.eye(3, dtype=bool), 4, axis=0))


def test_iterating_is_repeated_application():
    points = jnp.asarray(RNG.normal(size=(3, 2)))
    np.testing.assert_allclose(iterate_map(jnp.tanh, points, 3), np.tanh(np.tanh(np.tanh(points))), rtol=1e-12)
    np.testing.assert_array_equal(iterate_map(jnp.tanh, points, 0), points)


def test_one_example_and_a_feature_that_never_changes():
    constant = jnp.array([[2.0, 0.0, 1.0]])
    for f in (linear_autoencoder(constant, 1), pseudo_inverse_autoencoder(constant)):
        np.testing.assert_allclose(f(constant), constant, atol=1e-12)


# As wide as the input: what the pseudo-inverse says, and what descent finds


def wide_start(scale):
    A, B = (jnp.asarray(W) for W in np.random.default_rng(3).normal(size=(2, 6, 6)))
    return LinearAutoencoder(scale * A, scale * B)


def test_descent_is_the_hand_written_one():
    f, few = wide_start(0.3), np.asarray(X[:3])
    A, B = np.array(f.A), np.array(f.B)
    s, a, b = (np.linalg.norm(W, 2) for W in (few, A, B))
    rate = 3 / (4 * s**2 * (1 + a**2 + b**2))
    for _ in range(5):
        error = few @ B.T @ A.T - few
        gradient_A, gradient_B = error.T @ (few @ B.T) / 3, A.T @ error.T @ few / 3
        A, B = A - rate * gradient_A, B - rate * gradient_B
    found = descend_linear(f, jnp.asarray(few), 5)
    np.testing.assert_allclose(found.A, A, rtol=1e-10)
    np.testing.assert_allclose(found.B, B, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_every_start_fits_and_only_small_ones_end_at_the_projection(scale):
    few = X[:3]
    start, P = wide_start(scale), pseudo_inverse_autoencoder(few)
    found = descend_linear(start, few, 20_000)
    assert float(reconstruction_errors(found(few), few).mean()) < 1e-8
    distance = float(jnp.linalg.norm(found.A @ found.B - P.A @ P.B))
    assert distance < 0.02 if scale < 0.1 else distance > 0.5
    outside = np.linalg.svd(np.asarray(few))[2][3:]  # B does to them what it did at the start
    np.testing.assert_allclose(outside @ np.asarray(found.B).T, outside @ np.asarray(start.B).T, atol=1e-9)


def test_what_fits_already_stays():
    identity = LinearAutoencoder(jnp.eye(6), jnp.eye(6))
    np.testing.assert_array_equal(descend_linear(identity, X[:3], 10).A, identity.A)
    assert off_span_gain(identity, X[:3]) == pytest.approx(1, abs=1e-12)
    assert off_span_gain(pseudo_inverse_autoencoder(X[:3]), X[:3]) < 1e-9


def test_clusters_agree_with_groups_whatever_their_names_and_not_with_chance():
    rng = np.random.default_rng(0)
    groups = np.repeat([4, 1, 9], 40)
    codes = rng.normal(size=(120, 2)) * 0.1 + np.eye(10)[groups][:, [4, 1]] * 5
    assert cluster_agreement(codes, groups, clusters=3, seed=0) == 1
    assert abs(cluster_agreement(rng.normal(size=(600, 2)), rng.integers(0, 3, 600), clusters=3, seed=0)) < 0.03
