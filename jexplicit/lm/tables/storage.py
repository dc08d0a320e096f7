"""How R rows of N logits are stored: dense, sparse over a base row, or by classes of outputs.

A table is a pytree with `row(r)`, one row as a pure function, `entry(r, i)`, one logit of it, and `take(r)`, some rows as a
table of their own, on the host; those of an accelerator's arrays stay there. Row -1 is that of a context without entries.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.lm.tables.contexts import few_sizes
from jexplicit.lm.tables.pytrees import pytree, static
from jexplicit.runs.devices import on_accelerator


class SparseRows(NamedTuple):
    """Rows in compressed form: row r has `values[start[r]:start[r + 1]]` at `outputs[start[r]:start[r + 1]]`, sorted."""

    start: Any  # [R + 1] integers
    outputs: Any  # [E] token ids, of the smallest type that holds them
    values: Any  # [E] nats

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.start.nbytes + self.outputs.nbytes + self.values.nbytes

    @property
    def longest(self) -> int:
        """Entries of the longest row; at least 1, so that a row can always be read."""
        return max(1, int(jax.device_get(self.lengths.max(initial=0))))

    @property
    def lengths(self) -> Any:
        """Entries of each row, where the rows are."""
        return jnp.diff(self.start) if stays(self.start) else np.diff(np.asarray(self.start))


@pytree
class Dense:
    """All logits of every row, [R, N]."""

    rows: Any

    vocab_size = property(lambda self: self.rows.shape[1])

    def row(self, r: Array) -> Array:
        """Row r, [N]."""
        return jnp.asarray(self.rows).at[r].get(mode="promise_in_bounds")

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        return jnp.asarray(self.rows)[r, i]

    def take(self, r: Int[np.ndarray, " n"]) -> "Dense":
        """Rows r."""
        return self if np.array_equal(r, np.arange(len(self.rows))) else Dense(self.rows[r])


@pytree
class Sparse:
    """Rows that differ from a base row in few entries, `row_r = base + weight_r slope + entries_r`.

    rows: the entries.
    outputs: N.
    longest: entries of the longest row; 0 where every position has a row of its own, which is read on the host.
    base: [N]; None for zeros.
    weight, slope: [R] and [N]; None for no such term.
    unseen: [R] the logit of outputs whose base is -inf; None where there are none.
    """

    rows: SparseRows
    outputs: int = static()
    longest: int = static()
    base: Any = None
    weight: Any = None
    slope: Any = None
    unseen: Any = None

    vocab_size = property(lambda self: self.outputs)
    weighted = property(lambda self: self.weight is not None or self.unseen is not None)

    def row(self, r: Array) -> Array:
        """Row r, [N]."""
        row = sparse_row(self.rows, r, self.outputs, self.longest)
        if self.base is None:
            return row
        base = jnp.asarray(self.base, row.dtype)
        row = row + base
        if self.weight is not None:
            row = row + jnp.asarray(self.weight, row.dtype)[r] * jnp.asarray(self.slope, row.dtype)
        return row if self.unseen is None else jnp.where(jnp.isneginf(base), jnp.asarray(self.unseen, row.dtype)[r], row)

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r, of rows without weights."""
        e, values = find_entry(self.rows.start, self.rows.outputs, r, i, self.longest), jnp.asarray(self.rows.values)
        value = jnp.where(e >= 0, values.at[e].get(mode="clip"), 0) if len(values) else jnp.zeros((), values.dtype)
        return value if self.base is None else value + jnp.asarray(self.base, value.dtype)[i]

    def take(self, r: Int[np.ndarray, " n"]) -> Any:
        """Rows r; dense ones where they have weights."""
        if self.weighted:
            return take_dense(self, r)
        return Sparse(take_rows(self.rows, r), self.outputs, self.longest, self.base)


@pytree
class Gathered:
    """Rows with few different columns: column i is column `column_of_output[i]` of a smaller table [R, C]."""

    rows: Any
    column_of_output: Any

    vocab_size = property(lambda self: len(self.column_of_output))

    def row(self, r: Array) -> Array:
        """Row r, [N]."""
        return jnp.asarray(self.rows)[r][jnp.asarray(self.column_of_output)]

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        return jnp.asarray(self.rows)[r, jnp.asarray(self.column_of_output)[i]]

    def take(self, r: Int[np.ndarray, " n"]) -> "Gathered":
        """Rows r."""
        return Gathered(self.rows[r], self.column_of_output)


def stays(array: Any) -> bool:
    """Whether an array is in the memory of an accelerator, of which the host gets no copy."""
    return isinstance(array, jax.Array) and on_accelerator()


def as_table(table: Any) -> Any:
    """A table unchanged; an array [R, N] as dense rows."""
    return Dense(table) if isinstance(table, np.ndarray | jax.Array) else table


def take_dense(table: Any, r: Int[np.ndarray, " n"]) -> Dense:
    """Rows r of any table, made one by one."""
    size = 1 << (len(r) - 1).bit_length()  # few shapes are compiled
    rows = _rows(table, pad_to(r.astype(np.int32), size, 0))
    return Dense((rows if stays(rows) else np.asarray(rows))[: len(r)])


