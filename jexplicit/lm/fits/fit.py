"""Every way of fitting a language model, by name: text and options in, a model out.

    fitted = fit_model("log-linear", TrainingText(stream, N), Options(features="cat", radius=4))
    evaluate(fitted.model, dev).perplexity

What several methods share, the counts and the held-out part of a text, is made once and kept by its `TrainingText`. A method
imports what it alone needs: optax takes as long as a small fit.
"""

import functools
import time
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.data.corpus.held_out import duplicated_mask
from jexplicit.lm.core.model import Constant, LanguageModel
from jexplicit.lm.core.names import ADAPTIVE
from jexplicit.lm.core.names import Method as Method
from jexplicit.lm.counted.use import AnyModel
from jexplicit.lm.evaluation import EncodedText, read_text
from jexplicit.lm.fits.column_weights import fit_token_delta, shift_tokens
from jexplicit.lm.fits.mixtures.ablation import log_row_kinds
from jexplicit.lm.fits.mixtures.adaptive_mixture import (
    adaptive_model,
    adaptive_rows,
    fit_adaptive,
    history_of_base,
    named_kinds,
)
from jexplicit.lm.fits.mixtures.mixture_rows import (
    CHAIN,
    OF_EXPONENTS,
    mixture_rows,
    reads_words,
    rows_radius,
    select_specs,
    with_history,
)
from jexplicit.lm.fits.mixtures.ngram_mixture import HeldOutRows, fit_rows, held_out_rows, ngram_model
from jexplicit.lm.rows.explicit import bigram_model, explicit_language_model, target_counts, unigram_model
from jexplicit.lm.rows.selectors import SELECTORS, selectors_of
from jexplicit.lm.rows.sharded import sharded_language_model
from jexplicit.lm.rows.sparse import sparse_bigram_model, sparse_language_model, sparse_unigram_model
from jexplicit.lm.training_text import Options, TrainingText, Watch, draw_positions
from jexplicit.runs.host import trim_heap

# Methods that are solved from dense tables [N, N].
DENSE = (
    "explicit",
    "delta",
    "cold",
    "warm",
    "optimum",
    "log-linear",
    "iterative-scaling",
)
# Methods that are fitted on one device, however many there are; those of the text alone on the host.
ONE_DEVICE = ("ngram", "optimum", "delta")
_copies = 6  # of the counts, while a dense model is solved
_largest_dense = 2**31  # cells whose ids fit int32


def choose_tables(methods: Collection[str], vocab_size: int, radius: int, memory: float) -> Literal["dense", "sparse"]:
    """Dense tables if a method needs them and those up to this radius fit in `memory` bytes, else sparse.

    >>> [choose_tables(["explicit", "ngram"], N, 4, 16e9) for N in (4098, 128_000)]
    ['dense', 'sparse']
    """
    cells = vocab_size**2
    fits = cells < _largest_dense and _copies * 4 * radius * cells <= memory
    return "dense" if fits and set(DENSE) & set(methods) else "sparse"


class FitResult(NamedTuple):
    """A model, and results of its fit: plain values by name."""

    model: AnyModel
    info: dict[str, Any]


