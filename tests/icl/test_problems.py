"""Copying, sine waves and Markov chains, against loops, integrals and exact constructions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import arrays, heads_of, ones_of, random_layers, task
from reference import attention_layer, descent_step

from icl import Sequence, Tasks, problems
from icl.problems import CausalLayer, CausalModel, Chains, Encoder, Network, Waves, divergence

# compiled whole, which takes less time than compiling every operation
sensitivity = jax.jit(problems.copy_sensitivity, static_argnames="softmax")
predict_waves = jax.jit(problems.predict_waves)
next_outputs = jax.jit(problems.next_outputs)


def drawn(dim: int = 4, context: int = 6) -> Sequence:
    return task(dim=dim, context=context, outputs=1, batch=(4,))


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
    X, Y, x_q = arrays(drawn())
    expected = np.zeros((13, 4, 4))
    expected[:-1:2], expected[1::2, -1], expected[-1] = X, Y[:, 0], x_q
    np.testing.assert_array_equal(E[:, :4], expected)
    angles = np.arange(13)[:, None] / 10_000 ** (np.arange(3) / 3)
    codes = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(13, 6)
    np.testing.assert_allclose(E[:, 4:], np.repeat(codes[..., None], 4, axis=2), rtol=1e-6, atol=1e-12)


def test_sensitivities_are_norms_of_mean_gradients():
    """By steps of 1e-30 i, whose imaginary parts are derivatives to rounding."""
    layers, E = random_layers(1, 5, 2, 1, scale=1.0), np.random.default_rng(2).normal(size=(9, 5, 3))
    told = sensitivity(layers, jax.device_put(E.swapaxes(0, 1)))  # of 9 tokens, those outputs with a next one in the context
    ((W_K, W_Q, W_V, P),) = heads_of(layers, 0)

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


# Waves


def test_waves_are_sines_of_the_asked_amplitudes_and_phases():
    batch = jax.tree.map(np.asarray, Waves(context=400).sample(jax.random.key(0), 2000))
    assert -5 <= batch.X.min() < -4.99 and 4.99 < batch.X.max() <= 5
    for n in range(3):
        x, y = batch.X[:, 0, n], batch.Y[:, 0, n]
        basis = np.stack([np.sin(x), np.cos(x)], axis=1)  # values are a sum of both
        (s, c), *_ = np.linalg.lstsq(basis, y, rcond=None)
        np.testing.assert_allclose(basis @ [s, c], y, atol=1e-12)
        a, p = np.hypot(s, c), np.arctan2(c, s)
        assert a == pytest.approx(0.1 + 0.4 * p / np.pi, abs=1e-9)  # one number gives both
        assert batch.y_q[0, n] == pytest.approx(a * np.sin(batch.x_q[0, n] + p), abs=1e-9)
    # E[y²]/2 is E[a²] (1/2 - a term of sin(10)) / 2; 0.0264 was measured with the paper's code
    assert np.mean(batch.Y**2) / 2 == pytest.approx(0.0264, rel=0.03)


def test_features_are_a_residual_mlp_layers_follow_them_and_the_control_is_a_step_of_descent():
    """By hand, GELU as jax.nn approximates it."""
    rng, layers = np.random.default_rng(0), random_layers(1, 5, 2, 1)
    E, W1, b1, W2, b2 = (rng.normal(size=shape) / shape[-1] ** 0.5 for shape in ((5, 2), (7, 5), (7,), (5, 7), (5,)))
    encoder = Encoder(*map(jax.device_put, (E, W1, b1, W2, b2)))
    x = rng.uniform(-5, 5, (7, 4))
    y = 0.3 * np.sin(x + 1)
    batch = Sequence(*map(jax.device_put, (x[:6, None], y[:6, None], x[6:], y[6:])))
    context, query = map(np.asarray, jax.jit(problems.encode)(encoder, batch))
    control = predict_waves(Network(encoder, None), batch, eta=0.3)
    trained = predict_waves(Network(encoder, layers), batch)
    for n in range(4):
        e = np.stack([x[:, n], np.append(y[:6, n], 0)], axis=1) @ E.T
        h = e @ W1.T + b1
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        features = e + h @ W2.T + b2
        found = np.concatenate([context, query], axis=1)[:, :, n]
        np.testing.assert_allclose(found, features.T, rtol=1e-12, atol=1e-14)
        phi, q = features[:-1], features[-1]
        W = descent_step(np.zeros((1, 4)), phi[:, :-1], phi[:, -1:], 0.3)
        assert float(control.initial[0, n]) == pytest.approx(-q[-1], rel=1e-12)
        assert float(control.final[0, n]) == pytest.approx(-q[-1] + W[0] @ q[:-1], rel=1e-10)
        tokens = attention_layer(attention_layer(features, heads_of(layers, 0)), heads_of(layers, 1))
        assert float(trained.final[0, n]) == pytest.approx(-tokens[-1, -1], rel=1e-10)


# Chains

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
    shapes = (states + symbols, width), (layers, heads, length + symbols), (states, width)
    embedding, bias, read_out = (jax.device_put(rng.normal(size=shape)) for shape in shapes)
    return CausalModel(embedding, CausalLayer(random_layers(1, width, layers, heads, scale=width / 4), bias), read_out)


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
    return jax.jit(lambda x, alpha: problems.next_outputs(problems.induction_model(k, T, alpha, dtype=dtype), x))


def test_posterior_means_are_their_loops_and_two_layers_compute_them():
    for k, T, alpha in CASES:

        @jax.jit
        def found(x, k=k, alpha=alpha):
            counts = problems.transition_counts(x, k)
            return counts, problems.bigram_posterior(x, alpha, k), problems.unigram_posterior(x, alpha, k)

        for seed in range(3):
            x = sequence(k, T, seed)
            counts, bigram, unigram = found(x)
            n, seen = counts_loop(x, k), np.cumsum(np.eye(k)[x], axis=0)
            np.testing.assert_array_equal(counts, n)
            np.testing.assert_allclose(bigram, dirichlet(n, alpha), rtol=1e-14)  # one division
            np.testing.assert_allclose(unigram, dirichlet(seen, alpha), rtol=1e-14)
            ours = np.asarray(induced(k, T)(x, alpha))
            # float64: scores up to 1000 are differences of equal numbers, or logarithms of α
            np.testing.assert_allclose(ours, bigram, rtol=0, atol=1e-12)
            half = induced(k, T)(x[: T // 2], alpha)  # shorter sequences fit too
            np.testing.assert_allclose(half, ours[: T // 2], rtol=0, atol=1e-14)
            single = induced(k, T, jnp.float32)(x, alpha)
            assert single.dtype == jnp.float32
            np.testing.assert_allclose(single, bigram, rtol=0, atol=1e-6)  # sums of 64 terms below 1


def test_chains_have_the_distribution_that_they_should():
    P, x = map(np.asarray, Chains(states=3, length=50, alpha=0.7, stationary=True).sample(jax.random.key(0), 4000))
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
    first = np.asarray(Chains(states=3, length=2, alpha=0.7, stationary=False).sample(jax.random.key(0), 4000).x)[0]
    assert np.abs(np.bincount(first, minlength=3) / 4000 - 1 / 3).max() < 5 * 0.5 / math.sqrt(4000)


def test_the_constructed_heads_look_where_they_should():
    x, model = sequence(3, 40), jax.jit(problems.induction_model, static_argnums=(0, 1))(3, 40, 0.5)
    roles = jax.jit(problems.head_roles)
    assert [float(share) for share in roles(model, x)] == pytest.approx([1, 1])
    uniform = model._replace(layers=jax.tree.map(lambda leaf: jax.device_put(0 * np.asarray(leaf)), model.layers))
    none = [float(share) for share in roles(uniform, x)]
    assert none[0] < 0.3 and none[1] < 0.5


def test_causal_attention_is_its_loop_and_no_output_depends_on_a_later_state():
    """The query's own token is the last that it sees."""
    model = random_model(5, 7, layers=1, heads=2)
    E, layer = np.asarray(model.embedding), jax.tree.map(lambda leaf: np.asarray(leaf)[0], model.layers)
    expected = E.copy()
    for W_K, W_Q, W_V, P, b in zip(*layer.heads, layer.bias, strict=True):
        for t in range(5):
            a = np.exp([(W_K @ E[s]) @ (W_Q @ E[t]) / 6**0.5 + b[t - s] for s in range(t + 1)])
            expected[t] += P @ sum(a[s] / a.sum() * (W_V @ E[s]) for s in range(t + 1))
    np.testing.assert_allclose(next_outputs(model, np.arange(5)), expected @ np.asarray(model.read_out).T, rtol=1e-12)
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
