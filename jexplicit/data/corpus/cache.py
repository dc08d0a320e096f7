"""Token streams cached on disk, so that a corpus is tokenized once.

An entry is a folder named by the hash of everything that determines its content. It is written under a temporary name and then
moved, so that readers never see incomplete files.
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
from jexplicit.data.corpora import Corpus, Overlap, TextSizes, overlap, text_sizes
from jexplicit.data.tokenizers import KINDS, Progress, Tokenizer, encode_documents, make_tokenizer, open_tokenizer
from jexplicit.runs.files import cache_entries, cache_folder, cache_limit, mark_used, shrink

logger = logging.getLogger(__name__)

_LAYOUT = "4"  # increment if the same corpus gives another tokenizer or other streams
_FILES = "tokenizer.model", "train.npy", "dev.npy", "dev.json"


class TokenizedCorpus(NamedTuple):
    """A tokenizer trained on a corpus, and token streams of train and dev.

    dev_sizes: sizes of the dev text; dev_in_train: overlap of dev with train; None if unknown.
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
    """Tokenizer and streams of a corpus, from the cache if they are there.

    A damaged entry is rebuilt, and an unwritable cache is not used; each logs a warning.

    kind: `bpe`, `word` or `char`; or a tokenizer, or its path. vocab_size: default, that of `train_tokenizer`.
    cache_dir: default, `$JEXPLICIT_CACHE_DIR`, or `jexplicit` in the user's cache folder.
    progress: called with (documents done, total documents), except for a cached corpus.
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
        logger.info("%s is removed from the cache, whose limit is %d bytes", removed.path, limit)
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
            if len(stream) != 1 or stream[0] != PAD:  # a single <pad> is the stream of no document
                check_stream(stream)
        described = json.loads(about.read_text())
        sizes, shares = TextSizes(**described["sizes"]), Overlap(**described["in_train"])
    except (ValueError, OSError, EOFError, TypeError, KeyError) as error:
        logger.warning("the cached tokens in %s are damaged (%s) and are rebuilt", entry, error)
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
