"""Sequence layers as estimators: slow loops with explicit inverses, least squares at every token, invariances, float32.

Tolerances: in float64 a few hundred operations on numbers of size 1, and inverses of condition numbers up to 1000: 1e-11.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from icl import delta_rule, linear_attention, mesa_conjugate_gradients, mesa_recursion, prefix_ridge, sherman_morrison
from icl.recurrences import Stream, solve_rows

T, D, M = 23, 4, 2
RNG = np.random.default_rng(0)
KEYS, VALUES, QUERIES = (RNG.normal(size=(T, n)) for n in (D, M, D))
LAMBDA = np.array([0.3, 1.0, 0.5, 2.0])
FORGETTING = {"none": 1.0, "constant": 0.9, "per token": np.concatenate([RNG.uniform(0.5, 1, T - 3), [1.0, 1e-3, 1.0]])}
RATES = RNG.uniform(0.05, 0.3, T)


def stream_of(*leaves) -> Stream:
    return Stream(*map(jax.device_put, leaves or (KEYS, VALUES, QUERIES)))


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


def slow_loop(name, forgetting):
    """What each layer is, a token at a time, with explicit inverses."""
    K, V, Q = KEYS, VALUES, QUERIES
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


def test_each_layer_is_its_slow_loop():
    """Also by a number of γ that is not traced; forgetting almost everything at once is what the textbook form cannot do."""

    @jax.jit
    def found(s, rates, penalty, gamma):
        mesa = [f(s, penalty, forgetting=gamma) for f in MESA.values()]
        first = linear_attention(s, forgetting=gamma), delta_rule(s, rates, forgetting=gamma)
        return [*first, *mesa, sherman_morrison(s, penalty, forgetting=gamma)]

    names = "linear attention", "delta rule", "mesa", "mesa", "penalty that decays"
    for kind, forgetting in FORGETTING.items():
        outputs = found(stream_of(), RATES, LAMBDA, np.broadcast_to(forgetting, T))
        for name, ours in list(zip(names, outputs, strict=True))[: -1 if kind == "per token" else None]:
            np.testing.assert_allclose(ours, slow_loop(name, forgetting), rtol=1e-11, atol=1e-11)
    plain = jax.jit(lambda s: [linear_attention(s), delta_rule(s, RATES), *(f(s, LAMBDA) for f in MESA.values())])
    for name, ours in zip(names, plain(stream_of()), strict=False):
        np.testing.assert_allclose(ours, slow_loop(name, 1.0), rtol=1e-11, atol=1e-11)


def least_squares(stream, penalty, forgetting):
    """Ridge regression at every token as ordinary least squares, solved by LAPACK's singular values."""
    K, V, Q = (np.asarray(leaf, np.float64) for leaf in stream)
    outputs, prior = [], np.sqrt(penalty) * np.eye(K.shape[1])
    for t in range(1, len(K) + 1):
        roots = forgetting ** (np.arange(t)[::-1, None] / 2)
        W = np.linalg.lstsq(np.vstack([roots * K[:t], prior]), np.vstack([roots * V[:t], 0 * V[: len(prior)]]), rcond=None)[0]
        outputs.append(Q[t - 1] @ W)
    return np.array(outputs)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mesa_layers_are_least_squares_at_every_token(dtype):
    """In float64 to 1e-10; in float32 to 2e-5, 200 tokens with a relative rounding of 6e-8 each and condition numbers of 30."""
    rng = np.random.default_rng(1)
    stream = stream_of(*(np.asarray(rng.normal(size=(200, n)), dtype) for n in (6, 6, 6)))

    @jax.jit
    def found(s, gamma):
        layers = mesa_recursion(s, 0.7, forgetting=gamma), mesa_conjugate_gradients(s, 0.7, steps=18, forgetting=gamma)
        return layers, (mesa_recursion(s, 0.7), prefix_ridge(s, 0.7))

    layers, still = found(stream, dtype(0.95))
    for outputs, forgetting in (*((one, 0.95) for one in layers), *((one, 1.0) for one in still)):
        assert outputs.dtype == dtype
        expected = least_squares(stream, 0.7, forgetting)
        np.testing.assert_allclose(outputs, expected, atol=1e-10 if dtype == np.float64 else 2e-5, rtol=0)


def test_as_many_conjugate_gradients_as_coordinates_are_the_inverse():
    A = scipy.linalg.hilbert(D) + np.eye(D)
    B = RNG.normal(size=(3, D))
    solve = jax.jit(lambda B, steps: solve_rows(lambda X: X @ A, B, steps), static_argnums=1)
    for steps, close in ((D, True), (D - 1, False)):
        assert np.allclose(solve(B, steps), B @ np.linalg.inv(A), rtol=0, atol=1e-12) == close
    np.testing.assert_array_equal(solve(0 * B, D), 0.0)
    ours = jax.jit(lambda s: mesa_conjugate_gradients(s, 5.0, steps=D))(stream_of())
    np.testing.assert_allclose(ours, least_squares(stream_of(), 5.0, 1.0), rtol=0, atol=1e-10)


def test_chunks_do_not_change_the_result():
    gamma = FORGETTING["per token"]

    @jax.jit
    def found(s):
        by_chunks = [mesa_conjugate_gradients(s, 0.5, steps=12, forgetting=gamma, chunk=chunk) for chunk in (1, 1000)]
        return mesa_recursion(s, 0.5, forgetting=gamma), by_chunks

    expected, by_chunks = found(stream_of())
    for ours in by_chunks:
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11)


