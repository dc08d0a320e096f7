"""The measured models of launch.lm that need no training: baselines and the explicit solution."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.dense import Counts
from jexplicit.data.cache import TokenizedCorpus
from jexplicit.data.contexts import contexts
from jexplicit.lm.checkpoints import distinct_tables
from jexplicit.lm.evaluation import Evaluation, evaluate, fit_scaling, log_mean_cooccurrences, sampled_positions
from jexplicit.lm.explicit import (
    Features,
    TokenTables,
    bigram_model,
    cooccurrence_blocks,
    explicit_language_model,
    target_counts,
    unigram_model,
    with_targets,
)
from jexplicit.lm.gradient import kkt_residual
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.processes import is_first
from jexplicit.runs.progress import stage
from launch.lm.config import Config
from launch.lm.report import scaling_path


class Job(NamedTuple):
    """What every measured model needs."""

    config: Config
    folder: RunFolder
    text: TokenizedCorpus
    counts: Counts
    mesh: Mesh
    about: dict[str, Any]  # fields that all rows share


def measure(job: Job, method: str, features: str, radius: int) -> None:
    """Solve and evaluate one model, and add its row; a row that is there already stays."""
    if has_row(job, method, features, radius):
        return
    start = time.perf_counter()
    model = jax.block_until_ready(solve(job, method, features, radius))
    solve_seconds = time.perf_counter() - start
    more: dict[str, Any] = {"solve_seconds": solve_seconds}
    if method == "explicit":
        more |= measure_scaling(job, model)
        if {"cold", "warm", "optimum"} & set(job.config.methods):
            more |= {"kkt_residual": measure_kkt(job, model)}
    add_row(job, method, features, radius, model, more)


def has_row(job: Job, method: str, features: str, radius: int, **more: Any) -> bool:
    """Whether the run has measured a model already."""
    wanted = {"method": method, "features": features, "radius": radius, **more}
    return any(wanted.items() <= row.items() for row in job.folder.rows())


def add_row(job: Job, method: str, features: str, radius: int, model: TokenTables, more: dict[str, Any]) -> None:
    """Evaluate a model on train and dev, and add its row."""
    with stage(label(method, features, radius), "contexts") as progress:
        start = time.perf_counter()
        train = evaluate_on_train(job, model, progress)
        dev = evaluate(model, job.text.dev, mesh=job.mesh, progress=progress)
        eval_seconds = time.perf_counter() - start
    own = {"eval_seconds": eval_seconds, "bytes": sum(table.nbytes for table in distinct_tables(model))}
    add_evaluated_row(job, method, features, radius, train, dev, {**own, **more})


def add_evaluated_row(
    job: Job, method: str, features: str, radius: int, train: Evaluation, dev: Evaluation, more: dict[str, Any]
) -> None:
    """Add the row of a model that has been evaluated."""
    row = {
        "method": method,
        "features": features,
        "radius": radius,
        "train_perplexity": train.perplexity,
        "dev_perplexity": dev.perplexity,
        "train_positions": train.positions,
        "seconds": more["solve_seconds"],
        "scalars": 0,
        **job.about,
        **more,
    }
    job.folder.add_row(row)


def evaluate_on_train(job: Job, model: TokenTables, progress: Callable[[int, int], None] | None = None) -> Evaluation:
    """The loss on the training text: all of it at K = 1, else on the sample of --train-sample."""
    sample = job.config.train_sample or None
    options = {"sample": sample, "seed": job.config.seed, "mesh": job.mesh, "progress": progress}
    return evaluate(model, job.text.train, counts=job.counts, **options)


def label(method: str, features: str, radius: int) -> str:
    """What a model is called on the terminal."""
    return method if features == "none" else f"{method}, {features}, K = {radius}"


def measure_kkt(job: Job, model: TokenTables) -> float:
    """The distance from the optimum, over all of the training text: on a sample it would measure the sample."""
    X, Y = contexts(job.text.train[:], model.radius, eos=model.eos)
    with stage("KKT residual"):
        return kkt_residual(model, X, Y, mesh=job.mesh)


def solve(job: Job, method: str, features: str, radius: int) -> TokenTables:
    """The tables of one model."""
    if method == "unigram":
        return unigram_model(job.counts, eos=job.config.eos)
    if method == "bigram":
        return bigram_model(job.counts, eos=job.config.eos)
    return explicit_language_model(job.counts, features=cast(Features, features), radius=radius, eos=job.config.eos)


def scaling_contexts(job: Job, radius: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The contexts that the scaling assumption averages over, and how often each counts: at K = 1 all of them, from counts."""
    config = job.config
    if radius == 1:
        n = with_targets(job.counts[0], eos=config.eos).sum(axis=1, dtype=np.int64)
        return np.flatnonzero(n)[:, None], n[n > 0]
    options = {"eos": config.eos, "sample": config.scaling_sample, "seed": config.seed}
    return sampled_positions(job.text.train, radius, len(job.counts[0]), **options)[0], None


def measure_scaling(job: Job, model: TokenTables) -> dict[str, float]:
    """The line of the scaling assumption; the first process puts its points into the run folder, for the figure."""
    config, radius = job.config, model.radius
    F = cooccurrence_blocks(job.counts, features=model.features, radius=radius, eos=config.eos)
    X, n = scaling_contexts(job, radius)
    f, log_means = target_counts(job.counts, eos=config.eos), log_mean_cooccurrences(model, F, X, n)
    if is_first():
        path = scaling_path(job.folder.path, model.features, radius)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, f=f, log_means=log_means)
    return {f"scaling_{name}": value for name, value in fit_scaling(f, log_means)._asdict().items()}
