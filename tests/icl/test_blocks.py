"""Blocks of attention and an MLP: a slow loop, linear layers as a special case, invariances, training."""

from typing import Any

import jax
import numpy as np
import pytest
from reference import transformer_block

from icl import AttentionLayer, Sequence, Tasks, tokens
from icl.models.batched import predict_batch
from icl.models.blocks import BlockRegression, Blocks, init_blocks, linear_blocks, predict_blocks
from icl.models.mlp import MLP

EXACT: Any = {"rtol": 1e-11, "atol": 1e-11}  # float64; three blocks of sums of a few dozen terms of order 1
RNG = np.random.default_rng(0)
BATCH = [RNG.uniform(-1, 1, shape) for shape in ((6, 4, 4), (6, 2, 4), (4, 4), (2, 4))]  # 4 of 6 pairs; d = 4, two outputs
ATTENTION = list(RNG.normal(size=(4, 3, 2, 6, 6)) / 12**0.5)  # three blocks of two heads
WEIGHTS = {"W1": (3, 7, 6), "b1": (3, 7), "W2": (3, 6, 7), "b2": (3, 6)}
PERCEPTRON = {name: RNG.normal(size=shape) / 2 for name, shape in WEIGHTS.items()}


def batch_of(*leaves: np.ndarray) -> Sequence:
    return Sequence(*map(jax.device_put, leaves or BATCH))


def random_blocks(attention: Any = ATTENTION, mlp: dict[str, np.ndarray] = PERCEPTRON) -> Blocks:
    """With weights of order 1, and biases other than zero."""
    return Blocks(AttentionLayer(*map(jax.device_put, attention)), MLP(**{name: jax.device_put(W) for name, W in mlp.items()}))


def test_a_stack_is_the_loop_of_the_paper():
    blocks, batch = random_blocks(), batch_of()
    mlps = [[np.asarray(leaf)[block] for leaf in blocks.mlp] for block in range(3)]
    for softmax, layernorm in ((False, False), (True, False), (True, True)):
        ours = np.asarray(predict_blocks(blocks, batch, softmax=softmax, layernorm=layernorm))
        for n in range(4):
            E = np.asarray(tokens(batch_of(*(leaf[..., n] for leaf in BATCH))))
            for block in range(3):
                heads = [tuple(W[block, h] for W in ATTENTION) for h in range(2)]
                options: Any = {"softmax": softmax, "normalise": (layernorm and block > 0, layernorm)}
                E = transformer_block(E, heads, tuple(mlps[block]), **options)
            np.testing.assert_allclose(ours[:, n], -E[-1, 4:], **EXACT)


def test_linear_blocks_without_mlps_are_layers_of_attention():
    layers, batch = random_blocks().attention, batch_of()
    blocks = linear_blocks(layers, heads=3, hidden=2)
    np.testing.assert_allclose(predict_blocks(blocks, batch, softmax=False), predict_batch(layers, batch), **EXACT)
    without = random_blocks(mlp={name: 0 * W for name, W in PERCEPTRON.items()})
    for softmax in (False, True):
        theirs = predict_batch(layers, batch, softmax=softmax, clip=0.6)
        np.testing.assert_allclose(predict_blocks(without, batch, softmax=softmax, clip=0.6), theirs, **EXACT)


def test_layer_normalisation_makes_tokens_comparable():
    """All but the first attention read the same, whatever the size of the tokens that reach them."""
    attention = [leaf[:1] for leaf in ATTENTION]
    zeroed = random_blocks([*attention[:3], 0 * attention[3]], {name: W[:1] for name, W in PERCEPTRON.items()})
    batches = [batch_of(*BATCH[:2], scale * BATCH[2], BATCH[3]) for scale in (10, 1e4)]
    change = [predict_blocks(zeroed, batch, layernorm=True) for batch in batches]
    np.testing.assert_allclose(*change, rtol=1e-4)  # the variance has 1e-5 added to it
    assert not np.allclose(*(predict_blocks(zeroed, batch) for batch in batches), rtol=1e-1)


def test_random_weights_have_the_variances_asked_for_and_biases_zero():
    blocks = init_blocks(jax.random.key(0), 11, blocks=12, heads=4, scale=0.002 / 12)
    weights = {11: (*blocks.attention, blocks.mlp.W1), 44: (blocks.mlp.W2,)}
    for fan_in, leaves in weights.items():
        for leaf in map(np.asarray, leaves):  # of at least 5808 numbers: a standard error of 1 %
            assert leaf.std() == pytest.approx((0.002 / 12 / fan_in) ** 0.5, rel=0.05)
    assert not np.asarray(blocks.mlp.b1).any() and not np.asarray(blocks.mlp.b2).any()
    assert blocks.attention.P.shape == (12, 4, 11, 11) and blocks.mlp.W1.shape == (12, 44, 11)


def test_every_weight_learns():
    problem = BlockRegression(Tasks(dim=4, context=6, outputs=2), layernorm=True)
    gradient = jax.jit(jax.grad(problem.loss))(random_blocks(), batch_of())
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
