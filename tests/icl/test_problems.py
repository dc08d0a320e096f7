"""Copying and Markov chains, against loops, formulas and exact constructions."""

import functools
import importlib.util
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import arrays, heads_of, ones_of, random_layers, task
from reference import descent_step

from icl import problems
from icl.attention import transform_batch
from icl.problems import CausalLayer, CausalModel, Chains, divergence

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


def random_model(length: int, heads: int = 1, symbols: int = 0) -> CausalModel:
    """Three states, weights of order 1 and biases other than zero; with so many symbols before the sequence."""
    rng = np.random.default_rng(0)
    shapes = (3 + symbols, 6), (2, heads, length + symbols), (3, 6)
    embedding, bias, read_out = (jax.device_put(rng.normal(size=shape)) for shape in shapes)
    return CausalModel(embedding, CausalLayer(random_layers(1, 6, 2, heads, scale=6 / 4), bias), read_out)


def counts_loop(x: np.ndarray, k: int) -> np.ndarray:
    """n_ij, i = x_t, after each t."""
    n = np.zeros((len(x), k))
    for t in range(len(x)):
        for s in range(t):
            if x[s] == x[t]:
                n[t, x[s + 1]] += 1
    return n


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
            np.testing.assert_allclose(bigram, dirichlet(counts_loop(x, k), alpha), rtol=1e-14)  # one division
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
    x = sequence(3, 9)
    other = np.where(np.arange(9) == 5, (x + 1) % 3, x)
    for symbols in (0, 1):
        model = random_model(9, heads=2, symbols=symbols)
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
