"""Token stream -> context windows (paper, Sec. 3.1.2).

A corpus is one array of token ids, with a single `<pad>` before, between and after its documents::

    <pad> d_1 <pad> d_2 <pad> ... <pad> d_n <pad>

So the `<pad>` that ends one document is the `<pad>` that the next one starts from, and no array of document starts is
needed: the k-th context token of a position is the token k places back, or `<pad>` as soon as a nearer context token is
`<pad>`. A position whose *target* is `<pad>` is the end of a document; it is a prediction only where the end of a document
is modelled (`eos`).
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Integer

PAD = 0


@runtime_checkable
class Stream(Protocol):
    """Token ids `<pad> d_1 <pad> ... d_n <pad>`: an array, a memory map, or `jexplicit.data.corpus.shards.Shards`."""

    @property
    def dtype(self) -> np.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> np.ndarray: ...


def check_radius(K: int) -> None:
    """Refuse K < 1 with a ValueError."""
    if K < 1:
        raise ValueError(f"radius K = {K}: a context needs at least one token; use K >= 1")


def check_stream(stream: Stream) -> None:
    """Refuse anything but `<pad> document <pad> ... <pad>` in integers, with at least one token.

    Raises:
        ValueError: with the type and shape of the stream.
    """
    if not hasattr(stream, "dtype"):
        raise ValueError(f"a {type(stream).__name__} as token stream: pass an array, numpy.array(ids)")
    shape = getattr(stream, "shape", (len(stream),))
    whole = np.issubdtype(stream.dtype, np.integer) and len(shape) == 1 and len(stream) >= 3
    if not whole or stream[:1][0] != PAD or stream[len(stream) - 1 :][0] != PAD:
        raise ValueError(
            f"a {stream.dtype} token stream of shape {shape} that is not `<pad> document <pad> ... <pad>` in integers, "
            "with at least one token; build it with jexplicit.data.tokenizers.encode_documents"
        )


def context_columns(x: Any, K: int) -> list[Any]:
    """The K context tokens of every position of `x[K:]`, nearest first.

    `columns[k-1][m] = x[K+m-k]`, or PAD where a nearer context token is PAD. Works on NumPy and JAX arrays alike, so that
    the compiled count and the contexts on the host agree by construction.

    Args:
        x: [L] token ids; the first K serve as context only.
        K: context length in tokens, at least 1.

    Returns:
        K arrays [L - K] of token ids.

    Example:
        >>> [c.tolist() for c in context_columns(np.array([0, 0, 5, 6, 0, 7]), 2)]
        [[0, 5, 6, 0], [0, 0, 5, 0]]
    """
    xp = x.__array_namespace__()
    columns = [x[K - 1 : -1]]
    for k in range(2, K + 1):
        columns.append(xp.where(columns[-1] == PAD, PAD, x[K - k : -k]))
    return columns


def with_leading_pads(stream: np.ndarray, K: int) -> np.ndarray:
    """The stream preceded by K - 1 more pads, so that its first document sees K of them.

    Raises:
        ValueError: K < 1, or a malformed stream.
    """
    check_radius(K)
    check_stream(stream)
    return np.concatenate([np.full(K - 1, PAD, stream.dtype), stream])


def check_token_ids(ids: np.ndarray, N: int, where_and_remedy: str = "") -> None:
    """Refuse token ids outside 0 .. N - 1.

    Raises:
        ValueError: `token id ID`, followed by `where_and_remedy`; default, the vocabulary.
    """
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= N:
        where = where_and_remedy or f"in a vocabulary of {N}: ids are 0 .. N - 1; pass the tokenizer's vocab_size"
        raise ValueError(f"token id {lowest if lowest < 0 else highest} {where}")


def pad_to(ids: np.ndarray, length: int, value: int) -> Int[np.ndarray, "length ..."]:
    """Ids in int32, padded with a value to a fixed length, so that a compiled function also serves the shorter last part.

    Example:
        >>> pad_to(np.array([3, 4]), 3, -1).tolist()
        [3, 4, -1]
    """
    longer = np.full((length, *ids.shape[1:]), value, np.int32)
    longer[: len(ids)] = ids
    return longer


def contexts(stream: np.ndarray, K: int, *, eos: bool = False) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts X and targets Y of every prediction in a stream.

    Args:
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        K: radius in tokens.
        eos: whether the `<pad>` after each document is a prediction too.

    Returns:
        X [M, K] with the nearest token first, and Y [M], both in the stream's own integer type.

    Example:
        >>> X, Y = contexts(np.array([0, 5, 6, 0, 7, 0]), 2)
        >>> X.tolist(), Y.tolist()
        ([[0, 0], [5, 0], [0, 0]], [5, 6, 7])
    """
    return window_contexts(with_leading_pads(stream, K), K, eos=eos)


def window_contexts(
    window: np.ndarray, K: int, *, eos: bool = False
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of the predictions in `window[K:]`; the K tokens before them serve as context only.

    Example:
        >>> X, Y = window_contexts(np.array([0, 5, 6, 0]), 1)
        >>> X.tolist(), Y.tolist()
        ([[0], [5]], [5, 6])
    """
    Y = window[K:]
    predicted = slice(None) if eos else Y != PAD
    return np.stack([c[predicted] for c in context_columns(window, K)], axis=1), Y[predicted]


def distinct_contexts(
    X: Integer[np.ndarray, "M K"], times: Integer[np.ndarray, " M"] | None = None, *, ordered: bool = True
) -> tuple[Integer[np.ndarray, "u K"], Int[np.ndarray, " u"]]:
    """Each different context once, and how often it occurs.

    The partition function of a softmax depends on the context alone, so it is computed once per different context. Sum
    features do not see the order of the tokens (`ordered=False`), which makes still fewer contexts different.

    Args:
        X: [M, K] contexts.
        times: [M] how often each row of X stands for one; default, once.
        ordered: whether the order of the tokens counts.

    Returns:
        the different contexts [u, K] and their counts [u], which sum to M.

    Example:
        >>> u, n = distinct_contexts(np.array([[1, 2], [2, 1], [1, 2]]))
        >>> u.tolist(), n.tolist()
        ([[1, 2], [2, 1]], [2, 1])
        >>> distinct_contexts(np.array([[1, 2], [2, 1], [1, 2]]), ordered=False)[1].tolist()
        [3]
    """
    X = X if ordered else np.sort(X, axis=1)
    N = int(X.max(initial=0)) + 1
    key, bound = np.zeros(len(X), np.int64), 1
    for column in X.T:
        if bound * N >= 2**63:  # too many possible contexts for one integer: keep only those that occur
            key, bound = np.unique(key, return_inverse=True)[1].astype(np.int64), len(X)
        key, bound = key * N + column.astype(np.int64), bound * N
    if times is None:
        _, first, n = np.unique(key, return_index=True, return_counts=True)
    else:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        n = np.bincount(which, times, minlength=len(first)).astype(np.int64)
    return X[first], n
