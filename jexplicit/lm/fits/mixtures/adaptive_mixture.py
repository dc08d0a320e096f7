"""The mixture that goes on counting as it reads: adaptive rows over the prediction of a mixture.

    logits = a_0 log p_mixture + sum_g a_g row_g,        exponents by confidence, and by the selectors of the mixture

The exponents are fitted on the held-out part of the training text, which is counted as it is read, too. Of a text that is
evaluated, a prediction sees all that comes before it and nothing after.
"""

from collections.abc import Sequence
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jexplicit.lm.core.model import LanguageModel, exponent_offsets
from jexplicit.lm.core.model_row import ModelRow
from jexplicit.lm.core.names import ADAPTIVE, AdaptiveKind
from jexplicit.lm.core.past import EncodedText
from jexplicit.lm.evaluation import as_feature
from jexplicit.lm.fits.mixtures.ablation import CHAIN_KINDS
from jexplicit.lm.fits.mixtures.calibration import Calibration
from jexplicit.lm.fits.mixtures.choice import choose_kinds
from jexplicit.lm.fits.mixtures.ngram_mixture import HeldOutRows, exponent_names, fit_rows, prediction_row
from jexplicit.lm.rows.past.adaptive import Adaptive, AdaptiveRows
from jexplicit.lm.rows.words import line_ends
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.host import trim_heap

_radius, _token_radius = 48, 8  # characters, or tokens, in which contexts stand
_most_cells = 1 << 27  # probabilities of held-out positions
_most_counted = 1 << 22  # tokens of a training text that counts begin with


def chain(lengths: Sequence[int], kind: AdaptiveKind = "adaptive") -> tuple[Adaptive, ...]:
    """Contexts of the last 1, 2, ... tokens, each over the one before.

    Example:
        >>> [row.name for row in chain((1, 2))], chain((1, 2))[1].over
        (['adaptive last 1', 'adaptive last 2'], 'last 1')
    """
    over = ("", *(f"last {k}" for k in lengths))
    return tuple(Adaptive(f"last {k}", kind, shorter) for k, shorter in zip(lengths, over, strict=False))


def _rows(kind: AdaptiveKind, *contexts: str) -> tuple[Adaptive, ...]:
    return tuple(Adaptive(context, kind) for context in contexts)


_of_words = ("line", "column", "second word", "word before", "part", "since", "word part", "words part")
_gaps = ("gap 2-3", "gap 2-4", "gap 3-5", "gap 1, 3", "gap 1, 3, 4")
CHARACTER_CONTEXTS = (
    *chain((1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 18)),
    *_rows("adaptive", "word part", "words part"),
    *chain((1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 18), "begun"),
    *_rows("begun", *_of_words, *_gaps),
    *_rows("indirect", "last 1", "last 2", "last 3", "last 4", "part"),
    *_rows("recency", "last 2", "last 4", "last 6", "word part"),
    *_rows("observed-expected", *(f"last {k}" for k in range(5)), "part"),
)
"""The adaptive rows of texts of characters."""
TOKEN_CONTEXTS = (
    *chain((1, 2, 3, 4, 5, 6)),
    *_rows("adaptive", "gap 2", "gap 2-3", "gap 1, 3"),
    *chain((1, 2, 3, 4), "begun"),
    *_rows("begun", "gap 2", "gap 2-3", "gap 1, 3"),
    *_rows("recency", "last 1", "last 2", "last 3"),
)
"""Those of texts of words and subwords."""


def history_of_base(history: str, *, characters: bool) -> str:
    """What the mixture that adaptive rows correct sees of the text before; another history is its own.

    Example:
        >>> history_of_base("adaptive", characters=True), history_of_base("none", characters=True)
        ('window:256', 'none')
    """
    if history not in ADAPTIVE:
        return history
    return "document" if history != "adaptive" else "window:256" if characters else "all"


def named_kinds(names: Sequence[str]) -> tuple[str, ...]:
    """The kinds of adaptive rows among names of rows."""
    return tuple(name for name in names if name in get_args(AdaptiveKind))


