"""Token streams that the benches read: draws from Zipf's law, files of token ids, and text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.data.corpus.cache import cached_streams
from jexplicit.data.corpus.docstrings import docs_corpus
from jexplicit.data.text import text_corpus


def refuse_dev_alone(config: Any) -> None:
    """Raises:
    ValueError: --dev without --train.
    """
    if config.dev and not config.train:
        raise ValueError("--dev without --train: name the text to fit, too")


def zipf_stream(rng: np.random.Generator, tokens: int, vocab_size: int) -> np.ndarray:
    """`<pad>` and `tokens` more ids, the last one `<pad>`: Zipf's law over 1..V-1, geometric document lengths of mean 40."""
    p = 1 / np.arange(1, vocab_size)
    ids = np.arange(1, vocab_size, dtype=np.min_scalar_type(vocab_size - 1))
    stream = rng.choice(ids, tokens + 1, p=p / p.sum())
    ends = np.cumsum(1 + rng.geometric(1 / 40, tokens // 2))
    stream[ends[ends < tokens - 1]] = PAD
    stream[[0, -1]] = PAD
    return stream


def load_stream(source: str, tokens: int, vocab_size: int, seed: int) -> np.ndarray:
    """The stream `zipf`, or at most the first `tokens` positions of a .npy file.

    Raises:
        ValueError: no such file, or not a row of token ids below `vocab_size`.
    """
    if source == "zipf":
        return zipf_stream(np.random.default_rng(seed), tokens, vocab_size)
    try:
        x = np.load(source)[: tokens + 1]
    except (OSError, ValueError) as error:
        raise ValueError(f"--stream {source}: {error}; give zipf or a .npy file of token ids") from error
    if x.ndim != 1 or x.dtype.kind not in "iu" or x.size < 3 or x.min() < 0 or x.max() >= vocab_size:
        ids = f"ids {x.min()} to {x.max()}" if x.size else "nothing"
        raise ValueError(
            f"--stream {source} of shape {x.shape} holds {ids}: give a row of token ids below --vocab-size, {vocab_size}"
        )
    x[-1] = PAD  # the last document ends where the stream is cut
    return x


def first_positions(stream: np.ndarray, limit: int) -> np.ndarray:
    """The start of a stream with at most `limit` tokens; the document that it cuts ends there.

    Example:
        >>> first_positions(np.array([0, 5, 6, 0, 7, 8, 0]), 3).tolist()
        [0, 5, 6, 0, 7, 0]
    """
    part = stream[: int(np.searchsorted(np.cumsum(stream != PAD), limit, side="right"))]
    return part if part[-1] == PAD else np.append(part, part[:1])


def text_streams(train: Sequence[str], dev: Sequence[str], vocab_size: int) -> tuple[np.ndarray, np.ndarray, int, str]:
    """Streams of text in subwords: train, dev, the vocabulary size and the name of the text.

    Args:
        train: files, .gz files, globs or folders; none for the documentation that ships with Python.
        dev: the same; none to cut the documents of the other.
        vocab_size: at most so many ids, `<pad>` and `<unk>` included.
    """
    corpus = text_corpus(train, dev).in_memory() if train else docs_corpus(keep=True)
    text = cached_streams(corpus, kind="bpe", vocab_size=vocab_size)
    return text.train[:], text.dev[:], text.tokenizer.vocab_size, corpus.name
