"""The models of launch.lm whose tables no device holds: sparse ones, and dense ones sharded by output column."""

import time
from dataclasses import replace
from typing import Any, NamedTuple, cast

from jax.sharding import Mesh

from jexplicit.counts.dense import INT32_CELLS
from jexplicit.counts.sharded import ShardedCounts, count_sharded
from jexplicit.counts.sparse import SparseCounts, count_sparse
from jexplicit.counts.stream import Saving
from jexplicit.data.cache import TokenizedCorpus
from jexplicit.lm.checkpoints import has_sparse_counts, load_sparse_counts, save_sparse_counts
from jexplicit.lm.explicit import Features
from jexplicit.lm.sharded import evaluate_sharded, sharded_language_model
from jexplicit.lm.sparse import SparseTables, sparse_bigram_model, sparse_language_model, sparse_unigram_model
from jexplicit.lm.sparse_evaluation import evaluate_sparse
from jexplicit.runs.devices import host_bytes, parse_bytes, peak_bytes
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from launch.lm.beam import counts_beside_shards
from launch.lm.config import Config
from launch.lm.models import Job, add_evaluated_row, has_row, label

_copies = 6  # of the counts, while a dense model is solved


class Large(NamedTuple):
    """Counts of one of the two kinds, and the seconds that they took."""

    counts: SparseCounts | ShardedCounts
    seconds: float


def kind_of_tables(config: Config, vocab_size: int) -> str:
    """dense, sparse or sharded: what --tables says, or, of auto, dense where memory holds what is solved from such tables."""
    if config.tables != "auto":
        return config.tables
    cells, K = vocab_size**2, max(config.radius)
    budget = parse_bytes(config.memory) if config.memory else host_bytes()
    return "dense" if cells < INT32_CELLS and _copies * 4 * K * cells <= budget else "sparse"


def count_large(config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh, kind: str, saving: Saving) -> Large:
    """The counts, of this run or, where they are sparse, of the run that it resumes."""
    if kind == "sparse" and has_sparse_counts(folder.path):
        return Large(load_sparse_counts(folder.path), folder.events("count")[-1]["seconds"])
    N, K = text.tokenizer.vocab_size, max(config.radius)
    memory = parse_bytes(config.memory) if config.memory else None
    start = time.perf_counter()
    with stage(f"counting, {kind} tables", "positions") as progress:
        if kind == "sparse" and (found := counts_beside_shards(config, text, K)):
            counts = found
        elif kind == "sparse":
            counts = count_sparse(text.train, radius=K, vocab_size=N, memory=memory, saving=saving, progress=progress)
        else:
            counts = count_sharded(text.train, radius=K, vocab_size=N, mesh=mesh, progress=progress)
    seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K, peak_bytes=peak_bytes(), tables=kind)
    if kind == "sparse":
        save_sparse_counts(folder.path, cast(SparseCounts, counts))
    return Large(counts, seconds)


def measure_large(job: Job, large: Large, kind: str) -> None:
    """Baselines, where the tables are sparse, and the explicit solution of every --features and --radius."""
    if kind == "sparse":
        _measure(job, large, kind, "unigram", "none", 0)
        _measure(job, large, kind, "bigram", "none", 1)
    for features in job.config.features:
        for radius in job.config.radius:
            _measure(job, large, kind, "explicit", features, radius)


def _measure(job: Job, large: Large, kind: str, method: str, features: str, radius: int) -> None:
    if has_row(job, method, features, radius):
        return
    config, start = job.config, time.perf_counter()
    options: dict[str, Any] = {"features": cast(Features, features), "radius": radius, "eos": config.eos}
    if kind == "sharded":
        model = sharded_language_model(cast(ShardedCounts, large.counts), **options)
    elif method == "explicit":
        model = sparse_language_model(cast(SparseCounts, large.counts), **options)
    else:
        baseline = sparse_unigram_model if method == "unigram" else sparse_bigram_model
        model = baseline(cast(SparseCounts, large.counts), eos=config.eos)
    solved = time.perf_counter()
    evaluate: Any = evaluate_sparse if isinstance(model, SparseTables) else evaluate_sharded
    with stage(label(method, features, radius), "contexts") as progress:
        parts = [(job.text.train, config.train_sample), (job.text.dev, config.dev_sample)]
        train, dev = (evaluate(model, x, sample=n or None, seed=config.seed, progress=progress) for x, n in parts)
    more = {"solve_seconds": solved - start, "eval_seconds": time.perf_counter() - solved, "tables": kind}
    add_evaluated_row(job, method, features, radius, train, dev, {**more, "dev_positions": dev.positions})


def for_large(config: Config, kind: str) -> Config:
    """The config, once it is known that no dense table is made.

    Raises:
        ValueError: methods that need one.
    """
    if others := set(config.methods) - {"explicit"}:
        raise ValueError(f"--methods {' '.join(sorted(others))} with {kind} tables: only explicit is solved from them")
    if kind == "sharded" and config.coordinator:
        raise ValueError(
            "--tables sharded with --coordinator: the devices of one process share the columns; use --tables sparse"
        )
    if config.export:
        raise ValueError(f"--export {config.export} with {kind} tables: only dense tables are exported")
    return replace(config, samples=0)
