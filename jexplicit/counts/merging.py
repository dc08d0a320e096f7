"""Sparse co-occurrence counts: sorted runs of the pairs that occur, which merge and add up exactly.

A pair of context token j and target i at offset k has the key `((k-1) N + j) N + i`. A run is its different keys in order, with
how often each occurs: 16 bytes for a pair that occurs, none for the others. Most pairs of a large vocabulary never do.
"""

import io
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Int64

from jexplicit.counts.dense import INT32_CELLS, Counts
from jexplicit.data.contexts import check_token_ids, context_columns, with_leading_pads
from jexplicit.runs.files import write_whole

_INDEX = "index.json"
_LAYOUT = 1


class Run(NamedTuple):
    """Counts of pairs: keys in ascending order, and how often each occurs."""

    keys: Int64[np.ndarray, " n"]
    counts: Int64[np.ndarray, " n"]


class Table(NamedTuple):
    """A file of counts: its name, the offset k, how many pairs it holds, and the CRC-32 of its bytes."""

    file: str
    offset: int
    pairs: int
    crc32: int


def count_run(stream: np.ndarray, *, radius: int, vocab_size: int) -> Run:
    """The counts of `cooccurrence.count` as a sorted run.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        radius: K.
        vocab_size: N.

    Raises:
        ValueError: a malformed stream, a token id out of range, a vocabulary whose keys overflow int64.

    Example:
        >>> count_run(np.array([0, 1, 2, 0, 1, 0]), radius=1, vocab_size=3)
        Run(keys=array([1, 3, 5, 6]), counts=array([2, 1, 1, 1]))
    """
    N, K = vocab_size, radius
    if K * N * N >= 2**63:
        raise ValueError(f"vocabulary {N} with radius {K}: the keys of its pairs overflow int64; use a smaller vocabulary")
    x = with_leading_pads(np.asarray(stream), K)
    check_token_ids(x, N, f"in a vocabulary of {N}: ids are 0 .. N - 1; pass the tokenizer's vocab_size")
    x = x.astype(np.int64)
    keys = [(k * N + j) * N + x[K:] for k, j in enumerate(context_columns(x, K))]
    keys, counts = np.unique(np.concatenate(keys), return_counts=True)
    return Run(keys, counts.astype(np.int64))


def merge_runs(runs: Iterable[Run]) -> Run:
    """The counts of several bodies of text together.

    Example:
        >>> merge_runs([Run(np.array([1, 3]), np.array([2, 1])), Run(np.array([3, 4]), np.array([5, 1]))])
        Run(keys=array([1, 3, 4]), counts=array([2, 6, 1]))
    """
    runs = [run for run in runs if len(run.keys)]
    if len(runs) < 2:
        return runs[0] if runs else Run(np.zeros(0, np.int64), np.zeros(0, np.int64))
    keys, counts = np.concatenate([run.keys for run in runs]), np.concatenate([run.counts for run in runs])
    order = np.argsort(keys, kind="stable")  # merges what is sorted already
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return Run(keys[first], np.add.reduceat(counts, first))


def add_run(runs: Sequence[Run], run: Run) -> list[Run]:
    """Runs whose sum is that of the given ones and one more, each over twice as long as the next.

    So every pair is merged a logarithmic number of times, and no more runs are held than that.

    Example:
        >>> one = Run(np.array([7]), np.array([1]))
        >>> add_run(add_run([], one), one)
        [Run(keys=array([7]), counts=array([2]))]
    """
    runs = [*runs, run]
    while len(runs) > 1 and len(runs[-2].keys) <= 2 * len(runs[-1].keys):
        runs[-2:] = [merge_runs(runs[-2:])]
    return runs


def split_columns(run: Run, shards: int, *, vocab_size: int) -> list[Run]:
    """Runs of the targets i = 0, 1, ... modulo the number of shards: frequent tokens, whose ids are near, are spread evenly.

    Example:
        >>> [part.keys.tolist() for part in split_columns(Run(np.array([1, 3, 5]), np.array([2, 1, 1])), 2, vocab_size=3)]
        [[3, 5], [1]]
    """
    shard = run.keys % vocab_size % shards
    return [Run(run.keys[shard == s], run.counts[shard == s]) for s in range(shards)]


