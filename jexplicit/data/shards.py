"""A token stream in files, tokenised once: shards, which are read in windows.

The concatenated files of a folder are the stream `<pad> d_1 <pad> ... d_n <pad>`, in the smallest unsigned integer type for the
vocabulary, little-endian. `index.json` lists them with tokens and a checksum of each. A file begins at a document.
"""

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.streams import PAD, Stream
from jexplicit.data.text import Corpus, Overlap, TextSizes, overlap, text_sizes
from jexplicit.data.tokenizers import Progress, Tokenizer, encode_batches, encode_documents, make_tokenizer
from jexplicit.runs.files import file_inside, local_path, parse_json, refuse_errors, write_json, write_whole

_INDEX, _SIZES, _LAYOUT = "index.json", "sizes.json", 1
_AGAIN, _damaged = "write the shards again", (OSError, ValueError, KeyError, TypeError, AttributeError)
_shard_tokens = 1 << 26  # 128 MB of uint16
_block = 1 << 24  # tokens looked at together


class TokenizedCorpus(NamedTuple):
    """A tokenizer, and token streams of train and dev.

    dev_sizes: sizes of the dev text; dev_in_train: overlap of dev with train; None if unknown.
    """

    tokenizer: Tokenizer
    train: Stream
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
    told, in_all = progress or (lambda done, total: None), M + len(corpus.dev)
    train = encode_documents(tokenizer, corpus.train, progress=lambda done, _: told(done, in_all))
    dev = encode_documents(tokenizer, corpus.dev, progress=lambda done, _: told(M + done, in_all))
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

    dtype: of the tokens. vocab_size: N. tokenizer: hash of the tokenizer of the ids, or empty. shards: the files, in order.
    """

    folder: Path
    dtype: np.dtype
    vocab_size: int
    tokenizer: str
    shards: tuple[Shard, ...]

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
            crc = 0
            for start in range(0, shard.tokens, _block):
                crc = zlib.crc32(_little_endian(self._read(shard, start, start + _block)).data, crc)
            if crc != shard.crc32:
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
            tokens = np.fromfile(file, self.dtype.newbyteorder("<"), last - first)
        if len(tokens) != last - first:
            raise ValueError(f"shard {path} ends after {first + len(tokens)} of {shard.tokens} tokens: {_AGAIN}")
        return tokens.astype(self.dtype, copy=False)


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
    folder, dtype = local_path(folder), np.dtype(np.min_scalar_type(tokenizer.vocab_size - 1))
    about: Any = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.sha256}
    found = _read_index(folder) or {**about, "complete": False, "shards": ()}
    if (found["vocab_size"], found["tokenizer"]) != tuple(about.values()):
        raise ValueError(f"{folder} holds shards of another tokenizer or vocabulary: choose another folder")
    if found["complete"]:
        return read_shards(folder)
    shards = list(found["shards"])
    _check_sizes(folder, shards, dtype)  # before hours of work
    parts, held, done = ([] if shards else [np.array([PAD], dtype)]), 0, sum(shard.documents for shard in shards)

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
    data = _little_endian(tokens).tobytes()
    shard = Shard(f"{number:05}.tokens", len(tokens), documents, zlib.crc32(data))
    write_whole(local_path(folder) / shard.file, lambda file: file.write(data))
    return shard


def _little_endian(tokens: np.ndarray) -> np.ndarray:
    return tokens.byteswap() if sys.byteorder == "big" else tokens


def write_index(
    folder: str | os.PathLike, shards: Iterable[Shard], *, vocab_size: int, tokenizer: str = "", complete: bool = True
) -> None:
    """Write the index of the files of a stream, in order."""
    about = {"layout": _LAYOUT, "vocab_size": vocab_size, "tokenizer": tokenizer, "complete": complete}
    index = {**about, "shards": [shard._asdict() for shard in shards]}
    write_json(local_path(folder) / _INDEX, {**index, "crc32": _crc32_of(index)})


def read_shards(folder: str | os.PathLike) -> Shards:
    """The stream in a folder."""
    folder = local_path(folder)
    index = _read_index(folder)
    if index is None or not index["complete"]:
        state = "no shards" if index is None else "shards that are not all written"
        raise ValueError(f"{folder} holds {state}: write them with launch.shards")
    N = index["vocab_size"]
    stream = Shards(folder, np.dtype(np.min_scalar_type(N - 1)), N, index["tokenizer"], index["shards"])
    _check_sizes(folder, stream.shards, stream.dtype)
    return stream


def write_sizes(folder: Path, sizes: TextSizes) -> None:
    """Store the sizes of a text with its shards."""
    write_json(local_path(folder) / _SIZES, sizes._asdict())


def read_sizes(folder: Path) -> TextSizes | None:
    """The sizes of a text in shards, or None if they were not written."""
    path = local_path(folder) / _SIZES
    with refuse_errors(f"{path} is damaged", f"delete it, or {_AGAIN}", OSError, ValueError, TypeError):
        return TextSizes(**parse_json(path.read_bytes())) if path.exists() else None


def count_tokens(stream: Stream) -> int:
    """Number of tokens of a stream without `<pad>`, read a window at a time."""
    return sum(int(np.count_nonzero(stream[start : start + _block])) for start in range(0, len(stream), _block))


def _read_index(folder: Path) -> dict[str, Any] | None:
    """The index of a folder, its shards as such; None where there is none."""
    path = folder / _INDEX
    if not path.exists():
        return None
    with refuse_errors(f"index {path} is damaged or of another version", _AGAIN, *_damaged):
        index = parse_json(path.read_bytes())
        if index.pop("crc32") != _crc32_of(index):
            raise ValueError("its checksum is another")
        shards = tuple(Shard(**shard) for shard in index["shards"])
        numbers = [index["vocab_size"] - 1, *(n for shard in shards for n in shard[1:])]
        whole = all(isinstance(n, int) and 0 <= n < 1 << 63 for n in numbers) and isinstance(index["tokenizer"], str)
        if index["layout"] != _LAYOUT or not whole:
            raise ValueError(f"layout {index['layout']}, or numbers and names of other types")
    for shard in shards:
        file_inside(folder, shard.file, path)
    return {**index, "shards": shards, "complete": index.get("complete") is True}


def _crc32_of(index: dict) -> int:
    return zlib.crc32(json.dumps(index, sort_keys=True).encode())


def _check_sizes(folder: Path, shards: Iterable[Shard], dtype: np.dtype) -> None:
    for shard in shards:
        path, size = folder / shard.file, shard.tokens * dtype.itemsize
        if not path.is_file() or path.stat().st_size != size:
            found = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
            raise ValueError(f"shard {path}: {found}, and the index says {size} bytes; {_AGAIN}")
