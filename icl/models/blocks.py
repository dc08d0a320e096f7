"""Transformer blocks, attention and an MLP, on the tokens of linear regression.

    e_j <- e_j + Σ_h P_h Σ_i a_ij V_h e_i,    a_ij = softmax over i of k_iᵀ q_j / sqrt(key size), or k_iᵀ q_j (linear)
    e_j <- e_j + W_2 gelu(W_1 e_j + b_1) + b_2

The query is not a key, and the prediction is minus its last coordinates, as in `icl.predict`. Linear blocks whose MLPs are zero
*are* layers of attention alone: `linear_blocks` converts layers of GD++ to blocks.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.linalg import contract, transpose
from icl.models.attention import AttentionLayer, clip_tokens, head_maps, init_layers, layer_norm
from icl.models.mlp import MLP, apply_mlp, init_mlp
from icl.tasks import QueryLoss, Sequence, Tasks
from jexplicit.runs.devices import full_precision


class Blocks(NamedTuple):
    """A stack of blocks: attention [L, heads, ...] and MLPs [L, ...], applied in turn."""

    attention: AttentionLayer
    mlp: MLP


@dataclasses.dataclass(frozen=True)
class BlockRegression(QueryLoss):
    """Stacks of blocks on regression tasks: a problem for `icl.train_layers`.

    tasks: their distribution, with Python numbers.
    softmax, layernorm, clip: as in `predict_blocks`.

    Example:
        >>> problem = BlockRegression(Tasks(dim=3, context=5))
        >>> batch = problem.sample(jax.random.key(0), 4)
        >>> problem.loss(init_blocks(jax.random.key(1), 4, blocks=2, heads=2), batch).shape
        ()
    """

    tasks: Tasks
    softmax: bool = True
    layernorm: bool = False
    clip: float | None = None

    def predict(self, params: Blocks, batch: Sequence) -> Float[Array, "m batch"]:
        """Predictions for a batch."""
        return predict_blocks(params, batch, softmax=self.softmax, layernorm=self.layernorm, clip=self.clip)


@functools.partial(jax.jit, static_argnames=("softmax", "layernorm", "clip"))
def predict_blocks(
    blocks: Blocks, batch: Sequence, *, softmax: bool = True, layernorm: bool = False, clip: float | None = None
) -> Float[Array, "m batch"]:
    """The predictions of a stack of blocks for a batch, batch last.

    Args:
        blocks: applied in order.
        softmax: whether to apply a softmax to scores.
        layernorm: whether to normalise the inputs of attention and MLPs, all but those of the first attention.
        clip: tokens are clipped to [-clip, clip] after each block; default, not at all.

    Raises:
        ValueError: weights that do not fit the tokens or each other.

    Example:
        >>> from icl import sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> predict_blocks(init_blocks(jax.random.key(1), 4, blocks=2, heads=2), batch).shape
        (1, 4)

    Source: von Oswald et al. 2023, Sec. 3 and Fig. 8.
    """
    d = batch.x_q.shape[0]
    x = jnp.concatenate([transpose(batch.X), batch.x_q[:, None]], axis=1)
    y = jnp.concatenate([transpose(batch.Y), jnp.zeros_like(batch.y_q)[:, None]], axis=1)
    E = jnp.concatenate([x, y])  # [width, N + 1, batch], the query last
    _check_shapes(blocks, len(E))

    def read(E: Array, raw: Array | bool = False) -> Array:
        return jnp.where(raw, E, layer_norm(E, axis=0)) if layernorm else E

    def apply(E: Array, block: tuple[Array, Blocks]) -> tuple[Array, None]:
        first, (attention, mlp) = block
        E = E + attend_batch(attention, read(E, first), softmax=softmax)
        return clip_tokens(E + apply_mlp(mlp, read(E)), clip), None

    first = jnp.arange(len(blocks.mlp.b1)) == 0
    E, _ = lax.scan(apply, E, (first, blocks))
    return -E[d:, -1]


@full_precision
def attend_batch(layer: AttentionLayer, E: Float[Array, "width n batch"], *, softmax: bool) -> Float[Array, "width n batch"]:
    """`icl.models.attention.attend` of all tokens of a batch; keys are all tokens but the last. All heads are one product."""
    context, (M, R) = E[:, :-1], head_maps(layer)
    H, (w, n, batch) = len(M), E.shape
    queries = jnp.einsum("hce,enb->chnb", M, E).reshape(w, H * n, batch)
    scores = contract(context, queries)
    if softmax:
        scores = jax.nn.softmax(scores / layer.W_K.shape[-2] ** 0.5, axis=0)
    values = contract(transpose(context), scores).reshape(w, H, n, batch)
    return jnp.einsum("hce,ehnb->cnb", R, values)


def init_blocks(
    key: Array,
    width: int,
    *,
    blocks: int,
    heads: int = 4,
    hidden: int | None = None,
    scale: float = 0.002,
    dtype: Any = None,
) -> Blocks:
    """Random weights of variance scale / fan-in, biases 0.

    Args:
        width: d + m of a token, and the size of keys.
        blocks, heads: numbers of blocks and heads.
        hidden: units of each MLP; default, four times the width.
        scale: variance times fan-in; the paper's code has 0.002 / number of layers.

    Raises:
        ValueError: a number below 1, or a scale that is not positive.

    Example:
        >>> init_blocks(jax.random.key(0), 11, blocks=12).mlp.W1.shape
        (12, 44, 11)

    Source: von Oswald et al. 2023, Sec. 3 and App. A.12.
    """
    of_attention, of_mlp = jax.random.split(key)
    attention = init_layers(of_attention, width, layers=blocks, heads=heads, scale=scale, dtype=dtype)  # checks the sizes
    hidden = 4 * width if hidden is None else hidden
    return Blocks(attention, init_mlp(of_mlp, (blocks,), width, hidden, scale=scale, dtype=dtype))


@functools.partial(jax.jit, static_argnames=("heads", "hidden"))
def linear_blocks(layers: AttentionLayer, *, heads: int = 4, hidden: int | None = None) -> Blocks:
    """Linear layers of attention as blocks, padded by heads of zeros, with MLPs of zeros.

    `predict_blocks(.., softmax=False)` of the result equals `icl.predict` of the layers.

    Args:
        layers: [L, heads, ...], e.g. of `icl.descent_layers`.
        heads: of the blocks; hidden: units of their MLPs, four times the width by default.

    Raises:
        ValueError: fewer heads than in the layers, or no hidden unit.

    Example:
        >>> from icl import descent_layers
        >>> linear_blocks(descent_layers(2, 4, 0.5, layers=3)).attention.P.shape
        (3, 4, 3, 3)
    """
    L, own, _, width = layers.W_K.shape
    hidden = 4 * width if hidden is None else hidden
    if heads < own or hidden < 1:
        raise ValueError(f"{heads} heads and {hidden} hidden units for layers of {own} heads: use at least {own}, and 1")
    attention = jax.tree.map(lambda W: jnp.pad(W, ((0, 0), (0, heads - own), (0, 0), (0, 0))), layers)
    shapes = (L, hidden, width), (L, hidden), (L, width, hidden), (L, width)
    return Blocks(AttentionLayer(*attention), MLP(*(jnp.zeros(shape, layers.P.dtype) for shape in shapes)))


def _check_shapes(blocks: Blocks, width: int) -> None:
    keys, hidden = blocks.attention.W_K.shape, blocks.mlp.W1.shape
    if len(keys) != 4 or len(hidden) != 3 or keys[3] != width or hidden != (keys[0], hidden[1], width):
        raise ValueError(
            f"W_K {keys}, W1 {hidden} for tokens of width {width}: wanted [blocks, heads, key size, {width}] and "
            f"[blocks, hidden, {width}]"
        )
