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
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.names import Method as Method
from jexplicit.lm.counted.use import AnyModel
from jexplicit.lm.fits.column_weights import fit_token_delta, shift_tokens
from jexplicit.lm.rows.backoff import ngram_model
from jexplicit.lm.rows.explicit import bigram_model, explicit_language_model, target_counts, unigram_model
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
CHAIN = (1, 2, 3, 4)  # offsets of the contexts of the n-gram model
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
    with watch.stage("ngram"):
        return FitResult(ngram_model(text.ngrams(CHAIN), eos=text.eos), {})


def _fit_optimum(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The minimum of the training loss of one token of context, in closed form."""
    from jexplicit.lm.fits.optimum import FLOOR, bigram_optimum

    if options.radius != 1:
        raise ValueError(f"optimum with radius {options.radius}: only K = 1 has a closed form; sweeps go there at any K")
    with watch.stage(f"optimum, {options.features}, K = 1"):
        found = bigram_optimum(text.counts(1), eos=text.eos)
    info = {"infimum_perplexity": float(np.exp(found.loss)), "kkt_residual": 0.0, "floor": FLOOR}
    return FitResult(found.model, info)


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
    "log-linear": (*_tables, *_exponents),
    "iterative-scaling": (*_tables, "sweeps", "discount", *_exponents),
    "context-mixing": ("contexts", "gates", "stages", "frozen", "history", "seed"),
}
"""The options that each method uses."""
assert set(METHODS) == set(OPTIONS) == set(get_args(Method))
