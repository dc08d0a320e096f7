"""Token streams: contexts, documents held out, and files that are read in windows.

A stream is one array of token ids, `<pad> d_1 <pad> d_2 <pad> ... <pad> d_n <pad>`: the k-th context token of a position is the
token k places back, or `<pad>` if a nearer one is `<pad>`. A target `<pad>` is a prediction only if document ends are modelled.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Integer

from jexplicit.data.text import Corpus, Overlap, TextSizes, overlap, text_sizes
from jexplicit.data.tokenizers import PAD, Progress, Tokenizer, encode_batches, encode_documents, make_tokenizer
from jexplicit.runs.files import file_inside, local_path, parse_json, refuse_errors, write_json, write_whole

_INDEX, _SIZES, _LAYOUT = "index.json", "sizes.json", 1
_AGAIN = "write the shards again"
_shard_tokens = 1 << 26  # 128 MB of uint16


def check_context(K: int) -> None:
    """Refuse K < 1."""
    if K < 1:
        raise ValueError(f"context K = {K}: a context needs at least one token; use K >= 1")


def check_stream(stream: "Stream") -> None:
    """Refuse anything but `<pad> document <pad> ... <pad>` in integers."""
    if not hasattr(stream, "dtype"):
        raise ValueError(f"a {type(stream).__name__} as token stream: pass an array, numpy.array(ids)")
    shape = getattr(stream, "shape", (len(stream),))
    whole = np.issubdtype(stream.dtype, np.integer) and len(shape) == 1 and len(stream) >= 3
    if not whole or stream[:1][0] != PAD or stream[len(stream) - 1 :][0] != PAD:
        found = f"a {stream.dtype} token stream of shape {shape}"
        raise ValueError(f"{found}, not `<pad> document <pad>` in integers: build it with jexplicit.data.encode_documents")


def context_columns(x: Any, K: int) -> list[Any]:
    """The K context tokens of each position of `x[K:]`, of NumPy or JAX."""
    xp = x.__array_namespace__()
    columns = [x[K - 1 : -1]]
    for k in range(2, K + 1):
        columns.append(xp.where(columns[-1] == PAD, PAD, x[K - k : -k]))
    return columns


def check_token_ids(ids: np.ndarray, N: int, where_and_remedy: str = "") -> None:
    """Refuse token ids outside 0 .. N - 1, with a remedy."""
    lowest, highest = int(ids.min(initial=0)), int(ids.max(initial=0))
    if lowest < 0 or highest >= N:
        where = where_and_remedy or f"in a vocabulary of {N}: ids are 0 .. N - 1; pass the tokenizer's vocab_size"
        raise ValueError(f"token id {lowest if lowest < 0 else highest} {where}")


def pad_to(ids: np.ndarray, length: int, value: int) -> Int[np.ndarray, "length ..."]:
    """Ids in int32, padded with a value to a fixed length."""
    longer = np.full((length, *ids.shape[1:]), value, np.int32)
    longer[: len(ids)] = ids
    return longer


def contexts(stream: np.ndarray, K: int, *, eos: bool = False) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts X and targets Y of every prediction in a stream.

    X is [M, K] with the nearest token first, and Y [M]; eos: whether the `<pad>` after each document is a prediction.

    >>> X, Y = contexts(np.array([0, 5, 6, 0, 7, 0]), 2)
    >>> X.tolist(), Y.tolist()
    ([[0, 0], [5, 0], [0, 0]], [5, 6, 7])
    """
    check_context(K)
    check_stream(stream)
    return window_contexts(np.concatenate([np.full(K - 1, PAD, stream.dtype), stream]), K, eos=eos)


