"""Token stream -> context windows (paper, Sec. 3.1.2), and documents held out of it.

A corpus is one array of token ids, `<pad> d_1 <pad> d_2 <pad> ... <pad> d_n <pad>`. The `<pad>` at the end of a document also
begins the next one: the k-th context token of a position is the token k positions back, or `<pad>` if a nearer one is `<pad>`.
A position whose target is `<pad>` ends a document; it is a prediction only if document ends are modelled (`eos`).
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Integer

PAD = 0
_largest = 2**63 - 1  # of a key


@runtime_checkable
class Stream(Protocol):
    """Token ids `<pad> d_1 <pad> ... d_n <pad>`: an array, memory map or `Shards`."""

    @property
    def dtype(self) -> np.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> np.ndarray: ...


def check_radius(K: int) -> None:
    """Refuse K < 1."""
    if K < 1:
        raise ValueError(f"radius K = {K}: a context needs at least one token; use K >= 1")


def check_stream(stream: Stream) -> None:
    """Refuse anything but `<pad> document <pad> ... <pad>` in integers."""
    if not hasattr(stream, "dtype"):
        raise ValueError(f"a {type(stream).__name__} as token stream: pass an array, numpy.array(ids)")
    shape = getattr(stream, "shape", (len(stream),))
    whole = np.issubdtype(stream.dtype, np.integer) and len(shape) == 1 and len(stream) >= 3
    if not whole or stream[:1][0] != PAD or stream[len(stream) - 1 :][0] != PAD:
        remedy = "with at least one token; build it with jexplicit.data.tokenizers.encode_documents"
        raise ValueError(
            f"a {stream.dtype} token stream of shape {shape} that is not `<pad> document <pad> ... <pad>` in integers, {remedy}"
        )


def context_columns(x: Any, K: int) -> list[Any]:
    """The K context tokens of each position of `x[K:]`, of NumPy or JAX."""
    xp = x.__array_namespace__()
    columns = [x[K - 1 : -1]]
    for k in range(2, K + 1):
        columns.append(xp.where(columns[-1] == PAD, PAD, x[K - k : -k]))
    return columns


def with_leading_pads(stream: np.ndarray, K: int) -> np.ndarray:
    """The stream preceded by K - 1 pads, for its first contexts."""
    check_radius(K)
    check_stream(stream)
    return np.concatenate([np.full(K - 1, PAD, stream.dtype), stream])


def check_token_ids(ids: np.ndarray, N: int, where_and_remedy: str = "") -> None:
    """Refuse token ids outside 0 .. N - 1, with a remedy."""
    lowest, highest = int(ids.min(initial=0)), int(ids.max(initial=0))
    if lowest < 0 or highest >= N:
        where = where_and_remedy or f"in a vocabulary of {N}: ids are 0 .. N - 1; pass the tokenizer's vocab_size"
        raise ValueError(f"token id {lowest if lowest < 0 else highest} {where}")


def pad_to(ids: np.ndarray, length: int, value: int) -> Int[np.ndarray, "length ..."]:
    """Ids in int32, padded with a value to a fixed length."""
    longer = np.full((length, *ids.shape[1:]), value, np.int32)
    longer[: len(ids)] = ids
    return longer


def contexts(stream: np.ndarray, K: int, *, eos: bool = False) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts X and targets Y of every prediction in a stream.

    X is [M, K] with the nearest token first, and Y [M]; eos: whether the `<pad>` after each document is a prediction.

    >>> X, Y = contexts(np.array([0, 5, 6, 0, 7, 0]), 2)
    >>> X.tolist(), Y.tolist()
    ([[0, 0], [5, 0], [0, 0]], [5, 6, 7])
    """
    return window_contexts(with_leading_pads(stream, K), K, eos=eos)


