"""The forecast of launch.lm: tokens, memory, disk and time.

Sizes come from the tables that would be made, and times from a small part of the text, on which every model is fitted and
evaluated twice, the first time with compilation.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from jexplicit.counts.pairs import count_sparse
from jexplicit.data.contexts import PAD
from jexplicit.data.shards import read_shards
from jexplicit.data.tokenizers import Tokenizer, encode_documents, make_tokenizer
from jexplicit.lm.checkpoints import FROM_COUNTS
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.training_text import TrainingText, Watch
from jexplicit.runs.devices import RUNTIME_BYTES
from jexplicit.runs.progress import show, si_format
from launch.kit.views import Column, Row, rich_table
from launch.lm.config import Config
from launch.lm.models import kind_of_tables, mixing_bytes, options_of, read_corpus, wanted_models

_documents = 1_000  # of the part that is tokenised
_positions = 20_000  # of the part that is fitted on
_pair_bytes = 12  # of a pair in sparse counts: two ids and a number
_stored_bytes = 3  # of a pair that occurs, in a checkpoint of dense counts, which is compressed
_passes = {"iterative-scaling": "sweeps", "cold": "epochs", "warm": "epochs"}  # options with the passes that a fit makes
_fixed = ("unigram", "bigram", "explicit", "log-linear")  # solved from counts: not longer for more text


def forecast(config: Config) -> dict[str, Any]:
    """Estimate, show the estimate as a table, and return it."""
    if config.shards:
        shards, seconds = read_shards(config.shards / "train"), 0.0
        tokenizer, stream = Tokenizer.load(config.shards / "tokenizer.model"), shards[: min(len(shards), 50 * _positions)]
        documents, tokens = shards.documents, len(shards)
    else:
        texts = read_corpus(config).train
        documents, step = len(texts), max(1, len(texts) // _documents)
        while True:
            part, start = texts[::step], time.perf_counter()
            try:
                tokenizer = make_tokenizer(config.tokenizer, part, config.vocab_size)
                break
            except ValueError:  # a vocabulary that this part is too small for
                if (step := step // 2) == 0:
                    raise
        stream = encode_documents(tokenizer, part)
        share = sum(map(len, texts)) / max(sum(map(len, part)), 1)
        tokens, seconds = int(len(stream) * share), (time.perf_counter() - start) * share
    N = tokenizer.vocab_size
    kind, K = kind_of_tables(config, N), max(config.radius)
    ends = np.flatnonzero(stream == PAD)[1:]
    end = int(ends[min(np.searchsorted(ends, _positions), len(ends) - 1)])  # whole documents, if they are not long
    stream = np.append(stream[: min(end, 2 * _positions)], stream[:1])
    grows, start = tokens / len(stream), time.perf_counter()
    tables = count_sparse(stream, radius=K, vocab_size=N)
    counting = (time.perf_counter() - start) * grows
    pairs = sum(table.nnz for table in tables) * grows**0.7  # Heaps' law: distinct pairs grow more slowly than text
    table_bytes = _pair_bytes * pairs if kind == "sparse" else 4 * K * N**2
    models = list(wanted_models(config))
    shape: Any = {"eos": config.eos, "tokenizer": tokenizer, "sparse_counts": tables if kind == "sparse" else ()}
    fitting = sum(_model_seconds(config, name, TrainingText(stream, N, **shape), tokens) for name in models)
    saved = sum(name["method"] not in FROM_COUNTS for name in models)
    memory = RUNTIME_BYTES + (6 if kind == "dense" else 3) * table_bytes + 4 * tokens
    found = {
        "documents": documents,
        "tokens": tokens - documents - 1,  # without <pad>
        "vocab_size": N,
        "tables": kind,
        "memory_bytes": max(memory, mixing_bytes(config, tokenizer, (grows * np.bincount(stream)).astype(int))),
        "disk_bytes": saved * table_bytes + (_pair_bytes if kind == "sparse" else _stored_bytes) * pairs,
        "tokenising_seconds": seconds,
        "counting_seconds": counting,
        "models_seconds": fitting,
        "seconds": seconds + counting + fitting,
    }
    rows = [
        {"what": name.replace("_", " "), "estimate": value if isinstance(value, str) else si_format(value)}
        for name, value in found.items()
    ]
    show(rich_table([Column("", "what"), Column("estimate", "estimate")], rows, title="a forecast; nothing is written"))
    return found


def _model_seconds(config: Config, name: Row, text: TrainingText, tokens: int) -> float:
    """Seconds to fit and evaluate the whole text, from a part."""
    method, stream, seconds = name["method"], text.in_memory, []
    options, passes = options_of(config, name), _passes.get(method)
    if passes:
        options = replace(options, **{passes: 1})
    for _ in range(2):  # the second time without compilation
        start = time.perf_counter()
        text.forget()
        model = fit_model(method, text, options, Watch(dev=stream)).model
        middle = time.perf_counter()
        evaluate(model, stream)
        seconds.append((middle - start, time.perf_counter() - middle))
    (first_fit, first_reading), (fitted, read) = seconds
    compiling = max(0.0, first_fit - fitted) + max(0.0, first_reading - read)
    longer = (getattr(config, passes) if passes else 1) * (1.0 if method in _fixed else tokens / len(stream))
    drawn = tokens if name["radius"] == 1 else min(tokens, config.train_sample or tokens) + tokens / 10
    return compiling + fitted * longer + read * drawn / len(stream)
