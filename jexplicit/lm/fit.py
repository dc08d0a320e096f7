"""Every method of fitting a language model by name: text and options to model."""

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.counts import count_sparse
from jexplicit.data.streams import contexts
from jexplicit.data.text import Corpus, Unit, read_documents
from jexplicit.data.tokenizers import KINDS, PAD, Tokenizer, encode_documents, make_tokenizer
from jexplicit.lm.counted.contexts import window_of
from jexplicit.lm.counted.model import fit_counted
from jexplicit.lm.layers import explicit_language_model, fit_log_linear, target_counts, with_targets
from jexplicit.lm.model import LanguageModel, draw_sample, logits, token_model
from jexplicit.lm.names import Features, History, Method
from jexplicit.lm.ngram import bigram_model, smoothed_ngrams, unigram_model
from jexplicit.lm.text_model import TextModel
from jexplicit.lm.training_text import FitResult, Options, TrainingText, Watch
from jexplicit.runs.devices import as_json, check_seed, check_threads
from jexplicit.runs.files import PositiveInt, find_bounds, host_bytes, is_of
from jexplicit.solvers.explicit import fit_delta

METHODS = get_args(Method)
DENSE = ("explicit", "delta", "cold", "warm", "optimum", "log-linear", "iterative-scaling")  # tables [N, N]
ORDER = 4  # tokens of the longest contexts of the n-gram model
_tables = ("features", "context")
_weights = ("calibration_positions", "seed")
_training = ("epochs", "batch_size", "learning_rate", "patience", "train_sample", "seed")
OPTIONS: dict[str, tuple[str, ...]] = {  # that each method uses
    **dict.fromkeys(("unigram", "bigram", "ngram"), ()),
    **dict.fromkeys(("explicit", "optimum"), _tables),
    "delta": (*_tables, "calibration_positions", "seed"),
    **dict.fromkeys(("cold", "warm"), (*_tables, *_training)),
    "log-linear": (*_tables, *_weights),
    "iterative-scaling": (*_tables, "sweeps", "discount", *_weights),
    "context-mixing": ("gates", "stages", "frozen", "history", "seed"),
}
_floor = 1e-9  # the count in the place of 0, at the optimum
_copies = 6  # of the counts, while a dense model is solved
_largest_dense = 2**31  # cells whose ids fit int32


def choose_tables(methods: Collection[str], vocab_size: int, context: int, memory: float) -> Literal["dense", "sparse"]:
    """Dense tables if a method needs them or `memory` holds them, else sparse.

    >>> [choose_tables(["explicit", "ngram"], N, 4, 16e9) for N in (4098, 128_000)]
    ['dense', 'sparse']
    """
    cells = vocab_size**2
    fits = cells < _largest_dense and _copies * 4 * context * cells <= memory
    return "dense" if fits and set(DENSE) & set(methods) else "sparse"


