"""One resumable pass over a token stream of any size.

A counter takes windows of a stream one after the other. This module reads them, a window ahead of the counter, and saves the
counter with its position from time to time. A pass that is killed anywhere continues from its last save, so every position is
counted exactly once.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jexplicit.data.contexts import PAD, Stream, check_stream
from jexplicit.data.shards import Shards
from jexplicit.runs.files import load_arrays, save_arrays

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
    """The windows of a range in order, each with the tokens before it.

    These are K = radius tokens, `<pad>` before the stream. The next window is read in a thread while the caller works.

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

    Args:
        counter: has a `radius`, a `vocab_size`, and a `span`, the positions that it prefers per `add`. `add(window)` counts the
            positions of `window[radius:]`, the tokens before are context only, and refuses ids out of range. `state()` gives
            the counts so far as named arrays, from which `restore(state)` of another counter continues.
        stream: token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        first, last: range of the targets.
        saving: where to save partial counts; default, nowhere.
        progress: called with (positions done, positions in all).

    Raises:
        ValueError: a malformed stream; a token id out of range; a damaged file; partial counts of another pass.
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


def _path(saving: Saving) -> Path:
    return saving.folder / f"process_{jax.process_index()}_of_{jax.process_count()}.npz"


def _save(counter: Any, saving: Saving, about: str, done: int) -> None:
    saving.folder.mkdir(parents=True, exist_ok=True)
    note = np.frombuffer(about.encode(), np.uint8)
    save_arrays(_path(saving), {"about": note, "done": np.array(done), **counter.state()})


def _restore(counter: Any, saving: Saving, about: str, first: int) -> int:
    path = _path(saving)
    if not path.exists():
        begun_by = {path.stem.rpartition("_")[2] for path in saving.folder.glob("process_*.npz")}
        # a process of these may have saved already, before this one begins
        if begun := min(begun_by - {str(jax.process_count())}, default=None):
            raise ValueError(
                f"{saving.folder} was begun by {begun} processes, and these are {jax.process_count()}: continue with as many, "
                "or delete the folder to count again from the start"
            )
        return first
    saved: dict[str, Any] = load_arrays(path)
    if saved.pop("about").tobytes().decode() != about:
        raise ValueError(
            f"{path} holds partial counts of another text, radius or vocabulary: delete it, or choose another folder"
        )
    done = int(saved.pop("done"))
    counter.restore(saved)
    return done
