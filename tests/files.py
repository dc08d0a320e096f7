"""Small files that several tests read."""

import struct
from pathlib import Path

import numpy as np

from jexplicit.data.streams import read_shards, write_index, write_shard


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of unsigned bytes, built field by field."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape) + array.astype(np.uint8).tobytes()


def shards_of(folder, documents, *, vocab_size: int, shard_tokens: int = 30):
    """Token ids of documents as checked shards."""
    files = [[0]]
    for document in documents:
        if len(files[-1]) >= shard_tokens:
            files.append([])
        files[-1] += [*document, 0]
    dtype = np.min_scalar_type(vocab_size - 1)
    shards = [write_shard(folder, n, np.array(tokens, dtype), documents=tokens.count(0)) for n, tokens in enumerate(files)]
    write_index(folder, shards, vocab_size=vocab_size)
    return read_shards(folder)


def put(path: Path, data: str | bytes = "") -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def flipped(data: bytes, place: int) -> bytes:
    """One bit is another."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
