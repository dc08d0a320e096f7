"""What a run of launch.lm will take, estimated before it: documents, tokens, memory, disk and time. Nothing is written.

Sizes come from the tables that would be made, and times from a small part of the text on which everything is done: every model
is fitted and evaluated there twice, the first time with compilation.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.counts.sparse import count_sparse
from jexplicit.data.contexts import PAD
from jexplicit.data.shards import read_shards
from jexplicit.data.tokenizers import Tokenizer, encode_documents, make_tokenizer
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.training_text import RADIUS, TrainingText
from jexplicit.lm.rows.words import letters_of
from jexplicit.runs.progress import human, show
from jexplicit.runs.tables import Column, rich_table
from launch.lm.config import Config
from launch.lm.measure import options_of, wanted_models

_documents = 1_000  # of the part that is tokenised
_positions = 20_000  # of the part that is fitted on
_runtime_bytes = 600 * 10**6  # Python, its libraries, and what XLA compiles
_pair_bytes = 12  # of a pair in sparse counts: two ids and a number
_stored_bytes = 3  # of a pair that occurs, in a checkpoint of dense counts, which is compressed
_passes = {
    "intercept": "sweeps",
    "cold": "epochs",
    "warm": "epochs",
    "iterative-scaling": "sweeps",
    "optimum": "optimum_iterations",
}
_names = {
    "vocab_size": "vocabulary",
    "memory_bytes": "memory",
    "disk_bytes": "disk",
    "tokenising_seconds": "tokenising",
    "counting_seconds": "counting",
    "models_seconds": "models",
    "seconds": "all in all",
}
_fixed = ("unigram", "bigram", "explicit", "log-linear")  # solved from counts: not longer for more text


class Sample(NamedTuple):
    """A part of the text as tokens, and the size of the whole."""

    tokenizer: Tokenizer
    stream: np.ndarray
    documents: int
    tokens: int
    seconds: float  # to tokenise the whole


def forecast(config: Config, kind_of_tables: Callable[[Config, int], str], documents: Sequence[str] | None) -> dict[str, Any]:
    """Estimate, show the estimate as a table, and return it.

    Args:
        config: of the run.
        kind_of_tables: that of launch.lm.run.
        documents: the training text in memory, or None for that of shards.
    """
    sample = _sharded(config) if documents is None else _tokenised(config, documents)
    N = config.vocab_size or sample.tokenizer.vocab_size
    kind, K = kind_of_tables(config, N), max(*config.radius, RADIUS if "mixture" in config.methods else 1)
    stream = sample.stream[: _whole(sample.stream, _positions)]
    grows = sample.tokens / len(stream)
    start = time.perf_counter()
    pairs = sum(table.nnz for table in count_sparse(stream, radius=K, vocab_size=sample.tokenizer.vocab_size))
    counting = (time.perf_counter() - start) * grows
    pairs *= grows**0.7  # Heaps' law: distinct pairs grow more slowly than text
    table_bytes = _pair_bytes * pairs if kind == "sparse" else 4 * K * N**2
    models = [name for name in wanted_models(config) if not (name["method"] == "optimum" and name["radius"] > 2)]
    fitting = sum(_model_seconds(config, name, stream, sample, grows) for name in models)
    saved = sum(1 for name in models if name["method"] not in ("unigram", "bigram", "explicit"))
    found = {
        "documents": sample.documents,
        "tokens": sample.tokens - sample.documents - 1,  # without <pad>
        "vocab_size": N,
        "tables": kind,
        "memory_bytes": _runtime_bytes + (6 if kind == "dense" else 3) * table_bytes + 4 * sample.tokens,
        "disk_bytes": saved * table_bytes + (_pair_bytes if kind == "sparse" else _stored_bytes) * pairs,
        "tokenising_seconds": sample.seconds,
        "counting_seconds": counting,
        "models_seconds": fitting,
        "seconds": sample.seconds + counting + fitting,
    }
    rows = [{"what": _names.get(name, name), "estimate": _shown(name, value)} for name, value in found.items()]
    show(rich_table([Column("", "what"), Column("estimate", "estimate")], rows, title="a forecast; nothing is written"))
    return found


def _tokenised(config: Config, documents: Sequence[str]) -> Sample:
    part = documents[:: max(1, len(documents) // _documents)]
    share = sum(map(len, documents)) / max(sum(map(len, part)), 1)
    start = time.perf_counter()
    tokenizer = make_tokenizer(config.tokenizer, part, None)
    stream = encode_documents(tokenizer, part)
    return Sample(tokenizer, stream, len(documents), int(len(stream) * share), (time.perf_counter() - start) * share)


def _sharded(config: Config) -> Sample:
    folder = Path(config.corpus.removeprefix("shards:"))
    shards = read_shards(folder / "train")
    part = shards[: min(len(shards), 50 * _positions)]
    return Sample(Tokenizer.load(folder / "tokenizer.model"), part, shards.documents, len(shards), 0.0)


def _whole(stream: np.ndarray, size: int) -> int:
    """The length of the part of a stream that ends with a document."""
    ends = np.flatnonzero(stream == PAD)[1:]
    return int(ends[min(np.searchsorted(ends, size), len(ends) - 1)]) + 1


def _model_seconds(config: Config, name: dict[str, Any], stream: np.ndarray, sample: Sample, grows: float) -> float:
    """Seconds to fit and evaluate a model on the whole text, from those on a part of it."""
    method, radius = name["method"], name["radius"]
    passes = _passes.get(method)
    options = options_of(config, name)
    if options.calibration == "pairs":  # of which a part of the text may have none
        options = replace(options, calibration="held-out")
    if passes:
        options = type(options)(**{**vars(options), passes: 1})
    tokenizer, seconds = sample.tokenizer, []
    shape: Any = {"eos": config.eos, "letters": letters_of(tokenizer), "tokenizer": tokenizer}
    for _ in range(2):  # the second time without compilation
        start = time.perf_counter()
        model = fit_model(method, TrainingText(stream, tokenizer.vocab_size, **shape), options).model
        middle = time.perf_counter()
        evaluate(model, stream)
        seconds.append((middle - start, time.perf_counter() - middle))
    (first_fit, first_reading), (fitted, read) = seconds
    compiling = max(0.0, first_fit - fitted) + max(0.0, first_reading - read)
    longer = (getattr(config, passes) if passes else 1) * (1.0 if method in _fixed else grows)
    evaluated = sample.tokens if radius == 1 else min(sample.tokens, config.train_sample or sample.tokens) + sample.tokens / 10
    return compiling + fitted * longer + read * evaluated / len(stream)


def _shown(name: str, value: Any) -> str:
    if name.endswith("bytes"):
        return f"{human(value)}B"
    return f"{value:.0f} s" if name.endswith("seconds") else f"{value:,}" if isinstance(value, int) else str(value)
