"""A token stream in files, for text larger than memory: tokenised once, read in windows.

The concatenated files of a folder are the stream `<pad> d_1 <pad> ... d_n <pad>`, in the smallest unsigned integer type for the
vocabulary, little-endian. `index.json` lists them with the number of tokens and a checksum of each. Files begin at documents,
so each is read and checked independently.
"""

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.data.contexts import PAD, Stream
from jexplicit.data.corpora import TextSizes
from jexplicit.data.tokenizers import Progress, Tokenizer, encode_batches
from jexplicit.runs.files import write_whole

_INDEX, _SIZES = "index.json", "sizes.json"
_LAYOUT = 1
_shard_tokens = 1 << 26  # 128 MB of uint16
_block = 1 << 24  # bytes checked at a time


class Shard(NamedTuple):
    """One file of a stream: its name, numbers of tokens and documents, and the CRC-32 of its bytes."""

    file: str
    tokens: int
    documents: int
    crc32: int


@dataclass(frozen=True)
class Shards:
    """A token stream in a folder, sliced like an array, read lazily.

    folder: of the stream.
    dtype: of the tokens.
    vocab_size: N.
    tokenizer: hash of the tokenizer of the ids, or empty.
    shards: the files, in order.
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
        """Hash of the checksums of the files and of the tokenizer, to identify the stream."""
        parts = [self.tokenizer, str(self.vocab_size), *(f"{shard.tokens} {shard.crc32}" for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def verify(self, first: int = 0, last: int | None = None, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Compare the files of tokens first .. last - 1 with their checksums."""
        files = self._overlapping(first, len(self) if last is None else last)
        in_all, done = sum(shard.tokens for _, shard in files), 0
        for _, shard in files:
            path, crc = self.folder / shard.file, 0
            with _opened(path) as file:
                while block := file.read(_block):
                    crc, done = zlib.crc32(block, crc), done + len(block) // self.dtype.itemsize
                    if progress:
                        progress(done, in_all)
            if crc != shard.crc32:
                raise ValueError(
                    f"shard {path} is damaged (CRC-32 {crc:08x}, written {shard.crc32:08x}): write the shards again"
                )

    def _overlapping(self, first: int, last: int) -> list[tuple[int, Shard]]:
        """The shards of tokens first .. last - 1, each with the position of its first token."""
        starts = np.cumsum([0, *(shard.tokens for shard in self.shards)]).tolist()
        both = zip(starts, self.shards, strict=False)
        return [(start, shard) for start, shard in both if start < last and start + shard.tokens > first]

    def _read(self, shard: Shard, first: int, last: int) -> np.ndarray:
        """A copy, as a resident memory map would count as memory of the process."""
        path, size = self.folder / shard.file, self.dtype.itemsize
        last = min(last, shard.tokens)
        with _opened(path) as file:
            file.seek(first * size)
            tokens = np.fromfile(file, self.dtype.newbyteorder("<"), last - first)
        if len(tokens) != last - first:
            raise ValueError(f"shard {path} ends after {first + len(tokens)} of {shard.tokens} tokens: write the shards again")
        return tokens.astype(self.dtype, copy=False)


class ShardWriter:
    """Writer of a stream in shards of about `shard_tokens`, split between documents; resumes after the last finished shard."""

    def __init__(self, folder: str | os.PathLike, *, vocab_size: int, tokenizer: str = "", shard_tokens: int = _shard_tokens):
        if shard_tokens < 1:
            raise ValueError(f"shards of {shard_tokens} tokens: use at least one token")
        self._folder, self._shard_tokens = Path(folder), shard_tokens
        self._vocab_size, self._tokenizer, self._dtype = vocab_size, tokenizer, np.min_scalar_type(vocab_size - 1)
        self._shards: list[Shard] = []
        self.complete = False
        if (found := _read_index(self._folder)) is not None:
            if (found["vocab_size"], found["tokenizer"]) != (vocab_size, tokenizer):
                raise ValueError(f"{folder} holds shards of another tokenizer or vocabulary: choose another folder")
            self._shards, self.complete = list(_as_shards(found["shards"])), found["complete"]
            _check_sizes(self._folder, self._shards, self._dtype)  # before hours of work
        self.documents = sum(shard.documents for shard in self._shards)
        self._parts, self._open_tokens, self._open_documents = [], 0, 0
        if not self._shards:
            self._take(np.array([PAD], self._dtype), 0)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"{folder} cannot be written ({error.strerror}): choose another folder") from error

    def add(self, tokens: np.ndarray, *, documents: int) -> None:
        """Append whole documents, each followed by `<pad>`."""
        if self.complete:
            raise ValueError(f"{self._folder} holds a whole stream already: choose another folder")
        if len(tokens):
            if tokens[-1] != PAD:
                raise ValueError(f"documents that end in token {tokens[-1]}: end each in <pad> ({PAD})")
            if not 0 <= tokens.min() <= tokens.max() < self._vocab_size:
                raise ValueError(f"token ids {tokens.min()} to {tokens.max()} in a vocabulary of {self._vocab_size}")
        self._take(tokens.astype(self._dtype, copy=False), documents)
        if self._open_tokens >= self._shard_tokens:
            self._flush()

    def close(self) -> Shards:
        """Write the remaining tokens and mark the stream as complete."""
        if self._open_tokens + sum(shard.tokens for shard in self._shards) < 3:
            raise ValueError(f"no token for {self._folder}: give documents that hold text")
        if self._open_tokens:
            self._flush()
        self._write_index(complete=True)
        return read_shards(self._folder)

    def _take(self, tokens: np.ndarray, documents: int) -> None:
        self._parts.append(tokens)
        self._open_tokens += len(tokens)
        self._open_documents += documents

    def _flush(self) -> None:
        shard = write_shard(self._folder, len(self._shards), np.concatenate(self._parts), documents=self._open_documents)
        self._shards.append(shard)
        self._write_index(complete=False)
        self.documents += shard.documents
        self._parts, self._open_tokens, self._open_documents = [], 0, 0

    def _write_index(self, *, complete: bool) -> None:
        write_index(self._folder, self._shards, vocab_size=self._vocab_size, tokenizer=self._tokenizer, complete=complete)


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
    writer = ShardWriter(folder, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.sha256, shard_tokens=shard_tokens)
    if writer.complete:
        return read_shards(folder)
    rest, done = islice(documents, writer.documents, None), writer.documents
    for tokens, n in encode_batches(tokenizer, rest):
        writer.add(tokens, documents=n)
        done += n
        if progress:
            progress(done, -1)
    return writer.close()


