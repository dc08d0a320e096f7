"""Every way of fitting a language model, by name: text and options in, a model out.

    fitted = fit_model("log-linear", TrainingText(stream, N), Options(features="cat", radius=4))
    evaluate(fitted.model, dev).perplexity

What several methods share, the counts and the held-out part of a text, is made once and kept by its `TrainingText`. A method
imports what it alone needs: optax takes as long as a small fit.
"""

import functools
import time
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.data.corpus.held_out import duplicated_mask
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.model import Constant, LanguageModel
from jexplicit.lm.core.names import ADAPTIVE
from jexplicit.lm.core.names import Method as Method
from jexplicit.lm.counted.use import AnyModel
from jexplicit.lm.evaluation import EncodedText, log_probabilities, read_text
from jexplicit.lm.fits.column_weights import fit_token_delta, mean_cooccurrence_shift, shift_tokens
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
from jexplicit.lm.rows.bitcipher import bit_cipher, coded_language_model
from jexplicit.lm.rows.explicit import bigram_model, explicit_language_model, target_counts, unigram_model
from jexplicit.lm.rows.selectors import SELECTORS, selectors_of
from jexplicit.lm.rows.sharded import sharded_language_model
from jexplicit.lm.rows.sparse import sparse_bigram_model, sparse_language_model, sparse_unigram_model
from jexplicit.lm.rows.word_vectors import vector_features, vector_language_model, word_vectors
from jexplicit.lm.training_text import Options, TrainingText, Watch, draw_positions
from jexplicit.runs.host import trim_heap

# Methods that are solved from dense tables [N, N].
DENSE = (
    "explicit",
    "delta",
    "mean-cooccurrence",
    "intercept",
    "cold",
    "warm",
    "optimum",
    "log-linear",
    "iterative-scaling",
    "word-vectors",
)
# Methods that are fitted on one device, however many there are; those of the text alone on the host.
ONE_DEVICE = ("ngram", "optimum", "bitcipher", "word-vectors", "delta", "mean-cooccurrence")
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
    if options.calibration == "pairs" and method in ("log-linear", "iterative-scaling"):
        raise ValueError(f"calibration 'pairs' with method {method!r}: only a mixture is fitted on them; use 'held-out'")
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


