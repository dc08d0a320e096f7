"""Rows of the recent past: what occurred in the last tokens is likelier to occur again.

    row[i] = log(1 + c_i / (n₊ p_i)),

c_i counts token i among the last tokens, and n₊ different ones are there: the unigram of the past with a Dirichlet
prior at p, over p. The past goes across the borders of documents.

Source: Kuhn & De Mori 1990 for the cache; as a log-linear row, this project.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jexplicit.data.contexts import PAD
from jexplicit.lm.model import HISTORY, NOTHING, pytree, static
from jexplicit.lm.rows.log_tables import SparseRows, ranges

_counters = 1 << 23  # at a time


class Cache(NamedTuple):
    """A row of the last `length` tokens, or only of those that followed the previous token there."""

    length: int
    successors: bool = False


@pytree
class CacheRows:
    """A row for each of several caches.

    log_p: [N] log unigram.
    caches: what each row looks at.
    """

    log_p: Any
    caches: tuple[Cache, ...] = static()

    names = property(lambda self: tuple(f"cache {c.length}{' successors' if c.successors else ''}" for c in self.caches))
    tokens = property(lambda self: (HISTORY,) * len(self.caches))
    radius = property(lambda self: 1)
    history = property(lambda self: max((c.length + c.successors for c in self.caches), default=0))
    vocab_size = property(lambda self: self.log_p.shape[0])

    def read(self, context, history=None):
        return [recent_row(history, self.log_p, cache) for cache in self.caches]

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, np.ndarray, Any]]:
        """A sparse table of a row per position for each cache."""
        log_p, own = np.asarray(self.log_p, np.float64), np.arange(len(X))
        read = past.stream, past.places, log_p
        return [
            (cache_rows(*read, length=c.length, successors=c.successors, starts=past.starts), own, None) for c in self.caches
        ]


def recent_row(history: Any, log_p: Any, cache: Cache) -> Float[Array, " N"]:
    """The row of one cache after one history, nearest token first: pure.

    Example:
        >>> row = recent_row(jnp.array([1, 1, 0]), jnp.log(jnp.array([0.25, 0.5, 0.25])), Cache(2))
        >>> jnp.exp(row).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        [1.0, 5.0, 1.0]
    """
    log_p = jnp.asarray(log_p)
    N, recent = len(log_p), history[: cache.length]
    counted = (recent != PAD) & (recent != NOTHING)
    if cache.successors:
        before = history[1 : cache.length + 1]
        counted = counted[: len(before)] & (before == history[0])
    ids = jnp.where(counted, recent[: len(counted)], N)
    c = jnp.zeros(N, log_p.dtype).at[ids].add(1, mode="drop")
    different = jnp.maximum((c > 0).sum(), 1).astype(log_p.dtype)
    return jnp.log1p(c / (different * jnp.exp(log_p)))


def cache_rows(
    stream: np.ndarray,
    targets: Int[np.ndarray, " M"],
    log_p: Float[np.ndarray, " N"],
    *,
    length: int,
    successors: bool = False,
    starts: Int[np.ndarray, " M"] | None = None,
) -> SparseRows:
    """Rows of the recent past, `row_m[i] = log(1 + c_i / (n₊ p_i))`: a Dirichlet-smoothed unigram of the last tokens over p.

    c_i counts token i among the `length` tokens before position m, borders of documents ignored, and n₊ is the number of
    different tokens there (the strength that Witten and Bell give the prior). Row m is read by position m alone.

    Args:
        stream: [L] token ids.
        targets: places in the stream of the M targets.
        log_p: [N] log unigram.
        length: tokens to look back.
        successors: count only what followed the previous token where that occurred before.
        starts: [M] place of a `<pad>` that each target's past begins from; default, the start of the stream.

    Raises:
        ValueError: a length below 1.

    Example:
        >>> rows = cache_rows(np.array([0, 1, 1, 2]), np.array([3]), np.log([0.25, 0.5, 0.25]), length=2)
        >>> rows.outputs.tolist(), np.exp(rows.values).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        ([1], [5.0])

    Source: Kuhn & De Mori 1990 for the cache; as a log-linear row, this project.
    """
    if length < 1:
        raise ValueError(f"cache of {length} tokens: look back at least one")
    N, per_block = len(log_p), max(1, _counters // len(log_p))
    starts = np.zeros(len(targets), np.int64) if starts is None else starts
    blocks = [slice(m, m + per_block) for m in range(0, len(targets), per_block)]
    parts = [_recent(stream, targets[m], starts[m], N, length, successors) for m in blocks]
    keys = np.concatenate([part[0] + b * per_block * N for b, part in enumerate(parts)])
    counts = np.concatenate([part[1] for part in parts])
    different = np.bincount(keys // N, minlength=len(targets))
    values = np.log1p(counts / (different[keys // N] * np.exp(log_p[keys % N])))
    start = np.searchsorted(keys, np.arange(len(targets) + 1) * N)
    return SparseRows(start, (keys % N).astype(np.int32), values.astype(np.float32))


def _recent(
    stream: np.ndarray, targets: np.ndarray, starts: np.ndarray, N: int, length: int, successors: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Keys `position * N + token` of what occurred in the recent past of a few positions, sorted, and how often."""
    first = np.maximum(targets - length, starts + 1)
    n = np.maximum(targets - first, 0)
    m, place = np.repeat(np.arange(len(targets)), n), ranges(first, first + n)
    counted = stream[place] != PAD
    if successors:
        counted &= stream[place - 1] == np.repeat(stream[targets - 1], n)
    counts = np.bincount(m[counted] * N + stream[place[counted]], minlength=len(targets) * N)
    keys = np.flatnonzero(counts)
    return keys, counts[keys]
