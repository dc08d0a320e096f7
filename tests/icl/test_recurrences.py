"""Sequence layers as estimators: slow loops with explicit inverses, least squares at every token, invariances, float32.

Tolerances: in float64 a few hundred operations on numbers of size 1, and inverses of condition numbers up to 1000: 1e-11.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from icl import Stream, delta_rule, linear_attention, mesa_conjugate_gradients, mesa_recursion, prefix_ridge, sherman_morrison
from icl.linear_systems import solve_rows

T, D, M = 23, 4, 2
RNG = np.random.default_rng(0)
STREAM = Stream(*(jnp.asarray(RNG.normal(size=(T, n))) for n in (D, M, D)))
LAMBDA = np.array([0.3, 1.0, 0.5, 2.0])
FORGETTING = {"none": 1.0, "constant": 0.9, "per token": np.concatenate([RNG.uniform(0.5, 1, T - 3), [1.0, 1e-3, 1.0]])}
RATES = RNG.uniform(0.05, 0.3, T)
MESA = {
    "recursion": mesa_recursion,
    "gradients": lambda stream, penalty, **more: mesa_conjugate_gradients(stream, penalty, steps=3 * D, chunk=5, **more),
}
LAYERS = {
    "linear attention": lambda s, gamma: linear_attention(s, forgetting=gamma),
    "delta rule": lambda s, gamma: delta_rule(s, 0.1, forgetting=gamma),
    "recursion": lambda s, gamma: mesa_recursion(s, 0.5, forgetting=gamma),
    "gradients": lambda s, gamma: MESA["gradients"](s, 0.5, forgetting=gamma),
}


def slow_loop(name, forgetting, stream=STREAM):
    """What each layer is, a token at a time, with explicit inverses."""
    K, V, Q = (np.asarray(leaf, np.float64) for leaf in stream)
    gammas = np.broadcast_to(forgetting, len(K))
    H, G, W, P0 = np.zeros((D, D)), np.zeros((M, D)), np.zeros((M, D)), np.diag(LAMBDA)
    outputs = []
    for k, v, q, gamma, beta in zip(K, V, Q, gammas, RATES, strict=True):
        H, G, P0 = gamma * H + np.outer(k, k), gamma * G + np.outer(v, k), gamma * P0
        W = gamma * W @ (np.eye(D) - beta * np.outer(k, k)) + beta * np.outer(v, k)
        weights = {
            "linear attention": G,
            "delta rule": W,
            "mesa": G @ np.linalg.inv(H + np.diag(LAMBDA)),
            "penalty that decays": G @ np.linalg.inv(H + P0),
        }
        outputs.append(weights[name] @ q)
    return np.array(outputs)


@pytest.mark.parametrize("forgetting", FORGETTING.values(), ids=FORGETTING)
def test_each_layer_is_its_slow_loop(forgetting):
    gamma = forgetting if isinstance(forgetting, float) else jnp.asarray(forgetting)
    layers = [
        ("linear attention", lambda s: linear_attention(s, forgetting=gamma)),
        ("delta rule", lambda s: delta_rule(s, jnp.asarray(RATES), forgetting=gamma)),
        *(("mesa", lambda s, f=f: f(s, jnp.asarray(LAMBDA), forgetting=gamma)) for f in MESA.values()),
    ]
    if isinstance(forgetting, float):  # forgetting almost everything at once is what the textbook form cannot do
        layers += [("penalty that decays", lambda s: sherman_morrison(s, jnp.asarray(LAMBDA), forgetting=gamma))]
    for name, layer in layers:
        np.testing.assert_allclose(jax.jit(layer)(STREAM), slow_loop(name, forgetting), rtol=1e-11, atol=1e-11)


def least_squares(stream, penalty, forgetting):
    """Ridge regression at every token as ordinary least squares, solved by LAPACK's singular values."""
    K, V, Q = (np.asarray(leaf, np.float64) for leaf in stream)
    outputs, prior = [], np.sqrt(penalty) * np.eye(K.shape[1])
    for t in range(1, len(K) + 1):
        roots = forgetting ** (np.arange(t)[::-1, None] / 2)
        W = np.linalg.lstsq(np.vstack([roots * K[:t], prior]), np.vstack([roots * V[:t], 0 * V[: len(prior)]]), rcond=None)[0]
        outputs.append(Q[t - 1] @ W)
    return np.array(outputs)