def adaptive_rows(text: TrainingText, kinds: Sequence[str] | None = None, *, within_documents: bool = False) -> AdaptiveRows:
    """The adaptive rows of a text, by what its tokens are.

    Args:
        text: to count, where counts begin with those of the training text.
        kinds: of adaptive rows; default, all that the text has.
        within_documents: whether nothing before the document is seen.

    Raises:
        ValueError: kinds of which the text has none.
    """
    characters = text.letters is not None
    rows = CHARACTER_CONTEXTS if characters else TOKEN_CONTEXTS
    begun = len(text.stream) <= _most_counted
    rows = tuple(row for row in rows if begun or row.kind not in ("begun", "indirect"))
    if missing := sorted(set(kinds or ()) - {row.kind for row in rows}):
        there = ", ".join(dict.fromkeys(row.kind for row in rows))
        raise ValueError(f"rows {', '.join(missing)}, which this text has not: choose from {there}")
    return AdaptiveRows(
        tuple(row for row in rows if kinds is None or row.kind in kinds),
        text.in_memory if begun else None,
        jnp.asarray(text.letters) if characters else None,
        jnp.asarray(line_ends(text.vocab_size, text.tokenizer)) if characters else None,
        text.vocab_size,
        _radius if characters else _token_radius,
        within_documents=within_documents,
    )


def held_out_adaptive(
    kind: AdaptiveRows, read: HeldOutRows, exponents: np.ndarray, held_out: EncodedText, m: np.ndarray, mesh: Mesh | None = None
) -> HeldOutRows:
    """What the first of positions m of a text read of a mixture's prediction and of adaptive rows, with the selectors'
    exponents; as many as their probabilities leave room for.

    Args:
        kind: the adaptive rows.
        read: the rows of the mixture at positions m, and the classes of selectors there, which it may use itself.
        exponents: of the mixture.
        held_out, m: the text, and which of its positions.
        mesh: devices to spread the positions over.
    """
    N, most = kind.vocab_size, max(1, _most_cells // kind.vocab_size)
    read, m = read.take(slice(0, most)), m[:most]
    of_model = prediction_row(read, exponents, mesh)
    log_p = np.asarray(of_model.tables[0].rows)
    found = [as_feature(N, *table) for table in kind.log_tables(held_out.X[m], held_out.past.take(m), log_p)]
    tables, rows, buckets = zip(*found, strict=True)
    of_rows = HeldOutRows(
        tuple(exponent_names((kind,))),
        tables,
        Positions(
            np.stack(rows, axis=1, dtype=np.int32),
            np.add(exponent_offsets((kind,)), np.stack(buckets, axis=1), dtype=np.int32),
        ),
        read.Y,
    )
    return of_model.beside(of_rows).with_selectors()


def fit_adaptive(
    rest: TrainingText,
    options: Options,
    watch: Watch,
    read: HeldOutRows,
    exponents: np.ndarray,
    held_out: EncodedText,
    m: np.ndarray,
) -> tuple[HeldOutRows, Calibration]:
    """The mixture's prediction and adaptive rows at held-out positions, those that are named or those that help; their fit."""
    named = named_kinds(options.rows)
    with watch.stage("mixture: adaptive rows of held-out text"):
        kind = adaptive_rows(rest, named or None, within_documents=options.history == "adaptive:document")
        read = held_out_adaptive(kind, read, exponents, held_out, m, rest.mesh)
        del kind  # with its counts of the training text
    trim_heap()
    with watch.stage(f"mixture: exponents, history {options.history}") as progress:
        fitted = fit_rows(read, mesh=rest.mesh, progress=progress)
    if named:
        return read, fitted
    with watch.stage("mixture: which adaptive rows help", "models") as progress:
        kept, worth = choose_kinds(read, fitted.exponents, CHAIN_KINDS, mesh=rest.mesh, progress=progress)
    for name, nats in worth.items():
        watch.log(event="choice", history=options.history, kind=name, worth=nats, kept=name in kept)
    if len(kept) < len(read.kinds):
        read, guess = read.keeping(kept), fitted.exponents[read.has(kept)]
        with watch.stage("mixture: exponents of the rows that help") as progress:
            fitted = fit_rows(read, guess=guess, mesh=rest.mesh, progress=progress)
    return read, fitted


def adaptive_model(
    base: LanguageModel, kind: AdaptiveRows, exponents: np.ndarray, selectors: tuple[Any, ...] = ()
) -> LanguageModel:
    """The mixture with adaptive rows over its prediction.

    Args:
        base: the mixture.
        kind: the adaptive rows.
        exponents: fitted.
        selectors: of the exponents.
    """
    rows, exponents = (ModelRow(base), kind), np.asarray(exponents, np.float32)
    return LanguageModel(rows, exponents, base.features, base.eos, selectors)
