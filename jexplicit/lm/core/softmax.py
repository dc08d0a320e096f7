"""The softmax layer on token contexts: logits, partition functions, loss.

A model is K tables [N, N] with the logits of a context `sum_k tables[k][x_k]`: a table per offset for Cat, the same one K
times for Sum. The loss needs one partition function per *different* context,
`NLL = sum_ctx n(ctx) log Z(ctx) - sum_k <C_k, U_k>`, and at K = 1 nothing but the counts.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


def known_loss(nll: Any) -> float:
    """A loss as a number, which is not NaN."""
    if np.isnan(nll):
        raise ValueError("a loss that is NaN: the model has rows with NaN or with -inf alone; fit it from smoothed counts")
    return float(nll)


def negative_log_likelihood_from_counts(U: Float[Array, "N I"], C: Integer[np.ndarray, "N I"]) -> float:
    """The loss at K = 1: `sum_j C(j) log Z(j) - <C, U>`.

    Example:
        >>> C = np.array([[3, 1], [1, 1]])
        >>> round(negative_log_likelihood_from_counts(jnp.log(jnp.array(C)), C), 4)  # 4 H(3/4) + 2 H(1/2)
        3.6356

    Raises:
        ValueError: no position to predict.

    Source: paper, Eq. 1, at K = 1.
    """
    n = C.sum(axis=1)
    if not n.any():
        raise ValueError("no position to predict: the text has no tokens")
    log_Z = np.where(n > 0, np.asarray(_row_log_partition(U), np.float64), 0)  # 0 log 0 = 0: what never occurs costs nothing
    return float(n @ log_Z - _inner_product(C, np.asarray(U)))


def _inner_product(C: np.ndarray, U: np.ndarray) -> float:
    """`<C, U>` in float64 over the pairs that occur, by blocks of rows."""

    def of_block(C: np.ndarray, U: np.ndarray) -> float:
        occurs = np.flatnonzero(C > 0)
        return float(np.dot(C.ravel()[occurs].astype(np.float64), U.ravel()[occurs].astype(np.float64)))

    return sum(of_block(C[j : j + 64], U[j : j + 64]) for j in range(0, len(C), 64))


@jax.jit
def _row_log_partition(U: Array) -> Array:
    return jax.nn.logsumexp(U, axis=1)
