"""Tables of counts, dense or sparse, and their exact sums.

Tables of like size are added, as the levels of a log-structured merge tree (O'Neil et al. 1996), so that n pairs cost
O(n log n) in any number of parts. Sparse tables in files are one for each offset, and an index that is written last.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Integer
from scipy.sparse import csr_array

from jexplicit.data.streams import PAD, Stream, check_stream
from jexplicit.data.tokenizers import Progress
from jexplicit.runs.files import local_path, parse_json, refuse_errors, write_json, write_whole

Counts = tuple[Integer[np.ndarray, "N N"], ...]
"""C_1 .. C_K on the host: int32, or int64 once a cell could pass 2^31. Column PAD counts the ends of documents."""

SparseCounts = tuple[csr_array, ...]
"""The same with sorted columns in every row; `toarray` makes a table dense."""

INT32_CELLS = 2**31
_INDEX, _LAYOUT = "index.json", 3


def merge_counts(*parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Summed counts of several texts, in int64 if a cell could pass 2^31.

    parts: `Counts`, or `SparseCounts`, of one radius and vocabulary; an empty tuple is the counts of no text.

    >>> C = (np.full((1, 1), 2**31 - 1, np.int32),)
    >>> merge_counts(C, C)[0].item(), merge_counts(C, C)[0].dtype.name
    (4294967294, 'int64')
    """
    parts = tuple(counts for counts in parts if counts)
    if len(parts) < 2:
        return parts[0] if parts else ()
    K, N = len(parts[0]), parts[0][0].shape[0]
    for counts in parts:
        if (len(counts), *counts[0].shape) != (K, *parts[0][0].shape):
            other = f"{len(counts)} offsets and vocabulary {counts[0].shape[0]}: count both with the same radius and tokenizer"
            raise ValueError(f"counts of {K} offsets and vocabulary {N} do not merge with {other}")
        if not all(np.issubdtype(C.dtype, np.integer) and C.shape == counts[0].shape and C.min() >= 0 for C in counts):
            found = ", ".join(f"{C.dtype} {C.shape} from {C.min()}" for C in counts)
            raise ValueError(f"counts of {found}: pass tables of integers of at least 0, all of one shape, as counted")
    return sum_tables(parts)


def sum_tables(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The summed tables of parts that arrive one by one; () for no part."""
    sums: list[tuple[Any, ...]] = []

    def merge_last() -> None:
        sums[-2:] = [tuple(add_tables(x, y) for x, y in zip(*sums[-2:], strict=True))]

    for part in parts:
        sums.append(part)
        while len(sums) > 1 and sums[-2][0].size < 2 * sums[-1][0].size:
            merge_last()
    while len(sums) > 1:  # the smallest first
        merge_last()
    return sums[0] if sums else ()


def merge_offsets(counts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The one table `sum_k C_k`, for a table that all offsets share."""
    return merge_counts(*((C,) for C in counts))


def add_tables(x: Any, y: Any) -> Any:
    """The sum of two tables, in int64 where a cell could pass 2^31."""
    dtype = np.int32 if int(x.max()) + int(y.max()) < INT32_CELLS else np.int64
    return (x.astype(dtype, copy=False) + y).astype(dtype, copy=False)


def sparse_table(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, *, vocab_size: int | None = None) -> csr_array:
    """A table of sorted CSR arrays in small types; vocab_size: columns, default square."""
    index_type, rows = np.int32 if len(indices) < 2**31 else np.int64, len(indptr) - 1
    parts = (data, indices.astype(index_type, copy=False), indptr.astype(index_type, copy=False))
    return csr_array(parts, shape=(rows, vocab_size or rows))


def write_table(folder: str | os.PathLike, k: int, C: csr_array) -> None:
    """Write C_k as `offset_k.npz`, which `scipy.sparse.load_npz` reads, too."""
    write_whole(local_path(folder) / f"offset_{k}.npz", lambda file: scipy.sparse.save_npz(file, C))


def write_tables_index(folder: str | os.PathLike, *, radius: int, tokenizer: str = "") -> None:
    """Write the index of the files of tables, after all of them."""
    write_json(local_path(folder) / _INDEX, {"layout": _LAYOUT, "radius": radius, "tokenizer": tokenizer})


def read_tables(folder: str | os.PathLike, *, tokenizer: str | None = None) -> SparseCounts:
    """The counts that `write_tables_index` completed, of a tokenizer (its hash)."""
    path, again, tables = local_path(folder) / _INDEX, "count again", []
    if not path.exists():
        raise ValueError(f"{folder} holds no whole counts: write them with launch.beam")
    with refuse_errors(f"index {path} is damaged or of another version", again):
        index = parse_json(path.read_bytes())
        radius, of_tokenizer = index["radius"], index["tokenizer"]
        if index["layout"] != _LAYOUT or not isinstance(radius, int) or radius < 1:
            raise ValueError(f"layout {index['layout']}")
    if tokenizer not in (None, of_tokenizer):
        raise ValueError(f"{folder} holds counts of another tokenizer: count again with this one")
    for k in range(1, radius + 1):
        file = path.with_name(f"offset_{k}.npz")
        with refuse_errors(f"counts {file} are missing or damaged", again), open(file, "rb") as opened:
            C = scipy.sparse.load_npz(opened)
            tables.append(sparse_table(C.data, C.indices, C.indptr))
    return tuple(tables)


def windows(
    stream: Stream, first: int, last: int, *, radius: int, span: int, progress: Progress | None = None
) -> Iterator[np.ndarray]:
    """Windows of a range, each after `radius` tokens; the next is read ahead.

    Example:
        >>> [w.tolist() for w in windows(np.array([0, 5, 6, 0]), 1, 4, radius=1, span=2)]
        [[0, 5, 6], [6, 0]]
    """
    check_stream(stream)

    def read(start: int) -> np.ndarray:
        tokens = np.asarray(stream[max(start - radius, 0) : min(start + span, last)])
        return np.concatenate([np.full(max(radius - start, 0), PAD, tokens.dtype), tokens])

    with ThreadPoolExecutor(1, "reader") as reader:
        ahead = [reader.submit(read, start) for start in range(first, last, span)[:1]]
        for start in range(first, last, span):
            tokens = ahead.pop().result()
            ahead += [reader.submit(read, following) for following in range(start + span, last, span)[:1]]
            yield tokens
            if progress:
                progress(min(start + span, last) - first, last - first)
