"""The MLP of tokens: one hidden layer of GELU units.

MLP(e) = W_2 gelu(W_1 e + b_1) + b_2
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.draws import truncated_std, truncated_weights
from jexplicit.runs.devices import full_precision


class MLP(NamedTuple):
    """The weights of one MLP, or of a stack along an additional first axis.

    W1: [hidden, width]; b1: [hidden]; W2: [width, hidden]; b2: [width].
    """

    W1: Float[Array, "*stack hidden width"]
    b1: Float[Array, "*stack hidden"]
    W2: Float[Array, "*stack width hidden"]
    b2: Float[Array, "*stack width"]


@full_precision
def apply_mlp(mlp: MLP, E: Float[Array, "width n batch"]) -> Float[Array, "width n batch"]:
    """`MLP(e)` of every token of a batch."""
    h = jax.nn.gelu(jnp.einsum("he,enb->hnb", mlp.W1, E) + mlp.b1[:, None, None])
    return jnp.einsum("eh,hnb->enb", mlp.W2, h) + mlp.b2[:, None, None]


def init_mlp(key: Array, stack: tuple[int, ...], width: int, hidden: int, *, scale: float = 0.002, dtype: Any = None) -> MLP:
    """Truncated normal weights of variance scale / fan-in, biases 0; `stack` is the leading axes, () for one MLP."""
    if min(*stack, width, hidden) < 1 or not scale > 0:
        raise ValueError(f"{stack} MLPs of width {width}, {hidden} hidden units, scale {scale}: all must be positive")
    dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
    stds = truncated_std(scale / width, dtype), truncated_std(scale / hidden, dtype)
    return _init_mlp(key, stack, width, hidden, stds, dtype)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 5))
def _init_mlp(key: Array, stack: tuple[int, ...], width: int, hidden: int, stds: Any, dtype: Any) -> MLP:
    shapes = (*stack, hidden, width), (*stack, width, hidden)
    W1, W2 = (truncated_weights(k, s, std, dtype) for k, s, std in zip(jax.random.split(key), shapes, stds, strict=True))
    return MLP(W1, jnp.zeros((*stack, hidden), dtype), W2, jnp.zeros((*stack, width), dtype))
