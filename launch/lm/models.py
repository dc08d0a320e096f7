"""The models of a launch.lm run, and their fits."""

import functools
import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple, cast

import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.dense import Counts
from jexplicit.data.contexts import contexts
from jexplicit.data.corpus.cache import TokenizedCorpus
from jexplicit.lm.checkpoints import FROM_COUNTS, model_name, save_run_model
from jexplicit.lm.core.model import LanguageModel, is_token_model, sampled_positions
from jexplicit.lm.core.names import Features, FitOptions, label
from jexplicit.lm.counted.reading import AnyModel
from jexplicit.lm.evaluation import comparable_measures, evaluate, positions_in_all, spelling
from jexplicit.lm.fits.fit import ORDER, contexts_radius, fit_model
from jexplicit.lm.fits.gradient import kkt_residual
from jexplicit.lm.rows import target_counts, with_targets
from jexplicit.lm.scaling_assumption import fit_scaling, log_mean_cooccurrences, partition_spread
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.commands import console, stage
from jexplicit.runs.devices import is_first
from jexplicit.runs.files import peak_bytes, trim_heap
from launch.kit.experiment import RunFolder
from launch.kit.views import Row, where
from launch.lm.config import Config
from launch.lm.views import scaling_file

_positions_one_by_one = 20_000  # of the train perplexity of models that are read position by position
_once_at_1 = ("delta", "cold", "warm", "optimum")  # at K = 1 Sum and Cat are one model


class ModelRun(NamedTuple):
    """What every measured model needs."""

    config: Config
    folder: RunFolder
    text: TokenizedCorpus
    training: TrainingText
    mesh: Mesh
    tables: str  # dense or sparse
    about: Row  # fields that all rows share
    dev_counts: Counts | None  # of dense tables, at K = 1


def wanted_models(config: Config) -> Iterator[dict[str, Any]]:
    """The fields of all rows of a run, in order."""
    for method in ("unigram", "bigram", *(method for method in config.methods if method not in ("unigram", "bigram"))):
        name = {"method": method, "features": "none", "radius": 1, "history": "none"}
        if method in ("unigram", "bigram"):
            yield name
        elif method == "ngram":
            yield {**name, "radius": ORDER}
        elif method == "context-mixing":
            radius = contexts_radius(config.contexts, config.tokenizer)
            yield from ({**name, "radius": radius, "history": history} for history in config.history)
        else:
            radii = [K for K in config.radius if K == 1 or method != "optimum"]  # which has a closed form there alone
            for features, radius in itertools.product(config.features, radii):
                yield {**name, "features": features, "radius": radius}


def measure_model(job: ModelRun, name: dict[str, Any]) -> list[Row]:
    """Fit, save and evaluate one model."""
    config, method = job.config, name["method"]
    if method in _once_at_1 and name["radius"] == 1 and (twins := where(job.folder.rows(), method=method, radius=1)):
        return [{**twins[0], "peak_bytes": peak_bytes()}]
    watch = watch_of(job, name)
    trim_heap()  # of what was evaluated before
    fitted = fit_model(method, job.training, options_of(config, name), watch)
    model, more = fitted.model, fitted.info
    if method not in FROM_COUNTS and is_first():
        save_run_model(job.folder.path, name, model)
    if method == "explicit" and is_token_model(model):
        more = more | measure_scaling(job, model)
        if {"cold", "warm", "optimum"} & set(config.methods):
            X, Y = contexts(job.training.in_memory, model.radius, eos=model.eos)  # a sample would measure the sample
            with stage("KKT residual"):
                more["kkt_residual"] = kkt_residual(model, X, Y, mesh=job.mesh)
    measured = evaluate_model(job, name, model)
    if watch.checkpoints:
        shutil.rmtree(watch.checkpoints, ignore_errors=True)  # the model is saved; what it resumed from is needed no longer
    shared = {"seconds": more["solve_seconds"], "bytes": model.nbytes, "tables": job.tables, **job.about}
    return [{**measured, **shared, **more, "peak_bytes": peak_bytes()}]


def options_of(config: Config, name: Row) -> Options:
    """The options of a fit, from the flags and the row."""
    flags: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(FitOptions)}
    own = {key: value for key, value in name.items() if key != "method" and value != "none"}
    return Options(train_sample=config.train_sample or None, seed=config.seed, **(flags | own))


def evaluate_model(job: ModelRun, name: Row, model: AnyModel) -> Row:
    """The perplexities of a model on train and dev, and what compares across tokenizers."""
    config, start = job.config, time.perf_counter()
    one_by_one, dense = not isinstance(model, LanguageModel), job.tables == "dense"
    with stage(f"perplexity of {label(name)}", "positions" if one_by_one else "contexts") as progress:
        shared: Any = {"seed": config.seed, "mesh": job.mesh, "progress": progress}
        drawn, counts = _positions_one_by_one if one_by_one else config.train_sample, job.training.counts(1) if dense else None
        train = evaluate(model, job.text.train, counts=counts, sample=drawn or None, **shared)
        drawn = None if dense else config.dev_sample or None
        dev = evaluate(model, job.text.dev, counts=job.dev_counts, sample=drawn, **shared)
    in_all = positions_in_all(job.text.dev, eos=config.eos)  # a sample stands for all of them
    spelled = spelling(job.text.tokenizer, job.text.dev, job.text.dev_sizes)
    return {
        "train_perplexity": train.perplexity,
        "dev_loss": dev.loss,
        "dev_perplexity": dev.perplexity,
        "train_positions": train.positions,
        "dev_positions": dev.positions,
        **comparable_measures(dev.loss * in_all + spelled, job.text.dev_sizes),
        "eval_seconds": time.perf_counter() - start,
    }


def watch_of(job: ModelRun, name: Row) -> Watch:
    """Progress on the terminal, events, and a folder to resume from."""

    def log(**event: Any) -> None:
        job.folder.log(**event)
        if event["event"] in ("epoch", "sweep") and (number := event[event["event"]]):
            parts = ", ".join(f"{part} {event[f'{part}_perplexity']:.1f}" for part in ("train", "dev"))
            console.print(f"    {label(name)}: {event['event']} {number}, perplexity {parts}, {event['seconds']:.0f} s")

    checkpoints = job.folder.path / "checkpoints" / "fits" / model_name(name)
    return Watch(stage=stage, log=log, dev=job.text.dev, checkpoints=checkpoints, events=job.folder.events)


def measure_scaling(job: ModelRun, model: LanguageModel) -> dict[str, Any]:
    """The line of the scaling assumption; the first process saves its points."""
    config, radius, features = job.config, model.radius, cast(Features, model.features)
    C = job.training.counts(1)
    if radius == 1:  # all contexts, and how often each counts
        n = with_targets(C[0], eos=config.eos).sum(axis=1, dtype=np.int64)
        X, times = np.flatnonzero(n)[:, None], n[n > 0]
    else:
        options: Any = {"eos": config.eos, "sample": config.scaling_sample, "seed": config.seed}
        draw = functools.partial(sampled_positions, job.text.train, radius, job.training.vocab_size, **options)
        # Sum and Cat have the same
        X, times = job.training.once(("contexts of the scaling assumption", radius), lambda: draw()[0]), None
    f = target_counts(C, eos=config.eos)
    log_means = log_mean_cooccurrences(model, f, X, times)
    if is_first():
        path = job.folder.path / scaling_file(features, radius)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, f=f, log_means=log_means)
    found = {f"scaling_{name}": value for name, value in fit_scaling(f, log_means)._asdict().items()}
    return found | {"log_partition_sd": partition_spread(model, X, times)}
