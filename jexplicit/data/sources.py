"""Documents that are read again each time they are asked for, so that no corpus has to fit in memory."""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.corpora import Corpus, iterate_split
from jexplicit.data.text import Paths, iterate_documents, list_files
from jexplicit.data.tfds import TfdsText

Documents = Callable[[], Iterator[str]]


class Source(NamedTuple):
    """Documents to fit and documents to score.

    Args:
        name: of the corpus.
        train, dev: read the documents, from the first, at every call.
        identity: what JSON can hold of where they come from; the same as long as the documents are.
    """

    name: str
    train: Documents
    dev: Documents
    identity: dict[str, Any]


def text_source(train: Paths, dev: Paths = ()) -> Source:
    """The documents of `text_corpus`.

    Raises:
        ValueError: nothing at a path, or a file in both; what a file holds is looked at when it is read.

    >>> source = text_source([__file__])
    >>> next(source.train())[3:12], next(source.train())[3:12]
    ('Documents', 'Documents')
    """
    train_files, dev_files = list_files(train, dev)
    name = ", ".join([str(train)] if isinstance(train, str | os.PathLike) else map(str, train))
    identity = {"train_files": list(map(_stamp, train_files)), "dev_files": list(map(_stamp, dev_files))}
    documents = partial(iterate_documents, train_files)
    if dev_files:
        return Source(name, documents, partial(iterate_documents, dev_files), identity)
    return Source(name, *_cut(documents), identity)


def corpus_source(corpus: Corpus) -> Source:
    """A corpus in memory."""
    return Source(corpus.name, partial(iter, corpus.train), partial(iter, corpus.dev), {"sha256": corpus.sha256})


def tfds_source(data: TfdsText) -> Source:
    """The documents of `tfds_corpus`."""
    documents = partial(data.documents, "train")
    parts = _cut(documents) if data.dev is None else (documents, partial(data.documents, data.dev))
    return Source(f"tfds:{data.name}", *parts, {"version": data.version, "feature": data.feature})


def limited(source: Source, limit: int) -> Source:
    """The first `limit` documents of train, and a tenth as many of dev."""
    train, dev = (partial(_first, part, n) for part, n in ((source.train, limit), (source.dev, max(1, limit // 10))))
    return source._replace(train=train, dev=dev)


def sample_documents(
    documents: Iterable[str], size: int, *, seed: int = 0, progress: Callable[[int], None] | None = None
) -> tuple[list[str], int]:
    """Documents drawn in one pass, each as likely as any other, in their order; all of them, where there are no more.

    Args:
        documents: of any number.
        size: how many to draw.
        seed: of the draw.
        progress: called with the number of documents seen, now and then.

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


def _cut(documents: Documents) -> tuple[Documents, Documents]:
    return partial(_split, documents, False), partial(_split, documents, True)


def _split(documents: Documents, dev: bool) -> Iterator[str]:
    return iterate_split(documents(), dev=dev)


def _first(documents: Documents, n: int) -> Iterator[str]:
    return islice(documents(), n)


def _stamp(path: str) -> list[Any]:
    """What tells whether a file was changed without reading it."""
    found = os.stat(path)
    return [path, found.st_size, found.st_mtime_ns]