def write_shard(folder: str | os.PathLike, number: int, tokens: np.ndarray, *, documents: int) -> Shard:
    """Write one file of a stream atomically, by number; the same tokens always give the same file.

    tokens: whole documents, each followed by `<pad>`, in the type of the stream; file 0 begins with an additional `<pad>`.
    """
    data = (tokens.byteswap() if sys.byteorder == "big" else tokens).tobytes()
    shard = Shard(f"{number:05}.tokens", len(tokens), documents, zlib.crc32(data))
    write_whole(Path(folder) / shard.file, lambda file: file.write(data))
    return shard


def write_index(
    folder: str | os.PathLike, shards: Iterable[Shard], *, vocab_size: int, tokenizer: str = "", complete: bool = True
) -> None:
    """Write the index of the files of a stream, in order; complete: whether these are all."""
    about = {"layout": _LAYOUT, "vocab_size": vocab_size, "tokenizer": tokenizer, "complete": complete}
    index = {**about, "shards": [shard._asdict() for shard in shards]}
    data = json.dumps({**index, "crc32": _crc32_of(index)}, indent=1) + "\n"
    write_whole(Path(folder) / _INDEX, lambda file: file.write(data.encode()))


def read_shards(folder: str | os.PathLike) -> Shards:
    """The stream in a folder."""
    folder = Path(folder)
    index = _read_index(folder)
    if index is None or not index["complete"]:
        state = "no shards" if index is None else "shards that are not all written"
        raise ValueError(f"{folder} holds {state}: write them with launch.shards")
    vocab_size = index["vocab_size"]
    stream = Shards(
        folder, np.dtype(np.min_scalar_type(vocab_size - 1)), vocab_size, index["tokenizer"], _as_shards(index["shards"])
    )
    _check_sizes(folder, stream.shards, stream.dtype)
    return stream


def write_sizes(folder: Path, sizes: TextSizes) -> None:
    """Store the sizes of a text with its shards."""
    write_whole(folder / _SIZES, lambda file: file.write(json.dumps(sizes._asdict()).encode()))


def read_sizes(folder: Path) -> TextSizes | None:
    """The sizes of a text in shards, or None if they were not written."""
    path = folder / _SIZES
    try:
        return TextSizes(**json.loads(path.read_text())) if path.exists() else None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or write the shards again") from error


def count_tokens(stream: Stream) -> int:
    """Number of tokens of a stream without `<pad>`, read a window at a time."""
    return sum(int(np.count_nonzero(stream[start : start + _block])) for start in range(0, len(stream), _block))


def _as_shards(listed: list[dict]) -> tuple[Shard, ...]:
    return tuple(Shard(**shard) for shard in listed)


def _read_index(folder: Path) -> dict | None:
    path = folder / _INDEX
    if not path.exists():
        return None
    try:
        index = json.loads(path.read_text())
        if index.pop("crc32") != _crc32_of(index):
            raise ValueError("its checksum is another")
        if index["layout"] != _LAYOUT:
            raise ValueError(f"layout {index['layout']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"index {path} is damaged or of another version ({error}): write the shards again") from error
    return index


def _crc32_of(index: dict) -> int:
    return zlib.crc32(json.dumps(index, sort_keys=True).encode())


def _check_sizes(folder: Path, shards: Iterable[Shard], dtype: np.dtype) -> None:
    for shard in shards:
        path, size = folder / shard.file, shard.tokens * dtype.itemsize
        if not path.is_file() or path.stat().st_size != size:
            found = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
            raise ValueError(f"shard {path}: {found}, and the index says {size} bytes; write the shards again")


def _opened(path: Path):
    try:
        return open(path, "rb")
    except OSError as error:
        raise ValueError(f"shard {path} cannot be read ({error.strerror}): write the shards again") from error