def fit_model(method: str, text: TrainingText, options: Options | None = None, watch: Watch | None = None) -> FitResult:
    """Fit a language model.

    Args:
        method: one of METHODS.
        text: to fit on.
        options: of the method.
        watch: progress, events and checkpoints; default, none.

    Returns:
        the model, and `info` with `solve_seconds`, `scalars` (how many numbers were fitted) and what the method adds.

    Raises:
        ValueError: an unknown method, or options that it cannot work with.

    Example:
        >>> fitted = fit_model("bigram", TrainingText(np.array([0, 2, 3, 2, 4, 0]), 5))
        >>> fitted.model.names, fitted.info["scalars"]
        (('offset 1',), 0)
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r}: choose one of {', '.join(METHODS)}")
    options, start = options or Options(), time.perf_counter()
    trim_heap()  # of what was evaluated before
    fitted = METHODS[method](text, options, watch or Watch())
    jax.block_until_ready(fitted.model)
    return fitted._replace(info={"solve_seconds": time.perf_counter() - start, "scalars": 0, **fitted.info})


def _fit_unigram(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    if text.sparse:
        return FitResult(sparse_unigram_model(text.sparse_counts(1), eos=text.eos), {})
    return FitResult(unigram_model(text.counts(1), eos=text.eos), {})


def _fit_bigram(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    if text.sparse:
        return FitResult(sparse_bigram_model(text.sparse_counts(1), eos=text.eos), {})
    return FitResult(bigram_model(text.counts(1), eos=text.eos), {})


def _fit_explicit(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    shape: Any = {"features": options.features, "radius": options.radius, "eos": text.eos}
    if text.sharded_counts:
        return FitResult(sharded_language_model(text.sharded_counts, **shape), {})
    if text.sparse:
        return FitResult(sparse_language_model(text.sparse_counts(options.radius), **shape), {})
    return FitResult(explicit_language_model(text.counts(options.radius), **shape), {})


def _fit_delta(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The explicit solution with its delta-corrected exponent, fitted on drawn positions of its own text."""
    start, f = _explicit_tables(text, options), target_counts(text.counts(1), eos=text.eos)
    X, Y = contexts(text.in_memory, options.radius, eos=text.eos)
    m = draw_positions(options, len(Y))
    with watch.stage(f"delta, {options.features}, K = {options.radius}"):
        fitted = fit_token_delta(start, f, X[m], Y[m])
    model = shift_tokens(start, -fitted.delta * np.log(np.maximum(f, 1)))
    return FitResult(model, {"delta": fitted.delta, "scalars": 1})


def _explicit_tables(text: TrainingText, options: Options) -> LanguageModel:
    K = options.radius
    return explicit_language_model(text.counts(K), features=options.features, radius=K, eos=text.eos)


