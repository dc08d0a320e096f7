"""The counted rows of a mixture, by name, and what a prediction may see of the text before.

Every row is a log-ratio of a smoothed distribution to the one that it backs off to. ROWS says which there are.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np

from jexplicit.counts.sparse import count_sparse
from jexplicit.data.contexts import PAD
from jexplicit.lm.core.model import Constant, Rows, TableRows, window_of
from jexplicit.lm.core.names import SUBWORD_ROWS, AdaptiveKind
from jexplicit.lm.core.smoothing import Smoothing, relative_frequencies
from jexplicit.lm.evaluation import read_text
from jexplicit.lm.fits.mixtures.word_classes import cluster, neighbour_vectors
from jexplicit.lm.model_files import register_types
from jexplicit.lm.rows.classes import ClassOfOutput, ClassView
from jexplicit.lm.rows.ngrams import Ngrams, ngram_rows
from jexplicit.lm.rows.past.cache import Cache, CacheRows, RepeatRows
from jexplicit.lm.rows.selectors import SELECTORS
from jexplicit.lm.rows.sparse import SparseTables, smoothed_offset_rows
from jexplicit.lm.rows.views import ViewRows, view_contexts
from jexplicit.lm.rows.words import EMPTY, LineView, line_ends, word_view
from jexplicit.lm.training_text import RADIUS, THREADS, TrainingText

CHAIN = (1, 2, 3, 4)
GAPS = ((1, 3), (2, 3), (1, 4), (2, 4))
GAPS_OF_THREE = ((1, 2, 4), (1, 3, 4), (2, 3, 4))
SKIPS = ((2, 3, 4, 5), (3, 4, 5, 6))
WORDS = {"since": 1, "part": 2, "one": 3, "two": 4}  # columns of a view
WORD_RADIUS = 48  # characters in which the words of a context stand
LINE_RADIUS = 80  # characters of a line
WORD_CLASSES = (30, 150, 500)
CLASSES = (60, 200, 500)  # of tokens
REPEATS = (4, 16)  # nearest tokens of a context that may come again
CACHES = (
    *(Cache(length) for length in (50, 400, 2000, 10_000)),
    *(Cache(length, match) for length, match in ((2000, 1), (20_000, 1), (20_000, 2), (20_000, 3))),
)
NEAR = (0, 1, 2, 3, 4, 6)  # tokens that caches of a window match


class RowSpec(NamedTuple):
    """Rows that a mixture may have.

    about: what they are.
    build: `text, smoothing, confidence -> kinds of rows`.
    radius: tokens of a context that they read.
    groups: the offsets of the contexts that they need, which are counted side by side.
    registered: the class of rows that `register_rows` added; None for the library's own.
    """

    about: str
    build: Callable[[TrainingText, Smoothing, bool], tuple[Any, ...]]
    radius: int
    groups: tuple[tuple[int, ...], ...] = ()
    registered: type | None = None


def register_rows(name: str, count: Callable[[TrainingText], Rows], kind: type, *parts: type, radius: int) -> None:
    """Make a kind of rows one that mixtures have by name, and that model files hold.

    `jexplicit.fit(texts, rows=("contexts-4", name))` then counts its rows and fits their exponents beside the others. A kind
    that is registered again, as when a cell of a notebook runs again, replaces the one before.

    Args:
        name: for `rows`.
        count: the rows of a text, an object of the class `kind`.
        kind: a class as `Rows` of jexplicit.lm.core.model, a `TableRows` or with `log_tables`, by which exponents are fitted.
        parts: classes of its fields that are not the library's.
        radius: how many tokens of the context its rows read.

    Raises:
        ValueError: the name of other rows, or a class that is no such kind.

    Example::

        register_rows("bracket", count_brackets, BracketRows, radius=32)
        model = jexplicit.fit(texts, rows=("contexts-4", "bracket"))

    """
    there = ROWS.get(name)
    if name in OF_EXPONENTS + OF_HISTORY or there and getattr(there.registered, "__name__", None) != kind.__name__:
        raise ValueError(
            f"rows {name} are there already: choose another name than {', '.join(ROWS)}, and {' and '.join(OF_EXPONENTS)}"
        )
    if not issubclass(kind, TableRows) and not hasattr(kind, "log_tables"):
        raise ValueError(
            f"{kind.__name__} without log_tables(X, past), by which exponents are fitted: write it, or a TableRows"
        )
    register_types(kind, *parts)
    ROWS[name] = RowSpec(
        (kind.__doc__ or name).partition("\n")[0], partial(_build_registered, name, count), radius, registered=kind
    )


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
        names: which rows, of ROWS, and "confidence" for an exponent for each of CONFIDENCES in place of one for each row;
            "selectors" is a name of the exponents alone (`selectors_of` the rows).
        smoothing: of the rows of single tokens.
        history: what a prediction may see beyond its context; other than "none" adds caches, which have no table.
        progress: called with (groups of contexts done, groups in all).

    Raises:
        ValueError: an unknown name of rows, or another smoothing than those of jexplicit.lm.core.smoothing.

    Example:
        >>> text = TrainingText(np.array([0, 2, 3, 2, 4, 2, 3, 0]), 5)
        >>> [name for kind in mixture_rows(text, ("contexts-4",)) for name in kind.names]
        ['unigram', 'context 1', 'context 2', 'context 3', 'context 4']
    """
    wanted = select_specs(names)
    groups = [offsets for kind in wanted for offsets in kind.groups]

    def count() -> tuple[Any, ...]:
        text.count_ngrams(groups, progress)
        kinds = [rows for kind in wanted for rows in kind.build(text, smoothing, CONFIDENCE in names)]
        return (unigram_row(text.target_counts), *kinds)

    rows = text.once(("mixture", wanted, CONFIDENCE in names, smoothing), count)
    return with_history(rows, history, text.letters if reads_words(names) else None)


