"""How long a text is by measures that no tokenizer changes, and how much of it stands in another text."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jexplicit.runs.files import write_whole

_FILE = "sizes.json"


class TextSizes(NamedTuple):
    """A text by measures that no tokenizer changes.

    documents: how many.
    bytes: of their UTF-8, line ends between documents not among them.
    characters: Unicode code points.
    words: `len(re.split(r"\\s+", document))`, summed; as lm-evaluation-harness counts them.
    """

    documents: int
    bytes: int
    characters: int
    words: int


class Overlap(NamedTuple):
    """Shares of a text's documents, and of its bytes, that stand in another text word for word."""

    documents: float
    bytes: float


def text_sizes(documents: Iterable[str]) -> TextSizes:
    """The sizes of a text.

    Example:
        >>> text_sizes(["to be", "or  nöt"])
        TextSizes(documents=2, bytes=13, characters=12, words=4)
    """
    sizes = [(1, _bytes(document), len(document), len(re.split(r"\s+", document))) for document in documents]
    return TextSizes(*map(sum, zip(*sizes, strict=True))) if sizes else TextSizes(0, 0, 0, 0)


def overlap(dev: Iterable[str], train: Iterable[str]) -> Overlap:
    """How much of dev stands in train: documents of the same words, whatever the white space between them.

    Args:
        dev: documents; they are held in memory.
        train: documents, read once.

    Example:
        >>> overlap(["to be", "or not"], ["what", " to  be "])
        Overlap(documents=0.5, bytes=0.45454545454545453)
    """
    dev = list(dev)
    words = [" ".join(document.split()) for document in dev]
    wanted = set(words)
    found = {key for document in train if (key := " ".join(document.split())) in wanted}
    repeated = [document for document, key in zip(dev, words, strict=True) if key in found]
    in_all = sum(map(_bytes, dev))
    return Overlap(len(repeated) / max(len(dev), 1), sum(map(_bytes, repeated)) / max(in_all, 1))


def write_sizes(folder: Path, sizes: TextSizes) -> None:
    """Keep the sizes of a text beside its shards."""
    write_whole(folder / _FILE, lambda file: file.write(json.dumps(sizes._asdict()).encode()))


def read_sizes(folder: Path) -> TextSizes | None:
    """The sizes of a text in shards, or None where they were not written.

    Raises:
        ValueError: a damaged file.
    """
    path = folder / _FILE
    try:
        return TextSizes(**json.loads(path.read_text())) if path.exists() else None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, or write the shards again") from error


def _bytes(document: str) -> int:
    return len(document.encode("utf-8", "surrogatepass"))