@pytest.mark.parametrize(("dtype", "forgetting"), [(np.float64, 1.0), (np.float64, 0.95), (np.float32, 0.95)])
def test_mesa_layers_are_least_squares_at_every_token(dtype, forgetting):
    """In float64 to 1e-10; in float32 to 2e-5, 200 tokens with a relative rounding of 6e-8 each and condition numbers of 30."""
    rng = np.random.default_rng(1)
    stream = Stream(*(jnp.asarray(rng.normal(size=(200, n)), dtype) for n in (6, 6, 6)))
    layers = [
        lambda s: mesa_recursion(s, 0.7, forgetting=forgetting),
        lambda s: mesa_conjugate_gradients(s, 0.7, steps=18, forgetting=forgetting),
        *((lambda s: prefix_ridge(s, 0.7),) if forgetting == 1 else ()),
    ]
    for layer in layers:
        outputs, expected = jax.jit(layer)(stream), least_squares(stream, 0.7, forgetting)
        assert outputs.dtype == dtype
        np.testing.assert_allclose(outputs, expected, atol=1e-10 if dtype == np.float64 else 2e-5, rtol=0)


def test_as_many_conjugate_gradients_as_coordinates_are_the_inverse():
    A = scipy.linalg.hilbert(D) + np.eye(D)
    B = RNG.normal(size=(3, D))
    for steps, close in ((D, True), (D - 1, False)):
        X = solve_rows(lambda X: X @ jnp.asarray(A), jnp.asarray(B), steps)
        assert np.allclose(X, B @ np.linalg.inv(A), rtol=0, atol=1e-12) == close
    zero = solve_rows(lambda X: X @ jnp.asarray(A), jnp.zeros((2, D)), 3)
    np.testing.assert_array_equal(zero, 0.0)
    ours = jax.jit(lambda s: mesa_conjugate_gradients(s, 5.0, steps=D))(STREAM)
    np.testing.assert_allclose(ours, least_squares(STREAM, 5.0, 1.0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("chunk", [1, 1000])
def test_chunks_do_not_change_the_result(chunk):
    gamma = jnp.asarray(FORGETTING["per token"])
    ours = jax.jit(lambda s: mesa_conjugate_gradients(s, 0.5, steps=12, forgetting=gamma, chunk=chunk))(STREAM)
    np.testing.assert_allclose(ours, mesa_recursion(STREAM, 0.5, forgetting=gamma), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_rotations_of_keys_and_queries_change_nothing_and_outputs_are_causal(name):
    U = jnp.asarray(np.linalg.qr(RNG.normal(size=(D, D)))[0])
    layer, (K, V, Q) = jax.jit(LAYERS[name]), STREAM
    outputs = layer(STREAM, 0.9)
    np.testing.assert_allclose(layer(Stream(K @ U, V, Q @ U), 0.9), outputs, rtol=0, atol=1e-11)
    slopes = jax.jit(jax.grad(lambda s: jnp.sum(layer(s, 0.9)[10])))(STREAM)
    assert all(not jnp.any(slope[11:]) and jnp.any(slope[10]) for slope in slopes)
    assert not jnp.any(slopes.Q[:10])


@pytest.mark.parametrize("name", ["linear attention", "recursion", "gradients"])
def test_without_forgetting_the_order_of_the_context_does_not_matter(name):
    order = RNG.permutation(T)
    other = Stream(STREAM.K[order], STREAM.V[order], STREAM.Q)
    layer, delta = (jax.jit(lambda s, name=name: LAYERS[name](s, 1.0)[-1]) for name in (name, "delta rule"))
    np.testing.assert_allclose(layer(other), layer(STREAM), rtol=0, atol=1e-11)
    assert not np.allclose(delta(other), delta(STREAM), atol=1e-3)


def test_special_cases():
    K, V, Q = STREAM
    found = delta_rule(Stream(K, V, K), 1 / jnp.sum(K**2, axis=1))
    np.testing.assert_allclose(found, V, rtol=0, atol=1e-12)  # a full step recalls the newest pair
    W = jnp.asarray(RNG.normal(size=(M, D)))
    noiseless = Stream(K, K @ W.T, Q)
    for layer in map(jax.jit, MESA.values()):
        np.testing.assert_allclose(layer(noiseless, 1e-7)[D:], (Q @ W.T)[D:], rtol=0, atol=1e-4)  # off by the penalty
        large = 1e7 * layer(STREAM, 1e7)  # a large penalty leaves Hebb's rule, up to H / penalty
        np.testing.assert_allclose(large, linear_attention(STREAM), rtol=0, atol=1e-4)
    eye = jnp.eye(D)
    one_hot = linear_attention(Stream(eye, V[:D], eye))
    np.testing.assert_allclose(one_hot, V[:D], rtol=0, atol=1e-14)


def test_gradients_are_finite_differences_and_the_same_for_both_mesa_layers():
    """The difference is off by h² times the third derivative and by 1e-16/h."""
    gamma, h = jnp.asarray(RNG.uniform(0.6, 0.99, T)), 1e-5
    direction = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), (STREAM, jnp.asarray(LAMBDA), 0.01 * gamma))
    found = []
    for layer in MESA.values():

        @jax.jit
        def total(stream, penalty, gamma, layer=layer):
            return jnp.sum(jnp.sin(layer(stream, penalty, forgetting=gamma)))

        at = STREAM, jnp.asarray(LAMBDA), gamma
        slopes = jax.jit(jax.grad(total, (0, 1, 2)))(*at)
        found.append(slopes)
        along = sum(jnp.sum(a * b) for a, b in zip(*map(jax.tree.leaves, (slopes, direction)), strict=True))
        moved = [jax.tree.map(lambda x, v, s=s: x + s * h * v, at, direction) for s in (1, -1)]
        assert float(along) == pytest.approx(float(total(*moved[0]) - total(*moved[1])) / (2 * h), rel=1e-6)
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_gradients_are_finite_where_conjugate_gradients_have_converged():
    """In float32, with more steps than coordinates, queries of zero and keys that repeat."""
    K, V, Q = (leaf[:8].astype(jnp.float32) for leaf in STREAM)
    stream = Stream(jnp.broadcast_to(K[:1], K.shape), V, Q.at[3].set(0))
    for layer in MESA.values():
        slopes = jax.jit(jax.grad(lambda s, layer=layer: jnp.sum(layer(s, 0.1, forgetting=0.9) ** 2)))(stream)
        assert all(bool(jnp.isfinite(slope).all()) for slope in slopes)


def long_stream(tokens, scales):
    """Keys in rotated coordinates of given scales, values that depend on all of them alike."""
    rng = np.random.default_rng(2)
    d = len(scales)
    X = rng.normal(size=(tokens + 1, d))
    Y = X @ rng.normal(size=(d, 1)) / np.sqrt(d) + 0.5 * rng.normal(size=(tokens + 1, 1))
    X = (X * scales) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    return Stream(*(leaf.astype(np.float32) for leaf in (X[:-1], Y[:-1], X[1:])))  # pyright: ignore


HALF = (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def float32_errors(stream, **settings):
    """The relative errors of layers in float32, against the recursion in float64."""

    def error_of(layer, **more):
        ours = jax.jit(lambda s: layer(s, **settings, **more))(single)
        assert ours.dtype == jnp.float32
        return np.abs(np.asarray(ours) - exact)[:, 0] / np.sqrt(np.mean(exact**2))

    single, double = (jax.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), stream) for dtype in (None, jnp.float64))
    exact = np.asarray(jax.jit(lambda s: mesa_recursion(s, **settings))(double))
    return error_of(mesa_recursion), error_of(mesa_conjugate_gradients, steps=32), error_of(sherman_morrison)


@pytest.mark.parametrize("tokens", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_float32_over_long_sequences(tokens):
    """Where keys leave half of the directions: with forgetting the textbook form ends in NaN, ours have bounded errors.

    Bounds: with forgetting, some hundred tokens' roundings of 6e-8; without, errors of P that grow as the square root of the
    tokens, and 5e-4 is what 100,000 tokens come to.
    """
    stream = long_stream(tokens, np.array(HALF))
    *ours, textbook = float32_errors(stream, penalty=1.0, forgetting=0.99)
    assert np.max(ours) < 1e-5
    assert not np.isfinite(textbook[-1]) and np.nanmax(textbook) > 1
    *ours, _ = float32_errors(stream, penalty=1.0)
    assert np.max(ours) < 1e-3
