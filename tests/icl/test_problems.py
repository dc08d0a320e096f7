"""Copying, Markov chains, waves and streams: loops, explicit inverses, formulas, exact constructions, expected losses.

Tolerances of streams: in float64 a few hundred operations on numbers of size 1, and inverses of condition numbers up to 1000.
"""

import functools
import importlib.util
import math
from functools import partial
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import arrays, heads_of, ones_of, random_layers, task
from reference import descent_step

import icl
from icl import Streams, Tasks, delta_rule, kalman_filter, linear_attention, one_step_loss, optimal_rate, problems, recurrences
from icl.attention import transform_batch
from icl.problems import CausalLayer, CausalModel, Chains, divergence
from icl.recurrences import Dynamics, Stream, mesa_conjugate_gradients, mesa_recursion

# compiled whole, which takes less time than compiling every operation
next_outputs = jax.jit(problems.next_outputs)


def test_two_linear_layers_copy_and_descend_exactly():
    @jax.jit
    def answers(batch):
        E = problems.copying_tokens(batch)
        layers = problems.copying_layers(batch.X.shape[1], len(batch.X), 0.7)
        return E, -transform_batch(layers, E[:, :-1], E[:, -1:])[-1]

    for dim, context in ((4, 6), (1, 1)):
        batch = task(dim=dim, context=context, outputs=1, batch=(4,))
        E, found = map(np.asarray, answers(batch))
        np.testing.assert_array_equal(E[:dim, ::2], np.swapaxes([*batch.X, batch.x_q], 0, 1))
        np.testing.assert_array_equal(E[: dim - 1, 1::2], 0)
        np.testing.assert_array_equal(E[dim - 1, 1::2], np.asarray(batch.Y)[:, 0])
        np.testing.assert_array_equal(E[dim:], np.repeat(np.eye(2 * context + 1)[:-1, :, None], 4, axis=2))
        for n, one in enumerate(ones_of(batch)):
            X, Y, x_q = arrays(one)
            step = descent_step(np.zeros((1, len(x_q))), X, Y, 0.7) @ x_q
            np.testing.assert_allclose(found[:, n], step, rtol=1e-12, atol=1e-14)  # float64, sums of at most 12 terms


# Chains

CASES = [(2, 2, 0.3), (3, 40, 1.0), (3, 40, np.array([0.1, 3.0, 50.0]))]


def sequence(k: int, T: int, seed: int = 0) -> np.ndarray:
    """States of a chain whose rows are uniform over the simplex."""
    rng = np.random.default_rng(seed)
    P, x = rng.dirichlet(np.ones(k), k), [0]
    for _ in range(T - 1):
        x.append(int(rng.choice(k, p=P[x[-1]])))
    return np.array(x, np.int32)


def dirichlet(n: np.ndarray, alpha) -> np.ndarray:
    return (n + alpha) / (n + alpha).sum(axis=1, keepdims=True)


@functools.cache
def induced(k: int, T: int, dtype=None):
    """The outputs of the construction, compiled whole, by (x, α)."""

    def outputs(x, alpha):
        model = problems.induction_model(k, T, alpha)
        return problems.next_outputs(jax.tree.map(lambda leaf: leaf.astype(dtype or leaf.dtype), model), x)

    return jax.jit(outputs)


