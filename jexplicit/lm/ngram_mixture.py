"""The language model of joint features: rows of single tokens, of contexts of several tokens, and of the recent past.

Everything is counted; what is fitted is one exponent per table. Tables: the unigram, the smoothed rows of eight offsets, the
Kneser-Ney chain of contexts of one to four tokens, four pairs of tokens with a gap, and, on request, caches.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from jexplicit.counts.dense import Counts
from jexplicit.data.contexts import PAD, contexts
from jexplicit.lm.calibration import Calibration, fit_exponents
from jexplicit.lm.log_linear import OffsetRows, Smoothing, first_exponents, offset_rows
from jexplicit.lm.ngrams import JointFeature, cache_rows, context_numbers, dense_rows, joint_feature
from jexplicit.lm.reading import LogTables, Positions, log_probabilities, select

RADIUS = 8
CHAIN = (1, 2, 3, 4)
GAPS = ((1, 3), (2, 3), (1, 4), (2, 4))

KINDS = ("unigram", "offset", "context", "gap", "cache")  # of tables

_positions_per_call = 1 << 14
_threads = min(2, os.cpu_count() or 1)  # each holds some copies of the text


class Cache(NamedTuple):
    """A row of the last `length` tokens; of the successors of the previous token there, if so."""

    length: int
    successors: bool = False


CACHES = (Cache(50), Cache(400), Cache(2000), Cache(2000, successors=True))


class Text(NamedTuple):
    """The predictions of a stream: contexts, targets, and the targets' places in it."""

    stream: Integer[np.ndarray, " L"]
    X: Integer[np.ndarray, "M K"]
    Y: Integer[np.ndarray, " M"]
    places: Integer[np.ndarray, " M"]


