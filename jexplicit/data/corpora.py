"""A corpus: documents to fit and documents to score, how documents are cut into the two, and a hash of their content.

A document is the unit across which no context flows: one line of a text file, or one whole docstring.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class Corpus(NamedTuple):
    """Documents to fit and documents to score, with the hash that names them in the cache."""

    name: str
    train: list[str]
    dev: list[str]
    sha256: str


def make_corpus(name: str, train: list[str], dev: list[str]) -> Corpus:
    """Corpus of the given documents; its hash covers every document and every boundary, not the name.

    >>> one, two = make_corpus("a", ["xy"], ["z"]), make_corpus("a", ["x", "y"], ["z"])
    >>> one.sha256 == two.sha256
    False
    """
    digest = hashlib.sha256()
    for documents in (train, dev):
        digest.update(f"{len(documents)} documents\n".encode())
        for document in documents:
            data = document.encode("utf-8", "surrogatepass")
            digest.update(b"%d bytes\n" % len(data))
            digest.update(data)
    return Corpus(name, train, dev, digest.hexdigest())


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
    if every < 2 or block < 1:
        raise ValueError(f"cannot split with every={every}, block={block}: every must be 2 or more, block 1 or more")
    if len(documents) < 2:
        remedy = "use a text of 2 or more lines, or give dev files as well (--dev)"
        raise ValueError(f"{len(documents)} document(s) cannot be split into train and dev: {remedy}")
    train, dev = [], []
    for index, document in enumerate(documents):
        (dev if is_dev(index, len(documents), every=every, block=block) else train).append(document)
    return train, dev


def is_dev(index: int, documents: int, *, every: int = 10, block: int = 10) -> bool:
    """Whether `split_documents` puts a document into dev: a question of its place, and of how many there are below 100.

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
    documents, enough = iter(documents), every * block  # with so many or more, their number plays no part
    first = list(islice(documents, enough))
    if len(first) < enough:
        yield from split_documents(first, every=every, block=block)[dev]
        return
    for index, document in enumerate(chain(first, documents)):
        if is_dev(index, enough, every=every, block=block) == dev:
            yield document


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