def dense_rows(table: Any, r: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n N"]:
    """Rows r with their zeros, on the host."""
    few = table.take(r)
    if isinstance(few, Sparse):
        base = np.zeros(few.outputs) if few.base is None else np.asarray(few.base)
        whole = np.tile(base.astype(few.rows.values.dtype), (len(r), 1))
        add_entries(whole, few.rows)
        return whole
    return np.asarray(few.rows if isinstance(few, Dense) else take_dense(few, np.arange(len(r))).rows)


@jax.jit
def _rows(table: Any, r: Array) -> Array:
    return jax.vmap(table.row)(r)


def sparse_row(rows: SparseRows, r: Integer[Array, ""], N: int, longest: int) -> Float[Array, " N"]:
    """Row r with its zeros, and zeros for r = -1: pure, with `longest` of the rows.

    Example:
        >>> rows = SparseRows(jnp.array([0, 0, 2]), jnp.array([2, 0]), jnp.array([5.0, 7.0]))
        >>> sparse_row(rows, jnp.array(1), 3, rows.longest).tolist()
        [7.0, 0.0, 5.0]
    """
    r = r.astype(jnp.int32)
    start = jnp.asarray(rows.start)
    first, last = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))
    e = first + jnp.arange(min(longest, len(rows.values)), dtype=jnp.int32)
    own = (e < last) & (r >= 0)
    i = jnp.where(own, jnp.asarray(rows.outputs).at[e].get(mode="clip").astype(jnp.int32), N)  # N is dropped
    values = jnp.asarray(rows.values)
    return jnp.zeros(N, values.dtype).at[i].add(values.at[e].get(mode="clip"), mode="drop")


def find_entry(start: Any, ids: Any, r: Int[Array, ""], i: Int[Array, ""], most: int) -> Int[Array, ""]:
    """The place of id i in row r, the sorted `ids[start[r]:start[r + 1]]`, by binary search; -1 if it is not there: pure.

    Args:
        start: [R + 1] where each row begins.
        ids: [E] of all rows.
        r: the row; -1 for none.
        i: the id.
        most: ids of a row, at most.

    Example:
        >>> start, ids = jnp.array([0, 2, 4]), jnp.array([1, 5, 0, 1], jnp.uint16)
        >>> [int(find_entry(start, ids, jnp.array(r), jnp.array(1), 2)) for r in (0, 1, -1)]
        [0, 3, -1]
    """
    start, ids, i = jnp.asarray(start), jnp.asarray(ids), i.astype(jnp.int32)
    if not len(ids):
        return jnp.full_like(r, -1)
    low, end = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))

    def halve(_: Any, left: tuple[Array, Array]) -> tuple[Array, Array]:
        low, n = left
        half = n >> 1
        right = (n > 0) & (jnp.take(ids, low + half, mode="clip").astype(jnp.int32) < i)
        return jnp.where(right, low + half + 1, low), jnp.where(right, n - half - 1, half)

    place, _ = jax.lax.fori_loop(0, max(1, most).bit_length(), halve, (low, end - low))
    there = (r >= 0) & (place < end) & (jnp.take(ids, place, mode="clip").astype(jnp.int32) == i)
    return jnp.where(there, place, -1)


def take_rows(rows: SparseRows, r: Int[np.ndarray, " n"]) -> SparseRows:
    """Some of the rows, on the host; of an accelerator's rows the entries stay there, and zeros may follow the last of them."""
    if stays(rows.values):
        first, n = _bounds(rows.start, pad_to(r.astype(np.int32), few_sizes(len(r), 64), -1))
        start = np.concatenate([[0], np.cumsum(jax.device_get(n)[: len(r)], dtype=np.int64)])
        size = few_sizes(int(start[-1]), 1 << 10) if start[-1] else 0
        return SparseRows(start, *_entries(rows, first, n, size=size))
    start, outputs, values = map(np.asarray, rows)
    first, last = start[r].astype(np.int64), start[r + 1]
    n = last - first
    entry = slice(None) if n.sum() == len(outputs) else ranges(first, last)  # all of them are not copied
    return SparseRows(np.concatenate([[0], np.cumsum(n)]), outputs[entry], values[entry])


@jax.jit
def _bounds(start: Array, r: Array) -> tuple[Array, Array]:
    """The first entry of each row, and how many there are; none for -1."""
    first, last = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))
    return first, jnp.where(r < 0, 0, last - first)


@functools.partial(jax.jit, static_argnames="size")
def _entries(rows: SparseRows, first: Array, n: Array, *, size: int) -> tuple[Array, Array]:
    """`n[0]` outputs and values from `first[0]` on, `n[1]` from `first[1]` on, ...; zeros up to a size."""
    place = jnp.arange(size, dtype=jnp.int32)
    entry = jnp.repeat(first - (jnp.cumsum(n) - n), n, total_repeat_length=size) + place
    entry = jnp.where(place < n.sum(dtype=jnp.int32), entry, len(rows.values))
    outputs, values = (x.at[entry].get(mode="fill", fill_value=0) for x in (rows.outputs, rows.values))
    return outputs, values


def add_entries(table: Float[np.ndarray, "R N"], rows: SparseRows) -> None:
    """`table[r, i] += value` for every entry of the rows, in place."""
    start, outputs, values = jax.device_get(rows)
    places = np.repeat(np.arange(len(start) - 1) * table.shape[1], np.diff(start))
    places += outputs[: len(places)]
    table.reshape(-1)[places] += values[: len(places)]  # no place twice


def ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """`first[0] .. last[0] - 1, first[1] .. last[1] - 1, ...` in one array.

    Example:
        >>> ranges(np.array([3, 7]), np.array([5, 8])).tolist()
        [3, 4, 7]
    """
    n = last - first
    before = np.cumsum(n) - n
    return np.repeat(first - before, n) + np.arange(n.sum())