def window_contexts(
    window: np.ndarray, K: int, *, eos: bool = False
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of `window[K:]`; the first K tokens are context."""
    Y = window[K:]
    predicted = slice(None) if eos else Y != PAD
    return np.stack([c[predicted] for c in context_columns(window, K)], axis=1), Y[predicted]


def distinct_contexts(
    X: Integer[np.ndarray, "M K"], times: Integer[np.ndarray, " M"] | None = None, *, ordered: bool = True
) -> tuple[Integer[np.ndarray, "u K"], Int[np.ndarray, " u"]]:
    """The distinct contexts and their counts: partition functions are computed once for each.

    times: [M] multiplicity of each row of X; default, 1. ordered: whether the order of the tokens matters (not for Sum).
    """
    columns, n = distinct_rows(list((X if ordered else np.sort(X, axis=1)).T), int(X.max(initial=0)) + 1, times)
    return np.stack(columns, axis=1).astype(X.dtype, copy=False), n.astype(np.int64)


def distinct_rows(
    columns: Sequence[Integer[np.ndarray, " M"]], N: int, times: Integer[np.ndarray, " M"] | None = None
) -> tuple[list[Integer[np.ndarray, " u"]], Int[np.ndarray, " u"]]:
    """The distinct rows of columns of ids below N, sorted, and their counts.

    A row is one integer, whose digits are its ids; where it would grow too large, the values so far are numbered.
    """
    key, bound, numbered = columns[0].astype(np.int64), N, []
    for column in columns[1:]:
        values = None
        if bound * N > _largest:
            values, key = np.unique(key, return_inverse=True)
            bound = len(values)
        key *= N
        np.add(key, column, out=key, dtype=np.int64, casting="unsafe")  # also of unsigned integers
        bound *= N
        numbered.append(values)
    if times is None:
        key, n = tally(key)
    else:
        key, place = np.unique(key, return_inverse=True)
        n = np.bincount(place, times, minlength=len(key)).astype(np.int64)
    found = []
    for values in reversed(numbered):
        key, digit = quotient_and_rest(key, N)
        found.append(digit.astype(np.min_scalar_type(N)))
        key = key if values is None else values[key]
    return [key, *reversed(found)], n


def tally(keys: Integer[np.ndarray, " M"]) -> tuple[Integer[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """The different keys in order with their counts; keys are sorted in place."""
    keys.sort()
    first = np.flatnonzero(np.concatenate([np.ones(min(len(keys), 1), bool), keys[1:] != keys[:-1]]))
    return keys[first], np.diff(first, append=len(keys)).astype(np.int32)


def quotient_and_rest(keys: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Quotient and remainder; NumPy's own take ten times as long."""
    quotient = keys // size
    rest = quotient * size
    return quotient, np.subtract(keys, rest, out=rest)


def hold_out(stream: np.ndarray, *, positions: int, most: float = 0.1, blocks: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Hold whole documents out of a stream, in blocks spread evenly.

    Neighbouring documents are similar: a single held-out document would be more predictable than new text, and a single block
    would be from one source only. Documents more than twice as long as the held-out text stay if there is a shorter one. Of a
    single document the last part is held out, and the pairs across the boundary are in neither stream.

    positions: approximate number of tokens to hold out; most: approximate upper bound on the share of the stream; blocks: their
    approximate number, fewer for long documents. Returns the remaining and the held-out documents, as streams.
    """
    if positions < 1 or most <= 0 or blocks < 1:
        raise ValueError(f"{positions} positions, at most a share of {most}, in {blocks} blocks: all must be above 0")
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads)  # of documents, including their final <pad>
    share = min(positions / len(stream), most)
    if len(lengths) < 2:
        cut = len(stream) - 1 - max(1, round(share * len(stream)))
        if cut < 2:
            raise ValueError(f"a text of {len(stream) - 2} token(s): too short to hold out a part; use a longer text")
        return np.append(stream[:cut], stream[:1]), np.concatenate([stream[:1], stream[cut:]])
    wanted = share * len(stream)
    gap = (1 - share) * wanted / blocks  # deficit of held-out tokens that starts a block; it grows by the block's own share
    chosen, owed, holding = np.zeros(len(lengths), bool), gap / 2, False
    for d, length in enumerate(lengths):
        owed += share * length
        holding = length <= wanted + owed and owed >= (length / 2 if holding else gap)
        if holding:
            chosen[d], owed = True, owed - length
    if 2 * lengths[chosen].sum() < wanted or chosen.all():  # long documents: hold out the one of nearest size
        misfit = np.where(2 * lengths > len(stream), np.inf, np.abs(np.log(lengths / wanted)))
        chosen[:] = np.arange(len(lengths)) == np.argmin(misfit)
    of_token = np.repeat(chosen, lengths)
    first, others = stream[:1], stream[1:]
    return np.concatenate([first, others[~of_token]]), np.concatenate([first, others[of_token]])


def cut_documents(stream: np.ndarray, longest: int) -> np.ndarray:
    """The same text with long documents split to `longest` tokens."""
    pads = np.flatnonzero(stream == PAD)
    lengths = np.diff(pads) - 1
    pieces = np.maximum(1, -(-lengths // longest))
    document = np.repeat(np.arange(len(lengths)), pieces - 1)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(pieces - 1) - (pieces - 1), pieces - 1) + 1
    return np.insert(stream, pads[document] + 1 + nth * lengths[document] // pieces[document], PAD)
