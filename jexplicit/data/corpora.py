"""A corpus: documents to fit and documents to score, read lazily, and how documents are cut into the two.

A document is the unit across which no context flows: one line of a text file, or one whole docstring. The documents of a corpus
are any iterable of strings that may be looped over again: a list in memory, or `Documents`, which are read anew every time, so
that no corpus has to fit in memory.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, Generic, Literal, TypeVar

import numpy as np

T = TypeVar("T")
D = TypeVar("D", bound=Iterable[str], covariant=True)


class Documents:
    """The documents of `read(*arguments, **options)`, read anew by every loop over them.

    It pickles where the function and its arguments do.

    Example:
        >>> documents = Documents(str.split, "to be")
        >>> list(documents), list(documents)
        (['to', 'be'], ['to', 'be'])
    """

    def __init__(self, read: Callable[..., Iterable[Any]], *arguments: Any, **options: Any):
        self._read = partial(read, *arguments, **options)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())


@dataclass(frozen=True)
class Corpus(Generic[D]):
    """Documents to fit and documents to score.

    name: of the corpus.
    train, dev: documents, which may be looped over more than once.
    source: what JSON can hold of where lazy documents come from, the same as long as they are; None for documents in memory.

    Example:
        >>> one, two = Corpus("a", ["xy"], ["z"]), Corpus("a", ["x", "y"], ["z"])
        >>> one.sha256 == two.sha256
        False
    """

    name: str
    train: D
    dev: D
    source: dict[str, Any] | None = None

    @cached_property
    def sha256(self) -> str:
        """The hash of every document and every boundary, but not of the name; all documents are read for it."""
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
        """What changes when the documents do, found without reading lazy ones."""
        return self.source or {"sha256": self.sha256}

    def limit(self, documents: int) -> "Corpus[Documents]":
        """At most so many documents of train, and a tenth as many of dev."""
        train, dev = Documents(islice, self.train, documents), Documents(islice, self.dev, max(1, documents // 10))
        return Corpus(self.name, train, dev, self.source)

    def in_memory(self) -> "Corpus[list[str]]":
        """The corpus with its documents as lists."""
        return Corpus(self.name, list(self.train), list(self.dev), self.source)


def split_documents(documents: Sequence[T], *, every: int = 10, block: int = 10) -> tuple[list[T], list[T]]:
    """Cut documents into train and dev by interleaved blocks, so that both see the whole corpus.

    Blocks of `block` neighbours stay together (neighbouring lines share their subject), and one block of each
    `every` is dev, the middle one. A small corpus gets smaller blocks, so that neither part is ever empty.

    Args:
        documents: at least 2 documents, in order.
        every: one block of this many goes to dev.
        block: documents in a block.

    Returns:
        Train and dev documents, each in the order given; together they are all documents.

    Raises:
        ValueError: fewer than 2 documents, `every` < 2 or `block` < 1.

    >>> split_documents(list("abcdefgh"), every=4, block=1)
    (['a', 'b', 'd', 'e', 'f', 'h'], ['c', 'g'])
    """
    train, dev = (list(iterate_split(documents, dev=dev, every=every, block=block)) for dev in (False, True))
    return train, dev


def is_dev(index: int, documents: int, *, every: int = 10, block: int = 10) -> bool:
    """Whether `split_documents` puts a document into dev, given its index and the number of documents.

    >>> [index for index in range(300) if is_dev(index, 300)] == [*range(50, 60), *range(150, 160), *range(250, 260)]
    True
    """
    every = min(every, documents)
    return index // min(block, documents // every) % every == every // 2


def iterate_split(documents: Iterable[T], *, dev: bool, every: int = 10, block: int = 10) -> Iterator[T]:
    """One of the two parts of `split_documents`, of documents too many for memory.

    Args:
        documents: at least 2, in order.
        dev: which part.
        every, block: see `split_documents`.

    Raises:
        ValueError: those of `split_documents`, once a document is asked for.

    >>> list(iterate_split("abcdefgh", dev=True, every=4, block=1))
    ['c', 'g']
    """
    if every < 2 or block < 1:
        raise ValueError(f"cannot split with every={every}, block={block}: every must be 2 or more, block 1 or more")
    documents = iter(documents)
    first = list(islice(documents, every * block))  # with as many or more, their number does not matter
    if len(first) < 2:
        remedy = "use a text of 2 or more documents (lines, if not said otherwise), or give dev text as well"
        raise ValueError(f"{len(first)} document(s) cannot be split into train and dev: {remedy}")
    for index, document in enumerate(chain(first, documents)):
        if is_dev(index, len(first), every=every, block=block) == dev:
            yield document


def split_at_end(documents: Iterable[str], *, dev: bool, share: float = 0.1) -> Iterator[str]:
    """One of the two parts of a text whose last characters are dev; a document across the cut is in both, in two pieces.

    Args:
        documents: in order.
        dev: which part.
        share: of the characters that are dev.

    Raises:
        ValueError: a part without a character.

    >>> [list(split_at_end(["to be", "or not"], dev=dev, share=0.3)) for dev in (False, True)]
    [['to be', 'or'], [' not']]
    """
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
    """Train and dev by `split_documents` or by `split_at_end`, each read anew by every loop over it."""
    cut = iterate_split if split == "blocks" else split_at_end
    return Documents(cut, documents, dev=False), Documents(cut, documents, dev=True)


def split_in_three(documents: Sequence[T], *, seed: int = 0) -> tuple[list[T], list[T], list[T]]:
    """Shuffle documents and deal them into train, dev and test, 80 / 10 / 10: of every ten the ninth is dev, the last test.

    For documents whose neighbours do not belong together, as lines of a list; others are better cut by `split_documents`.

    Args:
        documents: at least 3 documents.
        seed: of the shuffle.

    Returns:
        Train, dev and test documents; together they are all documents, no part is empty.

    Raises:
        ValueError: fewer than 3 documents.

    >>> [len(part) for part in split_in_three(list(range(55)))]
    [45, 5, 5]
    """
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
    """A uniform random sample of documents, drawn in one pass and kept in order; all documents where there are no more.

    Args:
        documents: of any number.
        size: how many to draw.
        seed: of the draw.
        progress: called with the number of documents seen, every 10,000 documents.

    Returns:
        The sample, and how many documents there were.

    Raises:
        ValueError: size < 1.

    >>> sample_documents("abcdefgh", 3), sample_documents("ab", 3)
    ((['b', 'c', 'f'], 8), (['a', 'b'], 2))

    Reference: Li 1994, Reservoir-sampling algorithms of time complexity O(n (1 + log(N/n))), Algorithm L.
    """
    if size < 1:
        raise ValueError(f"a sample of {size} documents: draw at least 1")
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
