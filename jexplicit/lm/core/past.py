"""Positions of a text, or a seeded sample: contexts, targets and their places."""

import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from jexplicit.counts.tables import check_stream, windows
from jexplicit.data.contexts import PAD, check_token_ids, contexts, window_contexts
from jexplicit.data.shards import Stream
from jexplicit.lm.core.model import NO_TOKEN


class Past(NamedTuple):
    """Where positions stand in a text, for models that read what came before.

    stream: [L] token ids.
    places: [M] place of each target in it.
    starts: [M] place that the past of each target begins from; default, the start of the text.
    """

    stream: Integer[np.ndarray, " L"]
    places: Integer[np.ndarray, " M"]
    starts: Integer[np.ndarray, " M"] | None = None

    def take(self, m: Any) -> "Past":
        """Some of the positions."""
        return self._replace(places=self.places[m], starts=None if self.starts is None else self.starts[m])

    def within_documents(self) -> "Past":
        """The same positions, each with the past of its own document alone.

        Example:
            >>> Past(np.array([0, 5, 6, 0, 7, 0]), np.array([2, 4])).within_documents().starts.tolist()
            [0, 3]
        """
        pads = np.flatnonzero(self.stream == PAD)
        return self._replace(starts=pads[np.searchsorted(pads, self.places) - 1])


class State(NamedTuple):
    """What a model that counts nothing has read.

    tokens: [n] all of them, from the `<pad>` before the first.
    """

    tokens: Integer[np.ndarray, " n"]


class EncodedText(NamedTuple):
    """All predictions of a stream: contexts, targets, and where they stand."""

    X: Integer[np.ndarray, "M K"]
    Y: Integer[np.ndarray, " M"]
    past: Past


def read_text(stream: np.ndarray, K: int, *, eos: bool = False) -> EncodedText:
    """The predictions of a stream, `<pad> d_1 <pad> ... d_n <pad>`, in its order.

    Example:
        >>> text = read_text(np.array([0, 5, 6, 0, 7, 0]), 2)
        >>> text.Y.tolist(), text.past.places.tolist()
        ([5, 6, 7], [1, 2, 4])
    """
    X, Y = contexts(stream, K, eos=eos)
    places = np.arange(1, len(stream)) if eos else np.flatnonzero(stream[1:] != PAD) + 1
    return EncodedText(X, Y, Past(stream, places))


def contexts_at(stream: Integer[np.ndarray, " L"], places: Integer[np.ndarray, " M"], K: int) -> Integer[np.ndarray, "M K"]:
    """The contexts of some places of a stream, nearest first, padded at document starts.

    Example:
        >>> contexts_at(np.array([0, 5, 6, 0, 7]), np.array([2, 4]), 3).tolist()
        [[5, 0, 0], [0, 0, 0]]
    """
    X = histories(Past(stream, places), K)
    return np.where(np.cumsum((X == PAD) | (X == NO_TOKEN), axis=1) > 0, PAD, X)


def histories(past: Past, W: int) -> Integer[np.ndarray, "M W"]:
    """The W tokens before every position, nearest first, `NO_TOKEN` before the text.

    Example:
        >>> histories(Past(np.array([0, 5, 6, 0]), np.array([1, 3])), 3).tolist()
        [[0, -1, -1], [6, 5, 0]]
    """
    places = past.places[:, None] - 1 - np.arange(W)[None, :]
    starts = 0 if past.starts is None else past.starts[:, None]
    return np.where(places >= starts, past.stream[np.maximum(places, 0)].astype(np.int32), NO_TOKEN)


_window = 1 << 22  # positions


def sampled_positions(
    stream: Stream, K: int, vocab_size: int, *, eos: bool = False, sample: int | None = None, seed: int = 0
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of a stream, or of a seeded sample without replacement.

    The stream is read by windows; only what is drawn is kept.

    Raises:
        ValueError: a token id that the vocabulary does not have.

    Example:
        >>> X, Y = sampled_positions(np.array([0, 5, 6, 0, 7, 0]), 2, 8, sample=2)
        >>> X.shape, Y.shape
        ((2, 2), (2,))
    """
    check_stream(stream)
    M, windows_of = 0, functools.partial(windows, stream, 1, len(stream), radius=K, span=_window)
    for tokens in windows_of():
        check_token_ids(tokens, vocab_size, f"and a model of {vocab_size}: use the model's own tokenizer")
        M += len(tokens) - K if eos else int(np.count_nonzero(tokens[K:] != PAD))
    m = draw_sample(M, sample, seed)
    X, Y, before = [], [], 0
    for tokens in windows_of():
        x, y = window_contexts(tokens, K, eos=eos)
        own = m[np.searchsorted(m, before) : np.searchsorted(m, before + len(y))] - before
        X.append(x[own])
        Y.append(y[own])
        before += len(y)
    return np.concatenate(X), np.concatenate(Y)


def draw_sample(M: int, sample: int | None, seed: int) -> np.ndarray:
    """Which of M positions a sample has."""
    if sample is None or sample >= M:
        return np.arange(M)
    return np.sort(np.random.default_rng(seed).choice(M, sample, replace=False, shuffle=False))