def _fit_mean_cooccurrence(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The explicit solution with the weights of Eq. 14 before its last assumption: another pass over the contexts."""
    start, f = _explicit_tables(text, options), target_counts(text.counts(1), eos=text.eos)
    with watch.stage(f"mean co-occurrences, {options.features}, K = {options.radius}"):
        v = mean_cooccurrence_shift(start, f, contexts(text.in_memory, options.radius, eos=text.eos)[0])
    return FitResult(shift_tokens(start, v), {"scalars": text.vocab_size})


def _explicit_tables(text: TrainingText, options: Options) -> LanguageModel:
    K = options.radius
    return explicit_language_model(text.counts(K), features=options.features, radius=K, eos=text.eos)


def _fit_intercept(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The explicit solution with its tables frozen, and the intercept that fits the training text best."""
    from jexplicit.lm.fits.iterative_scaling import sweep_tables

    K, start = options.radius, _explicit_tables(text, options)
    with watch.stage(f"intercept, {options.features}, K = {K}", "sweeps") as progress:
        shape: Any = {"sweeps": options.sweeps, "mesh": text.mesh, "progress": progress}
        fitted = sweep_tables(start, text.counts(K), text.in_memory, noise=False, intercept=True, **shape)
    for sweep, loss in enumerate(fitted.losses):
        perplexity = float(np.exp(loss))
        watch.log(event="intercept_sweep", features=options.features, radius=K, sweep=sweep, train_perplexity=perplexity)
    return FitResult(fitted.model, {"sweeps": options.sweeps, "scalars": text.vocab_size})


def _fit_ngram(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    with watch.stage("ngram", "positions" if text.disk else "") as progress:
        return FitResult(ngram_model(text.ngrams(CHAIN, progress), text.target_counts, eos=text.eos), {})


def _fit_bitcipher(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    stream = text.in_memory
    codes = bit_cipher(np.bincount(stream[1:], minlength=text.vocab_size), options.bits)
    shape: Any = {"features": options.features, "radius": options.radius, "eos": text.eos}
    with watch.stage(f"bitcipher, {options.features}, K = {options.radius}, {options.bits} bits", "positions") as progress:
        return FitResult(coded_language_model(stream, codes, **shape, progress=progress), {"bits": options.bits})


def _fit_word_vectors(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The explicit solution on positive parts of the text's own word vectors."""
    K, counts = options.radius, text.counts(options.radius)
    with watch.stage(f"word vectors, {options.features}, K = {K}, {options.bits} features"):
        V = word_vectors(sum(counts[1:K], counts[0].astype(np.int64)), options.bits // 2)
        model = vector_language_model(counts, vector_features(V), features=options.features, radius=K, eos=text.eos)
    return FitResult(model, {"bits": options.bits})


def _fit_optimum(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The minimum of the convex training loss: in closed form at K = 1, by L-BFGS on the counts at K = 2."""
    from jexplicit.lm.fits.optimum import bigram_optimum, context_pairs, find_optimum

    K, eos = options.radius, text.eos
    if K > 2:
        raise ValueError(
            f"optimum with radius {K}: only K = 1 and 2 have their partition functions from counts; use one of these"
        )
    with watch.stage(f"optimum, {options.features}, K = {K}", "iterations") as progress:
        if K == 1:
            found = bigram_optimum(text.counts(1), eos=eos, floor=options.optimum_floor)
        else:
            start = explicit_language_model(text.counts(K), features=options.features, radius=K, eos=eos)
            pairs = context_pairs(text.in_memory, text.vocab_size, eos=eos)
            log = functools.partial(watch.log, event="iteration", features=options.features, radius=K)
            found = find_optimum(
                start,
                text.counts(K),
                pairs,
                iterations=options.optimum_iterations,
                on_iteration=lambda info: log(**info),
                progress=progress,
            )
    info = {
        "iterations": found.iterations,
        "infimum_perplexity": float(np.exp(found.loss)),
        "kkt_residual": found.kkt_residual,
        **({"floor": options.optimum_floor} if K == 1 else {}),
    }
    return FitResult(found.model, info)


def _fit_mixture(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Counted rows of one and of several tokens, and of the past where it may be seen, with a fitted exponent each."""
    begin, adaptive = time.perf_counter(), options.history in ADAPTIVE
    if options.online and options.history != "adaptive":
        raise ValueError(f"online and history {options.history!r}: exponents go on being fitted with history 'adaptive'")
    history = history_of_base(options.history, characters=text.letters is not None)
    if adaptive and options.calibration == "pairs":
        raise ValueError(f"calibration 'pairs' with history {options.history!r}: use 'held-out', or another history")
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
        if options.calibration != "pairs":
            rest.forget()  # what the held-out text reads is kept, and all other rows would stand beside those of the whole
        return read, m

    name = ("held-out rows", kinds, options.smoothing, options.calibration_positions, options.calibration, options.seed)
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
    exponents, loss, more, fit_seconds = fitted.exponents, fitted.loss, {}, time.perf_counter() - begin
    log_row_kinds(read, exponents, watch, history=options.history, mesh=text.mesh)
    kept, positions = read.kinds, len(read.Y)
    del read  # as large as all rows that are counted next
    trim_heap()
    if options.calibration == "pairs":
        begin = time.perf_counter()
        rows = mixture_rows(rest, options.rows, **shape, history=history)
        own = choose_selectors(rows) if SELECTORS in options.rows else ()
        exponents, loss, more = _exponents_of_pairs(text, options, watch, rows, own, exponents, held_out, m)
        fit_seconds += time.perf_counter() - begin
    begin = time.perf_counter()
    with watch.stage("mixture: rows", "groups") as progress:
        rows = mixture_rows(text, options.rows, **shape, history=history, progress=progress)
    own, selectors = base.exponents if adaptive else exponents, choose_selectors(rows)
    chosen = selectors if SELECTORS in options.rows else ()
    model = LanguageModel(rows, np.asarray(own, np.float32), "cat", text.eos, chosen)
    if adaptive:
        kind = adaptive_rows(text, named_kinds(kept), within_documents=options.history == "adaptive:document")
        own = selectors if SELECTORS in kept else ()
        curvature = positions * fitted.hessian if options.online else None
        model = adaptive_model(model, kind, exponents, own, curvature=curvature)
    info = {
        "table_seconds": table_seconds + time.perf_counter() - begin,
        "fit_seconds": fit_seconds,
        "exponents": [float(a) for a in exponents],
        "rows": list(model.names),
        "held_out_perplexity": float(np.exp(loss)),
        "smoothing": options.smoothing,
        "scalars": len(exponents) + (len(base.exponents) if adaptive else 0),
        **more,
    }
    return FitResult(model, info)


def _exponents_of_pairs(
    text: TrainingText,
    options: Options,
    watch: Watch,
    rows: tuple[Any, ...],
    selectors: tuple[Any, ...],
    start: np.ndarray,
    held_out: EncodedText,
    m: np.ndarray,
) -> tuple[np.ndarray, float, dict[str, Any]]:
    """The exponents for minimal pairs of the held-out text, from those of the text, and the loss that they have on it."""
    from jexplicit.lm.fits.mixtures.pair_exponents import fit_to_pairs, pairs_of_text

    most = options.calibration_positions // _positions_of_a_pair
    stream = held_out.past.stream
    with watch.stage("mixture: minimal pairs"):
        pairs = text.once(("pairs", most, options.seed), lambda: pairs_of_text(text, stream, most=most, seed=options.seed))
    model = LanguageModel(rows, np.asarray(start, np.float32), "cat", text.eos, selectors)
    with watch.stage(f"mixture: exponents of minimal pairs, history {options.history}") as progress:
        fitted, info = fit_to_pairs(model, cast(Tokenizer, text.tokenizer), pairs, progress=progress)
        model = LanguageModel(rows, np.asarray(fitted.exponents, np.float32), "cat", text.eos, selectors)
        log_p = log_probabilities(model, held_out.X[m], held_out.Y[m], past=held_out.past.take(m))
    return fitted.exponents, -float(log_p.mean(dtype=np.float64)), {**info, "calibration": options.calibration}


_positions_of_a_pair = 5


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
    "mean-cooccurrence": _fit_mean_cooccurrence,
    "intercept": _fit_intercept,
    "cold": functools.partial(_fit_trained, "cold"),
    "warm": functools.partial(_fit_trained, "warm"),
    "optimum": _fit_optimum,
    "log-linear": _fit_log_linear,
    "iterative-scaling": _fit_iterative_scaling,
    "mixture": _fit_mixture,
    "context-mixing": _fit_context_mixing,
    "bitcipher": _fit_bitcipher,
    "word-vectors": _fit_word_vectors,
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
    "mean-cooccurrence": _tables,
    "intercept": (*_tables, "sweeps"),
    "cold": (*_tables, *_training),
    "warm": (*_tables, *_training),
    "optimum": (*_tables, "optimum_iterations", "optimum_floor"),
    "log-linear": (*_tables, "calibration", *_exponents),
    "iterative-scaling": (*_tables, "sweeps", "discount", *_exponents),
    "mixture": ("rows", "history", "online", "calibration", *_exponents),
    "context-mixing": ("contexts", "gates", "history", "seed"),
    "bitcipher": (*_tables, "bits"),
    "word-vectors": (*_tables, "bits"),
}
"""The options that each method uses."""
assert set(METHODS) == set(OPTIONS) == set(get_args(Method))
