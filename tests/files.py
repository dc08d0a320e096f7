"""Small files that several tests read."""

import struct

import numpy as np

from jexplicit.data.corpus.shards import ShardWriter


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of unsigned bytes, built field by field."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape) + array.astype(np.uint8).tobytes()


def shards_of(folder, documents, *, vocab_size: int, shard_tokens: int = 30):
    """Token ids of documents as checked shards."""
    writer = ShardWriter(folder, vocab_size=vocab_size, shard_tokens=shard_tokens)
    for document in documents:
        writer.add(np.array([*document, 0]), documents=1)
    return writer.close()