def window_contexts(
    window: np.ndarray, K: int, *, eos: bool = False
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of `window[K:]`; the first K tokens are context."""
    Y = window[K:]
    predicted = slice(None) if eos else Y != PAD
    return np.stack([c[predicted] for c in context_columns(window, K)], axis=1), Y[predicted]


def distinct_contexts(
    X: Integer[np.ndarray, "M K"], times: Integer[np.ndarray, " M"] | None = None, *, ordered: bool = True
) -> tuple[Integer[np.ndarray, "u K"], Int[np.ndarray, " u"]]:
    """The distinct contexts, and how often each stands, given times per row.

    ordered: whether the order of the tokens matters (not for Sum).
    """
    columns, n = distinct_rows(list((X if ordered else np.sort(X, axis=1)).T), times)
    return np.stack(columns, axis=1), n


def distinct_rows(
    columns: Sequence[Integer[np.ndarray, " M"]], times: Integer[np.ndarray, " M"] | None = None
) -> tuple[list[Integer[np.ndarray, " u"]], Int[np.ndarray, " u"]]:
    """The distinct rows of columns, sorted, and their counts."""
    order = np.lexsort(columns[::-1])
    columns = [column[order] for column in columns]
    begins = np.ones(len(order), bool)
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    first = np.flatnonzero(begins)
    n = np.diff(first, append=len(order)) if times is None else np.add.reduceat(times[order], first)
    return [column[first] for column in columns], n.astype(np.int64)


def hold_out(stream: np.ndarray, *, positions: int, most: float = 0.1, blocks: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Hold about `positions` tokens out of a stream: the rest, and whole documents.

    Neighbours are similar, so blocks of them are held out, and sources differ, so blocks are spread evenly. Documents more than
    twice as long as the held-out text stay if there is a shorter one. Of a single document the end is held out.
    """
    if positions < 1 or most <= 0 or blocks < 1:
        raise ValueError(f"{positions} positions, at most a share of {most}, in {blocks} blocks: all must be above 0")
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads)  # of documents, including their final <pad>
    share = min(positions / len(stream), most)
    if len(lengths) < 2:
        cut = len(stream) - 1 - max(1, round(share * len(stream)))
        if cut < 2:
            raise ValueError(f"a text of {len(stream) - 2} token(s): too short to hold out a part; use a longer text")
        return np.append(stream[:cut], stream[:1]), np.concatenate([stream[:1], stream[cut:]])
    wanted = share * len(stream)
    gap = (1 - share) * wanted / blocks  # deficit of held-out tokens that starts a block; it grows by the block's own share
    chosen, owed, holding = np.zeros(len(lengths), bool), gap / 2, False
    for d, length in enumerate(lengths):
        owed += share * length
        holding = length <= wanted + owed and owed >= (length / 2 if holding else gap)
        if holding:
            chosen[d], owed = True, owed - length
    if 2 * lengths[chosen].sum() < wanted or chosen.all():  # long documents: hold out the one of nearest size
        misfit = np.where(2 * lengths > len(stream), np.inf, np.abs(np.log(lengths / wanted)))
        chosen[:] = np.arange(len(lengths)) == np.argmin(misfit)
    of_token = np.repeat(chosen, lengths)
    first, others = stream[:1], stream[1:]
    return np.concatenate([first, others[~of_token]]), np.concatenate([first, others[of_token]])


