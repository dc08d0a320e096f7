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
import jax.numpy as jnp
import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.lm.core.model import token_model
from jexplicit.lm.core.names import Method as Method
from jexplicit.lm.core.softmax import logits
from jexplicit.lm.counted.use import AnyModel
from jexplicit.lm.rows.backoff import ngram_model
from jexplicit.lm.rows.explicit import (
    FLOOR,
    bigram_model,
    bigram_optimum,
    explicit_blocks,
    explicit_language_model,
    target_counts,
    unigram_model,
    with_targets,
)
from jexplicit.lm.rows.sparse import sparse_bigram_model, sparse_language_model, sparse_unigram_model
from jexplicit.lm.training_text import Options, TrainingText, Watch, draw_positions
from jexplicit.runs.host import trim_heap
from jexplicit.solvers.frequency_exponent import fit_delta

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
    """The explicit solution with weights `w_i = f_i^((1 - K - δ)/K)`, δ of the lowest loss on drawn positions of its own text.

    Eq. 12-14 have `w_i ∝ f_i^(1/K) / <E_G[F_i]>`, and where the mean grows as f_i^s the logits change by -δ log f_i,
    δ = K (s - 1): Sec. 2.2.
    """
    K, features = options.radius, options.features
    blocks, of_offset = explicit_blocks(text.counts(K), features=features, radius=K, eos=text.eos)
    log_f = jnp.log(jnp.asarray(np.maximum(target_counts(text.counts(1), eos=text.eos), 1), blocks[0].dtype))
    X, Y = contexts(text.in_memory, K, eos=text.eos)
    m = draw_positions(options, len(Y))
    X, Y = jnp.asarray(X[m], jnp.int32), jnp.asarray(Y[m], jnp.int32)
    with watch.stage(f"delta, {features}, K = {K}"):
        found = fit_delta(lambda x: logits([blocks[t] for t in of_offset], x), X, jnp.ones(len(m), log_f.dtype), Y, log_f)
    blocks = [U - found.delta / K * log_f[None] for U in blocks]
    return FitResult(token_model([blocks[t] for t in of_offset], features, text.eos), {"delta": found.delta, "scalars": 1})


def _fit_ngram(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    with watch.stage("ngram", "positions" if text.disk else "") as progress:
        return FitResult(ngram_model(text.ngrams(CHAIN, progress), eos=text.eos), {})


def _fit_optimum(text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """The minimum of the training loss of one token of context, in closed form."""
    if options.radius != 1:
        raise ValueError(f"optimum with radius {options.radius}: only K = 1 has a closed form; sweeps go there at any K")
    with watch.stage(f"optimum, {options.features}, K = 1"):
        table, loss = bigram_optimum(with_targets(text.counts(1)[0], eos=text.eos))
    info = {"infimum_perplexity": float(np.exp(loss)), "kkt_residual": 0.0, "floor": FLOOR}
    return FitResult(token_model((jnp.asarray(table, jnp.float32),), "cat", text.eos), info)


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
    from jexplicit.lm.fits.gradient import train_language_model

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
