"""Copying: tokens, codes, the exact construction, sensitivities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl import Sequence, Tasks, gradient_descent, init_layers, sample_tasks, sequences
from icl.models.attention import attend
from icl.problems.copying import (
    Copying,
    add_codes,
    copy_sensitivity,
    copying_layers,
    read_out,
    separate_tokens,
    sinusoidal_codes,
    unit_codes,
)

TASKS = Tasks(dim=3, context=4, input_range=2.0)


@pytest.mark.parametrize(("dim", "context"), [(3, 4), (1, 1), (5, 12)])
def test_two_linear_layers_copy_and_descend_exactly(dim, context):
    batch = sample_tasks(jax.random.key(0), Tasks(dim=dim, context=context), 6)

    @jax.jit
    def copied(batch):
        E = add_codes(separate_tokens(batch), jnp.asarray(unit_codes(context)))
        return read_out(copying_layers(dim, context, 0.7), E)

    step = jax.jit(jax.vmap(lambda s: gradient_descent(s, 0.7)[-1], in_axes=-1, out_axes=-1))(batch)
    np.testing.assert_allclose(copied(batch), step, rtol=1e-12, atol=1e-14)  # float64, sums of at most 12 terms


def test_the_first_layer_builds_the_tokens_that_hold_x_and_y():
    one = sample_tasks(jax.random.key(0), TASKS)
    E = add_codes(separate_tokens(one), jnp.asarray(unit_codes(4))).T
    layer = jax.tree.map(lambda leaf: leaf[0], copying_layers(3, 4, 0.7))
    after = np.asarray(E + attend(layer, E[:-1], E))
    np.testing.assert_allclose(after[0:-1:2, :3], one.X, atol=1e-15)
    np.testing.assert_allclose(after[0:-1:2, -1], one.Y[:, 0], atol=1e-15)
    np.testing.assert_allclose(after[0:-1:2, 3:-1], 0, atol=1e-15)  # codes are gone
    np.testing.assert_allclose(after[1::2], 0, atol=1e-15)  # and the tokens of y
    np.testing.assert_allclose(after[-1], E[-1], atol=1e-15)


def test_tokens_hold_x_and_y_apart_and_codes_are_those_of_vaswani():
    batch = sample_tasks(jax.random.key(0), TASKS, 2)
    E = Copying(TASKS, codes=6).tokens(batch)
    assert E.shape == (9, 9, 2)
    for n, one in enumerate(zip(*sequences(batch), strict=True)):
        one = Sequence(*one)
        for i in range(4):
            np.testing.assert_array_equal(E[:3, 2 * i, n], one.X[i])
            np.testing.assert_array_equal(E[:3, 2 * i + 1, n], [0, 0, one.Y[i, 0]])
        np.testing.assert_array_equal(E[:3, -1, n], one.x_q)
    codes = sinusoidal_codes(9, 6)
    for position in range(9):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            assert codes[position, 2 * i : 2 * i + 2] == pytest.approx([np.sin(angle), np.cos(angle)])
    np.testing.assert_allclose(E[3:, :, 0].T, codes, rtol=1e-12)


def test_sensitivities_are_norms_of_mean_gradients():
    batch = sample_tasks(jax.random.key(0), TASKS, 3)
    problem = Copying(TASKS, codes=2)
    layers = init_layers(jax.random.key(1), 5, layers=2, scale=1.0)
    E = problem.tokens(batch)
    told = jax.jit(copy_sensitivity)(layers, E)
    first = jax.tree.map(lambda leaf: leaf[0], layers)

    def output(E, k):  # of one task, [tokens, width]
        return jnp.sum(E[k] + attend(first, E[:-1], E[k][None], softmax=True)[0])

    slope = jax.jit(jax.vmap(lambda E, k: jax.grad(output)(E.T, k), (-1, None)))
    own, following, other = [], [], []
    for k in range(7):  # of 9 tokens, those with a next one in the context
        gradient = np.mean(slope(E, k), axis=0)
        norms = np.linalg.norm(gradient, axis=1)
        own.append(norms[k])
        following.append(norms[k + 1])
        other.append((norms.sum() - norms[k] - norms[k + 1]) / 7)
    assert [float(value) for value in told] == pytest.approx([np.mean(own), np.mean(following), np.mean(other)], rel=1e-10)


def test_a_layer_that_copies_looks_at_the_next_token():
    """Other tokens tell through the scores that their codes would have had."""
    batch = sample_tasks(jax.random.key(0), TASKS, 5)
    E = add_codes(separate_tokens(batch), jnp.asarray(unit_codes(4)))
    told = jax.jit(copy_sensitivity, static_argnames="softmax")(copying_layers(3, 4, 0.7), E, softmax=False)
    assert float(told.next) > 1 and float(told.next) > 2 * float(told.other)