def cut_documents(stream: np.ndarray, longest: int) -> np.ndarray:
    """The same text with long documents split to `longest` tokens."""
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads) - 1
    pieces = np.maximum(1, -(-lengths // longest))
    document = np.repeat(np.arange(len(lengths)), pieces - 1)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(pieces - 1) - (pieces - 1), pieces - 1) + 1
    return np.insert(stream, pads[document] + 1 + nth * lengths[document] // pieces[document], PAD)


# Streams in files


class TokenizedCorpus(NamedTuple):
    """A tokenizer, and token streams of train and dev.

    dev_sizes: sizes of the dev text; dev_in_train: overlap of dev with train; None if unknown.
    """

    tokenizer: Tokenizer
    train: "Stream"
    dev: np.ndarray
    dev_sizes: TextSizes | None = None
    dev_in_train: Overlap | None = None


def tokenize_corpus(
    corpus: Corpus[list[str]],
    tokenizer: str | os.PathLike | Tokenizer,
    vocab_size: int | None = None,
    *,
    progress: Progress | None = None,
) -> TokenizedCorpus:
    """The streams of a corpus; `tokenizer`: a kind to train, or one."""
    tokenizer, M = make_tokenizer(tokenizer, corpus.train, vocab_size), len(corpus.train)
    told, total = progress or (lambda done, total: None), M + len(corpus.dev)
    train = encode_documents(tokenizer, corpus.train, progress=lambda done, _: told(done, total))
    dev = encode_documents(tokenizer, corpus.dev, progress=lambda done, _: told(M + done, total))
    return TokenizedCorpus(tokenizer, train, dev, text_sizes(corpus.dev), overlap(corpus.dev, corpus.train))


class Shard(NamedTuple):
    """One file of a stream: name, tokens, documents and CRC-32."""

    file: str
    tokens: int
    documents: int
    crc32: int


@dataclass(frozen=True)
class Shards:
    """A token stream in a folder, sliced like an array, read lazily.

    vocab_size: N. tokenizer: hash of the tokenizer of the ids, or empty. shards: the files, in order, maybe not yet all.
    """

    folder: Path
    vocab_size: int
    tokenizer: str
    shards: tuple[Shard, ...]
    complete: bool = True

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type for the vocabulary."""
        return np.dtype(np.min_scalar_type(self.vocab_size - 1))

    def __len__(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    def __getitem__(self, where: slice) -> np.ndarray:
        first, last, step = where.indices(len(self))
        if step != 1:
            raise ValueError(f"every {step}-th token of a stream in shards: only slices of step 1 are supported")
        files = self._overlapping(first, last) if first < last else []
        parts = [self._read(shard, max(first - start, 0), last - start) for start, shard in files]
        return np.concatenate([np.zeros(0, self.dtype), *parts])

    @property
    def documents(self) -> int:
        """Number of documents of the stream, including those without tokens."""
        return sum(shard.documents for shard in self.shards)

    @property
    def sha256(self) -> str:
        """Hash of the checksums of files and tokenizer."""
        parts = [self.tokenizer, str(self.vocab_size), *(f"{shard.tokens} {shard.crc32}" for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def verify(self, first: int = 0, last: int | None = None) -> None:
        """Compare the files of tokens first .. last - 1 with their checksums."""
        for _, shard in self._overlapping(first, len(self) if last is None else last):
            if (crc := zlib.crc32(self._read(shard, 0, shard.tokens).tobytes())) != shard.crc32:
                path, found = self.folder / shard.file, f"CRC-32 {crc:08x}, written {shard.crc32:08x}"
                raise ValueError(f"shard {path} is damaged ({found}): {_AGAIN}")

    def _overlapping(self, first: int, last: int) -> list[tuple[int, Shard]]:
        """The shards of tokens first .. last - 1, with first positions."""
        starts = np.cumsum([0, *(shard.tokens for shard in self.shards)]).tolist()
        both = zip(starts, self.shards, strict=False)
        return [(start, shard) for start, shard in both if start < last and start + shard.tokens > first]

    def _read(self, shard: Shard, first: int, last: int) -> np.ndarray:
        """A copy, as a resident memory map would count as memory of the process."""
        path, last = self.folder / shard.file, min(last, shard.tokens)
        with refuse_errors(f"shard {path} cannot be read", _AGAIN, OSError), open(path, "rb") as file:
            file.seek(first * self.dtype.itemsize)
            tokens = np.fromfile(file, self.dtype, last - first)
        if len(tokens) != last - first:
            raise ValueError(f"shard {path} ends after {first + len(tokens)} of {shard.tokens} tokens: {_AGAIN}")
        return tokens


Stream = np.ndarray | Shards
"""Token ids `<pad> d_1 <pad> ... d_n <pad>`."""


def write_shards(
    folder: str | os.PathLike,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    *,
    shard_tokens: int = _shard_tokens,
    progress: Progress | None = None,
) -> Shards:
    """Tokenise documents into shards: the stream of `encode_documents`. A complete stream is read instead.

    Documents in shards of a killed run are skipped, so their order must be the same. progress: (documents done, -1).
    """
    folder, about = local_path(folder), {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.sha256}
    found = _find_shards(folder) or Shards(folder, **about, shards=(), complete=False)
    if {"vocab_size": found.vocab_size, "tokenizer": found.tokenizer} != about:
        raise ValueError(f"{folder} holds shards of another tokenizer or vocabulary: choose another folder")
    if found.complete:
        return found
    shards, held, done = list(found.shards), 0, found.documents
    parts = [] if shards else [np.array([PAD], found.dtype)]

    def flush() -> None:
        shards.append(write_shard(folder, len(shards), np.concatenate(parts), documents=held))
        write_index(folder, shards, complete=False, **about)

    for tokens, n in encode_batches(tokenizer, islice(documents, done, None)):
        parts.append(tokens)
        held, done = held + n, done + n
        if sum(map(len, parts)) >= shard_tokens:
            flush()
            parts, held = [], 0
        if progress:
            progress(done, -1)
    if sum(map(len, parts)) + sum(shard.tokens for shard in shards) < 3:
        raise ValueError(f"no token for {folder}: give documents that hold text")
    if any(map(len, parts)):
        flush()
    write_index(folder, shards, **about)
    return read_shards(folder)


def write_shard(folder: str | os.PathLike, number: int, tokens: np.ndarray, *, documents: int) -> Shard:
    """Write one file of a stream atomically: whole documents, each with its `<pad>`."""
    shard = Shard(f"{number:05}.tokens", len(tokens), documents, zlib.crc32(data := tokens.tobytes()))
    write_whole(local_path(folder) / shard.file, lambda file: file.write(data))
    return shard


def write_index(
    folder: str | os.PathLike, shards: Iterable[Shard], *, vocab_size: int, tokenizer: str = "", complete: bool = True
) -> None:
    """Write the index of the files of a stream, in order."""
    about = {"layout": _LAYOUT, "vocab_size": vocab_size, "tokenizer": tokenizer, "complete": complete}
    index = {**about, "shards": [shard._asdict() for shard in shards]}
    write_json(local_path(folder) / _INDEX, {**index, "crc32": _crc32_of(index)})


def read_shards(folder: str | os.PathLike) -> Shards:
    """The stream in a folder."""
    found = _find_shards(folder := local_path(folder))
    if found is None or not found.complete:
        state = "no shards" if found is None else "shards that are not all written"
        raise ValueError(f"{folder} holds {state}: write them with launch.shards")
    return found


def _find_shards(folder: Path) -> Shards | None:
    """The shards in a folder, checked against their index; None without one."""
    path = folder / _INDEX
    if not path.exists():
        return None
    with refuse_errors(f"index {path} is damaged or of another version", _AGAIN):
        index = parse_json(path.read_bytes())
        if index.pop("crc32") != _crc32_of(index):
            raise ValueError("its checksum is another")
        shards = tuple(Shard(**shard) for shard in index["shards"])
        numbers = [index["vocab_size"] - 1, *(n for shard in shards for n in shard[1:])]
        whole = all(isinstance(n, int) and 0 <= n < 1 << 63 for n in numbers) and isinstance(index["tokenizer"], str)
        if index["layout"] != _LAYOUT or not whole:
            raise ValueError(f"layout {index['layout']}, or numbers and names of other types")
        found = Shards(folder, index["vocab_size"], index["tokenizer"], shards, index["complete"] is True)
    for shard in shards:
        file, size = file_inside(folder, shard.file, path), shard.tokens * found.dtype.itemsize
        if not file.is_file() or file.stat().st_size != size:
            what = f"{file.stat().st_size} bytes" if file.is_file() else "missing"
            raise ValueError(f"shard {file}: {what}, and the index says {size} bytes; {_AGAIN}")
    return found


def _crc32_of(index: dict) -> int:
    return zlib.crc32(json.dumps(index, sort_keys=True).encode())


def write_sizes(folder: Path, sizes: TextSizes) -> None:
    """Store the sizes of a text with its shards."""
    write_json(local_path(folder) / _SIZES, sizes._asdict())


def read_sizes(folder: Path) -> TextSizes | None:
    """The sizes of a text in shards, or None if they were not written."""
    path = local_path(folder) / _SIZES
    with refuse_errors(f"{path} is damaged", f"delete it, or {_AGAIN}", OSError, ValueError, TypeError):
        return TextSizes(**parse_json(path.read_bytes())) if path.exists() else None
