"""Copying: tokens, codes, the exact construction, sensitivities."""

import functools

import jax
import numpy as np
from drawn import arrays, ones_of, task
from reference import attention_layer, descent_step

from icl import Sequence, Tasks, problems
from icl.attention import AttentionLayer, attend

# compiled whole, which takes less time than compiling every operation
layers_of = jax.jit(problems.copying_layers, static_argnums=(0, 1, 2))
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


def coded(batch) -> np.ndarray:
    """With unit codes."""
    tokens = separate(batch)
    codes = np.broadcast_to(problems.unit_codes(len(tokens) // 2)[:, :, None], (len(tokens), len(tokens) - 1, tokens.shape[2]))
    return np.concatenate([tokens, codes], axis=1)


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


def test_the_first_layer_builds_the_tokens_that_hold_x_and_y():
    X, Y, _ = arrays(ones_of(drawn())[0])
    E, layers = coded(drawn())[..., 0], layers_of(4, 6, 0.7)
    layer = AttentionLayer(*(jax.device_put(np.asarray(leaf)[0]) for leaf in layers))
    after = E + np.asarray(attend(layer, jax.device_put(E[:-1]), jax.device_put(E)))
    np.testing.assert_allclose(after[0:-1:2, :4], X, atol=1e-15)
    np.testing.assert_allclose(after[0:-1:2, -1], Y[:, 0], atol=1e-15)
    np.testing.assert_allclose(after[0:-1:2, 4:-1], 0, atol=1e-15)  # codes are gone
    np.testing.assert_allclose(after[1::2], 0, atol=1e-15)  # and the tokens of y
    np.testing.assert_allclose(after[-1], E[-1], atol=1e-15)
    np.testing.assert_allclose(
        attention_layer(E, [tuple(np.asarray(W)[0, h] for W in layers) for h in (0, 1)]), after, atol=1e-15
    )


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


def test_a_layer_that_copies_looks_at_the_next_token():
    """Other tokens tell through the scores that their codes would have had."""
    told = sensitivity(layers_of(4, 6, 0.7), jax.device_put(coded(drawn()).swapaxes(0, 1)), softmax=False)
    assert float(told.next) > 1 and float(told.next) > 2 * float(told.other)
