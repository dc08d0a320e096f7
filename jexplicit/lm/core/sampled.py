"""Positions of a text, or a seeded sample of them; the text is read by windows."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Integer

from jexplicit.counts.stream import check_stream, windows
from jexplicit.data.contexts import PAD, check_token_ids, window_contexts
from jexplicit.data.corpus.shards import Stream

_window = 1 << 22  # positions


def sampled_positions(
    stream: Stream, K: int, vocab_size: int, *, eos: bool = False, sample: int | None = None, seed: int = 0
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of a stream, or of a seeded sample of its positions, drawn without replacement.

    The stream is read by windows; only what is drawn is kept.

    Raises:
        ValueError: a token id that the vocabulary does not have.

    Example:
        >>> X, Y = sampled_positions(np.array([0, 5, 6, 0, 7, 0]), 2, 8, sample=2)
        >>> X.shape, Y.shape
        ((2, 2), (2,))
    """
    check_stream(stream)
    M = 0
    for tokens in text_windows(stream, K):
        check_token_ids(tokens, vocab_size, f"and a model of {vocab_size}: use the model's own tokenizer")
        M += len(tokens) - K if eos else int(np.count_nonzero(tokens[K:] != PAD))
    m = draw_sample(M, sample, seed)
    X, Y, before = [], [], 0
    for tokens in text_windows(stream, K):
        x, y = window_contexts(tokens, K, eos=eos)
        own = m[np.searchsorted(m, before) : np.searchsorted(m, before + len(y))] - before
        X.append(x[own])
        Y.append(y[own])
        before += len(y)
    return np.concatenate(X), np.concatenate(Y)


def text_windows(stream: Stream, K: int) -> Iterator[np.ndarray]:
    """Parts of a text that fit in memory, each with the K tokens before it."""
    return windows(stream, 1, len(stream), radius=K, span=_window)


def draw_sample(M: int, sample: int | None, seed: int) -> np.ndarray:
    """Which of M positions a sample has."""
    if sample is None or sample >= M:
        return np.arange(M)
    return np.sort(np.random.default_rng(seed).choice(M, sample, replace=False, shuffle=False))