def test_posterior_means_are_their_loops_and_two_layers_compute_them():
    for k, T, alpha in CASES:

        @jax.jit
        def found(x, k=k, alpha=alpha):
            return problems.bigram_posterior(x, alpha, k), problems.unigram_posterior(x, alpha, k)

        for seed in range(3):
            x = sequence(k, T, seed)
            bigram, unigram = found(x)
            n = np.zeros((T, k))
            for t, s in zip(*np.tril_indices(T, -1), strict=True):  # n_ij of i = x_t, after each t
                n[t, x[s + 1]] += x[s] == x[t]
            np.testing.assert_allclose(bigram, dirichlet(n, alpha), rtol=1e-14)  # one division
            np.testing.assert_allclose(unigram, dirichlet(np.cumsum(np.eye(k)[x], axis=0), alpha), rtol=1e-14)
            ours = np.asarray(induced(k, T)(x, alpha))
            # float64: scores up to 1000 are differences of equal numbers, or logarithms of α
            np.testing.assert_allclose(ours, bigram, rtol=0, atol=1e-12)
            half = induced(k, T)(x[: T // 2], alpha)  # shorter sequences fit too
            np.testing.assert_allclose(half, ours[: T // 2], rtol=0, atol=1e-14)
            single = induced(k, T, jnp.float32)(x, alpha)
            np.testing.assert_allclose(single, bigram, rtol=0, atol=1e-6)  # sums of 64 terms below 1


def test_chains_have_the_distribution_that_they_should():
    P, x = map(np.asarray, Chains(states=3, length=50, alpha=0.7).sample(jax.random.key(0), 4000))
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-12)
    variance = (1 / 3) * (2 / 3) / (3 * 0.7 + 1)  # of a coordinate of the Dirichlet distribution
    assert P.var() == pytest.approx(variance, rel=0.04) and P.mean() == pytest.approx(1 / 3)  # 36,000 of them
    stationary = jax.jit(jax.vmap(problems.stationary_distribution, in_axes=-1, out_axes=-1))
    pi = np.asarray(stationary(P))
    rare = jax.random.dirichlet(jax.random.key(1), jnp.full(3, 0.01, jnp.float32), (4000, 3), jnp.float32)
    rare = np.moveaxis(np.asarray(rare), 0, -1)  # of states that are hardly left
    proper = np.asarray(stationary(rare))
    for found, matrix, rounding in ((pi, P, 1e-12), (proper, rare, 1e-6)):
        np.testing.assert_allclose(found.sum(axis=0), 1, atol=rounding)
        np.testing.assert_allclose(np.einsum("ib,ijb->jb", found, matrix), found, atol=rounding)
    assert proper.min() >= 0 and np.abs(proper.mean(axis=1) - 1 / 3).max() < 0.04
    np.testing.assert_allclose(stationary(np.eye(3)[..., None]), 1 / 3)
    # the share of steps from x_t to j minus its probability: mean zero, 4000 * 49 steps of variance below 1/4
    steps = np.array([(x[1:] == j) - P[x[:-1], j, np.arange(4000)[None]] for j in range(3)])
    assert np.abs(steps.mean(axis=(1, 2))).max() < 5 * 0.5 / math.sqrt(4000 * 49)
    for t in (0, 49):  # the same distribution at the first state and at the last
        assert abs(np.mean((x[t] == 0) - pi[0])) < 5 * 0.5 / math.sqrt(4000)


def test_the_constructed_heads_look_where_they_should():
    x, model = sequence(3, 40), jax.jit(problems.induction_model, static_argnums=(0, 1))(3, 40, 0.5)
    roles = jax.jit(problems.head_roles)
    assert [float(share) for share in roles(model, x)] == pytest.approx([1, 1])
    uniform = model._replace(layers=jax.tree.map(lambda leaf: jax.device_put(0 * np.asarray(leaf)), model.layers))
    first, second = roles(uniform, x)
    assert float(first) < 0.3 and float(second) < 0.5


def test_causal_attention_is_its_loop_and_no_output_depends_on_a_later_state():
    """The query's own token is the last that it sees."""
    x, rng = sequence(3, 9), np.random.default_rng(0)
    other = np.where(np.arange(9) == 5, (x + 1) % 3, x)
    for symbols in (0, 1):  # before the sequence
        shapes = (3 + symbols, 6), (2, 2, 9 + symbols), (3, 6)
        embedding, bias, read_out = (jax.device_put(rng.normal(size=shape)) for shape in shapes)
        model = CausalModel(embedding, CausalLayer(random_layers(1, 6, 2, 2, scale=6 / 4), bias), read_out)
        E = np.asarray(model.embedding)[[*range(3, 3 + symbols), *x]]
        for n in range(2):
            layer, expected = jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[n], model.layers), E.copy()
            for W_K, W_Q, W_V, P, b in zip(*layer.heads, layer.bias, strict=True):
                for t in range(len(E)):
                    a = np.exp([(W_K @ E[s]) @ (W_Q @ E[t]) / 6**0.5 + b[t - s] for s in range(t + 1)])
                    expected[t] += P @ sum(a[s] / a.sum() * (W_V @ E[s]) for s in range(t + 1))
            E = expected
        changed, outputs = (np.asarray(next_outputs(model, states)) for states in (other, x))
        np.testing.assert_allclose(outputs, E[symbols:] @ np.asarray(model.read_out).T, rtol=1e-11)
        np.testing.assert_array_equal(changed[:5], outputs[:5])
        assert np.abs(changed[5:] - outputs[5:]).min() > 0


def test_divergences_are_those_of_known_distributions():
    p, far = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), jax.jit(divergence)
    with np.errstate(divide="ignore"):
        assert float(far(p, np.log(p[::-1]))) == math.inf  # where p > 0 = q
    expected = (math.log(3 / 2) + 0.2 * math.log(0.6) + 0.3 * math.log(0.9) + 0.5 * math.log(1.5)) / 2
    assert float(far(p, np.full((2, 3), -math.log(3)))) == pytest.approx(expected, rel=1e-12)


# docs/recipes/copying_and_waves.py


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("recipe", Path(__file__).parents[2] / "docs/recipes/copying_and_waves.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sensitivities_are_norms_of_mean_gradients(recipe):
    layers, E = random_layers(1, 5, 2, 1, scale=1.0), np.random.default_rng(2).normal(size=(9, 5, 3))
    found = jax.jit(partial(recipe.sensitivities, softmax=True))(layers, jax.device_put(E.swapaxes(0, 1)))
    ((W_K, W_Q, W_V, P),) = heads_of(layers, 0)

    def sums(E):  # of the channels of the outputs that have a next token in the context
        scores = np.exp((E[:-1] @ W_K.T @ (E[:7] @ W_Q.T).T) / 5**0.5)
        return (E[:7] + (scores / scores.sum(axis=0)).T @ E[:-1] @ W_V.T @ P.T).sum(axis=1)

    steps = 1e-30j * np.eye(45).reshape(9, 5, 9, 5)  # imaginary parts are derivatives to rounding
    gradient = np.mean([[[sums(E[..., n] + step).imag for step in of_i] for of_i in steps] for n in range(3)], axis=0) / 1e-30
    norms = np.linalg.norm(gradient, axis=1)  # [inputs, outputs]
    of = {"own": np.eye(9, 7), "next": np.eye(9, 7, -1), "other": 1 - np.eye(9, 7) - np.eye(9, 7, -1)}
    expected = {what: np.average(norms, weights=which) for what, which in of.items()}
    assert {what: float(x) for what, x in found.items()} == pytest.approx(expected, rel=1e-10)


def test_the_control_is_a_step_of_descent_on_features(recipe):
    problem, keys = recipe.Waves(), jax.random.split(jax.random.key(0))
    weights = jax.tree.map(lambda W: 20 * W + 0.1, recipe.init_network(keys[0], attention=False)[0])
    y = jax.jit(problem.predict)((weights, None), batch := problem.sample(keys[1], 3))
    tokens = np.concatenate([np.stack([batch.X[:, 0], batch.Y[:, 0]]), np.stack([batch.x_q, 0 * batch.y_q])], axis=1)
    phi = np.asarray(jax.jit(recipe.features)(weights, jax.device_put(tokens)))  # [C, N + 1, tasks]
    for n in range(3):
        X, Y, q = phi[:-1, :-1, n].T, phi[-1:, :-1, n].T, phi[:, -1, n]
        assert float(y[0, n]) == pytest.approx(-q[-1] + (descent_step(np.zeros((1, 39)), X, Y, 0.1) @ q[:-1])[0], rel=1e-10)


def test_both_problems_of_the_recipe_learn(recipe, monkeypatch):
    monkeypatch.setattr(recipe, "fresh", lambda problem, stream, size: problem.sample(jax.random.key(stream), 100))
    settings = icl.Recipe(64, 1e-2, gradient_clip=10, cooling="constant")
    layers = partial(icl.init_layers, width=2 + recipe.CODES, layers=2, scale=0.01)
    copying = recipe.Copying(Tasks(dim=2, context=3), softmax=True, clip=10)
    for problem, init in ((copying, layers), (recipe.Waves(), partial(recipe.init_network, attention=True))):
        curve = recipe.train("small", problem, init, settings, 10, 1, recipe.fresh(problem, 0, 1)).curve
        assert curve.loss.iloc[-1] < curve.loss.iloc[0]


# Streams: layers and filters that estimate online
T, D, M = 23, 4, 2
RNG = np.random.default_rng(0)
KEYS, VALUES, QUERIES = (RNG.normal(size=(T, n)) for n in (D, M, D))
LAMBDA = np.array([0.3, 1.0, 0.5, 2.0])
FORGETTING = {"none": 1.0, "constant": 0.9, "per token": np.concatenate([RNG.uniform(0.5, 1, T - 3), [1.0, 1e-3, 1.0]])}
RATES = RNG.uniform(0.05, 0.3, T)
MESA = {
    "recursion": mesa_recursion,
    "gradients": lambda stream, penalty, **more: mesa_conjugate_gradients(stream, penalty, steps=3 * D, chunk=5, **more),
}
DRIFT = Streams(dim=3, tokens=12, outputs=2, noise=0.4, memory=0.9, variances=(0.5, 1.0, 2.0))
# compiled whole, which takes less time than compiling every operation
hebbian_losses = jax.jit(recurrences.hebbian_losses, static_argnums=0, static_argnames="forgetting")
delta_losses = jax.jit(recurrences.delta_losses, static_argnums=(0, 1))
ridge_losses = jax.jit(recurrences.ridge_losses, static_argnums=0)


def stream_of(*leaves) -> Stream:
    return Stream(*map(jax.device_put, leaves or (KEYS, VALUES, QUERIES)))


def all_layers(stream, **forgetting):
    """Linear attention, the delta rule, the mesa layer by recursion and by conjugate gradients."""
    first = linear_attention(stream, **forgetting), delta_rule(stream, jax.device_put(RATES), **forgetting)
    return [*first, *(layer(stream, jax.device_put(LAMBDA), **forgetting) for layer in MESA.values())]


def slow_loop(forgetting):
    """What each layer is, a token at a time, with explicit inverses."""
    gammas = np.broadcast_to(forgetting, T)
    H, G, W = np.zeros((D, D)), np.zeros((M, D)), np.zeros((M, D))
    outputs = []
    for k, v, q, gamma, beta in zip(KEYS, VALUES, QUERIES, gammas, RATES, strict=True):
        H, G = gamma * H + np.outer(k, k), gamma * G + np.outer(v, k)
        W = gamma * W @ (np.eye(D) - beta * np.outer(k, k)) + beta * np.outer(v, k)
        mesa = G @ np.linalg.inv(H + np.diag(LAMBDA)) @ q
        outputs.append([G @ q, W @ q, mesa, mesa])
    return np.array(outputs).swapaxes(0, 1)


def test_each_layer_is_its_slow_loop():
    """Also by a number of γ that is not traced."""
    found = jax.jit(lambda s, gamma: all_layers(s, forgetting=gamma))
    cases = [(found(stream_of(), np.broadcast_to(g, T)), g) for g in FORGETTING.values()]
    cases.append((jax.jit(all_layers)(stream_of()), 1.0))
    for outputs, forgetting in cases:
        np.testing.assert_allclose(outputs, slow_loop(forgetting), rtol=1e-11, atol=1e-11)


def test_both_mesa_layers_have_the_same_gradients():
    at = stream_of(), LAMBDA, RNG.uniform(0.6, 0.99, T)

    def total(layer, stream, penalty, gamma):
        return jnp.sum(jnp.sin(layer(stream, penalty, forgetting=gamma)))

    found = (jax.jit(jax.grad(functools.partial(total, layer), argnums=(0, 1, 2)))(*at) for layer in MESA.values())
    chex.assert_trees_all_close(*found, rtol=0, atol=1e-10)


def test_gradients_are_finite_where_conjugate_gradients_have_converged():
    """In float32, with more steps than coordinates, queries of zero and keys that repeat."""
    Q = np.where(np.arange(8)[:, None] == 3, 0, QUERIES[:8])
    stream = stream_of(*(np.asarray(leaf, np.float32) for leaf in (np.broadcast_to(KEYS[:1], (8, D)), VALUES[:8], Q)))
    total = lambda s: sum(jnp.sum(layer(s, 0.1, forgetting=0.9) ** 2) for layer in MESA.values())  # noqa: E731
    assert all(np.isfinite(slope).all() for slope in jax.jit(jax.grad(total))(stream))


@pytest.mark.parametrize("tokens", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("forgetting, most", [({"forgetting": 0.99}, 1e-5), ({}, 1e-3)])
def test_float32_over_long_sequences(tokens, forgetting, most):
    """Where keys leave half of the directions. Bounds: with forgetting, some hundred tokens' roundings of 6e-8; without, errors
    of P that grow as the square root of the tokens, and 5e-4 is what 100,000 tokens come to."""
    rng, scales = np.random.default_rng(2), np.repeat([1.0, 0.0], 4)
    X = rng.normal(size=(tokens + 1, 8))
    Y = X @ rng.normal(size=(8, 1)) / np.sqrt(8) + 0.5 * rng.normal(size=(tokens + 1, 1))
    X = (X * scales) @ np.linalg.qr(rng.normal(size=(8, 8)))[0]
    stream = [leaf.astype(np.float32) for leaf in (X[:-1], Y[:-1], X[1:])]

    @jax.jit
    def outputs(single, double):
        ours = mesa_recursion(single, 1.0, **forgetting), mesa_conjugate_gradients(single, 1.0, steps=32, **forgetting)
        return *ours, mesa_recursion(double, 1.0, **forgetting)

    *ours, exact = map(np.asarray, outputs(stream_of(*stream), stream_of(*(leaf.astype(np.float64) for leaf in stream))))
    for one in ours:
        assert one.dtype == np.float32 and np.abs(one - exact).max() < most * np.sqrt(np.mean(exact**2))


# Expected losses


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


def test_linear_attention_loses_what_its_closed_form_says_and_is_one_step_of_descent_where_nothing_drifts():
    found = {g: jax.tree.map(np.asarray, hebbian_losses(DRIFT, forgetting=g)) for g in (1.0, 0.8)}

    def layers(s):
        outputs = [factors[:, None] * linear_attention(s, forgetting=g) for g, (factors, _) in found.items()]
        return [by * one for one in outputs for by in (1.0, 2.0)]

    losses = losses_of(layers, DRIFT)
    for (_, expected), own, other in zip(found.values(), losses[::2], losses[1::2], strict=True):
        assert_expected(own, expected)
        assert (other.mean(axis=0) > own.mean(axis=0)).all()
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
        assert [_delta_recursion(rates[: t + 1]) for t in range(12)] == pytest.approx(expected.tolist(), rel=1e-12)
    rates, expected = found[0]
    for t in range(12):  # each rate has the lowest next loss
        assert all(_delta_recursion([*rates[:t], by * rates[t]]) > expected[t] for by in (0.9, 1.1))


def _delta_recursion(rates):
    """The last loss of given rates in a drifting stream, from the whole matrix of second moments."""
    L, E = np.diag(DRIFT.spectrum), np.eye(3) / 3
    for beta in map(float, rates):
        E = E - beta * (L @ E + E @ L) + beta**2 * (2 * L @ E @ L + np.trace(L @ E) * L + DRIFT.noise**2 * L)
        E = DRIFT.memory**2 * E + (1 - DRIFT.memory**2) * np.eye(3) / 3
    return np.trace(L @ E) / 2


def test_ridge_loses_what_the_limit_of_many_inputs_says():
    """Given the inputs the loss is ½ σ² tr Λ (XᵀX + σ² d I)⁻¹. To 2 % at d = 30: the limit is off by terms of 1/d."""
    rng, d = np.random.default_rng(0), 30
    streams = Streams(dim=d, tokens=90, outputs=30, variances=tuple(np.linspace(0.2, 1.8, d).tolist()))
    expected, spectrum = np.asarray(ridge_losses(streams)), np.asarray(streams.spectrum)
    for t in (1, 15, 30, 45, 90):
        X = rng.normal(size=(200, t, d)) * np.sqrt(spectrum)
        inverses = np.linalg.inv(X.swapaxes(1, 2) @ X + streams.penalty * np.eye(d))
        loss = np.mean(np.einsum("i,nii->n", spectrum, inverses)) * streams.noise**2 / 2
        assert loss == pytest.approx(expected[t - 1], rel=0.02)
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


def test_streams_and_dynamical_systems_are_what_they_say():
    streams = Streams(dim=2, tokens=40, outputs=3, noise=0.5, memory=0.8, variances=(1.0, 4.0))
    (K, V, Q), targets = jax.tree.map(np.asarray, sampled(streams, 1000))
    np.testing.assert_array_equal(K[:, 1:], Q[:, :-1])
    np.testing.assert_allclose(K.var(axis=(0, 1)), streams.spectrum, rtol=0.04)
    noise = V[:, 1:] - targets[:, :-1]
    assert noise.std() == pytest.approx(0.5, rel=0.02) and targets.var() == pytest.approx(2.5, rel=0.06)
    assert np.mean(noise * targets[:, :-1]) == pytest.approx(0, abs=0.01)  # how maps drift is in the losses above
    sample = jax.jit(Dynamics(dim=3, tokens=30, noise=0.1).sample, static_argnums=1)
    (K, V, Q), targets = jax.tree.map(np.asarray, sample(jax.random.key(0), jnp.float64))
    W = np.linalg.lstsq(Q, targets, rcond=None)[0].T
    np.testing.assert_allclose(W @ W.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(Q @ W.T, targets, atol=1e-12)
    np.testing.assert_array_equal(V, Q)
    assert np.std(V - K @ W.T) == pytest.approx(0.1, rel=0.3)
