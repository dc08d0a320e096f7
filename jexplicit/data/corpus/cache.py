"""Token streams cached on disk, so that a corpus is tokenized once.

An entry is a folder named by the hash of everything that determines its content. Files are written in a temporary folder and
then moved, so that a reader never sees half a file.
"""

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from jexplicit.data.contexts import PAD, Stream, check_stream
from jexplicit.data.corpora import Corpus
from jexplicit.data.sizes import Overlap, TextSizes, overlap, text_sizes
from jexplicit.data.tokenizers import KINDS, Progress, Tokenizer, encode_documents, make_tokenizer, open_tokenizer
from jexplicit.runs.cache_files import cache_entries, cache_folder, cache_limit, mark_used, shrink

logger = logging.getLogger(__name__)

_LAYOUT = "3"  # raise it when the same corpus no longer gives the same tokenizer or streams
_FILES = "tokenizer.model", "train.npy", "dev.npy", "dev.json"


class TokenizedCorpus(NamedTuple):
    """Tokenizer trained on a corpus, and the token streams of its train and dev documents.

    dev_sizes: of the dev text, where they are known.
    dev_in_train: how much of dev stands in train too, where it is known.
    """

    tokenizer: Tokenizer
    train: Stream
    dev: np.ndarray
    cached: bool
    dev_sizes: TextSizes | None = None
    dev_in_train: Overlap | None = None


def cached_streams(
    corpus: Corpus[list[str]],
    *,
    kind: str | Tokenizer,
    vocab_size: int | None,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> TokenizedCorpus:
    """Tokenizer and streams of a corpus: from the cache, or made by `train_tokenizer` and `encode_documents` and kept.

    A damaged entry is made again, and a cache that cannot be written is not used; each logs a warning.

    Args:
        corpus: documents, in memory; the tokenizer is trained on the train documents alone.
        kind: `bpe`, `word` or `char`; or a tokenizer, or the path of one (`jexplicit.data.tokenizers.open_tokenizer`).
        vocab_size: token ids in all, or None for the default of `train_tokenizer`.
        cache_dir: folder of the cache. None: `$JEXPLICIT_CACHE_DIR`, or `jexplicit` in the user's cache folder.
        progress: called with (documents encoded, documents in all); not called for a cached corpus.

    Returns:
        Tokenizer and streams, from a cached corpus as read-only memory maps.

    Raises:
        ValueError: the errors of `train_tokenizer`, or of `jexplicit.runs.cache_files.cache_limit`.

    >>> import tempfile
    >>> corpus = Corpus("tiny", ["abba"], ["bab"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = cached_streams(corpus, kind="char", vocab_size=None, cache_dir=folder)
    ...     read = cached_streams(corpus, kind="char", vocab_size=None, cache_dir=folder)
    >>> made.train, made.cached, read.cached
    (array([0, 2, 3, 3, 2, 0], dtype=uint8), False, True)
    """
    if not isinstance(kind, Tokenizer) and kind not in KINDS:
        kind = open_tokenizer(kind)
    named = kind.sha256 if isinstance(kind, Tokenizer) else kind
    parts = corpus.sha256, named, str(vocab_size), sentencepiece.__version__, _LAYOUT
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    folder, limit = cache_folder(cache_dir), cache_limit()
    entry = folder / key[:32]
    if (cached := _read_entry(entry)) is not None:
        mark_used(entry)
        return cached
    tokenizer = make_tokenizer(kind, corpus.train, vocab_size)
    in_all = len(corpus.train) + len(corpus.dev)
    train = encode_documents(tokenizer, corpus.train, progress=_shifted(progress, 0, in_all))
    dev = encode_documents(tokenizer, corpus.dev, progress=_shifted(progress, len(corpus.train), in_all))
    about = text_sizes(corpus.dev), overlap(corpus.dev, corpus.train)
    made = TokenizedCorpus(tokenizer, train, dev, False, *about)
    _write_entry(entry, made)
    mark_used(entry)
    for removed in shrink(cache_entries(folder), limit):
        logger.info("%s is removed from the cache, which may hold %d bytes", removed.path, limit)
    return made


def _shifted(progress: Progress | None, before: int, in_all: int) -> Progress | None:
    return progress and (lambda done, _: progress(before + done, in_all))


def _read_entry(entry: Path) -> TokenizedCorpus | None:
    model, *streams, about = (entry / name for name in _FILES)
    if not all(path.is_file() for path in (model, *streams, about)):
        return None
    try:
        tokenizer = Tokenizer.load(model)
        train, dev = (np.load(path, mmap_mode="r") for path in streams)
        for stream in (train, dev):
            if len(stream) != 1 or stream[0] != PAD:  # <pad> alone is the stream of no document
                check_stream(stream)
        described = json.loads(about.read_text())
        sizes, shares = TextSizes(**described["sizes"]), Overlap(**described["in_train"])
    except (ValueError, OSError, EOFError, TypeError, KeyError) as error:
        logger.warning("the cached tokens in %s are damaged (%s) and are made again", entry, error)
        return None
    return TokenizedCorpus(tokenizer, train, dev, True, sizes, shares)


def _write_entry(entry: Path, made: TokenizedCorpus) -> None:
    try:
        entry.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=entry) as folder:
            model, train, dev, about = (Path(folder, name) for name in _FILES)
            made.tokenizer.save(model)
            np.save(train, made.train[:])
            np.save(dev, made.dev)
            assert made.dev_sizes and made.dev_in_train
            about.write_text(json.dumps({"sizes": made.dev_sizes._asdict(), "in_train": made.dev_in_train._asdict()}))
            for path in (model, train, dev, about):
                os.replace(path, entry / path.name)
    except OSError as error:
        logger.warning("the tokens are not cached in %s (%s): set JEXPLICIT_CACHE_DIR to a folder of yours", entry, error)
