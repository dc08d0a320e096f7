"""Small files that several tests read."""

import struct
from pathlib import Path

import numpy as np

from jexplicit.data.shards import write_stream


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of unsigned bytes, built field by field."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape) + array.astype(np.uint8).tobytes()


def shards_of(folder, documents, *, vocab_size: int, shard_tokens: int = 30):
    """Token ids of documents as checked shards."""
    own = [(np.array([*document, 0]), 1) for document in documents]
    return write_stream(folder, lambda done: own[done:], vocab_size=vocab_size, shard_tokens=shard_tokens)


def put(path: Path, data: str | bytes = "") -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def flipped(data: bytes, place: int) -> bytes:
    """One bit is another."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