def _fit_ngram(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    with watch.stage("ngram", "positions" if text.disk else "") as progress:
        return FitResult(ngram_model(text.ngrams(CHAIN, progress), text.target_counts, eos=text.eos), {})


def _fit_optimum(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The minimum of the training loss of one token of context, in closed form."""
    from jexplicit.lm.fits.optimum import FLOOR, bigram_optimum

    if options.radius != 1:
        raise ValueError(f"optimum with radius {options.radius}: only K = 1 has a closed form; sweeps go there at any K")
    with watch.stage(f"optimum, {options.features}, K = 1"):
        found = bigram_optimum(text.counts(1), eos=text.eos)
    info = {"infimum_perplexity": float(np.exp(found.loss)), "kkt_residual": 0.0, "floor": FLOOR}
    return FitResult(found.model, info)


def _fit_mixture(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Counted rows of one and of several tokens, and of the past where it may be seen, with a fitted exponent each."""
    begin, adaptive = time.perf_counter(), options.history in ADAPTIVE
    history = history_of_base(options.history, characters=text.letters is not None)
    shape: Any = {"smoothing": options.smoothing}
    kinds = select_specs(options.rows), *(name in options.rows for name in OF_EXPONENTS)
    rest, held = text.parts(options.calibration_positions)
    held_out = read_text(held, rows_radius(options.rows), eos=text.eos)

    def choose_selectors(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return selectors_of(rows, text.letters, text.tokenizer)

    def read_held_out() -> tuple[HeldOutRows, np.ndarray]:
        with watch.stage("mixture: rows without held-out text", "groups") as progress:
            rows = mixture_rows(rest, options.rows, **shape, progress=progress)
            m = draw_positions(options, _new_positions(rest, held_out))
            read = held_out_rows(rows, held_out, m, choose_selectors(rows))
        rest.forget()  # what the held-out text reads is kept, and all other rows would stand beside those of the whole
        return read, m

    name = ("held-out rows", kinds, options.smoothing, options.calibration_positions, options.seed)
    read, m = text.once(name, read_held_out)
    table_seconds, begin = time.perf_counter() - begin, time.perf_counter()
    with watch.stage(f"mixture: exponents, history {history}") as progress:
        letters = text.letters if reads_words(options.rows) else None
        caches = with_history((Constant(np.asarray(read.tables[0].rows)[0]),), history, letters)[1:]
        read = read.beside(held_out_rows(caches, held_out, m)) if caches else read
        trim_heap()  # of what was counted for them
        read = read.with_selectors() if SELECTORS in options.rows else read
        fit = functools.partial(fit_rows, read, mesh=text.mesh, progress=progress)
        fitted = base = text.once((*name, "exponents", history), fit)
    if adaptive:
        read, fitted = fit_adaptive(rest, options, watch, read, base.exponents, held_out, m)
    exponents, fit_seconds = fitted.exponents, time.perf_counter() - begin
    log_row_kinds(read, exponents, watch, history=options.history, mesh=text.mesh)
    kept = read.kinds
    del read  # as large as all rows that are counted next
    trim_heap()
    begin = time.perf_counter()
    with watch.stage("mixture: rows", "groups") as progress:
        rows = mixture_rows(text, options.rows, **shape, history=history, progress=progress)
    own, selectors = base.exponents if adaptive else exponents, choose_selectors(rows)
    chosen = selectors if SELECTORS in options.rows else ()
    model = LanguageModel(rows, np.asarray(own, np.float32), "cat", text.eos, chosen)
    if adaptive:
        kind = adaptive_rows(text, named_kinds(kept), within_documents=options.history == "adaptive:document")
        own = selectors if SELECTORS in kept else ()
        model = adaptive_model(model, kind, exponents, own)
    info = {
        "table_seconds": table_seconds + time.perf_counter() - begin,
        "fit_seconds": fit_seconds,
        "exponents": [float(a) for a in exponents],
        "rows": list(model.names),
        "held_out_perplexity": float(np.exp(fitted.loss)),
        "smoothing": options.smoothing,
        "scalars": len(exponents) + (len(base.exponents) if adaptive else 0),
    }
    return FitResult(model, info)


def _fit_context_mixing(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    from jexplicit.lm.fits.context_mixing import fit_context_mixing

    return FitResult(*fit_context_mixing(text, options, watch))


def _fit_log_linear(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    from jexplicit.lm.fits.log_linear_fits import fit_log_linear

    return FitResult(*fit_log_linear(text, options, watch))


def _fit_iterative_scaling(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    from jexplicit.lm.fits.log_linear_fits import fit_iterative_scaling

    return FitResult(*fit_iterative_scaling(text, options, watch))


def _fit_trained(start: str, text: TrainingText, options: Options, watch: Watch) -> FitResult:
    from jexplicit.lm.fits.training import train_language_model

    return FitResult(*train_language_model(start, text, options, watch))


def _new_positions(rest: TrainingText, held_out: EncodedText) -> np.ndarray:
    """The held-out positions in passages that the rest of the text does not have too; all where most are such copies."""
    new = np.flatnonzero(~duplicated_mask(held_out.past.stream, rest.in_memory)[held_out.past.places])
    return new if 2 * len(new) > len(held_out.Y) else np.arange(len(held_out.Y))


METHODS: dict[str, Callable[[TrainingText, Options, Watch], FitResult]] = {
    "unigram": _fit_unigram,
    "bigram": _fit_bigram,
    "ngram": _fit_ngram,
    "explicit": _fit_explicit,
    "delta": _fit_delta,
    "cold": functools.partial(_fit_trained, "cold"),
    "warm": functools.partial(_fit_trained, "warm"),
    "optimum": _fit_optimum,
    "log-linear": _fit_log_linear,
    "iterative-scaling": _fit_iterative_scaling,
    "mixture": _fit_mixture,
    "context-mixing": _fit_context_mixing,
}
_tables = ("features", "radius")
_exponents = ("smoothing", "calibration_positions", "seed")
_training = (
    "epochs",
    "batch_size",
    "optimizer",
    "learning_rate",
    "accumulator",
    "parameters",
    "patience",
    "train_sample",
    "seed",
)
OPTIONS: dict[str, tuple[str, ...]] = {
    "unigram": (),
    "bigram": (),
    "ngram": (),
    "explicit": _tables,
    "delta": (*_tables, "calibration_positions", "seed"),
    "cold": (*_tables, *_training),
    "warm": (*_tables, *_training),
    "optimum": _tables,
    "log-linear": (*_tables, "calibration", *_exponents),
    "iterative-scaling": (*_tables, "sweeps", "discount", *_exponents),
    "mixture": ("rows", "history", *_exponents),
    "context-mixing": ("contexts", "gates", "stages", "frozen", "history", "seed"),
}
"""The options that each method uses."""
assert set(METHODS) == set(OPTIONS) == set(get_args(Method))