def fit_model(method: str, text: TrainingText, options: Options | None = None, watch: Watch | None = None) -> FitResult:
    """Fit a language model to a text by one of METHODS.

    Returns:
        the model, and `info` with `solve_seconds`, `scalars` (how many numbers were fitted) and what the method adds.

    Example:
        >>> fitted = fit_model("bigram", TrainingText(np.array([0, 2, 3, 2, 4, 0]), 5))
        >>> fitted.model.names, fitted.info["scalars"]
        (('unigram', 'context 1'), 0)
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r}: choose one of {', '.join(METHODS)}")
    check_threads()
    start = time.perf_counter()
    fitted = _fit(method, text, options or Options(), watch or Watch())
    jax.block_until_ready(fitted.model)
    return fitted._replace(info={"solve_seconds": time.perf_counter() - start, "scalars": 0, **fitted.info})


def fit(
    texts: Iterable[Any] | Path,
    method: str | None = None,
    *,
    history: History | None = None,
    features: Features | None = None,
    context: int | None = None,
    tokenizer: str | os.PathLike | Tokenizer = "bpe",
    vocab_size: int | None = None,
    eos: bool = False,
    field: str | None = None,
    documents: Unit = "line",
    watch: Watch | None = None,
    **options: Any,
) -> TextModel:
    """Fit a language model to texts, as `launch.lm` does, without a run folder.

    Args:
        texts: documents, a list or a generator of strings. Or files: a `pathlib.Path`, or several, of files, globs and folders.
            A string is always a text, never a file.
        method: one of `jexplicit.lm.METHODS`; default "context-mixing", the best. "explicit" is the closed form of the paper.
        history: what context mixing sees beyond its contexts: the `document` so far (default), `all` of the text before, the
            last W tokens (`window:W`), or `none`; `online`: all is counted as it is read. With `all` and `online`, the
            score of a text depends on the texts before it.
        features, context: `sum` or `cat` (default) of K context tokens (default 1), for the methods that take them.
        tokenizer: `bpe`, `word` or `char`, trained on the texts; or a tokenizer, or where one lies (a run folder, a
            SentencePiece model).
        vocab_size: token ids of a trained tokenizer; default 4098, or every character.
        field, documents: how files are read, see `jexplicit.data.text.read_documents`.
        watch: progress, events, checkpoints, and the dev stream that stops training; default, none, and a held-out part of the
            texts.
        options: of the method, see `jexplicit.lm.fit.OPTIONS` and `jexplicit.lm.Options`: sweeps, seed, ...

    Returns:
        the model with its tokenizer: `.perplexity`, `.score`, `.next_token`, `.generate` and `.save`.

    Raises:
        ValueError: one string instead of texts, or no text; strings and files together; files that cannot be read; an unknown
            method; an option that the method does not use, or one that does not fit the others.

    Example:
        >>> model = fit(["to be or not to be"], "explicit", tokenizer="char", context=2)
        >>> model.generate("to b", 3, temperature=0)
        'e o'
    """
    method = method or "context-mixing"
    named = {"features": features, "context": context, "history": history}
    settings = _options(method, options | {name: value for name, value in named.items() if value is not None})
    read = _read_texts(texts, field, documents)
    if not any(text.strip() for text in read):
        raise ValueError(f"no text in {len(read)} documents: give some")
    if not isinstance(eos, bool | np.bool):
        raise ValueError(f"eos={eos!r}: give True or False")
    own = make_tokenizer(tokenizer, read, vocab_size)
    stream = encode_documents(own, read)
    if len(stream) < 2:
        raise ValueError(f"no token in {len(read)} documents: give some text")
    N, K = own.vocab_size, settings.context
    if method == "context-mixing":
        model, info = _fit_context_mixing(stream, N, own, eos, settings, watch)
    else:
        text = TrainingText(stream, N, eos=eos, tokenizer=own)
        if method != "ngram" and choose_tables([method], N, K, host_bytes()) == "sparse":
            if method in DENSE and method != "explicit":
                raise ValueError(f"method {method!r} needs tables of {N} x {N}, too large here: use a smaller vocab_size")
            text = text.like(stream, sparse_counts=count_sparse(stream, context=K, vocab_size=N))
        if method in ("cold", "warm") and (watch is None or watch.dev is None):  # the best epoch is that of a held-out part
            text, held_out = text.parts(settings.calibration_positions)
            watch = (watch or Watch())._replace(dev=held_out)
        model, info = fit_model(method, text, settings, watch)
    about = {
        "method": method,
        "features": settings.features if "features" in OPTIONS[method] else "none",
        "context": max(1, model.context),
        "history": settings.history,
        "vocab_size": N,
        "train_tokens": int(np.count_nonzero(stream != PAD)),
        "corpus_sha256": Corpus("texts", read, ()).sha256,
        "tokenizer": own.kind if isinstance(tokenizer, Tokenizer) or tokenizer in KINDS else str(tokenizer),
        **info,
    }
    return TextModel(model, own, about)


def _options(method: str, options: dict[str, Any]) -> Options:
    """The options of a method, with its defaults."""
    if method not in METHODS:
        raise ValueError(f"method {method!r}: choose one of {', '.join(METHODS)}")
    if unused := sorted(set(options) - set(OPTIONS[method])):
        known = f"choose from {', '.join(OPTIONS[method])}" if OPTIONS[method] else "it has none"
        raise ValueError(f"option {', '.join(unused)}, which method {method!r} does not use: {known}")
    options = {name: as_json(value) for name, value in options.items()}
    hints, kinds = get_type_hints(Options, include_extras=True) | {"context": PositiveInt}, get_type_hints(Options)
    for name, value in options.items():
        kind, bounds = kinds[name], [*find_bounds(hints[name])]
        fits = get_origin(hints[name]) is Literal or is_of(value, kind)
        if not fits or not (value is None or all(bound.contains(value) for bound in bounds)):
            words = "a number" if is_of(0.5, kind) else "a whole number" if is_of(0, kind) else "True or False"
            raise ValueError(f"{name}={value!r}: give {' '.join([words, *map(str, bounds)])}")
    window_of(options.get("history", "none"))
    if "seed" in options:
        check_seed(options["seed"])
    defaults: dict[str, Any] = {"history": "document"} if "history" in OPTIONS[method] else {}
    return Options(**defaults | options)


def _read_texts(texts: Iterable[Any] | Path, field: str | None, documents: Unit) -> list[str]:
    if isinstance(texts, str):
        shown = texts if len(texts) <= 40 else f"{texts[:37]}..."
        raise ValueError(f"the string {shown!r} instead of texts: pass a list, [text], or a pathlib.Path for a file")
    if not isinstance(texts, Iterable | os.PathLike):
        raise ValueError(f"{texts!r} instead of texts: pass a list of strings, or a pathlib.Path for a file")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterating over a table gives the names of its columns
        raise ValueError(f"a {type(texts).__name__} instead of texts: pass the column of the texts, such as table['text']")
    if isinstance(texts, (set, frozenset)):
        raise ValueError("a set of texts, which has no order: pass a list, sorted(texts)")
    given: list[Any] = [texts] if isinstance(texts, os.PathLike) else list(texts)
    files = [item for item in given if isinstance(item, os.PathLike)]
    if files and len(files) == len(given):
        return read_documents(files, field=field, documents=documents)
    if others := [(n, item) for n, item in enumerate(given) if not isinstance(item, str)]:
        found = f"text {others[0][0]} is {type(others[0][1]).__name__} {str(others[0][1])[:40]!r}"
        raise ValueError(f"{found}: leave it out; pass either strings (texts) or pathlib.Paths (files), not both")
    if field is not None or documents != "line":
        raise ValueError(f"field={field!r}, documents={documents!r} with strings: they say how files (pathlib.Path) are read")
    return given


def _fit(method: str, text: TrainingText, options: Options, watch: Watch) -> FitResult:
    if method in ("unigram", "bigram"):
        return FitResult((unigram_model if method == "unigram" else bigram_model)(text.known_counts(1), eos=text.eos), {})
    if method == "ngram":
        with watch.stage("ngram"):
            rows = smoothed_ngrams(*contexts(text.in_memory, ORDER, eos=text.eos), vocab_size=text.vocab_size)
            return FitResult(LanguageModel(rows, "none", text.eos), {})
    if method == "context-mixing":
        return _fit_context_mixing(text.in_memory, text.vocab_size, text.tokenizer, text.eos, options, watch)
    if method in ("cold", "warm"):
        from jexplicit.lm.training import train_language_model

        return train_language_model(method, text, options, watch)
    if method == "iterative-scaling":
        from jexplicit.lm.training import fit_iterative_scaling

        return fit_iterative_scaling(text, options, watch)
    if method == "log-linear":
        return fit_log_linear(text, options, watch)
    K, features = options.context, options.features
    if method == "delta":  # the explicit solution with a fitted δ in `f_i^((1-K-δ)/K)`: Sec. 2.2
        with watch.stage(f"delta, {features}, K = {K}"):
            model = explicit_language_model(text.counts(K), features=features, context=K, eos=text.eos)
            log_f = jnp.log(jnp.asarray(np.maximum(target_counts(text.counts(1), eos=text.eos), 1), model.tables[0].dtype))
            X, Y = contexts(text.in_memory, K, eos=text.eos)
            m = draw_sample(len(Y), options.calibration_positions, options.seed, shuffle=True)
            X, Y = jnp.asarray(X[m], jnp.int32), jnp.asarray(Y[m], jnp.int32)
            delta = fit_delta(lambda x: logits(model.tables, x), X, jnp.ones(len(m), log_f.dtype), Y, log_f)
            tables = [U - delta / K * log_f[None] for U in model.rows.tables]
            return FitResult(token_model(tables * (K // len(tables)), features, text.eos), {"delta": delta, "scalars": 1})
    if method == "explicit":
        return FitResult(explicit_language_model(text.known_counts(K), features=features, context=K, eos=text.eos), {})
    if K != 1:  # optimum: the relative frequencies, with a floor in the place of counts of 0
        raise ValueError(f"optimum with context {K}: only K = 1 has a closed form; sweeps go there at any K")
    C = with_targets(text.counts(1)[0], eos=text.eos)
    n = C.sum(axis=1, dtype=np.int64)
    table = np.log(np.maximum(C, _floor)) - np.log(np.maximum(n, len(C) * _floor))[:, None]
    return FitResult(token_model((jnp.asarray(table, jnp.float32),), "cat", text.eos), {})


def _fit_context_mixing(
    stream: np.ndarray, N: int, tokenizer: Tokenizer | None, eos: bool, options: Options, watch: Watch | None = None
) -> FitResult:
    """Context mixing (jexplicit.lm.counted): contexts and the weights of their evidence."""
    start, shape = time.perf_counter(), {name: getattr(options, name) for name in OPTIONS["context-mixing"]}
    stage = watch and watch.stage(f"context mixing, history {options.history}", "contexts and gates")
    with stage or contextlib.nullcontext() as progress:

        def log(done: int, in_all: int, **event: Any) -> None:
            cast(Watch, watch).log(event="context_mixing", **event)
            cast(Any, progress)(done, in_all)

        model = fit_counted(stream, N, tokenizer, **shape, eos=eos, log=log if watch else None)
    info = {"solve_seconds": time.perf_counter() - start, "scalars": model.scalars, "contexts": len(model.parts)}
    return FitResult(model, info)
