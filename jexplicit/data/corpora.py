"""A corpus: train and dev documents, read lazily, and their splits.

Contexts do not cross the boundaries of documents, such as lines of a text file or docstrings. The documents of a corpus are an
iterable of strings that can be iterated repeatedly: a list in memory, or `Documents`, which are read again every time, so that
no corpus has to fit in memory.
"""

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")
D = TypeVar("D", bound=Iterable[str], covariant=True)


class Documents:
    """The documents of `read(*arguments, **options)`, read by every iteration."""

    def __init__(self, read: Callable[..., Iterable[Any]], *arguments: Any, **options: Any):
        self._read = partial(read, *arguments, **options)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())


@dataclass(frozen=True)
class Corpus(Generic[D]):
    """Train and dev documents, which can be iterated repeatedly.

    source: JSON that identifies the origin of lazy documents, e.g. by file stamps; None for documents in memory.
    """

    name: str
    train: D
    dev: D
    source: dict[str, Any] | None = None

    @cached_property
    def sha256(self) -> str:
        """Hash of all documents and their boundaries, without the name; reads all documents."""
        digest = hashlib.sha256()
        for part in (self.train, self.dev):
            documents = list(part)
            digest.update(f"{len(documents)} documents\n".encode())
            for document in documents:
                data = document.encode("utf-8", "surrogatepass")
                digest.update(b"%d bytes\n" % len(data))
                digest.update(data)
        return digest.hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """An identifier that changes with the documents; does not read lazy ones."""
        return self.source or {"sha256": self.sha256}

    def limit(self, documents: int) -> "Corpus[Documents]":
        """At most `documents` documents of train, and a tenth as many of dev."""
        train, dev = Documents(islice, self.train, documents), Documents(islice, self.dev, max(1, documents // 10))
        return Corpus(self.name, train, dev, self.source)

    def in_memory(self) -> "Corpus[list[str]]":
        """The corpus with its documents as lists."""
        return Corpus(self.name, list(self.train), list(self.dev), self.source)


def split_documents(documents: Sequence[T], *, every: int = 10, block: int = 10) -> tuple[list[T], list[T]]:
    """Split documents into train and dev by interleaved blocks.

    `block` neighbours, which are often related, stay together; of `every` blocks the middle one is dev. A small corpus has
    smaller blocks, so that neither part is empty.
    """
    train, dev = (list(iterate_split(documents, dev=dev, every=every, block=block)) for dev in (False, True))
    return train, dev


def is_dev(index: int, documents: int, *, every: int = 10, block: int = 10) -> bool:
    """Whether document `index` of `documents` is in dev of `split_documents`."""
    every = min(every, documents)
    return index // min(block, documents // every) % every == every // 2


def iterate_split(documents: Iterable[T], *, dev: bool, every: int = 10, block: int = 10) -> Iterator[T]:
    """One of the two parts of `split_documents`, of lazy documents."""
    if every < 2 or block < 1:
        raise ValueError(f"cannot split with every={every}, block={block}: every must be 2 or more, block 1 or more")
    documents = iter(documents)
    first = list(islice(documents, every * block))  # with at least as many, their number does not matter
    if len(first) < 2:
        remedy = "use a text of 2 or more documents (lines, if not said otherwise), or give dev text as well"
        raise ValueError(f"{len(first)} document(s) cannot be split into train and dev: {remedy}")
    for index, document in enumerate(chain(first, documents)):
        if is_dev(index, len(first), every=every, block=block) == dev:
            yield document


def split_at_end(documents: Iterable[str], *, dev: bool, share: float = 0.1) -> Iterator[str]:
    """Train or dev of a text whose last characters are dev."""
    characters = sum(map(len, documents))
    cut, place = int((1 - share) * characters), 0
    if not 0 < cut < characters:
        raise ValueError(f"{characters} character(s) cannot be split into train and dev: use a longer text")
    for document in documents:
        first = min(max(cut - place, 0), len(document))
        piece = document[first:] if dev else document[:first]
        if piece:
            yield piece
        place += len(document)


Split = Literal["blocks", "end"]


def lazy_split(documents: Iterable[str], split: Split = "blocks") -> tuple[Documents, Documents]:
    """Train and dev by `split_documents` or by `split_at_end`, each read again by every iteration."""
    cut = iterate_split if split == "blocks" else split_at_end
    return Documents(cut, documents, dev=False), Documents(cut, documents, dev=True)


def split_in_three(documents: Sequence[T], *, seed: int = 0) -> tuple[list[T], list[T], list[T]]:
    """Shuffle documents and split them 80 / 10 / 10, none empty.

    For unrelated documents, such as the lines of a list; use `split_documents` if neighbours are related.
    """
    import numpy as np  # local import: --help does not need it

    M = len(documents)
    if M < 3:
        raise ValueError(f"{M} document(s) cannot be split into train, dev and test: use a text of 3 or more lines")
    shuffled = [documents[m] for m in np.random.default_rng(seed).permutation(M)]
    deal = min(10, M)  # fewer than ten documents: one of each
    dev, test = shuffled[deal - 2 :: deal], shuffled[deal - 1 :: deal]
    return [document for m, document in enumerate(shuffled) if m % deal < deal - 2], dev, test


def sample_documents(
    documents: Iterable[str], size: int, *, seed: int = 0, progress: Callable[[int], None] | None = None
) -> tuple[list[str], int]:
    """A uniform sample of `size` documents in order, and their total number.

    progress: called with the number of documents seen, every 10,000. Source: Li 1994, Reservoir-sampling algorithms of time
    complexity O(n (1 + log(N/n))), Algorithm L.
    """
    if size < 1:
        raise ValueError(f"a sample of {size} documents: draw at least 1")
    import numpy as np  # local import: --help does not need it

    seen = 0

    def counted() -> Iterator[tuple[int, str]]:
        nonlocal seen
        for document in documents:
            yield seen, document
            seen += 1
            if progress and seen % 10_000 == 0:
                progress(seen)

    rng, numbered = np.random.default_rng(seed), counted()
    kept, threshold = list(islice(numbered, size)), 1.0
    while True:
        threshold *= (1 - rng.random()) ** (1 / size)
        skipped = math.log(1 - rng.random()) / math.log1p(-threshold) if threshold < 1 else 0.0
        drawn = next(islice(numbered, int(min(skipped, sys.maxsize - 1)), None), None)
        if drawn is None:
            return [document for _, document in sorted(kept)], seen
        kept[rng.integers(size)] = drawn


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
    """Shares of documents and bytes that occur verbatim in another text."""

    documents: float
    bytes: float


def text_sizes(documents: Iterable[str]) -> TextSizes:
    """The sizes of a text."""
    sizes = [(1, _bytes(document), len(document), len(re.split(r"\s+", document))) for document in documents]
    return TextSizes(*map(sum, zip(*sizes, strict=True))) if sizes else TextSizes(0, 0, 0, 0)


def overlap(dev: Iterable[str], train: Iterable[str]) -> Overlap:
    """Shares of dev whose documents occur in train, for any white space."""
    dev = list(dev)
    words = [" ".join(document.split()) for document in dev]
    wanted = set(words)
    found = {key for document in train if (key := " ".join(document.split())) in wanted}
    repeated = [document for document, key in zip(dev, words, strict=True) if key in found]
    return Overlap(len(repeated) / max(len(dev), 1), sum(map(_bytes, repeated)) / max(sum(map(_bytes, dev)), 1))


def _bytes(document: str) -> int:
    return len(document.encode("utf-8", "surrogatepass"))
