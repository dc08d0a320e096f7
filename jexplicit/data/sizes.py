"""Sizes of a text independent of tokenizers, and its overlap with another text."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jexplicit.runs.files import write_whole

_FILE = "sizes.json"


class TextSizes(NamedTuple):
    """Sizes of a text independent of tokenizers.

    documents: number of documents.
    bytes: of their UTF-8, without line ends between documents.
    characters: Unicode code points.
    words: `len(re.split(r"\\s+", document))`, summed; as in lm-evaluation-harness.
    """

    documents: int
    bytes: int
    characters: int
    words: int


class Overlap(NamedTuple):
    """Shares of a text's documents, and of its bytes, that occur verbatim in another text."""

    documents: float
    bytes: float


def text_sizes(documents: Iterable[str]) -> TextSizes:
    """The sizes of a text."""
    sizes = [(1, _bytes(document), len(document), len(re.split(r"\s+", document))) for document in documents]
    return TextSizes(*map(sum, zip(*sizes, strict=True))) if sizes else TextSizes(0, 0, 0, 0)


def overlap(dev: Iterable[str], train: Iterable[str]) -> Overlap:
    """Shares of dev whose documents occur in train with the same words, for any white space; dev is held in memory."""
    dev = list(dev)
    words = [" ".join(document.split()) for document in dev]
    wanted = set(words)
    found = {key for document in train if (key := " ".join(document.split())) in wanted}
    repeated = [document for document, key in zip(dev, words, strict=True) if key in found]
    in_all = sum(map(_bytes, dev))
    return Overlap(len(repeated) / max(len(dev), 1), sum(map(_bytes, repeated)) / max(in_all, 1))


def write_sizes(folder: Path, sizes: TextSizes) -> None:
    """Store the sizes of a text with its shards."""
    write_whole(folder / _FILE, lambda file: file.write(json.dumps(sizes._asdict()).encode()))


def read_sizes(folder: Path) -> TextSizes | None:
    """The sizes of a text in shards, or None if they were not written."""
    path = folder / _FILE
    try:
        return TextSizes(**json.loads(path.read_text())) if path.exists() else None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or write the shards again") from error


def _bytes(document: str) -> int:
    return len(document.encode("utf-8", "surrogatepass"))
