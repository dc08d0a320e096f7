"""The softmax layer on token contexts.

A model is K tables [N, N] with the logits of a context `sum_k tables[k][x_k]`: a table per offset for Cat, the same one K
times for Sum.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

Tables = Sequence[Float[Array, "N N"]]


@jax.jit
def logits(tables: Tables, x: Integer[Array, " K"]) -> Float[Array, " N"]:
    """Logits of one context, `sum_k U_k[x_k]` = H U for one-hot H, in nats.

    Args:
        tables: K tables [N, N].
        x: [K] token ids, nearest first.

    Example:
        >>> logits([jnp.eye(2), 2 * jnp.eye(2)], jnp.array([0, 1])).tolist()
        [1.0, 2.0]

    Source: paper, Eq. 1 and Sec. 3.1.2.
    """
    rows = [table.at[x[k]].get(mode="promise_in_bounds") for k, table in enumerate(tables)]
    return functools.reduce(jnp.add, rows)
