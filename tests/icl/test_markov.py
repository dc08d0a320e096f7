"""Markov chains in context: closed forms against loops and integrals, the constructed heads, a language model's cache row."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl.models import causal, induction
from icl.models.causal import CausalModel
from icl.problems import markov
from icl.problems.markov import Chains, cross_entropy, dirichlet_mean, divergence, uniform_prediction
from jexplicit.lm.evaluation import Past
from jexplicit.lm.rows.past.cache import Cache, cache_rows

# compiled whole, which takes less time than compiling every operation
next_outputs = jax.jit(causal.next_outputs, static_argnames="softmax")
attention_maps, head_roles = jax.jit(causal.attention_maps), jax.jit(induction.head_roles)
induction_model = jax.jit(induction.induction_model, static_argnums=(0, 1), static_argnames="dtype")
counting_model = jax.jit(induction.counting_model, static_argnums=(0, 1))
init_model = jax.jit(causal.init_model, static_argnums=(1, 2), static_argnames=("width", "layers", "heads", "start"))
bigram_posterior, unigram_posterior = (
    jax.jit(f, static_argnums=2) for f in (markov.bigram_posterior, markov.unigram_posterior)
)
transition_counts = jax.jit(markov.transition_counts, static_argnums=1)
stationary_distributions = jax.jit(jax.vmap(markov.stationary_distribution, in_axes=-1, out_axes=-1))
cache_row = jax.jit(induction.cache_row, static_argnums=1)
SIZES = pytest.mark.parametrize("k, T, alpha", [(2, 2, 0.3), (3, 64, 1.0), (5, 40, np.array([0.1, 0.2, 3.0, 4.0, 50.0]))])


def sequence(k: int, T: int, seed: int = 0) -> np.ndarray:
    return np.asarray(Chains(k, 64).sample(jax.random.key(seed), 1).x)[:T, 0]


def counts_loop(x: np.ndarray, k: int) -> np.ndarray:
    """n_ij, i = x_t, after each t."""
    n = np.zeros((len(x), k))
    for t in range(len(x)):
        for s in range(t):
            if x[s] == x[t]:
                n[t, x[s + 1]] += 1
    return n


@SIZES
def test_the_posterior_means_are_their_loops(k, T, alpha):
    x = sequence(k, T)
    n = counts_loop(x, k)
    np.testing.assert_array_equal(transition_counts(jnp.asarray(x), k), n)
    bigram = (n + alpha) / (n + alpha).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(bigram_posterior(jnp.asarray(x), alpha, k), bigram, rtol=1e-14)  # one division
    seen = np.array([np.bincount(x[: t + 1], minlength=k) for t in range(T)])
    unigram = (seen + alpha) / (seen + alpha).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(unigram_posterior(jnp.asarray(x), alpha, k), unigram, rtol=1e-14)


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


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_the_posterior_mean_is_exact_for_a_uniform_first_state_and_nearly_for_a_stationary_one(alpha):
    """x_1 from the stationary distribution is one more observation of P: its weight falls with the length."""
    x = sequence(2, 24, seed=3)
    ours = np.asarray(bigram_posterior(jnp.asarray(x), alpha, 2))
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
    pi = np.asarray(stationary_distributions(P))
    np.testing.assert_allclose(np.einsum("ib,ijb->jb", pi, P), pi, atol=1e-12)
    # the share of steps from x_t to j minus its probability: mean zero, 4000 * 49 steps of variance below 1/4
    steps = np.array([(x[1:] == j) - P[x[:-1], j, np.arange(4000)[None]] for j in range(3)])
    assert np.abs(steps.mean(axis=(1, 2))).max() < 5 * 0.5 / math.sqrt(4000 * 49)
    for t in (0, 49):  # the same distribution at the first state and at the last
        assert abs(np.mean((x[t] == 0) - pi[0])) < 5 * 0.5 / math.sqrt(4000)
    first = np.asarray(Chains(states=3, length=2, alpha=0.7, stationary=False).sample(jax.random.key(0), 4000).x[0])
    assert np.abs(np.bincount(first, minlength=3) / 4000 - 1 / 3).max() < 5 * 0.5 / math.sqrt(4000)


def test_the_posterior_mean_has_the_least_expected_loss():
    """Paired over sequences, five standard errors: no other α, no unigrams, no blunter or sharper version of it does better."""
    chains = Chains(states=3, length=32, alpha=1.0, stationary=False)
    x = chains.sample(jax.random.key(5), 6000).x

    @jax.jit
    @jax.vmap
    def losses(x):
        best = bigram_posterior(x, 1.0, 3)
        others = {f"alpha {a}": bigram_posterior(x, a, 3) for a in (0.5, 0.8, 1.25, 2.0)}
        others |= {"unigram": unigram_posterior(x, 1.0, 3), "uniform": uniform_prediction(x, 3)}
        others |= {f"power {q}": jax.nn.softmax(q * jnp.log(best)) for q in (0.9, 1.1)}
        return {name: cross_entropy(jnp.log(p), x) - cross_entropy(jnp.log(best), x) for name, p in others.items()}

    for name, worse in losses(x.T).items():
        assert worse.mean() > 5 * worse.std() / math.sqrt(6000), name


@SIZES
def test_two_layers_are_the_posterior_mean(k, T, alpha):
    for seed in range(3):
        x = jnp.asarray(sequence(k, T, seed))
        ours, expected = next_outputs(induction_model(k, T, alpha), x), bigram_posterior(x, alpha, k)
        # float64: scores up to 1000 are differences of equal numbers, or logarithms of α
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
        half = next_outputs(induction_model(k, T, alpha), x[: T // 2])  # shorter sequences fit too
        np.testing.assert_allclose(half, ours[: T // 2], rtol=0, atol=1e-14)
        single = next_outputs(induction_model(k, T, alpha, dtype=jnp.float32), x)
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, expected, rtol=0, atol=1e-6)  # sums of 64 terms below 1


@SIZES
def test_linear_attention_counts(k, T, alpha):
    x = sequence(k, T)
    n = next_outputs(counting_model(k, T), jnp.asarray(x), softmax=False)
    np.testing.assert_array_equal(n, counts_loop(x, k))
    np.testing.assert_allclose(dirichlet_mean(n, alpha), bigram_posterior(jnp.asarray(x), alpha, k), rtol=0, atol=1e-12)


def test_the_constructed_heads_look_where_they_should():
    x = sequence(3, 30)
    first, second = np.asarray(attention_maps(induction_model(3, 30, 0.5), jnp.asarray(x)))[:, 0, 3:]
    n = counts_loop(x, 3).sum(axis=1)
    for t in range(30):
        assert first[t].argmax() == t + 2 and first[t, t + 2] == 1  # three symbols stand before
        followers = [s + 1 for s in range(t) if x[s] == x[t]]
        expected = np.zeros(33)
        expected[:3], expected[[s + 3 for s in followers]] = 0.5 / (n[t] + 1.5), 1 / (n[t] + 1.5)
        np.testing.assert_allclose(second[t], expected, rtol=0, atol=1e-12)
    assert [float(share) for share in head_roles(induction_model(3, 30, 0.5), jnp.asarray(x))] == pytest.approx([1, 1])
    none = [float(share) for share in head_roles(init_model(jax.random.key(0), 3, 30), jnp.asarray(x))]
    assert none[0] < 0.3 and none[1] < 0.5


@pytest.mark.parametrize("k, T", [(2, 12), (3, 60)])
def test_the_induction_head_is_the_cache_row_of_a_language_model(k, T):
    """Its counts are the row's; with α = n₊/k, which the row takes from the text, its outputs are the row's prediction."""
    x = sequence(k, T, seed=2)
    row = cache_row(jnp.asarray(x), k)
    n = counts_loop(x, k)
    np.testing.assert_allclose(row.counts, n, rtol=0, atol=1e-11)  # read back through a logarithm
    np.testing.assert_allclose(row.counts, next_outputs(counting_model(k, T), jnp.asarray(x), softmax=False), atol=1e-11)
    np.testing.assert_array_equal(row.different, np.maximum((n > 0).sum(axis=1), 1))
    # the table that a language model reads at the same places of the same stream, token 0 being <pad>; float32
    stream = np.concatenate([[0], x + 1]).astype(np.int32)
    table = cache_rows(Past(stream, np.arange(2, T + 2)), np.log([1, *[1 / k] * k]), Cache(T, 1))
    dense = np.zeros((T, k + 1))
    dense[np.repeat(np.arange(T), np.diff(table.start)), table.outputs] = table.values
    np.testing.assert_allclose(row.row, dense[:, 1:], rtol=0, atol=2e-6)
    p = np.exp(row.row) / np.exp(row.row).sum(axis=1, keepdims=True)
    constructed = jax.jit(lambda alpha: next_outputs(induction_model(k, T, alpha), jnp.asarray(x)))
    for t in range(T):
        np.testing.assert_allclose(constructed(row.different[t] / k)[t], p[t], rtol=0, atol=1e-12)
    np.testing.assert_allclose(row.p, p, rtol=0, atol=1e-14)
    every = (n > 0).all(axis=1)  # where every state has followed, n₊ = k: the posterior mean with α = 1
    assert 0 < every.sum() < T
    np.testing.assert_allclose(constructed(1.0)[every], p[every], rtol=0, atol=1e-12)
    assert np.abs(np.asarray(constructed(1.0))[~every] - p[~every]).max() > 0.01


@pytest.mark.parametrize("softmax", [True, False])
def test_causal_attention_is_its_loop(softmax):
    model = init_model(jax.random.key(0), 3, 7, width=6, layers=1, heads=2)
    layer = jax.tree.map(lambda leaf: leaf[0], model.layers)
    layer = layer._replace(bias=jax.random.normal(jax.random.key(1), (2, 7)))
    E = np.asarray(jax.random.normal(jax.random.key(2), (5, 6)))
    expected = np.zeros_like(E)
    for W_K, W_Q, W_V, P, b in zip(*map(np.asarray, layer.heads), np.asarray(layer.bias), strict=True):
        for t in range(5):
            a = np.array([(W_K @ E[s]) @ (W_Q @ E[t]) for s in range(t + 1)]) / (6**0.5 if softmax else 1) + b[t::-1]
            a = np.exp(a) / np.exp(a).sum() if softmax else a
            expected[t] += P @ sum(a[s] * (W_V @ E[s]) for s in range(t + 1))
    ours = jax.jit(causal.attend_causally, static_argnames="softmax")(layer, E, softmax=softmax)
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("start", [False, True])
def test_no_output_depends_on_a_later_state(start):
    model = init_model(jax.random.key(0), 3, 9, start=start)
    x = jnp.asarray(sequence(3, 9))
    changed = next_outputs(model, x.at[5].set((x[5] + 1) % 3))
    np.testing.assert_array_equal(changed[:5], next_outputs(model, x)[:5])
    assert jnp.abs(changed[5:] - next_outputs(model, x)[5:]).min() > 0


def test_a_gradient_of_the_loss_is_a_finite_difference():
    chains = Chains(states=2, length=5)
    batch, model = chains.sample(jax.random.key(0), 3), init_model(jax.random.key(1), 2, 5, width=4)
    direction = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), model)

    @jax.jit
    def along(step: float) -> jax.Array:
        return chains.loss(CausalModel(*jax.tree.map(lambda m, d: m + step * d, model, direction)), batch)

    slope = (along(1e-5) - along(-1e-5)) / 2e-5
    assert jax.jit(jax.grad(along))(0.0) == pytest.approx(float(slope), rel=1e-7)


def test_divergences_are_those_of_known_distributions():
    p = jnp.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    assert float(divergence(p, jnp.log(p[::-1]))) == math.inf  # where p > 0 = q
    expected = (math.log(3 / 2) + 0.2 * math.log(0.6) + 0.3 * math.log(0.9) + 0.5 * math.log(1.5)) / 2
    assert float(divergence(p, jnp.full((2, 3), -math.log(3)))) == pytest.approx(expected, rel=1e-12)
