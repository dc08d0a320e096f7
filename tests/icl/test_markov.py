"""Markov chains in context: closed forms against loops and integrals, the constructed heads, a language model's cache row."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl import blocks, problems
from icl.attention import AttentionLayer
from icl.blocks import CausalLayer, CausalModel
from icl.problems import Chains, cross_entropy, dirichlet_mean, divergence, uniform_prediction

# compiled whole, which takes less time than compiling every operation
next_outputs = jax.jit(blocks.next_outputs, static_argnames="softmax")
induction_model = jax.jit(blocks.induction_model, static_argnums=(0, 1), static_argnames="dtype")
counting_model = jax.jit(blocks.counting_model, static_argnums=(0, 1))
bigram_posterior = jax.jit(problems.bigram_posterior, static_argnums=2)
CASES = [(2, 2, 0.3), (3, 40, 1.0), (3, 40, np.array([0.1, 3.0, 50.0]))]


def sequence(k: int, T: int, seed: int = 0) -> np.ndarray:
    """States of a chain whose rows are uniform over the simplex."""
    rng = np.random.default_rng(seed)
    P, x = rng.dirichlet(np.ones(k), k), [0]
    for _ in range(T - 1):
        x.append(int(rng.choice(k, p=P[x[-1]])))
    return np.array(x, np.int32)


def random_model(states: int, length: int, width: int = 6, layers: int = 2, heads: int = 1, symbols: int = 0) -> CausalModel:
    """With weights of order 1 and biases other than zero; with so many symbols before the sequence."""
    rng = np.random.default_rng(0)
    of_layers = [rng.normal(size=(layers, heads, width, width)) / 2 for _ in range(4)]
    bias = rng.normal(size=(layers, heads, length + symbols))
    made = rng.normal(size=(states + symbols, width)), *of_layers, bias, rng.normal(size=(states, width))
    embedding, W_K, W_Q, W_V, P, bias, read_out = map(jax.device_put, made)
    return CausalModel(embedding, CausalLayer(AttentionLayer(W_K, W_Q, W_V, P), bias), read_out)


def counts_loop(x: np.ndarray, k: int) -> np.ndarray:
    """n_ij, i = x_t, after each t."""
    n = np.zeros((len(x), k))
    for t in range(len(x)):
        for s in range(t):
            if x[s] == x[t]:
                n[t, x[s + 1]] += 1
    return n


def posterior_loop(x: np.ndarray, alpha, k: int) -> np.ndarray:
    n = counts_loop(x, k)
    return (n + alpha) / (n + alpha).sum(axis=1, keepdims=True)


def test_the_posterior_means_are_their_loops():
    for k, T, alpha in CASES:
        x = sequence(k, T)

        @jax.jit
        def found(x, k=k, alpha=alpha):
            counts = problems.transition_counts(x, k)
            return counts, problems.bigram_posterior(x, alpha, k), problems.unigram_posterior(x, alpha, k)

        counts, bigram, unigram = found(x)
        np.testing.assert_array_equal(counts, counts_loop(x, k))
        np.testing.assert_allclose(bigram, posterior_loop(x, alpha, k), rtol=1e-14)  # one division
        seen = np.array([np.bincount(x[: t + 1], minlength=k) for t in range(T)])
        np.testing.assert_allclose(unigram, (seen + alpha) / (seen + alpha).sum(axis=1, keepdims=True), rtol=1e-14)


def exact_posterior(x: np.ndarray, alpha: float, *, stationary: bool) -> np.ndarray:
    """E[P_{x_t}] of two states by Gauss-Jacobi quadrature over both rows, from the likelihood of x_1, .., x_t."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    a, b = (grid.ravel() for grid in np.meshgrid((nodes + 1) / 2, (nodes + 1) / 2))  # P = [[1-a, a], [b, 1-b]]
    w = np.outer(weights, weights).ravel() * (a * (1 - a) * b * (1 - b)) ** (alpha - 1)
    P = np.stack([np.stack([1 - a, a]), np.stack([b, 1 - b])])
    likelihood = (np.stack([b, a]) / (a + b))[x[0]] if stationary else np.full_like(a, 0.5)
    for i, j in zip(x[:-1], x[1:], strict=True):
        likelihood = likelihood * P[i, j]
    return (P[x[-1]] * w * likelihood).sum(axis=1) / (w * likelihood).sum()


