"""Single entries of sparse rows, by binary search: what one output's logit needs of a row, where its softmax is not wanted."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def find_entry(start: Any, ids: Any, r: Int[Array, ""], i: Int[Array, ""], most: int) -> Int[Array, ""]:
    """The place of id i in row r, the sorted `ids[start[r]:start[r + 1]]`; -1 where it is not there, and for r = -1: pure.

    Args:
        start: [R + 1] where each row begins.
        ids: [E] of all rows.
        r: the row.
        i: the id.
        most: ids of a row, at most.

    Example:
        >>> start, ids = jnp.array([0, 2, 4]), jnp.array([1, 5, 0, 1], jnp.uint16)
        >>> [int(find_entry(start, ids, jnp.array(r), jnp.array(1), 2)) for r in (0, 1, -1)]
        [0, 3, -1]
    """
    start, ids = jnp.asarray(start), jnp.asarray(ids)
    low, end = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))

    def halve(_: Any, left: tuple[Array, Array]) -> tuple[Array, Array]:
        low, n = left
        half = n // 2
        right = (n > 0) & (ids.at[low + half].get(mode="clip").astype(jnp.int32) < i)
        return jnp.where(right, low + half + 1, low), jnp.where(right, n - half - 1, half)

    low, _ = jax.lax.fori_loop(0, max(1, most).bit_length(), halve, (low, end - low))
    there = (r >= 0) & (low < end) & (ids.at[low].get(mode="clip").astype(jnp.int32) == i)
    return jnp.where(there, low, -1)


def entry_value(rows: Any, r: Int[Array, ""], i: Int[Array, ""], most: int) -> Float[Array, ""]:
    """What row r of `SparseRows` adds to the logit of output i: 0 where it has no entry, and for r = -1."""
    e = find_entry(rows.start, rows.outputs, r, i, most)
    return jnp.where(e >= 0, jnp.asarray(rows.values).at[e].get(mode="clip"), 0)
