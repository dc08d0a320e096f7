"""Fit, save and measure one model after the other: every row of a launch.lm run."""

import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple, cast

import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.dense import Counts
from jexplicit.data.cache import TokenizedCorpus
from jexplicit.data.contexts import contexts
from jexplicit.lm.checkpoints import FROM_COUNTS, model_name, save_run_model
from jexplicit.lm.evaluation import evaluate, sampled_positions
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.gradient import kkt_residual
from jexplicit.lm.fits.mixture_rows import CHAIN, rows_radius
from jexplicit.lm.fits.training_text import Options, TrainingText, Watch
from jexplicit.lm.measures import comparable_measures, positions_in_all
from jexplicit.lm.model import Features, LanguageModel, is_token_model
from jexplicit.lm.names import label
from jexplicit.lm.rows.explicit import target_counts, with_targets
from jexplicit.lm.scaling_assumption import fit_scaling, log_mean_cooccurrences
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.host import peak_bytes
from jexplicit.runs.processes import is_first
from jexplicit.runs.progress import console, stage
from launch.lm.config import Config
from launch.lm.report import scaling_path

_positions_one_by_one = 20_000  # of the train perplexity of models that are read position by position
_once_at_1 = ("delta", "mean-cooccurrence", "cold", "warm", "optimum")  # at K = 1 Sum and Cat are one model


class Job(NamedTuple):
    """What every measured model needs."""

    config: Config
    folder: RunFolder
    text: TokenizedCorpus
    training: TrainingText
    mesh: Mesh
    tables: str  # dense, sparse or sharded
    about: dict[str, Any]  # fields that all rows share
    dev_counts: Counts | None = None  # of dense tables, at K = 1


def wanted_models(config: Config) -> Iterator[dict[str, Any]]:
    """What tells the rows of a run apart, in their order: the baselines, then every method with all that it varies by."""
    yield {"method": "unigram", "features": "none", "radius": 1, "history": "none"}
    yield {"method": "bigram", "features": "none", "radius": 1, "history": "none"}
    for method in config.methods:
        if method in ("unigram", "bigram"):
            continue
        if method == "ngram":
            yield {"method": method, "features": "none", "radius": len(CHAIN), "history": "none"}
        elif method == "mixture":
            yield from (
                {"method": method, "features": "cat", "radius": rows_radius(config.rows), "history": history}
                for history in config.history
            )
        else:
            for features, radius in itertools.product(config.features, config.radius):
                name = {"method": method, "features": features, "radius": radius, "history": "none"}
                coded = method in ("bitcipher", "word-vectors")
                yield from ({**name, "bits": bits} for bits in config.bits) if coded else [name]


def measure(job: Job, name: dict[str, Any]) -> None:
    """Fit, save and evaluate one model, and add its row; a row that is there already stays."""
    rows = job.folder.rows()
    if any(name.items() <= row.items() for row in rows):
        return
    method, radius = name["method"], name["radius"]
    if method == "optimum" and radius > 2:
        console.print(f"  {label(name)}: left out; only K = 1 and 2 have partition functions from counts")
        return
    if method in _once_at_1 and radius == 1:
        twin = next((row for row in rows if (row["method"], row["radius"]) == (method, 1)), None)
        if twin:
            job.folder.add_row({**twin, **name, "peak_bytes": peak_bytes()})
            return
    watch = watch_of(job, name)
    fitted = fit_model(method, job.training, options_of(job.config, name), watch)
    if method not in FROM_COUNTS and is_first():
        save_run_model(job.folder.path, name, fitted.model)
    more = fitted.info
    if method == "explicit" and is_token_model(fitted.model):
        more = more | measure_scaling(job, fitted.model)
        if {"cold", "warm", "optimum"} & set(job.config.methods):
            more = more | {"kkt_residual": measure_kkt(job, fitted.model)}
    add_row(job, name, fitted.model, more)
    if watch.checkpoints:
        shutil.rmtree(watch.checkpoints, ignore_errors=True)  # the model is saved; what it resumed from is needed no longer


