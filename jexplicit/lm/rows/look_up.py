"""Single entries of sparse rows, by binary search: what one output's logit needs of a row, where its softmax is not wanted."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer


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
    halve = functools.partial(_halve, ids, i)
    place, _ = jax.lax.fori_loop(0, max(1, most).bit_length(), lambda _, left: halve(*left), (low, end - low))
    there = (r >= 0) & (place < end) & (jnp.take(ids, place, mode="clip").astype(jnp.int32) == i)
    return jnp.where(there, place, -1)


def find_entries(
    start: Integer[np.ndarray, " R_plus_1"],
    ids: Integer[np.ndarray, " E"],
    r: Int[np.ndarray, " M"],
    i: Int[np.ndarray, " M"],
) -> Int[np.ndarray, " M"]:
    """The same for many rows and ids, on the host: nothing is compiled for the sizes of a table.

    Example:
        >>> start, ids = np.array([0, 2, 4]), np.array([1, 5, 0, 1], np.uint16)
        >>> find_entries(start, ids, np.array([0, 1, -1]), np.array([1, 1, 1])).tolist()
        [0, 3, -1]
    """
    if not len(ids):
        return np.full(len(r), -1)
    low, end = (start[np.maximum(r, 0) + n].astype(np.int64) for n in (0, 1))
    place, n = low, end - low
    for _ in range(int(n.max(initial=0)).bit_length()):
        place, n = _halve(ids, i, place, n)
    there = (r >= 0) & (place < end) & (np.take(ids, place, mode="clip") == i)
    return np.where(there, place, -1)


def _halve(ids: Any, i: Any, low: Any, n: Any) -> tuple[Any, Any]:
    """A step of the search for the first of `ids[low:low + n]` that is not below i: NumPy and JAX alike."""
    xp = ids.__array_namespace__()
    half = n >> 1
    right = (n > 0) & (xp.take(ids, low + half, mode="clip").astype(i.dtype) < i)
    return xp.where(right, low + half + 1, low), xp.where(right, n - half - 1, half)


def entry_value(rows: Any, r: Int[Array, ""], i: Int[Array, ""], most: int) -> Float[Array, ""]:
    """What row r of `SparseRows` adds to the logit of output i: 0 where it has no entry, and for r = -1."""
    e = find_entry(rows.start, rows.outputs, r, i, most)
    return jnp.where(e >= 0, jnp.asarray(rows.values).at[e].get(mode="clip"), 0)
