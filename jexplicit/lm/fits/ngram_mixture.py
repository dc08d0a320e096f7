"""The mixture of n-gram rows: single tokens at eight offsets, contexts of several tokens, and the recent past.

    logits = a_0 log p + sum_g a_g row_g

The rows are counted: the Kneser-Ney chain of contexts of one to four tokens, smoothed rows of eight offsets, four pairs of
tokens with a gap and, where the history may be seen, caches. What is fitted is one exponent per row, on held-out text. With
exponents 1 for the unigram and the chain, and 0 elsewhere, the mixture is the n-gram model itself.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jexplicit.counts.sparse import SparseCounts
from jexplicit.lm.evaluation import Text, read_tables
from jexplicit.lm.fits.calibration import Calibration, fit_exponents
from jexplicit.lm.model import Constant, History, LanguageModel, dense_where_small
from jexplicit.lm.rows.cache import Cache, CacheRows
from jexplicit.lm.rows.log_tables import select
from jexplicit.lm.rows.ngrams import Ngrams, ngram_rows
from jexplicit.lm.rows.sparse import SparseTables, relative_frequencies, smoothed_offset_rows, targets_of
from jexplicit.lm.smoothing import Smoothing

RADIUS = 8
CHAIN = (1, 2, 3, 4)
GAPS = ((1, 3), (2, 3), (1, 4), (2, 4))
CACHES = (Cache(50), Cache(400), Cache(2000), Cache(2000, successors=True))

_threads = min(2, os.cpu_count() or 1)  # each holds some copies of the text

_starts = {"unigram": 0.6, "context": 0.7, "gap": 0.1, "cache": 0.2}  # where a fit begins, by kind of row


def ngram_model(chain: Ngrams, f: Int[np.ndarray, " N"], *, eos: bool = False) -> LanguageModel:
    """The interpolated modified Kneser-Ney model: the chain's rows over the unigram, all exponents 1.

    Args:
        chain: of `smoothed_ngrams` with offsets 1, 2, ... .
        f: [N] how often each token is a target of the text.
        eos: whether the text predicts the end of a document.

    Source: Chen & Goodman 1999, Sec. 4.
    """
    rows = (_unigram(f), *_chain_rows(chain, f))
    return LanguageModel(rows, np.ones(1 + len(chain.offsets), np.float32), "none", eos)


def mixture_rows(
    ngrams: Callable[[tuple[int, ...]], Ngrams],
    counts: SparseCounts,
    *,
    eos: bool = False,
    smoothing: Smoothing = "kneser-ney",
    history: History = "none",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Any, ...]:
    """Count and smooth all rows of a text.

    Args:
        ngrams: the smoothed contexts of the text at some offsets, `smoothed_ngrams` for one; called from several threads.
        counts: of the same stream, with a radius of at least RADIUS.
        eos: predict the end of a document too, as the text does.
        smoothing: of the rows of single tokens.
        history: "all" for the caches too, which have no table.
        progress: called with (groups of contexts done, groups in all).

    Raises:
        ValueError: counts of a smaller radius, or another smoothing than those of jexplicit.lm.smoothing.
    """
    if len(counts) < RADIUS:
        raise ValueError(f"counts of offsets 1..{len(counts)}: the mixture reads {RADIUS}; count with radius {RADIUS}")
    groups, done = (CHAIN, *GAPS), []

    def build(offsets: tuple[int, ...]) -> Ngrams:
        found = ngrams(offsets)
        done.append(offsets)
        if progress:
            progress(len(done), len(groups))
        return found

    with ThreadPoolExecutor(_threads) as pool:  # NumPy sorts without the interpreter's lock
        chain, *gaps = pool.map(build, groups)
    f = targets_of(counts[0], eos=eos)
    unigram = _unigram(f)
    log_p = np.asarray(unigram.row)
    rows = (
        unigram,
        smoothed_offset_rows(counts[:RADIUS], eos=eos, smoothing=smoothing, over=log_p),
        *_chain_rows(chain, f),
        *(ngram_rows(pair, (f"gap {i}, {j}",)) for (i, j), pair in zip(GAPS, gaps, strict=True)),
    )
    return with_history(rows, history)


def with_history(rows: tuple[Any, ...], history: History) -> tuple[Any, ...]:
    """The rows, with caches where the history may be seen and without them where it may not."""
    rows = tuple(kind for kind in rows if not isinstance(kind, CacheRows))
    return (*rows, CacheRows(rows[0].row, CACHES)) if history == "all" else rows


def fit_mixture(
    rows: tuple[Any, ...],
    held_out: Text,
    m: np.ndarray,
    *,
    kinds: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The exponents with the lowest loss on positions m of a text that the rows have not seen.

    Args:
        rows: of another text.
        held_out: the text to fit on.
        m: which of its positions.
        kinds: which rows the model has, by the first word of their names; the exponents of the others are 0. Default, all.
        progress: called with (passes done, most passes).
    """
    model = dense_where_small(LanguageModel(rows, starting_exponents(rows)))
    start = np.array(
        [a if not kinds or name.split()[0] in kinds else 0 for a, name in zip(model.exponents, model.names, strict=True)]
    )
    X, past = held_out.X[m][:, : model.radius], held_out.past.take(m)
    tables, positions = read_tables(replace(model, exponents=start), X, past, all_rows=not kinds)
    if kinds:  # the unigram is always read
        columns = np.flatnonzero(start[positions.exponents[0]]).tolist()
        tables, positions = select(tables, positions, columns)
    return fit_exponents(tables, positions, held_out.Y[m], start, tolerance=1e-4, progress=progress)


def starting_exponents(rows: tuple[Any, ...]) -> Float[np.ndarray, " G"]:
    """Rough guesses that a fit starts from."""
    names = [name for kind in rows for name in kind.names]
    guesses = [0.1 / int(name.split()[1]) if name.startswith("offset") else _starts[name.split()[0]] for name in names]
    return np.array([0.5 if name == "context 1" else guess for name, guess in zip(names, guesses, strict=True)])


def _unigram(f: np.ndarray) -> Constant:
    return Constant(jnp.asarray(np.log(relative_frequencies(f)), jnp.float32))


def _chain_rows(chain: Ngrams, f: np.ndarray) -> tuple[Any, ...]:
    """The chain over the unigram: its rows of the nearest token, from continuation counts, and those of longer contexts."""
    base = np.log(chain.lower) - np.log(relative_frequencies(f))
    nearest = chain.rows[0]
    first = SparseTables((base.astype(np.float32),), (nearest,), (0,), (nearest.longest,), name="context")
    return first, ngram_rows(chain, tuple(f"context {n}" for n in range(2, len(chain.offsets) + 1)))