def add_row(job: Job, name: dict[str, Any], model: LanguageModel, more: dict[str, Any]) -> None:
    """Evaluate a model on train and dev, and add its row."""
    config, start = job.config, time.perf_counter()
    one_by_one = len(model.rows) > 1
    samples = _positions_one_by_one if one_by_one else config.train_sample, 0 if job.tables == "dense" else config.dev_sample
    with stage(f"perplexity of {label(name)}", "positions" if one_by_one else "contexts") as progress:
        shared: Any = {"seed": config.seed, "mesh": job.mesh, "progress": progress}
        counts, dev_counts = (job.training.counts(1), job.dev_counts) if job.tables == "dense" else (None, None)
        train = evaluate(model, job.text.train, counts=counts, sample=samples[0] or None, **shared)
        dev = evaluate(model, job.text.dev, counts=dev_counts, sample=samples[1] or None, **shared)
    row = {
        **name,
        "train_perplexity": train.perplexity,
        "dev_loss": dev.loss,
        "dev_perplexity": dev.perplexity,
        "train_positions": train.positions,
        "dev_positions": dev.positions,
        **comparable_measures(dev.loss * positions_in_all(job.text.dev, eos=config.eos), job.text.dev_sizes),
        "seconds": more["solve_seconds"],
        "eval_seconds": time.perf_counter() - start,
        "bytes": model.nbytes,
        "tables": job.tables,
        **job.about,
        **more,
        "peak_bytes": peak_bytes(),
    }
    job.folder.add_row(row)


def options_of(config: Config, name: dict[str, Any]) -> Options:
    """The flags that a fit looks at, for one model."""
    flags = {f.name: getattr(config, f.name) for f in fields(Options) if hasattr(config, f.name)}
    chosen = {key: value for key, value in name.items() if key in flags and value != "none"}
    varied = ("features", "radius", "history", "bits")  # what rows vary by is in their name
    shared = {key: value for key, value in flags.items() if key not in varied}
    return Options(**{**shared, **chosen, "train_sample": config.train_sample or None})


def watch_of(job: Job, name: dict[str, Any]) -> Watch:
    """Progress on the terminal, events in the run folder, and a folder to resume from."""

    def log(**event: Any) -> None:
        job.folder.log(**event)
        if event["event"] in ("epoch", "sweep") and (number := event[event["event"]]):
            parts = ", ".join(f"{part} {event[f'{part}_perplexity']:.1f}" for part in ("train", "dev"))
            console.print(f"    {label(name)}: {event['event']} {number}, perplexity {parts}, {event['seconds']:.0f} s")

    checkpoints = job.folder.path / "checkpoints" / "fits" / model_name(name)
    return Watch(stage=stage, log=log, dev=job.text.dev, checkpoints=checkpoints, events=job.folder.events)


def measure_kkt(job: Job, model: LanguageModel) -> float:
    """The distance from the optimum, over all of the training text: on a sample it would measure the sample."""
    X, Y = contexts(job.training.in_memory, model.radius, eos=model.eos)
    with stage("KKT residual"):
        return kkt_residual(model, X, Y, mesh=job.mesh)


def scaling_contexts(job: Job, radius: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The contexts that the scaling assumption averages over, and how often each counts: at K = 1 all of them, from counts."""
    config = job.config
    if radius == 1:
        n = with_targets(job.training.counts(1)[0], eos=config.eos).sum(axis=1, dtype=np.int64)
        return np.flatnonzero(n)[:, None], n[n > 0]
    options: Any = {"eos": config.eos, "sample": config.scaling_sample, "seed": config.seed}

    def drawn() -> np.ndarray:
        return sampled_positions(job.text.train, radius, job.training.vocab_size, **options)[0]

    return job.training.once(("contexts of the scaling assumption", radius), drawn), None  # Sum and Cat have the same


def measure_scaling(job: Job, model: LanguageModel) -> dict[str, float]:
    """The line of the scaling assumption; the first process puts its points into the run folder, for the figure."""
    config, radius, features = job.config, model.radius, cast(Features, model.features)
    f = target_counts(job.training.counts(1), eos=config.eos)
    log_means = log_mean_cooccurrences(model, f, *scaling_contexts(job, radius))
    if is_first():
        path = scaling_path(job.folder.path, features, radius)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, f=f, log_means=log_means)
    return {f"scaling_{name}": value for name, value in fit_scaling(f, log_means)._asdict().items()}
