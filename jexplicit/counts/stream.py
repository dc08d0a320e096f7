"""One pass over a token stream of any size: windows, read ahead, with a memory of where it was.

A counter takes windows of a stream one after the other; this module reads them, a window ahead of the counter, and saves the
counter with its position now and then. A pass that is killed anywhere goes on from its last save, so that every position is
counted exactly once.
"""

import json
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from jexplicit.data.contexts import PAD, check_token_ids
from jexplicit.data.shards import Shards, Stream
from jexplicit.runs.files import load_arrays, save_arrays

_block = 1 << 22  # tokens whose checksum is taken at a time
_save_share = 10  # times what the last save took, at least, lie between two saves


@runtime_checkable
class Counter(Protocol):
    """What a pass over a stream feeds: it holds counts, and can put them down as arrays and take them up again."""

    radius: int
    vocab_size: int

    @property
    def span(self) -> int:
        """Positions that it likes to be given at a time."""
        ...

    def add(self, window: np.ndarray) -> None:
        """Count the positions of `window[radius:]`; the tokens before are context only."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """All that was counted so far."""
        ...

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state()` of another counter of the same radius and vocabulary."""
        ...


class Saving(NamedTuple):
    """Where a pass is saved, and after how many seconds again.

    folder: of the partial counts; empty or not there at the start of a pass.
    seconds: between two saves; they take at most a tenth of the time, unless this is 0.
    """

    folder: Path
    seconds: float = 60.0


def check_stream(stream: Stream) -> None:
    """Refuse what is not `<pad> document <pad> ... <pad>` in integers.

    Raises:
        ValueError: with the shape of what was given.
    """
    shape = getattr(stream, "shape", (len(stream),))
    whole = np.issubdtype(stream.dtype, np.integer) and len(shape) == 1 and len(stream) >= 3
    if not whole or stream[:1][0] != PAD or stream[len(stream) - 1 :][0] != PAD:
        raise ValueError(
            f"a {stream.dtype} token stream of shape {shape} that is not `<pad> document <pad> ... <pad>` in integers, "
            "with at least one token; build it with jexplicit.data.tokenizers.encode_documents"
        )


def window(stream: Stream, first: int, last: int, K: int) -> np.ndarray:
    """Tokens first .. last - 1 after the K tokens before them; before the stream there is `<pad>`.

    Example:
        >>> window(np.array([0, 5, 6, 0]), 1, 3, 2).tolist()
        [0, 0, 5, 6]
    """
    tokens = np.asarray(stream[max(first - K, 0) : last])
    return np.concatenate([np.full(max(K - first, 0), PAD, tokens.dtype), tokens])


def windows(stream: Stream, first: int, last: int, *, radius: int, span: int) -> Iterator[np.ndarray]:
    """The windows of a range one after the other, each read while the one before it is worked on.

    Example:
        >>> [w.tolist() for w in windows(np.array([0, 5, 6, 0]), 1, 4, radius=1, span=2)]
        [[0, 5, 6], [6, 0]]
    """
    with ThreadPoolExecutor(1, "reader") as reader:
        starts = range(first, last, span)
        ahead = [reader.submit(window, stream, start, min(start + span, last), radius) for start in starts[:1]]
        for start in starts:
            tokens = ahead.pop().result()
            if start + span < last:
                ahead.append(reader.submit(window, stream, start + span, min(start + 2 * span, last), radius))
            yield tokens


def feed(
    counter: Counter,
    stream: Stream,
    first: int,
    last: int,
    *,
    saving: Saving | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Count positions first .. last - 1 of a stream, from where an earlier pass was saved.

    Args:
        counter: what counts.
        stream: token ids.
        first, last: of the targets.
        saving: where to save what was counted; default, nowhere.
        progress: called with (positions done, positions in all).

    Raises:
        ValueError: a token id out of range; a damaged file; what was saved belongs to another pass.
    """
    done = first
    if isinstance(stream, Shards):
        stream.verify(max(first - counter.radius, 0), last)
    about = _about(counter, stream, first, last) if saving else ""
    if saving:
        done = _restore(counter, saving, about, first)
    saved, took = time.perf_counter(), 0.0
    for tokens in windows(stream, done, last, radius=counter.radius, span=counter.span):
        N = counter.vocab_size
        check_token_ids(tokens, N, f"in a vocabulary of {N}: ids are 0 .. N - 1; pass the tokenizer's vocab_size")
        counter.add(tokens)
        done += len(tokens) - counter.radius
        if progress:
            progress(done - first, last - first)
        begun = time.perf_counter()
        if saving and begun - saved > max(saving.seconds, _save_share * took):
            _save(counter, saving, about, done)
            saved = time.perf_counter()
            took = saved - begun if saving.seconds > 0 else 0.0
    if saving and jax.process_count() > 1:  # the others may die before all have met, and this one's part is done
        _save(counter, saving, about, done)


def _about(counter: Counter, stream: Stream, first: int, last: int) -> str:
    """What must be the same for a pass to be continued."""
    kind, identity = type(counter).__name__, _checksum(stream, first, last)
    return json.dumps([kind, counter.radius, counter.vocab_size, len(stream), first, last, identity])


def _checksum(stream: Stream, first: int, last: int) -> list[int]:
    if isinstance(stream, Shards):
        return [shard.crc32 for shard in stream.shards]
    crc = 0
    for start in range(first, last, _block):
        crc = zlib.crc32(np.ascontiguousarray(stream[start : min(start + _block, last)]).data, crc)
    return [crc]


def _path(saving: Saving) -> Path:
    return saving.folder / f"process_{jax.process_index()}_of_{jax.process_count()}.npz"


def _save(counter: Counter, saving: Saving, about: str, done: int) -> None:
    saving.folder.mkdir(parents=True, exist_ok=True)
    note = np.frombuffer(about.encode(), np.uint8)
    save_arrays(_path(saving), {"about": note, "done": np.array(done), **counter.state()})


def _restore(counter: Counter, saving: Saving, about: str, first: int) -> int:
    path = _path(saving)
    if not path.exists():
        if others := sorted(saving.folder.glob("process_*.npz")):
            begun = others[0].stem.rpartition("_")[2]
            raise ValueError(
                f"{saving.folder} was begun by {begun} processes, and these are {jax.process_count()}: continue with as many, "
                "or delete the folder to count anew"
            )
        return first
    saved: dict[str, Any] = load_arrays(path)
    if saved.pop("about").tobytes().decode() != about:
        raise ValueError(
            f"{path} holds partial counts of another text, radius or vocabulary: delete it, or choose another --out"
        )
    done = int(saved.pop("done"))
    counter.restore(saved)
    return done
