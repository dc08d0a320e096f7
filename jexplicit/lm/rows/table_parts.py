"""Parts of log tables: some of them, or those of their rows that some positions read."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int, Integer

from jexplicit.lm.rows.log_tables import Gathered, LogTables, Positions, SparseRows, SplitRows, ranges, split_rows


def select(tables: LogTables, positions: Positions, columns: Sequence[int]) -> tuple[LogTables, Positions]:
    """The model of some of its tables, by their column in the positions; exponents keep their numbers.

    Example:
        >>> import jax.numpy as jnp
        >>> tables = LogTables((jnp.zeros((1, 2)), jnp.ones((1, 2))))
        >>> one, read = select(tables, Positions(np.zeros((1, 2), int), np.array([[0, 1]])), [1])
        >>> len(one.dense), read.exponents.tolist()
        (1, [[1]])
    """
    T = len(tables.dense)
    columns = sorted(columns)
    dense = tuple(tables.dense[c] for c in columns if c < T)
    sparse = tuple(tables.sparse[c - T] for c in columns if c >= T)
    bases = None if tables.bases is None else tables.bases[np.array([c - T for c in columns if c >= T], int)]
    return LogTables(dense, sparse, bases), Positions(positions.rows[:, columns], positions.exponents[:, columns])


def only_read(tables: LogTables, positions: Positions, N: int) -> tuple[LogTables, Positions]:
    """The same with only those rows that the positions read, so that the tables need not be kept.

    Example:
        >>> import jax.numpy as jnp
        >>> tables = LogTables((jnp.arange(6.0).reshape(3, 2),))
        >>> few, read = only_read(tables, Positions(np.array([[2], [2]]), np.array([[0], [0]])), 2)
        >>> few.dense[0].tolist(), read.rows.tolist()
        ([[4.0, 5.0]], [[0], [0]])
    """
    rows, T = positions.rows.copy(), len(tables.dense)
    dense, sparse = [], []
    for t, table in enumerate(tables.dense):
        used, rows[:, t] = np.unique(rows[:, t], return_inverse=True)
        dense.append(replace(table, rows=table.rows[used]) if isinstance(table, Gathered) else table[used])
    for s, table in enumerate(tables.sparse):
        few, rows[:, T + s] = rows_read(table, rows[:, T + s])
        sparse.append(split_rows(few, N))
    return LogTables(tuple(dense), tuple(sparse), tables.bases), Positions(rows, positions.exponents)


def rows_read(table: SparseRows | SplitRows, r: Integer[np.ndarray, " M"]) -> tuple[SparseRows, Int[np.ndarray, " M"]]:
    """Those rows of a sparse table that positions read, on the host, and the new numbers of these; -1 stays.

    Example:
        >>> rows = SparseRows(np.array([0, 1, 3]), np.array([4, 2, 9]), np.array([1.0, 2.0, 3.0]))
        >>> few, r = rows_read(rows, np.array([1, -1, 1]))
        >>> few.outputs.tolist(), r.tolist()
        ([2, 9], [0, -1, 0])
    """
    start, outputs, values = (np.asarray(part) for part in (table.entries if isinstance(table, SplitRows) else table))
    used, which = np.unique(r.astype(np.int64), return_inverse=True)  # r + 1 of a small unsigned type would wrap
    nothing = int(used[:1].sum() < 0)
    first, last = start[used[nothing:]].astype(np.int64), start[used[nothing:] + 1]
    whole = (last - first).sum() == len(outputs)  # as of a table of a row for each position, which is not copied
    entry = slice(None) if whole else ranges(first, last)
    return SparseRows(np.concatenate([[0], np.cumsum(last - first)]), outputs[entry], values[entry]), which - nothing
