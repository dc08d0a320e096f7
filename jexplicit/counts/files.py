"""Sparse counts in files: a file per offset and share of the columns, and an index that is written last.

Each file is a sparse matrix that `scipy.sparse.load_npz` reads too. The index names the files with a checksum of each; until it
is there, the counts are not whole.
"""

import io
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from jexplicit.counts.merging import SparseCounts, merge_sparse, sparse_table
from jexplicit.runs.files import write_whole

_INDEX = "index.json"
_LAYOUT = 2


class TableFile(NamedTuple):
    """A file of counts: its name, the offset k, how many pairs it holds, and the CRC-32 of its bytes."""

    file: str
    offset: int
    pairs: int
    crc32: int


def split_columns(counts: SparseCounts, shards: int) -> list[SparseCounts]:
    """Counts of the targets i = 0, 1, ... modulo the number of shards: frequent tokens, whose ids are near, are spread evenly.

    Example:
        >>> C = csr_array(np.array([[1, 2, 3], [0, 4, 0], [0, 0, 0]], np.int32))
        >>> [part.toarray()[0].tolist() for part, in split_columns((C,), 2)]
        [[1, 0, 3], [0, 2, 0]]
    """
    return [tuple(_columns(C, C.indices % shards == s) for C in counts) for s in range(shards)]


def write_tables(folder: str | os.PathLike, counts: SparseCounts, *, shard: int = 0, shards: int = 1) -> list[TableFile]:
    """Write C_1 .. C_K as `offset_k_SSSSS-of-SSSSS.npz`.

    Args:
        folder: where.
        counts: K tables, of all columns or of those of one shard.
        shard, shards: which share of the columns this is, and of how many.

    Returns:
        What the index says of the files.

    Raises:
        ValueError: a file that cannot be written.
    """
    tables = []
    for k, C in enumerate(counts, start=1):
        written = io.BytesIO()
        scipy.sparse.save_npz(written, C)
        data = written.getvalue()
        table = TableFile(f"offset_{k}_{shard:05}-of-{shards:05}.npz", k, C.nnz, zlib.crc32(data))
        write_whole(Path(folder) / table.file, lambda file, data=data: file.write(data))
        tables.append(table)
    return tables


def write_tables_index(
    folder: str | os.PathLike, tables: Iterable[TableFile], *, radius: int, vocab_size: int, tokenizer: str = ""
) -> None:
    """Name the files of all shards: only now are the counts whole.

    Raises:
        ValueError: it cannot be written.
    """
    about = {"layout": _LAYOUT, "radius": radius, "vocab_size": vocab_size, "tokenizer": tokenizer}
    text = json.dumps({**about, "tables": [table._asdict() for table in sorted(tables)]}, indent=1) + "\n"
    write_whole(Path(folder) / _INDEX, lambda file: file.write(text.encode()))


def read_tables(folder: str | os.PathLike, *, tokenizer: str | None = None) -> SparseCounts:
    """The counts C_1 .. C_K that `write_tables` and `write_tables_index` wrote.

    Args:
        folder: where.
        tokenizer: hash of the tokenizer whose ids are meant; default, any.

    Raises:
        ValueError: no whole counts there, those of another tokenizer, a file that is missing or damaged.
    """
    path = Path(folder) / _INDEX
    try:
        index = json.loads(path.read_text())
        tables = [TableFile(**table) for table in index["tables"]]
        radius, N, counted_with, layout = (index[name] for name in ("radius", "vocab_size", "tokenizer", "layout"))
    except OSError as error:
        raise ValueError(f"{folder} holds no whole counts: write them with python -m launch.beam --out") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"index {path} is damaged ({error}): count again") from error
    if layout != _LAYOUT:
        raise ValueError(f"index {path} is of another version (layout {layout}): count again")
    if tokenizer not in (None, counted_with):
        raise ValueError(f"{folder} holds counts of another tokenizer: count again with this one")
    zero = csr_array((N, N), dtype=np.int32)
    shards = [[table for table in tables if table.offset == k] for k in range(1, radius + 1)]
    return tuple(merge_sparse((zero,), *((_read_table(folder, table),) for table in of_offset))[0] for of_offset in shards)


def _columns(C: csr_array, own: np.ndarray) -> csr_array:
    """The pairs of some columns; the shape stays."""
    before = np.concatenate([[0], np.cumsum(own)])
    return sparse_table(C.data[own], C.indices[own], before[C.indptr])


def _read_table(folder: str | os.PathLike, table: TableFile) -> csr_array:
    path = Path(folder) / table.file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"counts {path} cannot be read ({error.strerror}): count again") from error
    if (crc := zlib.crc32(data)) != table.crc32:
        raise ValueError(f"counts {path} are damaged (CRC-32 {crc:08x}, written {table.crc32:08x}): count again")
    C = scipy.sparse.load_npz(io.BytesIO(data))
    return sparse_table(C.data, C.indices, C.indptr)