def write_tables(
    folder: str | os.PathLike, run: Run, *, radius: int, vocab_size: int, shard: int = 0, shards: int = 1
) -> list[Table]:
    """Write a run as K sparse matrices [N, N], `offset_k_SSSSS-of-SSSSS.npz`, which scipy.sparse.load_npz reads too.

    Args:
        folder: to write.
        run: counts of pairs.
        radius: K.
        vocab_size: N.
        shard, shards: which part of the columns this is, and of how many.

    Returns:
        What the index says of the files.

    Raises:
        ValueError: a file that cannot be written.
    """
    N, tables = vocab_size, []
    edges = np.searchsorted(run.keys, np.arange(radius + 1, dtype=np.int64) * N * N)
    for k, (first, last) in enumerate(zip(edges[:-1], edges[1:], strict=True), 1):
        cells, counts = run.keys[first:last] - (k - 1) * N * N, run.counts[first:last]
        starts = np.concatenate([[0], np.cumsum(np.bincount(cells // N, minlength=N))])
        written = io.BytesIO()
        scipy.sparse.save_npz(written, scipy.sparse.csr_array((counts, cells % N, starts), shape=(N, N)))
        data = written.getvalue()
        table = Table(f"offset_{k}_{shard:05}-of-{shards:05}.npz", k, len(cells), zlib.crc32(data))
        write_whole(Path(folder) / table.file, lambda file, data=data: file.write(data))
        tables.append(table)
    return tables


def write_tables_index(
    folder: str | os.PathLike, tables: Iterable[Table], *, radius: int, vocab_size: int, tokenizer: str = ""
) -> None:
    """Name the files of all shards: only now are the counts whole.

    Raises:
        ValueError: it cannot be written.
    """
    about = {"layout": _LAYOUT, "radius": radius, "vocab_size": vocab_size, "tokenizer": tokenizer}
    text = json.dumps({**about, "tables": [table._asdict() for table in sorted(tables)]}, indent=1) + "\n"
    write_whole(Path(folder) / _INDEX, lambda file: file.write(text.encode()))


def read_tables(folder: str | os.PathLike, *, tokenizer: str | None = None) -> tuple[scipy.sparse.csr_array, ...]:
    """Sparse counts C_1 .. C_K, each [N, N] in int64, that `write_tables` and `write_tables_index` wrote.

    Args:
        folder: where.
        tokenizer: hash of the tokenizer whose ids are meant; default, any.

    Raises:
        ValueError: no whole counts there, those of another tokenizer, a file that is missing or damaged.
    """
    path = Path(folder) / _INDEX
    try:
        index = json.loads(path.read_text())
        tables = [Table(**table) for table in index["tables"]]
        radius, N, written_for = index["radius"], index["vocab_size"], index["tokenizer"]
    except OSError as error:
        raise ValueError(f"{folder} holds no whole counts: write them with python -m launch.beam --out") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"index {path} is damaged ({error}): count again") from error
    if tokenizer not in (None, written_for):
        raise ValueError(f"{folder} holds counts of another tokenizer: count again with this one")
    counts = [scipy.sparse.csr_array((N, N), dtype=np.int64) for _ in range(radius)]
    for table in tables:
        counts[table.offset - 1] = counts[table.offset - 1] + _read_table(Path(folder) / table.file, table)
    return tuple(counts)


def dense_counts(tables: Sequence[scipy.sparse.csr_array]) -> Counts:
    """Dense tables of sparse ones, as `cooccurrence.count` gives them: int32, or int64 where a cell needs it."""
    return tuple(C.astype(np.int32 if C.max() < INT32_CELLS else np.int64).toarray() for C in tables)


def _read_table(path: Path, table: Table) -> scipy.sparse.csr_array:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"counts {path} cannot be read ({error.strerror}): count again") from error
    if (crc := zlib.crc32(data)) != table.crc32:
        raise ValueError(f"counts {path} are damaged (CRC-32 {crc:08x}, written {table.crc32:08x}): count again")
    return scipy.sparse.load_npz(io.BytesIO(data))
