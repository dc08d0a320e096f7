"""Parts of log tables: some of them, those of their rows that some positions read, or these as dense tables."""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Integer

from jexplicit.lm.rows.log_tables import (
    Gathered,
    LogTables,
    Positions,
    SparseRows,
    SplitRows,
    add_entries,
    is_long,
    split_rows,
    take_rows,
)


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


def only_read(tables: LogTables, positions: Positions) -> tuple[LogTables, Positions]:
    """The same with only those rows that the positions read, so that the tables need not be kept.

    Example:
        >>> import jax.numpy as jnp
        >>> tables = LogTables((jnp.arange(6.0).reshape(3, 2),))
        >>> few, read = only_read(tables, Positions(np.array([[2], [2]]), np.array([[0], [0]])))
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
        sparse.append(few)
    return LogTables(tuple(dense), tuple(sparse), tables.bases), Positions(rows, positions.exponents)


def dense_where_full(tables: LogTables, positions: Positions) -> tuple[LogTables, Positions]:
    """The same, faster to read: sparse tables with long rows on average as dense ones, and of all others the long rows.

    Example:
        >>> import jax.numpy as jnp
        >>> rows = SparseRows(np.array([0, 2]), np.array([0, 2]), np.array([5.0, 7.0], np.float32))
        >>> sparse = LogTables((jnp.zeros((1, 3)),), (rows,))
        >>> dense, read = dense_where_full(sparse, Positions(np.array([[0, 0], [0, -1]]), np.zeros((2, 2), int)))
        >>> dense.dense[1].tolist(), read.rows.tolist()  # the last row is that of no row
        ([[5.0, 0.0, 7.0], [0.0, 0.0, 0.0]], [[0, 0], [0, 1]])
    """
    N, T = tables.outputs, len(tables.dense)
    parts = [table.entries if isinstance(table, SplitRows) else table for table in tables.sparse]
    full = np.array([is_long(len(table.outputs) / max(1, len(table.start) - 1), N) for table in parts], bool)
    dense, rows = [], positions.rows.copy()
    for s in np.flatnonzero(full):
        R = len(parts[s].start) - 1
        base = np.zeros(N) if tables.bases is None else np.asarray(tables.bases[s])
        table = np.tile(base.astype(parts[s].values.dtype), (R + 1, 1))
        add_entries(table, parts[s])
        dense.append(jnp.asarray(table))
        rows[rows[:, T + s] < 0, T + s] = R
    others = np.flatnonzero(~full)
    order = np.concatenate([np.arange(T), T + np.flatnonzero(full), T + others])
    sparse = tuple(split_rows(parts[s], N) for s in others)
    bases = None if tables.bases is None or not np.any(tables.bases[others]) else tables.bases[others]
    return LogTables((*tables.dense, *dense), sparse, bases), Positions(rows[:, order], positions.exponents[:, order])


def rows_read(table: SparseRows | SplitRows, r: Integer[np.ndarray, " M"]) -> tuple[SparseRows, Int[np.ndarray, " M"]]:
    """Those rows of a sparse table that positions read, on the host, and the new numbers of these; -1 stays.

    Example:
        >>> rows = SparseRows(np.array([0, 1, 3]), np.array([4, 2, 9]), np.array([1.0, 2.0, 3.0]))
        >>> few, r = rows_read(rows, np.array([1, -1, 1]))
        >>> few.outputs.tolist(), r.tolist()
        ([2, 9], [0, -1, 0])
    """
    used, which = np.unique(r.astype(np.int64), return_inverse=True)  # r + 1 of a small unsigned type would wrap
    nothing = int(used[:1].sum() < 0)
    return take_rows(table.entries if isinstance(table, SplitRows) else table, used[nothing:]), which - nothing