def reads_words(names: Sequence[str]) -> bool:
    """Whether some rows are of the words that characters stand in; then so are the caches beside them."""
    return bool({"words", "word-classes"} & set(names))


def rows_radius(names: Sequence[str]) -> int:
    """The tokens of a context that rows read, at most."""
    return max([1, *(kind.radius for kind in select_specs(names))])


def select_specs(names: Sequence[str]) -> tuple[RowSpec, ...]:
    """The kinds of rows of some names.

    Raises:
        ValueError: see `check_rows`.
    """
    check_rows(names)
    return tuple(ROWS[name] for name in names if name not in OF_EXPONENTS + OF_HISTORY)


def check_rows(names: Sequence[str]) -> None:
    """Refuse names of rows that there are not.

    Raises:
        ValueError: with the names that there are.
    """
    if isinstance(names, str):
        raise ValueError(f"rows {names!r} instead of a tuple: pass ({names!r},)")
    if not set(names) - set(OF_EXPONENTS + OF_HISTORY):
        raise ValueError(f"a mixture of no rows: choose some of {', '.join(ROWS)}")
    if unknown := [name for name in names if name not in (*ROWS, *OF_EXPONENTS, *OF_HISTORY)]:
        others = f"and {' and '.join(OF_EXPONENTS)}; with history adaptive {', '.join(OF_HISTORY)}"
        raise ValueError(f"rows {', '.join(unknown)}: choose from {', '.join(ROWS)}, {others}")


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


def _build_registered(
    name: str, count: Callable[[TrainingText], Rows], text: TrainingText, smoothing: Smoothing, confidence: bool
) -> tuple[Any, ...]:
    rows, wanted = count(text), ROWS[name]
    if type(rows) is not wanted.registered or rows.radius != wanted.radius:
        found, kind = (type(rows).__name__, getattr(rows, "radius", None)), getattr(wanted.registered, "__name__", None)
        raise ValueError(
            f"rows {name} are counted as {found[0]}, radius {found[1]}, and registered as {kind}, radius {wanted.radius}: "
            "register them as they are counted"
        )
    return (rows,)


