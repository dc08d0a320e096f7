"""Copying: tokens, codes, the exact construction, sensitivities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl import Tasks, gradient_descent, init_layers, sample_tasks, vmap_tasks
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
    E = add_codes(separate_tokens(batch), jnp.asarray(unit_codes(context)))
    step = jax.jit(vmap_tasks(lambda s: gradient_descent(s, 0.7)[-1]))(batch)
    copied = jax.jit(read_out)(copying_layers(dim, context, 0.7), E)
    np.testing.assert_allclose(copied, step, rtol=1e-12, atol=1e-14)  # float64, sums of at most 12 terms


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
    one = sample_tasks(jax.random.key(0), TASKS)
    E = Copying(TASKS, codes=6).tokens(jax.tree.map(lambda leaf: leaf[..., None], one))[..., 0].T
    assert E.shape == (9, 9)
    np.testing.assert_array_equal(E[::2, :3], [*one.X, one.x_q])
    np.testing.assert_array_equal(E[1::2, :3], [[0, 0, float(y)] for y in one.Y[:, 0]])
    angles = np.arange(9)[:, None] / 10_000 ** (np.arange(3) / 3)
    codes = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(9, 6)
    np.testing.assert_allclose(sinusoidal_codes(9, 6), codes, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(E[:, 3:], sinusoidal_codes(9, 6), rtol=1e-12)


def test_sensitivities_are_norms_of_mean_gradients():
    E = Copying(TASKS, codes=2).tokens(sample_tasks(jax.random.key(0), TASKS, 3))
    layers = init_layers(jax.random.key(1), 5, layers=2, scale=1.0)
    told = jax.jit(copy_sensitivity)(layers, E)
    first = jax.tree.map(lambda leaf: leaf[0], layers)

    def output(E, k):  # of one task, [tokens, width]
        return jnp.sum(E[k] + attend(first, E[:-1], E[k][None], softmax=True)[0])

    slope = jax.jit(jax.vmap(lambda E, k: jax.grad(output)(E.T, k), (-1, None)))
    # [outputs, inputs]; of 9 tokens, those outputs with a next one in the context
    norms = np.array([np.linalg.norm(np.mean(slope(E, k), axis=0), axis=1) for k in range(7)])
    own, following = np.diagonal(norms), np.diagonal(norms, 1)
    expected = [own.mean(), following.mean(), np.mean(norms.sum(axis=1) - own - following) / 7]
    assert [float(value) for value in told] == pytest.approx(expected, rel=1e-10)


def test_a_layer_that_copies_looks_at_the_next_token():
    """Other tokens tell through the scores that their codes would have had."""
    batch = sample_tasks(jax.random.key(0), TASKS, 5)
    E = add_codes(separate_tokens(batch), jnp.asarray(unit_codes(4)))
    told = jax.jit(copy_sensitivity, static_argnames="softmax")(copying_layers(3, 4, 0.7), E, softmax=False)
    assert float(told.next) > 1 and float(told.next) > 2 * float(told.other)
