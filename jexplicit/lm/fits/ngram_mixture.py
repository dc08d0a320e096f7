"""The mixture of counted rows: single tokens, contexts of several tokens, words of characters, and the recent past.

    logits = a_0 log p + sum_g a_g row_g

The rows are counted: what they are is chosen by name from ROWS, and what a prediction may see of the text before by `history`.
What is fitted is one exponent per row, or one for each of a few confidences, on held-out text. With exponents 1 for the unigram
and the contexts, and 0 elsewhere, the mixture is the Kneser-Ney n-gram model itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jexplicit.lm.evaluation import Text, read_tables, read_text
from jexplicit.lm.fits.calibration import Calibration, fit_exponents
from jexplicit.lm.fits.training_text import RADIUS, TrainingText
from jexplicit.lm.fits.word_classes import cluster, word_vectors
from jexplicit.lm.model import Constant, LanguageModel, dense_where_small, exponents_per_row, window_of
from jexplicit.lm.rows.cache import Cache, CacheRows
from jexplicit.lm.rows.log_tables import select
from jexplicit.lm.rows.ngrams import Ngrams, ngram_rows, smoothed_ngrams
from jexplicit.lm.rows.sparse import SparseTables, relative_frequencies, smoothed_offset_rows, targets_of
from jexplicit.lm.rows.words import EMPTY, WordRows, view_contexts, word_view
from jexplicit.lm.smoothing import Smoothing

CHAIN = (1, 2, 3, 4)
GAPS = ((1, 3), (2, 3), (1, 4), (2, 4))
GAPS_OF_THREE = ((1, 2, 4), (1, 3, 4), (2, 3, 4))
SKIPS = ((2, 3, 4, 5), (3, 4, 5, 6))
WORDS = {"since": 1, "part": 2, "one": 3, "two": 4}  # columns of a view
WORD_RADIUS = 48  # characters in which the words of a context stand
WORD_CLASSES = (30, 150, 500)
CACHES = (Cache(50), Cache(400), Cache(2000), Cache(2000, match=1))
NEAR = (0, 1, 2, 3, 4, 6)  # tokens that caches of a window match

_positions_of_a_guess = 5000
_starts = {  # where a fit begins, by kind of row
    "unigram": 0.6,
    "context": 0.7,
    "gap": 0.1,
    "skip": 0.2,
    "word": 0.3,
    "class": 0.2,
    "cache": 0.2,
}


class RowKind(NamedTuple):
    """Rows that a mixture may have.

    about: what they are.
    build: `text, smoothing, confidence -> kinds of rows`.
    radius: tokens of a context that they read.
    groups: the offsets of the contexts that they need, which are counted side by side.
    """

    about: str
    build: Callable[[TrainingText, Smoothing, bool], tuple[Any, ...]]
    radius: int
    groups: tuple[tuple[int, ...], ...] = ()


SUBWORD_ROWS = ("offsets", "contexts-4", "gaps")
CHARACTER_ROWS = ("contexts-8", "skips", "words", "word-classes", "confidence")


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
    text: TrainingText,
    names: Sequence[str] = SUBWORD_ROWS,
    *,
    smoothing: Smoothing = "kneser-ney",
    history: str = "none",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Any, ...]:
    """Count and smooth all rows of a text.

    Args:
        text: to count.
        names: which rows, of ROWS, and "confidence" for an exponent for each of CONFIDENCES in place of one for each row.
        smoothing: of the rows of single tokens.
        history: what a prediction may see beyond its context; other than "none" adds caches, which have no table.
        progress: called with (groups of contexts done, groups in all).

    Raises:
        ValueError: an unknown name of rows, or another smoothing than those of jexplicit.lm.smoothing.
    """
    check_rows(names)
    wanted = [name for name in names if name != CONFIDENCE]
    groups = [offsets for name in wanted for offsets in ROWS[name].groups]

    def count() -> tuple[Any, ...]:
        text.count_ngrams(groups, progress)
        kinds = [kind for name in wanted for kind in ROWS[name].build(text, smoothing, CONFIDENCE in names)]
        return (_unigram(_target_counts(text)), *kinds)

    rows = text.once(("mixture", tuple(names), smoothing), count)
    return with_history(rows, history, text.letters if {"words", "word-classes"} & set(names) else None)


def rows_radius(names: Sequence[str]) -> int:
    """The tokens of a context that rows read, at most."""
    return max([1, *(ROWS[name].radius for name in names if name in ROWS)])


def check_rows(names: Sequence[str]) -> None:
    """Refuse names of rows that there are not.

    Raises:
        ValueError: with the names that there are.
    """
    if not names:
        raise ValueError(f"a mixture of no rows: choose some of {', '.join(ROWS)}")
    if unknown := [name for name in names if name not in (*ROWS, CONFIDENCE)]:
        raise ValueError(f"rows {', '.join(unknown)}: choose from {', '.join(ROWS)}, and {CONFIDENCE}")


def with_history(rows: tuple[Any, ...], history: str, letters: np.ndarray | None = None) -> tuple[Any, ...]:
    """The rows, with caches of what the history may see and without them where it may see nothing."""
    rows = tuple(kind for kind in rows if not isinstance(kind, CacheRows))
    caches = history_caches(history, words=letters is not None)
    if not caches:
        return rows
    known = None if letters is None else jnp.asarray(letters)
    return (*rows, CacheRows(rows[0].row, caches, known, within_documents=history == "document"))


def history_caches(history: str, *, words: bool = False) -> tuple[Cache, ...]:
    """The caches of a history, none of which sees more than the history has.

    Example:
        >>> [cache.reach for cache in history_caches("window:256")]
        [256, 256, 256, 256, 256, 256]
    """
    window = window_of(history)
    if history == "none":
        return ()
    near = tuple(Cache(W - k, k) for k in NEAR) if (W := window or (256 if words else 0)) else ()
    in_words = (Cache(W - Cache(0, word=True).reach, word=True),) if words else ()
    return near + in_words if window else (*CACHES, *near, *in_words)


def _target_counts(text: TrainingText) -> Int[np.ndarray, " N"]:
    return text.once("target counts", lambda: targets_of(text.sparse_counts(1)[0], eos=text.eos))


def _build_offsets(text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    log_p = np.asarray(_unigram(_target_counts(text)).row)
    counts = text.sparse_counts(RADIUS)[:RADIUS]
    return (smoothed_offset_rows(counts, eos=text.eos, smoothing=smoothing, over=log_p),)


def _build_contexts(offsets: tuple[int, ...], text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    return _chain_rows(text.ngrams(offsets), _target_counts(text), confidence=confidence)


def _build_last(offsets: Sequence[tuple[int, ...]], text: TrainingText, smoothing: Smoothing, confidence: bool):
    """The longest contexts of each group alone, over those that they extend."""
    return tuple(
        ngram_rows(text.ngrams(group), (f"gap {', '.join(map(str, group))}",), confidence=confidence) for group in offsets
    )


def _build_skips(text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    """Contexts of all lengths that leave out the nearest tokens."""
    return tuple(
        ngram_rows(text.ngrams(group), tuple(f"skip {group[0]}-{group[n]}" for n in range(len(group))), confidence=confidence)
        for group in SKIPS
    )


def _build_words(classes: Sequence[int], text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    """Contexts of the part of the word and the words before, or classes of these."""
    view, columns, Y = text.once("words", lambda: _word_contexts(text))
    if classes:
        found = text.once("classes", lambda: _classes(view, columns, Y, text))
        view = replace(view, classes=tuple(map(jnp.asarray, found)))
        words = columns[:, [WORDS["one"] - 1, WORDS["two"] - 1]]
        columns = np.concatenate([columns, *(classes_of[words] for classes_of in found)], axis=1)  # as the view has them
        groups = [(f"class {C}", (1, 5 + 2 * n, 6 + 2 * n), 2) for n, C in enumerate(classes)]
    else:
        groups = [("word since", (1, 3, 4), 3), ("word part", (2, 3, 4), 3), ("word skip", (1, 4), 1)]
    parts = []
    for name, group, levels in groups:
        sizes = tuple(view.sizes[column - 1] for column in group)
        counted = smoothed_ngrams(columns, Y, offsets=group, vocab_size=text.vocab_size, sizes=sizes)
        names = tuple(f"{name}, {n} before" for n in range(len(group) - levels, len(group)))
        parts.append(ngram_rows(counted, names, confidence=confidence))
    return (WordRows(view, tuple(parts)),)


def _letters(text: TrainingText) -> np.ndarray:
    if text.letters is None:
        raise ValueError("rows of words and no letters: they are for texts of characters; choose other rows")
    return text.letters


def _word_contexts(text: TrainingText) -> tuple[Any, np.ndarray, np.ndarray]:
    """The view of a text's words, what it says of every position, and the targets."""
    view = word_view(text.in_memory, _letters(text), radius=WORD_RADIUS)
    X, Y, _ = read_text(text.in_memory, view.radius, eos=text.eos)
    return view, view_contexts(view, X), Y


