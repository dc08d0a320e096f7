"""Copying, sine waves and Markov chains, against loops, integrals and exact constructions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import arrays, ones_of, task
from reference import attention_layer, descent_step

from icl import Sequence, Tasks, blocks, problems
from icl.attention import AttentionLayer
from icl.blocks import CausalLayer, CausalModel
from icl.problems import Chains, Encoder, Network, Waves, divergence

# compiled whole, which takes less time than compiling every operation
sensitivity = jax.jit(problems.copy_sensitivity, static_argnames="softmax")


@functools.cache
def drawn(dim: int = 4, context: int = 6) -> Sequence:
    return task(dim=dim, context=context, outputs=1, batch=(4,))


def separate(batch) -> np.ndarray:
    """Tokens `x_1, (0, .., 0, y_1), .., x_q`, [tokens, d, batch]."""
    X, Y, x_q = arrays(batch)
    tokens = np.zeros((2 * len(X) + 1, *x_q.shape))
    tokens[:-1:2], tokens[1::2, -1], tokens[-1] = X, Y[:, 0], x_q
    return tokens


def test_two_linear_layers_copy_and_descend_exactly():
    @jax.jit
    def answers(batch):
        layers = problems.copying_layers(batch.X.shape[1], len(batch.X), 0.7)
        return problems.read_out(layers, problems.add_codes(problems.separate_tokens(batch), problems.unit_codes(len(batch.X))))

    for batch in (drawn(), drawn(1, 1)):
        found = np.asarray(answers(batch))
        for n, one in enumerate(ones_of(batch)):
            X, Y, x_q = arrays(one)
            step = descent_step(np.zeros((1, len(x_q))), X, Y, 0.7) @ x_q
            np.testing.assert_allclose(found[:, n], step, rtol=1e-12, atol=1e-14)  # float64, sums of at most 12 terms


def test_tokens_hold_x_and_y_apart_and_codes_are_those_of_vaswani():
    E = np.asarray(jax.jit(problems.Copying(Tasks(dim=4, context=6), codes=6).tokens)(drawn())).swapaxes(0, 1)
    assert E.shape == (13, 10, 4)
    np.testing.assert_array_equal(E[:, :4], separate(drawn()))
    angles = np.arange(13)[:, None] / 10_000 ** (np.arange(3) / 3)
    codes = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(13, 6)
    np.testing.assert_allclose(problems.sinusoidal_codes(13, 6), codes, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(E[:, 4:, 1], problems.sinusoidal_codes(13, 6), rtol=1e-12)


def test_sensitivities_are_norms_of_mean_gradients():
    """By steps of 1e-30 i, whose imaginary parts are derivatives to rounding."""
    weights = np.random.default_rng(1).normal(size=(4, 2, 1, 5, 5)) / 5**0.5
    E = np.random.default_rng(2).normal(size=(9, 5, 3))  # of 9 tokens, those outputs with a next one in the context
    told = sensitivity(AttentionLayer(*map(jax.device_put, weights)), jax.device_put(E.swapaxes(0, 1)))
    W_K, W_Q, W_V, P = weights[:, 0, 0]

    def sums(E):  # of the channels of the outputs
        scores = np.exp((E[:-1] @ W_K.T @ (E[:7] @ W_Q.T).T) / 5**0.5)
        return (E[:7] + (scores / scores.sum(axis=0)).T @ E[:-1] @ W_V.T @ P.T).sum(axis=1)

    gradient = np.zeros((7, 9, 5))
    for n, i, c in np.ndindex(3, 9, 5):
        step = 1e-30j * (np.arange(45).reshape(9, 5) == 5 * i + c)
        gradient[:, i, c] += sums(E[..., n] + step).imag / 1e-30 / 3
    norms = np.linalg.norm(gradient, axis=2)  # [outputs, inputs]
    own, following = np.diagonal(norms), np.diagonal(norms, 1)
    expected = [own.mean(), following.mean(), np.mean(norms.sum(axis=1) - own - following) / 7]
    np.testing.assert_allclose([float(value) for value in told], expected, rtol=1e-10)


predict_waves = jax.jit(problems.predict_waves)
RNG = np.random.default_rng(0)
SHAPES = {"E": (5, 2), "W1": (7, 5), "b1": (7,), "W2": (5, 7), "b2": (5,)}
ENCODER = {name: RNG.normal(size=shape) / shape[-1] ** 0.5 for name, shape in SHAPES.items()}
LAYERS = RNG.normal(size=(4, 2, 1, 5, 5)) / 10**0.5
PLACES = RNG.uniform(-5, 5, (7, 4))
HEIGHTS = 0.3 * np.sin(PLACES + 1)


def encoder() -> Encoder:
    return Encoder(**{name: jax.device_put(W) for name, W in ENCODER.items()})


def network(layers: np.ndarray | None = LAYERS) -> Network:
    return Network(encoder(), None if layers is None else AttentionLayer(*map(jax.device_put, layers)))


def batch() -> Sequence:
    return Sequence(*(jax.device_put(leaf) for leaf in (PLACES[:6, None], HEIGHTS[:6, None], PLACES[6:], HEIGHTS[6:])))


def features_loop(tokens: np.ndarray) -> np.ndarray:
    """The residual MLP of every token (x, y), GELU as jax.nn approximates it."""
    e = tokens @ ENCODER["E"].T
    h = e @ ENCODER["W1"].T + ENCODER["b1"]
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return e + h @ ENCODER["W2"].T + ENCODER["b2"]


def encoded(n: int) -> np.ndarray:
    """Features of task n, [pairs and query, channels]."""
    return features_loop(np.stack([PLACES[:, n], np.append(HEIGHTS[:6, n], 0)], axis=1))


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


def test_features_are_the_residual_mlp_by_hand():
    context, query = jax.jit(problems.encode)(encoder(), batch())
    found = np.concatenate([context, query], axis=1)
    for n in range(4):
        np.testing.assert_allclose(found[:, :, n], encoded(n).T, rtol=1e-12, atol=1e-14)


def test_the_control_is_descent_on_the_features():
    said = jax.tree.map(np.asarray, predict_waves(network(None), batch(), eta=0.3))
    for n in range(4):
        *context, q = encoded(n)
        phi = np.array(context)
        W = descent_step(np.zeros((1, 4)), phi[:, :-1], phi[:, -1:], 0.3)
        np.testing.assert_allclose(said.initial[0, n], -q[-1], rtol=1e-12)
        np.testing.assert_allclose(said.final[0, n], -q[-1] + W[0] @ q[:-1], rtol=1e-10)


def test_layers_of_attention_follow_one_another():
    said = np.asarray(predict_waves(network(), batch()).final)
    for n in range(4):
        E = encoded(n)
        for k in range(2):
            E = attention_layer(E, [tuple(W[k, 0] for W in LAYERS)])
        np.testing.assert_allclose(said[0, n], -E[-1, -1], rtol=1e-10)


next_outputs = jax.jit(blocks.next_outputs)
induction_model = jax.jit(blocks.induction_model, static_argnums=(0, 1), static_argnames="dtype")
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


def test_the_constructed_heads_look_where_they_should():
    x, model = sequence(3, 40), induction_model(3, 40, 0.5)
    look = jax.jit(lambda model, x: (blocks.run_layers(model, x)[1], blocks.head_roles(model, x)))
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


def test_causal_attention_is_its_loop():
    """The query's own token is the last that it sees."""
    model = random_model(5, 7, layers=1, heads=2)
    E, layer = np.asarray(model.embedding), jax.tree.map(lambda leaf: np.asarray(leaf)[0], model.layers)
    expected = E.copy()
    for W_K, W_Q, W_V, P, b in zip(*layer.heads, layer.bias, strict=True):
        for t in range(5):
            a = np.exp([(W_K @ E[s]) @ (W_Q @ E[t]) / 6**0.5 + b[t - s] for s in range(t + 1)])
            expected[t] += P @ sum(a[s] / a.sum() * (W_V @ E[s]) for s in range(t + 1))
    np.testing.assert_allclose(next_outputs(model, np.arange(5)), expected @ np.asarray(model.read_out).T, rtol=1e-12)


def test_no_output_depends_on_a_later_state():
    x = sequence(3, 9)
    other = np.where(np.arange(9) == 5, (x + 1) % 3, x)
    for symbols in (0, 1):
        model = random_model(3, 9, symbols=symbols)
        changed, outputs = (np.asarray(next_outputs(model, states)) for states in (other, x))
        np.testing.assert_array_equal(changed[:5], outputs[:5])
        assert np.abs(changed[5:] - outputs[5:]).min() > 0


def test_divergences_are_those_of_known_distributions():
    p, far = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), jax.jit(divergence)
    with np.errstate(divide="ignore"):
        assert float(far(p, np.log(p[::-1]))) == math.inf  # where p > 0 = q
    expected = (math.log(3 / 2) + 0.2 * math.log(0.6) + 0.3 * math.log(0.9) + 0.5 * math.log(1.5)) / 2
    assert float(far(p, np.full((2, 3), -math.log(3)))) == pytest.approx(expected, rel=1e-12)