def test_the_posterior_mean_is_exact_for_a_uniform_first_state_and_nearly_for_a_stationary_one():
    """x_1 from the stationary distribution is one more observation of P: its weight falls with the length."""
    x = sequence(2, 24, seed=6)
    for alpha in (1.0, 2.0):
        ours = np.asarray(bigram_posterior(x, alpha, 2))
        for t in (1, 2, 5, 24):
            # the integrand is a polynomial of degree < 30, which 200 nodes integrate exactly
            np.testing.assert_allclose(ours[t - 1], exact_posterior(x[:t], alpha, stationary=False), rtol=1e-11)
        apart = [np.abs(ours[t - 1] - exact_posterior(x[:t], alpha, stationary=True)).max() for t in (1, 24)]
        assert 0.02 < apart[0] < 0.2 and apart[1] < 0.02


def test_chains_have_the_distribution_that_they_should():
    chains = Chains(states=3, length=50, alpha=0.7, stationary=True)
    P, x = chains.sample(jax.random.key(0), 4000)
    P, x = np.asarray(P), np.asarray(x)
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-12)
    variance = (1 / 3) * (2 / 3) / (3 * 0.7 + 1)  # of a coordinate of the Dirichlet distribution
    assert P.var() == pytest.approx(variance, rel=0.04) and P.mean() == pytest.approx(1 / 3)  # 36,000 of them
    pi = np.asarray(jax.jit(jax.vmap(problems.stationary_distribution, in_axes=-1, out_axes=-1))(P))
    np.testing.assert_allclose(pi.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(np.einsum("ib,ijb->jb", pi, P), pi, atol=1e-12)
    rare = jax.random.dirichlet(jax.random.key(1), jnp.full(3, 0.01, jnp.float32), (4000, 3), jnp.float32)  # states hardly left
    proper = np.asarray(jax.vmap(problems.stationary_distribution)(rare))
    assert proper.min() >= 0 and np.abs(proper.mean(axis=0) - 1 / 3).max() < 0.04
    np.testing.assert_allclose(np.einsum("bi,bij->bj", proper, rare), proper, atol=1e-6)
    assert np.allclose(problems.stationary_distribution(jnp.eye(3)), 1 / 3)
    # the share of steps from x_t to j minus its probability: mean zero, 4000 * 49 steps of variance below 1/4
    steps = np.array([(x[1:] == j) - P[x[:-1], j, np.arange(4000)[None]] for j in range(3)])
    assert np.abs(steps.mean(axis=(1, 2))).max() < 5 * 0.5 / math.sqrt(4000 * 49)
    for t in (0, 49):  # the same distribution at the first state and at the last
        assert abs(np.mean((x[t] == 0) - pi[0])) < 5 * 0.5 / math.sqrt(4000)
    first = np.asarray(Chains(states=3, length=2, alpha=0.7, stationary=False).sample(jax.random.key(0), 4000).x)[0]
    assert np.abs(np.bincount(first, minlength=3) / 4000 - 1 / 3).max() < 5 * 0.5 / math.sqrt(4000)


def test_the_posterior_mean_has_the_least_expected_loss():
    """Paired over sequences, five standard errors: no other α, no unigrams, no blunter or sharper version of it does better."""
    chains = Chains(states=3, length=32, alpha=1.0, stationary=False)
    x = np.asarray(chains.sample(jax.random.key(5), 6000).x)

    @jax.jit
    @jax.vmap
    def losses(x):
        best = problems.bigram_posterior(x, 1.0, 3)
        others = {f"alpha {a}": problems.bigram_posterior(x, a, 3) for a in (0.5, 0.8, 1.25, 2.0)}
        others |= {"unigram": problems.unigram_posterior(x, 1.0, 3), "uniform": uniform_prediction(x, 3)}
        others |= {f"power {q}": jax.nn.softmax(q * jnp.log(best)) for q in (0.9, 1.1)}
        return {name: cross_entropy(jnp.log(p), x) - cross_entropy(jnp.log(best), x) for name, p in others.items()}

    for name, worse in jax.tree.map(np.asarray, losses(x.T)).items():
        assert worse.mean() > 5 * worse.std() / math.sqrt(6000), name


@functools.cache
def induced(k: int, T: int, dtype=None):
    """The outputs of the construction, compiled whole, by (x, α)."""
    return jax.jit(lambda x, alpha: blocks.next_outputs(blocks.induction_model(k, T, alpha, dtype=dtype), x))


def test_two_layers_are_the_posterior_mean():
    for k, T, alpha in CASES:
        for seed in range(3):
            x = sequence(k, T, seed)
            expected = posterior_loop(x, alpha, k)
            ours = np.asarray(induced(k, T)(x, alpha))
            # float64: scores up to 1000 are differences of equal numbers, or logarithms of α
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
            half = induced(k, T)(x[: T // 2], alpha)  # shorter sequences fit too
            np.testing.assert_allclose(half, ours[: T // 2], rtol=0, atol=1e-14)
            single = induced(k, T, jnp.float32)(x, alpha)
            assert single.dtype == jnp.float32
            np.testing.assert_allclose(single, expected, rtol=0, atol=1e-6)  # sums of 64 terms below 1


def test_linear_attention_counts():
    for k, T, alpha in CASES:
        x = sequence(k, T)
        counted = jax.jit(lambda x, k=k, T=T: blocks.next_outputs(blocks.counting_model(k, T), x, softmax=False))
        n = np.asarray(counted(x))
        np.testing.assert_array_equal(n, counts_loop(x, k))
        np.testing.assert_allclose(jax.jit(dirichlet_mean)(n, alpha), posterior_loop(x, alpha, k), rtol=0, atol=1e-12)


def test_the_constructed_heads_look_where_they_should():
    x, model = sequence(3, 40), induction_model(3, 40, 0.5)
    look = jax.jit(lambda model, x: (blocks.attention_maps(model, x), blocks.head_roles(model, x)))
    maps, roles = look(model, x)
    first, second = np.asarray(maps)[:, 0, 3:]
    n = counts_loop(x, 3).sum(axis=1)
    for t in range(40):
        assert first[t].argmax() == t + 2 and first[t, t + 2] == 1  # three symbols stand before
        followers = [s + 1 for s in range(t) if x[s] == x[t]]
        expected = np.zeros(43)
        expected[:3], expected[[s + 3 for s in followers]] = 0.5 / (n[t] + 1.5), 1 / (n[t] + 1.5)
        np.testing.assert_allclose(second[t], expected, rtol=0, atol=1e-12)
    assert [float(share) for share in roles] == pytest.approx([1, 1])
    uniform = model._replace(layers=jax.tree.map(lambda leaf: jax.device_put(0 * np.asarray(leaf)), model.layers))
    none = [float(share) for share in look(uniform, x)[1]]
    assert none[0] < 0.3 and none[1] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("k, T", [(2, 12), (3, 60)])
def test_the_induction_head_is_the_cache_row_of_a_language_model(k, T):
    """Its counts are the row's; with α = n₊/k, which the row takes from the text, its outputs are the row's prediction."""
    x = sequence(k, T, seed=2)
    row = jax.jit(blocks.cache_row, static_argnums=1)(jax.device_put(x), k)
    n = counts_loop(x, k)
    np.testing.assert_allclose(row.counts, n, rtol=0, atol=1e-11)  # read back through a logarithm
    np.testing.assert_allclose(row.counts, next_outputs(counting_model(k, T), jax.device_put(x), softmax=False), atol=1e-11)
    np.testing.assert_array_equal(row.different, np.maximum((n > 0).sum(axis=1), 1))
    np.testing.assert_allclose(row.row, np.log(1 + n / (np.maximum((n > 0).sum(axis=1), 1) / k)[:, None]), rtol=0, atol=1e-12)
    p = np.exp(row.row) / np.exp(row.row).sum(axis=1, keepdims=True)
    constructed = jax.jit(lambda alpha: next_outputs(induction_model(k, T, alpha), jax.device_put(x)))
    for t in range(T):
        np.testing.assert_allclose(constructed(row.different[t] / k)[t], p[t], rtol=0, atol=1e-12)
    np.testing.assert_allclose(row.p, p, rtol=0, atol=1e-14)
    every = (n > 0).all(axis=1)  # where every state has followed, n₊ = k: the posterior mean with α = 1
    assert 0 < every.sum() < T
    np.testing.assert_allclose(constructed(1.0)[every], p[every], rtol=0, atol=1e-12)
    assert np.abs(np.asarray(constructed(1.0))[~every] - p[~every]).max() > 0.01


def test_causal_attention_is_its_loop():
    """The query's own token is the last that it sees."""
    layer = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[0]), random_model(3, 7, layers=1, heads=2).layers)
    E = np.random.default_rng(2).normal(size=(5, 6))
    for softmax in (True, False):
        expected = np.zeros_like(E)
        for W_K, W_Q, W_V, P, b in zip(*map(np.asarray, layer.heads), np.asarray(layer.bias), strict=True):
            for t in range(5):
                a = np.array([(W_K @ E[s]) @ (W_Q @ E[t]) for s in range(t + 1)]) / (6**0.5 if softmax else 1) + b[t::-1]
                a = np.exp(a) / np.exp(a).sum() if softmax else a
                expected[t] += P @ sum(a[s] * (W_V @ E[s]) for s in range(t + 1))
        ours = jax.jit(blocks.attend_causally, static_argnames="softmax")(layer, E, softmax=softmax)
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)


def test_no_output_depends_on_a_later_state():
    x = sequence(3, 9)
    other = np.where(np.arange(9) == 5, (x + 1) % 3, x)
    for symbols in (0, 1):
        model = random_model(3, 9, symbols=symbols)
        changed, outputs = (np.asarray(next_outputs(model, states)) for states in (other, x))
        np.testing.assert_array_equal(changed[:5], outputs[:5])
        assert np.abs(changed[5:] - outputs[5:]).min() > 0


def test_initial_models_have_the_sizes_asked_for_and_nearly_uniform_predictions():
    init = jax.jit(blocks.init_model, static_argnums=(1, 2), static_argnames=("width", "heads", "start"))
    model = init(jax.random.key(0), 3, 9, width=6, heads=2, start=True)
    assert model.before == 1 and model.layers.heads.P.shape == (2, 2, 6, 6) and model.layers.bias.shape == (2, 2, 10)
    assert np.abs(np.asarray(next_outputs(model, sequence(3, 9)))).max() < 0.5


def test_a_gradient_of_the_loss_is_a_finite_difference():
    """And the loss is that of the outputs' softmax."""
    chains, model = Chains(states=3, length=9), random_model(3, 9)
    batch = problems.Chain(
        jax.device_put(np.zeros((3, 3, 2))), jax.device_put(np.stack([sequence(3, 9, n) for n in (0, 1)], axis=1))
    )
    direction = jax.tree.map(lambda leaf: np.cos(np.arange(leaf.size, dtype=float)).reshape(leaf.shape), model)

    @jax.jit
    @jax.value_and_grad
    def along(step: float) -> jax.Array:
        return chains.loss(CausalModel(*jax.tree.map(lambda m, d: m + step * d, model, direction)), batch)

    (ahead, _), (behind, _), (here, slope) = (along(step) for step in (1e-5, -1e-5, 0.0))
    assert float(slope) == pytest.approx((float(ahead) - float(behind)) / 2e-5, rel=1e-7)
    losses = []
    for x in np.asarray(batch.x).T:
        z = np.asarray(next_outputs(model, x))
        losses.append(-np.mean((z - np.log(np.exp(z).sum(axis=1, keepdims=True)))[np.arange(8), x[1:]]))
    assert float(here) == pytest.approx(np.mean(losses), rel=1e-10)


def test_divergences_are_those_of_known_distributions():
    p, far = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), jax.jit(divergence)
    with np.errstate(divide="ignore"):
        assert float(far(p, np.log(p[::-1]))) == math.inf  # where p > 0 = q
    expected = (math.log(3 / 2) + 0.2 * math.log(0.6) + 0.3 * math.log(0.9) + 0.5 * math.log(1.5)) / 2
    assert float(far(p, np.full((2, 3), -math.log(3)))) == pytest.approx(expected, rel=1e-12)