class JointTables(NamedTuple):
    """All that is counted.

    offsets: rows of single tokens.
    nearest: [N, N] the chain's rows of the nearest token, from continuation counts; over the unigram, as all rows are, where
        the chain's own are over what it backs off to.
    chain: contexts of one to four tokens.
    gaps: pairs with a gap.
    caches: what the recent past is asked for.
    """

    offsets: OffsetRows
    nearest: Float[Array, "N N"]
    chain: JointFeature
    gaps: tuple[JointFeature, ...]
    caches: tuple[Cache, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What every table is, in the order of the exponents."""
        return (
            "unigram",
            *(f"offset {k}" for k in range(1, len(self.offsets.tables) + 1)),
            *(f"context {n}" for n in range(1, len(self.chain.keys) + 2)),
            *(f"gap {i}, {j}" for i, j in GAPS),
            *(f"cache {c.length}{' successors' if c.successors else ''}" for c in self.caches),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        dense = (self.offsets.log_p, *self.offsets.tables, self.nearest)
        return sum(table.nbytes for table in dense) + sum(feature.nbytes for feature in (self.chain, *self.gaps))


def joint_text(stream: np.ndarray, *, eos: bool = False) -> Text:
    """The predictions of a stream, `<pad> d_1 <pad> ... d_n <pad>`."""
    X, Y = contexts(stream, RADIUS, eos=eos)
    places = np.arange(1, len(stream)) if eos else np.flatnonzero(stream[1:] != PAD) + 1
    return Text(stream, X, Y, places)


def joint_tables(
    text: Text,
    counts: Counts,
    *,
    eos: bool = False,
    smoothing: Smoothing = "kneser-ney",
    caches: tuple[Cache, ...] = (),
    progress: Callable[[int, int], None] | None = None,
) -> JointTables:
    """Count and smooth all tables of a text.

    Args:
        text: of `joint_text`.
        counts: of the same stream, with a radius of at least RADIUS.
        eos: predict the end of a document too, as the text does.
        smoothing: of the rows of single tokens.
        caches: recent pasts that a prediction may ask for; they have no table.
        progress: called with (features done, features in all).

    Raises:
        ValueError: counts of a smaller radius.
    """
    N, groups, done = len(counts[0]), (CHAIN, *GAPS), []

    def build(offsets: tuple[int, ...]) -> JointFeature:
        feature = joint_feature(text.X, text.Y, offsets=offsets, vocab_size=N)
        done.append(offsets)
        if progress:
            progress(len(done), len(groups))
        return feature

    with ThreadPoolExecutor(_threads) as pool:  # NumPy sorts without the interpreter's lock
        chain, *gaps = pool.map(build, groups)
    rows = offset_rows(counts, features="cat", radius=RADIUS, eos=eos, smoothing=smoothing)
    backs_off_to = jnp.log(jnp.asarray(chain.lower[None], rows.log_p.dtype)) - rows.log_p
    return JointTables(rows, dense_rows(chain.rows[0], N) + backs_off_to, chain, tuple(gaps), caches)


def read_tables(tables: JointTables, text: Text, m: np.ndarray) -> tuple[LogTables, Positions]:
    """The log-linear model of some positions m of a text; a cache's rows are of these positions alone."""
    X = text.X[m]
    chain = context_numbers(tables.chain, X)
    gaps = [context_numbers(gap, X)[:, -1:] for gap in tables.gaps]
    own = [np.arange(len(m))[:, None]] * len(tables.caches)
    rows = np.concatenate([np.zeros_like(chain[:, :1]), X, chain, *gaps, *own], axis=1)
    log_p = np.asarray(tables.offsets.log_p[0], np.float64)
    recent = tuple(
        cache_rows(text.stream, text.places[m], log_p, length=cache.length, successors=cache.successors)
        for cache in tables.caches
    )
    sparse = (*tables.chain.rows[1:], *(gap.rows[-1] for gap in tables.gaps), *recent)
    log_tables = LogTables((tables.offsets.log_p, *tables.offsets.tables, tables.nearest), sparse)
    return log_tables, Positions(rows, np.broadcast_to(np.arange(rows.shape[1]), rows.shape))


def fit_joint(
    tables: JointTables,
    held_out: Text,
    m: np.ndarray,
    *,
    kinds: tuple[str, ...] = KINDS,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The exponents with the lowest loss on positions m of a text that the tables have not seen.

    Args:
        tables: of another text.
        held_out: the text to fit on.
        m: which of its positions.
        kinds: which kinds of tables the model has, by the first word of their names; the exponents of the others are 0.
        progress: called with (passes done, most passes).
    """
    log_tables, positions = read_tables(tables, held_out, m)
    columns = [c for c, name in enumerate(tables.names) if name.split()[0] in kinds]
    chain, gaps = [0.5, *[0.7] * len(tables.chain.keys)], [0.1] * len(tables.gaps)
    offsets = 0.1 * first_exponents(tables.offsets)[1:]
    start = np.zeros(len(tables.names))
    start[columns] = np.array([0.6, *offsets, *chain, *gaps, *[0.2] * len(tables.caches)])[columns]
    some = select(log_tables, positions, columns)
    fitted = fit_exponents(*some, held_out.Y[m], start, tolerance=1e-4, progress=progress)
    return fitted._replace(exponents=np.where(np.isin(np.arange(len(start)), columns), fitted.exponents, 0))


def kneser_ney_exponents(tables: JointTables) -> Float[np.ndarray, " S"]:
    """Exponents 1 for the unigram and the chain, 0 for the rest: the chain's ratios cancel, and what is left is Kneser-Ney."""
    return np.array([float(name.split()[0] in ("unigram", "context")) for name in tables.names])


def joint_log_probabilities(
    tables: JointTables,
    exponents: Float[np.ndarray, " S"],
    text: Text,
    m: np.ndarray | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Float[np.ndarray, " M"]:
    """`log p(y | everything before it)` of positions m of a text (default, of all), in nats."""
    m = np.arange(len(text.Y)) if m is None else m
    columns = [0, *(1 + np.flatnonzero(exponents[1:])).tolist()]  # a table with exponent 0 need not be read
    out = []
    for first in range(0, len(m), _positions_per_call):
        now = m[first : first + _positions_per_call]
        log_tables, positions = select(*read_tables(tables, text, now), columns)
        out.append(log_probabilities(log_tables, exponents, positions, text.Y[now]))
        if progress:
            progress(min(first + _positions_per_call, len(m)), len(m))
    return np.concatenate(out)