def _build_offsets(text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    log_p = np.asarray(unigram_row(text.target_counts).row)
    counts = text.sparse_counts(RADIUS)[:RADIUS]
    return (smoothed_offset_rows(counts, eos=text.eos, smoothing=smoothing, over=log_p),)


def _build_contexts(offsets: tuple[int, ...], text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    return chain_rows(text.ngrams(offsets), text.target_counts, confidence=confidence)


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
        counted = text.smoothed(columns, Y, group, sizes=sizes)
        names = tuple(f"{name}, {n} before" for n in range(len(group) - levels, len(group)))
        parts.append(ngram_rows(counted, names, confidence=confidence))
    return (ViewRows(view, tuple(parts)),)


def _build_lines(text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    """Contexts of the length of the line so far, alone and with the nearest one or two characters."""
    _letters(text)
    view = LineView(jnp.asarray(line_ends(text.vocab_size, text.tokenizer)), LINE_RADIUS)
    X, Y, _ = read_text(text.in_memory, view.radius, eos=text.eos)
    counted = text.smoothed(view_contexts(view, X), Y, (1, 2, 3), sizes=view.sizes)
    names = ("line", "line, 1 before", "line, 2 before")
    return (ViewRows(view, (ngram_rows(counted, names, confidence=confidence),)),)


def _build_classes(text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    """Tokens after contexts of classes, and classes of the next token after contexts of classes or of tokens."""
    X, Y = text.predictions(4)
    N = text.vocab_size
    classes = text.once("token classes", lambda: _token_classes(text))
    view = ClassView(tuple(map(jnp.asarray, classes)))

    def tokens_after(n: int) -> Any:
        of, columns = classes[n], view.columns(n + 1, 3)
        C = int(of.max()) + 1
        counted = text.smoothed(of[X[:, :3]], Y, (1, 2, 3), sizes=(C,) * 3)
        names = tuple(f"class of {CLASSES[n]}, {level} before" for level in (1, 2, 3))
        return ngram_rows(counted._replace(offsets=columns), names, confidence=confidence)

    def class_after(n: int, tokens: int) -> Any:
        of = classes[n]
        C = int(of.max()) + 1
        ids, size = (of[X[:, :4]], C) if tokens > 2 else (X, N)
        offsets = tuple(range(1, tokens + 1))
        counted = text.smoothed(ids, of[Y], offsets, vocab_size=C, sizes=(size,) * tokens)
        columns = view.columns(n + 1 if tokens > 2 else 0, tokens)
        chain = ngram_rows(counted._replace(offsets=columns), ("level",) * tokens)
        base = np.log(counted.lower) - np.log(relative_frequencies(np.bincount(of[Y], minlength=C)))
        name = f"next class of {CLASSES[n]}, {tokens} {'classes' if tokens > 2 else 'tokens'} before"
        return ClassOfOutput(chain, jnp.asarray(base, jnp.float32), view.classes[n], name)

    jobs = [partial(tokens_after, n) for n in range(len(classes))]
    jobs += [partial(class_after, n, tokens) for tokens in (4, 2) for n in range(len(classes))]
    with ThreadPoolExecutor(THREADS) as pool:
        return (ViewRows(view, tuple(pool.map(lambda job: job(), jobs))),)


def _build_repeats(text: TrainingText, smoothing: Smoothing, confidence: bool) -> tuple[Any, ...]:
    return (RepeatRows(unigram_row(text.target_counts).row, REPEATS),)


def _token_counts(text: TrainingText) -> np.ndarray:
    f = text.target_counts.copy()
    f[PAD] = 0
    return f


def _token_classes(text: TrainingText) -> list[np.ndarray]:
    """[N] the class of every token, for each clustering; `<pad>`, and what never occurs, are class 0."""
    f, vectors = _token_counts(text), neighbour_vectors(text.sparse_counts(2))
    return [cluster(vectors, f, C).astype(np.uint16) for C in CLASSES]


def _letters(text: TrainingText) -> np.ndarray:
    if text.letters is None:
        raise ValueError("rows of words and lines, and no letters: they are for texts of characters; choose other rows")
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
    if not len(nodes):  # in documents of one word each none has ended
        return [np.zeros(len(view.child), np.int32) for _ in WORD_CLASSES]
    stream = np.concatenate([[0], 1 + word, [0]])
    counts = np.bincount(stream)
    counts[0] = 0
    vectors, found = neighbour_vectors(count_sparse(stream, radius=2, vocab_size=len(counts))), []
    for C in WORD_CLASSES:
        of_node = np.zeros(len(view.child), np.int32)
        of_node[nodes] = cluster(vectors, counts, C)[1:]
        found.append(of_node)
    return found


def unigram_row(f: np.ndarray) -> Constant:
    """The log frequencies of the targets."""
    return Constant(jnp.asarray(np.log(relative_frequencies(f)).astype(np.float32), jnp.float32))


def chain_rows(chain: Ngrams, f: np.ndarray, *, confidence: bool = False) -> tuple[Any, ...]:
    """The chain over the unigram: its rows of the nearest token, from continuation counts, and those of longer contexts."""
    base = np.log(chain.lower) - np.log(relative_frequencies(f))
    nearest = chain.rows[0]
    first = SparseTables((base.astype(np.float32),), (nearest,), (0,), (nearest.longest,), name="context")
    longer = tuple(f"context {n}" for n in range(2, len(chain.offsets) + 1))
    return first, ngram_rows(chain, longer, confidence=confidence)


CONFIDENCE = "confidence"
OF_EXPONENTS = (CONFIDENCE, SELECTORS)  # which name no rows
OF_HISTORY = get_args(AdaptiveKind)  # which name rows of an adaptive history
CHAIN_OF_EIGHT = tuple(range(1, 9))
ROWS = {
    "offsets": RowSpec("single tokens, 1 to 8 back", _build_offsets, RADIUS),
    "contexts-4": RowSpec("contexts of 1 to 4 tokens", partial(_build_contexts, CHAIN), 4, (CHAIN,)),
    "contexts-8": RowSpec("contexts of 1 to 8 tokens", partial(_build_contexts, CHAIN_OF_EIGHT), 8, (CHAIN_OF_EIGHT,)),
    "gaps": RowSpec("pairs of tokens with a gap", partial(_build_last, GAPS), 4, GAPS),
    "gaps-of-three": RowSpec("three tokens with a gap", partial(_build_last, GAPS_OF_THREE), 4, GAPS_OF_THREE),
    "skips": RowSpec("contexts that leave out the nearest token, or two", _build_skips, 6, SKIPS),
    "classes": RowSpec("classes of tokens: contexts of them, and which one is next", _build_classes, 4),
    "repeats": RowSpec("the nearest 4 and 16 tokens, which may come again", _build_repeats, max(REPEATS)),
    "words": RowSpec("of characters: the part of the word, and the words before", partial(_build_words, ()), WORD_RADIUS),
    "word-classes": RowSpec(
        "of characters: the same with classes of the words", partial(_build_words, WORD_CLASSES), WORD_RADIUS
    ),
    "lines": RowSpec("of characters: the length of the line, and the nearest two", _build_lines, LINE_RADIUS),
}
"""The rows of a mixture, by name."""
COUNTED_ROWS = ("offsets", "contexts-4", "contexts-8", "gaps", "gaps-of-three", "skips", "repeats", *OF_EXPONENTS, *OF_HISTORY)
"""Those whose contexts are tokens, which may be counted beyond memory."""
