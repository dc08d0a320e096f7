"""Blocks of attention and an MLP: a slow loop, linear layers as a special case, invariances, training."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import transformer_block

from icl import (
    Sequence,
    Tasks,
    init_layers,
    sample_tasks,
    sequences,
    tokens,
)
from icl.models import batched
from icl.models import blocks as stacks
from icl.models.blocks import BlockRegression, init_blocks, linear_blocks

predict_blocks = jax.jit(stacks.predict_blocks, static_argnames=("softmax", "layernorm", "clip"))
predict_batch = jax.jit(batched.predict_batch, static_argnames=("softmax", "clip"))
TASKS = Tasks(dim=3, context=5, outputs=2, input_range=2.0)
BATCH = sample_tasks(jax.random.key(0), TASKS, 4)
EXACT: Any = {"rtol": 1e-11, "atol": 1e-11}  # float64; three blocks of sums of a few dozen terms of order 1


@functools.cache
def random_blocks() -> stacks.Blocks:
    """Three, with weights of order 1, and biases other than zero."""
    found = init_blocks(jax.random.key(1), 5, blocks=3, heads=2, hidden=7, scale=0.5)
    biases = {name: jnp.linspace(-1, 1, found.mlp._asdict()[name].size).reshape(3, -1) for name in ("b1", "b2")}
    return found._replace(mlp=found.mlp._replace(**biases))


@pytest.mark.parametrize(("softmax", "layernorm"), [(False, False), (True, False), (True, True)])
def test_a_stack_is_the_loop_of_the_paper(softmax, layernorm):
    blocks = random_blocks()
    ours = predict_blocks(blocks, BATCH, softmax=softmax, layernorm=layernorm)
    for n, one in enumerate(zip(*sequences(BATCH), strict=True)):
        E = np.asarray(tokens(Sequence(*one)))
        for block in range(3):
            heads = [tuple(np.asarray(W)[block, h] for W in blocks.attention) for h in range(2)]
            mlp = tuple(np.asarray(leaf)[block] for leaf in blocks.mlp)
            E = transformer_block(E, heads, mlp, softmax=softmax, normalise=(layernorm and block > 0, layernorm))
        np.testing.assert_allclose(ours[:, n], -E[-1, 3:], **EXACT)


def test_linear_blocks_without_mlps_are_layers_of_attention():
    layers = init_layers(jax.random.key(2), 5, layers=3, heads=2, scale=0.5)
    blocks = linear_blocks(layers, heads=3, hidden=2)
    np.testing.assert_allclose(predict_blocks(blocks, BATCH, softmax=False), predict_batch(layers, BATCH), **EXACT)
    without = random_blocks()
    without = without._replace(mlp=jax.tree.map(jnp.zeros_like, without.mlp))
    for softmax in (False, True):
        theirs = predict_batch(without.attention, BATCH, softmax=softmax, clip=0.6)
        np.testing.assert_allclose(predict_blocks(without, BATCH, softmax=softmax, clip=0.6), theirs, **EXACT)


def test_layer_normalisation_makes_tokens_comparable():
    """All but the first attention read the same, whatever the size of the tokens that reach them."""
    blocks = jax.tree.map(lambda leaf: leaf[:1], random_blocks())
    zeroed = blocks._replace(attention=blocks.attention._replace(P=jnp.zeros_like(blocks.attention.P)))
    larger = BATCH._replace(x_q=1e3 * BATCH.x_q)
    change = [predict_blocks(zeroed, batch, layernorm=True) for batch in (BATCH, larger)]
    np.testing.assert_allclose(*change, rtol=1e-4)  # the variance has 1e-5 added to it
    assert not np.allclose(*(predict_blocks(zeroed, batch) for batch in (BATCH, larger)), rtol=1e-1)


def test_random_weights_have_the_variances_asked_for_and_biases_zero():
    blocks = init_blocks(jax.random.key(0), 11, blocks=12, heads=4, scale=0.002 / 12)
    weights = {11: (*blocks.attention, blocks.mlp.W1), 44: (blocks.mlp.W2,)}
    for fan_in, leaves in weights.items():
        for leaf in leaves:  # of at least 5808 numbers: a standard error of 1 %
            assert float(leaf.std()) == pytest.approx((0.002 / 12 / fan_in) ** 0.5, rel=0.05)
    assert not blocks.mlp.b1.any() and not blocks.mlp.b2.any()
    assert blocks.attention.P.shape == (12, 4, 11, 11) and blocks.mlp.W1.shape == (12, 44, 11)


def test_every_weight_learns():
    problem = BlockRegression(Tasks(dim=2, context=3), layernorm=True)
    blocks = init_blocks(jax.random.key(0), 3, blocks=2, heads=2, scale=0.1)
    gradient = jax.jit(jax.grad(problem.loss))(blocks, problem.sample(jax.random.key(1), 8))
    assert all(leaf.any() for leaf in jax.tree.leaves(gradient))
