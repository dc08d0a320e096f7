"""Tables of counts, dense or sparse, their log-structured merge, and a resumable pass.

Tables of like size are added up, as the levels of a log-structured merge tree (O'Neil et al. 1996), so that n pairs cost
O(n log n) whatever they come from: blocks of a stream, parts of a corpus, processes. Counts stay integers: no order of merging
changes one. Sparse tables in files are one for each offset, and an index that is written last.
"""

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Integer
from scipy.sparse import csr_array

from jexplicit.data.contexts import PAD, Stream, check_stream
from jexplicit.data.shards import Shards
from jexplicit.runs.files import local_path, parse_json, write_json, write_whole

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
    trees = [MergeTree(N) for _ in range(K)]
    for counts in parts:
        for tree, C in zip(trees, counts, strict=True):
            tree.add(C)
    return tuple(tree.total() for tree in trees)


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


class MergeTree:
    """The sum of tables [N, N] that arrive one by one."""

    def __init__(self, vocab_size: int):
        self.tables: list[Any] = []  # dense ones are all of one size
        self._N = vocab_size

    def add(self, table: Any) -> None:
        """Add a table, and merge tables less than twice as large."""
        self.tables.append(table)
        while len(self.tables) > 1 and self.tables[-2].size < 2 * self.tables[-1].size:
            self.tables[-2:] = [add_tables(*self.tables[-2:])]

    def total(self) -> Any:
        """The sum of all tables so far; more may be added afterwards."""
        while len(self.tables) > 1:  # the smallest first
            self.tables[-2:] = [add_tables(*self.tables[-2:])]
        return self.tables[0] if self.tables else csr_array((self._N, self._N), dtype=np.int32)


def write_table(folder: str | os.PathLike, k: int, C: csr_array) -> None:
    """Write C_k as `offset_k.npz`, which `scipy.sparse.load_npz` reads, too."""
    write_whole(local_path(folder) / f"offset_{k}.npz", lambda file: scipy.sparse.save_npz(file, C))


def write_tables_index(folder: str | os.PathLike, *, radius: int, tokenizer: str = "") -> None:
    """Write the index of the files of tables, after all of them."""
    write_json(local_path(folder) / _INDEX, {"layout": _LAYOUT, "radius": radius, "tokenizer": tokenizer})


def read_tables(folder: str | os.PathLike, *, tokenizer: str | None = None) -> SparseCounts:
    """The counts that `write_tables_index` completed, of a tokenizer (its hash)."""
    path = local_path(folder) / _INDEX
    try:
        index = parse_json(path.read_bytes())
        layout, radius, of_tokenizer = (index[name] for name in ("layout", "radius", "tokenizer"))
    except OSError as error:
        raise ValueError(f"{folder} holds no whole counts: write them with launch.beam") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"index {path} is damaged or of another version ({error}): count again") from error
    if layout != _LAYOUT or not isinstance(radius, int) or radius < 1:
        raise ValueError(f"index {path} is damaged or of another version (layout {layout}): count again")
    if tokenizer not in (None, of_tokenizer):
        raise ValueError(f"{folder} holds counts of another tokenizer: count again with this one")
    tables = []
    for k in range(1, radius + 1):
        file = path.with_name(f"offset_{k}.npz")
        try:
            with open(file, "rb") as opened:
                C = scipy.sparse.load_npz(opened)
        except Exception as error:  # whatever zip, NumPy and SciPy make of damaged bytes
            raise ValueError(f"counts {file} are missing or damaged ({error}): count again") from error
        tables.append(sparse_table(C.data, C.indices, C.indptr))
    return tuple(tables)


_block = 1 << 22  # tokens whose checksum is taken at a time
_save_share = 10  # times what the last save took, at least, lie between two saves


class Saving(NamedTuple):
    """Where partial counts are saved, and how often.

    folder: of the partial counts; empty or missing at the start of a pass.
    seconds: between two saves; saving takes at most a tenth of the time, unless this is 0.
    """

    folder: Path
    seconds: float = 60.0


