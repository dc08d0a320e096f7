"""Sparse counts in files: one per offset and share of the columns, and an index that is written last.

Each file is a sparse matrix that `scipy.sparse.load_npz` reads too; zip keeps a checksum of it. Until the index is there, the
counts are not whole.
"""

import json
import os
from pathlib import Path

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from jexplicit.counts.merging import SparseCounts, merge_counts, sparse_table
from jexplicit.runs.files import write_whole

_INDEX = "index.json"
_LAYOUT = 2


def split_columns(counts: SparseCounts, shards: int) -> list[SparseCounts]:
    """Counts of the targets i = 0, 1, ... modulo the number of shards: frequent tokens, whose ids are near, are spread evenly.

    Example:
        >>> C = csr_array(np.array([[1, 2, 3], [0, 4, 0], [0, 0, 0]], np.int32))
        >>> [part.toarray()[0].tolist() for part, in split_columns((C,), 2)]
        [[1, 0, 3], [0, 2, 0]]
    """

    def columns(C: csr_array, s: int) -> csr_array:
        own = C.indices % shards == s
        return sparse_table(C.data[own], C.indices[own], np.append(0, np.cumsum(own))[C.indptr])

    return [tuple(columns(C, s) for C in counts) for s in range(shards)]


def write_tables(folder: str | os.PathLike, counts: SparseCounts, *, shard: int = 0, shards: int = 1) -> None:
    """Write C_1 .. C_K as `offset_k_SSSSS-of-SSSSS.npz`.

    Args:
        folder: where.
        counts: K tables, of all columns or of those of one shard.
        shard, shards: which share of the columns this is, and of how many.

    Raises:
        ValueError: a file that cannot be written.
    """
    for k, C in enumerate(counts, start=1):
        write_whole(_path(folder, k, shard, shards), lambda file, C=C: scipy.sparse.save_npz(file, C))


def write_tables_index(folder: str | os.PathLike, *, radius: int, shards: int = 1, tokenizer: str = "") -> None:
    """Say what the files are, once all of them are written.

    Raises:
        ValueError: it cannot be written.
    """
    index = {"layout": _LAYOUT, "radius": radius, "shards": shards, "tokenizer": tokenizer}
    write_whole(Path(folder) / _INDEX, lambda file: file.write(json.dumps(index).encode()))


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
        layout, radius, shards, of_tokenizer = (index[name] for name in ("layout", "radius", "shards", "tokenizer"))
    except OSError as error:
        raise ValueError(f"{folder} holds no whole counts: write them with launch.beam") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"index {path} is damaged or of another version ({error}): count again") from error
    if layout != _LAYOUT:
        raise ValueError(f"index {path} is of another version (layout {layout}): count again")
    if tokenizer not in (None, of_tokenizer):
        raise ValueError(f"{folder} holds counts of another tokenizer: count again with this one")
    offsets = ([(_read(_path(folder, k, s, shards)),) for s in range(shards)] for k in range(1, radius + 1))
    return tuple(merge_counts(*parts)[0] for parts in offsets)


def _path(folder: str | os.PathLike, k: int, shard: int, shards: int) -> Path:
    return Path(folder) / f"offset_{k}_{shard:05}-of-{shards:05}.npz"


def _read(path: Path) -> csr_array:
    try:
        with open(path, "rb") as file:
            C = scipy.sparse.load_npz(file)
    except Exception as error:  # whatever zip, NumPy and SciPy make of damaged bytes
        raise ValueError(f"counts {path} are missing or damaged ({error}): count again") from error
    return sparse_table(C.data, C.indices, C.indptr)