def _classes(view: Any, columns: np.ndarray, Y: np.ndarray, text: TrainingText) -> list[np.ndarray]:
    """[nodes] the class of every word that a text has, for each clustering."""
    part = columns[:, WORDS["part"] - 1]
    words = part[~_letters(text)[Y] & (part != EMPTY)]  # a word has ended where the next token is no letter
    nodes, word = np.unique(words, return_inverse=True)
    stream = np.concatenate([[0], 1 + word, [0]])
    counts = np.bincount(stream)
    counts[0] = 0
    vectors, found = word_vectors(stream, len(counts)), []
    for C in WORD_CLASSES:
        of_node = np.zeros(len(view.child), np.int32)
        of_node[nodes] = cluster(vectors, counts, C)[1:]
        found.append(of_node)
    return found


def fit_mixture(
    rows: tuple[Any, ...],
    held_out: Text,
    m: np.ndarray,
    *,
    kinds: Sequence[str] | None = None,
    ridge: float = 1e-4,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """The exponents with the lowest loss on positions m of a text that the rows have not seen.

    Args:
        rows: of another text.
        held_out: the text to fit on.
        m: which of its positions.
        kinds: which rows the model has, by the first word of their names; the exponents of the others are 0. Default, all.
        ridge: strength of the penalty on the distance from `starting_exponents`.
        progress: called with (passes done, most passes).
    """
    model = dense_where_small(LanguageModel(rows, starting_exponents(rows)))
    start = model.exponents * np.array([not kinds or name.split()[0] in kinds for name in exponent_names(rows)])
    X, past = held_out.X[m][:, : model.radius], held_out.past.take(m)
    tables, positions = read_tables(replace(model, exponents=start), X, past, all_rows=not kinds)
    if kinds:  # the unigram is always read
        columns = np.flatnonzero(start[positions.exponents].any(axis=0)).tolist()
        tables, positions = select(tables, positions, columns)
    Y, fit = held_out.Y[m], partial(fit_exponents, tables, ridge=ridge, tolerance=1e-4, progress=progress)
    if len(m) < 8 * _positions_of_a_guess:
        return fit(positions, Y, start)
    some = slice(None, None, len(m) // _positions_of_a_guess)  # most of Newton's steps need few positions
    return fit(positions, Y, start, guess=fit(positions.take(some), Y[some], start).exponents)


def starting_exponents(rows: tuple[Any, ...]) -> Float[np.ndarray, " S"]:
    """Rough guesses that a fit starts from."""
    guesses = [_guess(name) for name in exponent_names(rows)]
    return np.array(guesses)


def _guess(name: str) -> float:
    kind, number = [*name.split(), "0"][:2]
    if kind == "offset":
        return 0.1 / int(number)
    return 0.5 if name == "context 1" else _starts[kind]


def exponent_names(rows: tuple[Any, ...]) -> list[str]:
    """The row of every exponent."""
    return [name for kind in rows for name, n in zip(kind.names, exponents_per_row(kind), strict=True) for _ in range(n)]


def _unigram(f: np.ndarray) -> Constant:
    return Constant(jnp.asarray(np.log(relative_frequencies(f)), jnp.float32))


def _chain_rows(chain: Ngrams, f: np.ndarray, *, confidence: bool = False) -> tuple[Any, ...]:
    """The chain over the unigram: its rows of the nearest token, from continuation counts, and those of longer contexts."""
    base = np.log(chain.lower) - np.log(relative_frequencies(f))
    nearest = chain.rows[0]
    first = SparseTables((base.astype(np.float32),), (nearest,), (0,), (nearest.longest,), name="context")
    longer = tuple(f"context {n}" for n in range(2, len(chain.offsets) + 1))
    return first, ngram_rows(chain, longer, confidence=confidence)


CONFIDENCE = "confidence"
CHAIN_OF_EIGHT = tuple(range(1, 9))
ROWS = {
    "offsets": RowKind("single tokens, 1 to 8 back", _build_offsets, RADIUS),
    "contexts-4": RowKind("contexts of 1 to 4 tokens", partial(_build_contexts, CHAIN), 4, (CHAIN,)),
    "contexts-8": RowKind("contexts of 1 to 8 tokens", partial(_build_contexts, CHAIN_OF_EIGHT), 8, (CHAIN_OF_EIGHT,)),
    "gaps": RowKind("pairs of tokens with a gap", partial(_build_last, GAPS), 4, GAPS),
    "gaps-of-three": RowKind("three tokens with a gap", partial(_build_last, GAPS_OF_THREE), 4, GAPS_OF_THREE),
    "skips": RowKind("contexts that leave out the nearest token, or two", _build_skips, 6, SKIPS),
    "words": RowKind("of characters: the part of the word, and the words before", partial(_build_words, ()), WORD_RADIUS),
    "word-classes": RowKind(
        "of characters: the same with classes of the words", partial(_build_words, WORD_CLASSES), WORD_RADIUS
    ),
}
"""The rows of a mixture, by name."""