def windows(stream: Stream, first: int, last: int, *, radius: int, span: int) -> Iterator[np.ndarray]:
    """Windows of a range, each after `radius` tokens; the next is read ahead.

    Example:
        >>> [w.tolist() for w in windows(np.array([0, 5, 6, 0]), 1, 4, radius=1, span=2)]
        [[0, 5, 6], [6, 0]]
    """

    def read(start: int) -> np.ndarray:
        tokens = np.asarray(stream[max(start - radius, 0) : min(start + span, last)])
        return np.concatenate([np.full(max(radius - start, 0), PAD, tokens.dtype), tokens])

    with ThreadPoolExecutor(1, "reader") as reader:
        ahead = [reader.submit(read, start) for start in range(first, last, span)[:1]]
        for start in range(first, last, span):
            tokens = ahead.pop().result()
            ahead += [reader.submit(read, following) for following in range(start + span, last, span)[:1]]
            yield tokens


def feed(
    counter: Any,
    stream: Stream,
    first: int,
    last: int,
    *,
    saving: Saving | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Count the targets at positions first .. last - 1, after the last save.

    counter: has a `radius`, a `vocab_size`, a `span` of positions that it prefers per `add(window)`, which counts the positions
        of `window[radius:]`, `tables()` so far, and `restore(tables)`.
    saving: where to save partial counts; default, nowhere. progress: called with (positions done, positions in all).
    """
    check_stream(stream)
    done, about = first, ""  # what identifies the pass: only partial counts of the same one are continued
    if isinstance(stream, Shards):
        stream.verify(max(first - counter.radius, 0), last)
    if saving:
        kind, K, N = type(counter).__name__, counter.radius, counter.vocab_size
        about = json.dumps([kind, K, N, len(stream), first, last, checksums(stream, first, last)])
        done = _restore(counter, saving, about, first)
    saved, took = time.perf_counter(), 0.0
    for tokens in windows(stream, done, last, radius=counter.radius, span=counter.span):
        counter.add(tokens)
        done += len(tokens) - counter.radius
        if progress:
            progress(done - first, last - first)
        begun = time.perf_counter()
        if saving and begun - saved > max(saving.seconds, _save_share * took):
            _save(counter, saving, about, done)
            saved = time.perf_counter()
            took = saved - begun if saving.seconds > 0 else 0.0
    if saving and jax.process_count() > 1:  # another process may die before the reduction: keep this part
        _save(counter, saving, about, done)


def checksums(stream: Stream, first: int, last: int) -> list[int]:
    """The identity of the tokens first .. last - 1, by checksums."""
    if isinstance(stream, Shards):
        return [shard.crc32 for shard in stream.shards]
    crc = 0
    for start in range(first, last, _block):
        crc = zlib.crc32(np.ascontiguousarray(stream[start : min(start + _block, last)]).data, crc)
    return [crc]


def _save_path(saving: Saving) -> Path:
    return saving.folder / f"process_{jax.process_index()}_of_{jax.process_count()}.npz"


def _save(counter: Any, saving: Saving, about: str, done: int) -> None:
    arrays = {"about": np.frombuffer(about.encode(), np.uint8), "done": np.array(done)}
    for k, C in enumerate(counter.tables()):
        own = {"table": C} if isinstance(C, np.ndarray) else {"data": C.data, "indices": C.indices, "indptr": C.indptr}
        arrays |= {f"{name}_{k}": array for name, array in own.items()}
    write_whole(_save_path(saving), lambda file: np.savez(file, **arrays))  # pyright: ignore[reportArgumentType]


def _restore(counter: Any, saving: Saving, about: str, first: int) -> int:
    path, P = _save_path(saving), jax.process_count()
    if not path.exists():
        begun_by = {path.stem.rpartition("_")[2] for path in saving.folder.glob("process_*.npz")}
        # a process of these may have saved already, before this one begins
        if begun := min(begun_by - {str(P)}, default=None):
            remedy = "continue with as many, or delete the folder to count again from the start"
            raise ValueError(f"{saving.folder} was begun by {begun} processes, and these are {P}: {remedy}")
        return first
    try:
        with open(path, "rb") as file:
            saved = dict(np.load(file, allow_pickle=False))
    except Exception as error:  # whatever zip and NumPy make of damaged bytes
        raise ValueError(f"{path} is damaged ({error}): delete it and run the command again, which writes it anew") from error
    if saved["about"].tobytes().decode() != about:
        remedy = "delete it, or choose another folder"
        raise ValueError(f"{path} holds partial counts of another text, radius or vocabulary: {remedy}")
    names = ("table",) if "table_0" in saved else ("data", "indices", "indptr")
    parts = ([saved[f"{name}_{k}"] for name in names] for k in range(counter.radius))
    counter.restore(tuple(part[0] if len(part) == 1 else sparse_table(*part) for part in parts))
    return int(saved["done"])
