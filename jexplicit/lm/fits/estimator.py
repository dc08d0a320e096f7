"""One call from texts to a language model."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from jexplicit.data.corpora import Corpus
from jexplicit.data.text import Unit, read_documents
from jexplicit.data.tokenizers import KINDS, Tokenizer, encode_documents, make_tokenizer
from jexplicit.lm.core.names import Features, History, window_of
from jexplicit.lm.fits.fit import DENSE, METHODS, OPTIONS, choose_tables, fit_model
from jexplicit.lm.measures import positions_in_all
from jexplicit.lm.text_model import TextModel
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.devices import default_mesh
from jexplicit.runs.host import host_bytes

_no_features = ("unigram", "bigram", "ngram", "context-mixing")


def fit(
    texts: Iterable[Any] | Path,
    method: str | None = None,
    *,
    history: History | None = None,
    features: Features | None = None,
    radius: int | None = None,
    tokenizer: str | os.PathLike | Tokenizer = "bpe",
    vocab_size: int | None = None,
    eos: bool = False,
    field: str | None = None,
    documents: Unit = "line",
    watch: Watch | None = None,
    **options: Any,
) -> TextModel:
    """Fit a language model to texts: what `launch.lm` does, without its run folder and its measurements.

    Args:
        texts: documents, a list or a generator of strings. Or files: a `pathlib.Path`, or several, of files, globs and folders.
            A string is always a text, never a file.
        method: one of jexplicit.METHODS; default "context-mixing", which predicts best. "explicit" is the paper's closed form.
        history: what context mixing sees beyond its contexts: the `document` so far (default), `all` of the text before, the
            last W tokens (`window:W`), or `none`; `adaptive`: all is counted as it is read. With `all` and `adaptive`, the
            score of a text depends on the texts before it.
        features, radius: `sum` or `cat` (default) of so many context tokens (default 1), for the methods that take them.
        tokenizer: `bpe`, `word` or `char`, trained on the texts; or a tokenizer, or where one lies (a run folder, a
            SentencePiece model, a `tokenizer.json`).
        vocab_size: token ids of a trained tokenizer; default 4098, or every character.
        eos: predict the end of a document too.
        field, documents: how files are read, see `jexplicit.data.text.read_documents`.
        watch: progress, events, checkpoints, and the dev stream that stops training; default, none, and a held-out part of the
            texts.
        options: of the method, see `jexplicit.lm.fits.fit.OPTIONS` and `jexplicit.Options`: smoothing, sweeps, seed, ...

    Returns:
        the model with its tokenizer: `.perplexity`, `.score`, `.next_token`, `.generate` and `.save`.

    Raises:
        ValueError: one string instead of texts, or no text; strings and files together; files that cannot be read; an unknown
            method; an option that the method does not use, or one that does not fit the others.

    Example:
        >>> model = fit(["to be or not to be"], "explicit", tokenizer="char", radius=2)
        >>> model.generate("to b", 3, temperature=0)
        'e o'
    """
    method = method or "context-mixing"
    named = {"features": features, "radius": radius, "history": history}
    settings = _options(method, options | {name: value for name, value in named.items() if value is not None})
    read = _read_texts(texts, field, documents)
    if not any(text.strip() for text in read):
        raise ValueError(f"no text in {len(read)} documents: give some")
    own = make_tokenizer(tokenizer, read, vocab_size)
    stream = encode_documents(own, read)
    if len(stream) < 2:
        raise ValueError(f"no token in {len(read)} documents: give some text")
    N, K = own.vocab_size, settings.radius
    tables = choose_tables([method], N, K, host_bytes())
    if tables == "sparse" and method in DENSE and method != "explicit":
        raise ValueError(f"method {method!r} needs tables of {N} x {N}, too large here: use a smaller vocab_size")
    shape: Any = {"eos": eos, "mesh": default_mesh(), "tokenizer": own}
    text = TrainingText(stream, N, **shape)
    if tables == "sparse":
        text = TrainingText(stream, N, sparse_counts=text.sparse_counts(K), **shape)
    if method in ("cold", "warm") and (watch is None or watch.dev is None):  # the best epoch is that of a held-out part
        text, held_out = text.parts(settings.calibration_positions)
        watch = (watch or Watch())._replace(dev=held_out)
    model, info = fit_model(method, text, settings, watch)
    about = {
        "method": method,
        "features": "none" if method in _no_features else settings.features,
        "radius": max(1, model.radius),
        "history": settings.history,
        "vocab_size": N,
        "train_tokens": positions_in_all(stream),
        "corpus_sha256": Corpus("texts", read, []).sha256,
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
    if options.get("radius", 1) < 1:
        raise ValueError(f"radius={options['radius']}: a context has at least one token")
    window_of(options.get("history", "none"))
    defaults: dict[str, Any] = {"history": "document"} if "history" in OPTIONS[method] else {}
    return Options(**defaults | options)


def _read_texts(texts: Iterable[Any] | Path, field: str | None, documents: Unit) -> list[str]:
    if isinstance(texts, str):
        shown = texts if len(texts) <= 40 else f"{texts[:37]}..."
        raise ValueError(f"the string {shown!r} instead of texts: pass a list, [text], or a pathlib.Path for a file")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterating over a table gives the names of its columns
        columns = [*(texts if isinstance(texts, Mapping) else cast(Any, texts).columns)]
        column = "text" if "text" in columns else next(iter(columns), "text")
        raise ValueError(f"a {type(texts).__name__} instead of texts: pass the column of the texts, such as table[{column!r}]")
    if isinstance(texts, (set, frozenset)):
        raise ValueError("a set of texts, which has no order: pass a list, sorted(texts)")
    given: list[Any] = [texts] if isinstance(texts, os.PathLike) else list(texts)
    files = [item for item in given if isinstance(item, os.PathLike)]
    if not given:
        raise ValueError("no texts: pass at least one string, or a pathlib.Path")
    if files and len(files) == len(given):
        return read_documents(files, field=field, documents=documents)
    if others := [item for item in given if not isinstance(item, str)]:
        found = f"{type(others[0]).__name__} {str(others[0])[:40]!r}"
        raise ValueError(f"texts with {found}: pass either strings (texts) or pathlib.Paths (files), not both")
    if field is not None or documents != "line":
        raise ValueError(f"field={field!r}, documents={documents!r} with strings: they say how files (pathlib.Path) are read")
    return given