def test_rotations_of_keys_and_queries_change_nothing_outputs_are_causal_and_order_matters_to_the_delta_rule_alone():
    U = np.linalg.qr(RNG.normal(size=(D, D)))[0]
    order = RNG.permutation(T)
    all_layers = jax.jit(lambda s, gamma: [layer(s, gamma) for layer in LAYERS.values()])
    outputs = all_layers(stream_of(), 0.9)
    for ours, turned in zip(outputs, all_layers(stream_of(KEYS @ U, VALUES, QUERIES @ U), 0.9), strict=True):
        np.testing.assert_allclose(turned, ours, rtol=0, atol=1e-11)
    # without forgetting
    plain, other = all_layers(stream_of(), 1.0), all_layers(stream_of(KEYS[order], VALUES[order], QUERIES), 1.0)
    for name, one, moved in zip(LAYERS, plain, other, strict=True):
        assert np.allclose(one[-1], moved[-1], rtol=0, atol=1e-11 if name != "delta rule" else 1e-3) == (name != "delta rule")
    tenth = jax.jit(lambda s: [jax.grad(lambda s, layer=layer: jnp.sum(layer(s, 0.9)[10]))(s) for layer in LAYERS.values()])
    for slopes in jax.tree.map(np.asarray, tenth(stream_of())):
        assert all(not slope[11:].any() and slope[10].any() for slope in slopes) and not slopes.Q[:10].any()


def test_special_cases():
    found = jax.jit(delta_rule)(stream_of(KEYS, VALUES, KEYS), 1 / np.sum(KEYS**2, axis=1))
    np.testing.assert_allclose(found, VALUES, rtol=0, atol=1e-12)  # a full step recalls the newest pair
    W = RNG.normal(size=(M, D))
    mesa = jax.jit(lambda s, penalty: [layer(s, penalty) for layer in MESA.values()])
    for exact in mesa(stream_of(KEYS, KEYS @ W.T, QUERIES), 1e-7):
        np.testing.assert_allclose(np.asarray(exact)[D:], (QUERIES @ W.T)[D:], rtol=0, atol=1e-4)  # off by the penalty
    for large in mesa(stream_of(), 1e7):  # a large penalty leaves Hebb's rule, up to H / penalty
        np.testing.assert_allclose(1e7 * np.asarray(large), slow_loop("linear attention", 1.0), rtol=0, atol=1e-4)
    one_hot = jax.jit(linear_attention)(stream_of(np.eye(D), VALUES[:D], np.eye(D)))
    np.testing.assert_allclose(one_hot, VALUES[:D], rtol=0, atol=1e-14)


def test_gradients_are_finite_differences_and_the_same_for_both_mesa_layers():
    """The difference is off by h² times the third derivative and by 1e-16/h."""
    gamma, h = RNG.uniform(0.6, 0.99, T), 1e-5
    at = stream_of(), LAMBDA, gamma
    direction = jax.tree.map(lambda leaf: RNG.normal(size=leaf.shape), (*at[:2], 0.01 * gamma))
    found = []
    for layer in MESA.values():

        @jax.jit
        @functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
        def total(stream, penalty, gamma, layer=layer):
            return jnp.sum(jnp.sin(layer(stream, penalty, forgetting=gamma)))

        slopes = total(*at)[1]
        found.append(slopes)
        along = sum(np.sum(np.asarray(a) * b) for a, b in zip(*map(jax.tree.leaves, (slopes, direction)), strict=True))
        moved = [jax.tree.map(lambda x, v, s=s: jax.device_put(np.asarray(x) + s * h * v), at, direction) for s in (1, -1)]
        assert along == pytest.approx((float(total(*moved[0])[0]) - float(total(*moved[1])[0])) / (2 * h), rel=1e-6)
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_gradients_are_finite_where_conjugate_gradients_have_converged():
    """In float32, with more steps than coordinates, queries of zero and keys that repeat."""
    Q = np.where(np.arange(8)[:, None] == 3, 0, QUERIES[:8])
    stream = stream_of(*(np.asarray(leaf, np.float32) for leaf in (np.broadcast_to(KEYS[:1], (8, D)), VALUES[:8], Q)))
    total = lambda s, layer: jnp.sum(layer(s, 0.1, forgetting=0.9) ** 2)  # noqa: E731
    slopes = jax.jit(lambda s: [jax.grad(total)(s, layer) for layer in MESA.values()])(stream)
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


def long_stream(tokens, scales):
    """Keys in rotated coordinates of given scales, values that depend on all of them alike."""
    rng = np.random.default_rng(2)
    d = len(scales)
    X = rng.normal(size=(tokens + 1, d))
    Y = X @ rng.normal(size=(d, 1)) / np.sqrt(d) + 0.5 * rng.normal(size=(tokens + 1, 1))
    X = (X * scales) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    return [leaf.astype(np.float32) for leaf in (X[:-1], Y[:-1], X[1:])]


HALF = (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


@functools.cache
def float32_layers(settings):
    """The outputs of layers and, from the same numbers in float64, of the recursion."""
    more = dict(settings)

    @jax.jit
    def outputs(single, double):
        ours = (
            mesa_recursion(single, **more),
            mesa_conjugate_gradients(single, steps=32, **more),
            sherman_morrison(single, **more),
        )
        return *ours, mesa_recursion(double, **more)

    return outputs


def float32_errors(stream, **settings):
    """The relative errors of layers in float32, against the recursion in float64."""
    double = stream_of(*(np.asarray(leaf, np.float64) for leaf in stream))
    *ours, exact = map(np.asarray, float32_layers(tuple(settings.items()))(stream_of(*stream), double))
    assert {one.dtype for one in ours} == {np.dtype(np.float32)}
    return [np.abs(one - exact)[:, 0] / np.sqrt(np.mean(exact**2)) for one in ours]


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
