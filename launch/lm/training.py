"""The models of launch.lm that take iterations: cold and warm starts, and the optimum of the training loss."""

import functools
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from jexplicit.data.contexts import contexts
from jexplicit.lm.checkpoints import save_tables
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.explicit import Features, cooccurrence_blocks, explicit_language_model, token_counts
from jexplicit.lm.gradient import cold_start, initial_state, make_batch, token_tables, training_step
from jexplicit.lm.optimum import bigram_optimum, context_pairs, optimum
from jexplicit.lm.smoothing import Noise, noise_model
from jexplicit.nn.training import train
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import explicit_solution
from launch.lm.config import Config
from launch.lm.models import Job, add_row, evaluate_on_train, has_row, label, measure_kkt

_sparse_optimizers = ("adagrad", "sgd")  # these leave a parameter without gradient where it is


def measure_trained(job: Job, method: str, features: Features, radius: int) -> None:
    """Train one model, keep its best epoch, and add its row. At K = 1 Sum and Cat are one model: it is trained once."""
    if has_row(job, method, features, radius):
        return
    if radius == 1 and (twin := _twin_row(job, method)):
        job.folder.add_row({**twin, "features": features})
        return
    config, eos = job.config, job.config.eos
    noise = noise_model(token_counts(job.counts)) if config.parameters == "decoder" else None
    optimizer = make_optimizer(config)
    read = functools.partial(token_tables, features=features, radius=radius, eos=eos, noise=noise)
    X, Y = contexts(job.text.train[:], radius, eos=eos)
    sparse = noise is None and config.optimizer in _sparse_optimizers
    shape = {"features": features, "vocab_size": len(job.counts[0]), "size": config.batch_size, "sparse": sparse}
    name, checkpoints = label(method, features, radius), _checkpoints(job, method, features, radius)

    def dev_loss(params: Any) -> float:
        return evaluate(read(params), job.text.dev, mesh=job.mesh).loss

    start = starting_tables(job, method, features, radius, noise)

    def on_epoch(entry: Any) -> None:
        if entry["epoch"] == 0:
            entry = {**entry, "train_loss": evaluate_on_train(job, read(start)).loss, "seconds": 0.0}
        entry = {name: value for name, value in entry.items() if not name.endswith("loss")} | _perplexities(entry)
        job.folder.log(event="epoch", method=method, features=features, radius=radius, **entry)
        if entry["epoch"]:
            told = ", ".join(f"{part} {entry[f'{part}_perplexity']:.1f}" for part in ("train", "dev"))
            console.print(f"    {name}: epoch {entry['epoch']}, perplexity {told}, {entry['seconds']:.0f} s")

    with stage(f"training {name}", "positions") as progress:
        trained = train(
            initial_state(start, optimizer, job.mesh),
            training_step(optimizer, features=features, noise=noise, mesh=job.mesh),
            lambda drawn: make_batch(X[drawn], Y[drawn], **shape),
            dev_loss,
            params=lambda state: state.params,
            size=len(Y),
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            patience=config.patience,
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )
    model = read(trained.params)
    save_tables(job.folder.path, method, model)
    last = trained.history[-1]
    more = {
        "solve_seconds": trained.seconds,
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        "last_dev_perplexity": float(np.exp(last["dev_loss"])),
        "positions_per_second": trained.epochs * len(Y) / trained.seconds,
        "kkt_residual": measure_kkt(job, model),
        "optimizer": config.optimizer,
        "learning_rate": config.learning_rate,
        "batch_size": config.batch_size,
        "parameters": config.parameters,
    }
    add_row(job, method, features, radius, model, more)
    shutil.rmtree(checkpoints)  # the best model is saved; the state was for resuming


def measure_optimum(job: Job, features: Features, radius: int) -> None:
    """The minimum of the convex training loss, in closed form at K = 1 and by L-BFGS on the counts at K = 2; and its row."""
    method, eos = "optimum", job.config.eos
    if has_row(job, method, features, radius):
        return
    if radius > 2:
        console.print(f"  {label(method, features, radius)}: left out; only K = 1 and 2 have partition functions from counts")
        return
    if radius == 1 and (twin := _twin_row(job, method)):
        job.folder.add_row({**twin, "features": features})
        return
    begin = time.perf_counter()
    with stage(label(method, features, radius), "iterations") as progress:
        if radius == 1:
            found = bigram_optimum(job.counts, eos=eos)
        else:
            start = explicit_language_model(job.counts, features=features, radius=radius, eos=eos)
            pairs = context_pairs(job.text.train[:], start.vocab_size, eos=eos)
            log = functools.partial(job.folder.log, event="iteration", features=features, radius=radius)
            iterations = job.config.optimum_iterations
            found = optimum(start, job.counts, pairs, iterations=iterations, on_iteration=lambda i: log(**i), progress=progress)
    seconds = time.perf_counter() - begin
    save_tables(job.folder.path, method, found.model)
    more = {
        "solve_seconds": seconds,
        "iterations": found.iterations,
        "infimum_perplexity": float(np.exp(found.loss)),
        "kkt_residual": found.kkt_residual,
    }
    add_row(job, method, features, radius, found.model, more)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """The optimiser of optax, on the gradient of the mean loss of a batch."""
    if config.optimizer == "adagrad":  # eps far below any square of a gradient: it only guards against 0/0
        chosen = optax.adagrad(config.learning_rate, initial_accumulator_value=config.accumulator, eps=1e-30)
    else:
        chosen = getattr(optax, config.optimizer)(config.learning_rate)
    return optax.chain(optax.scale(1 / config.batch_size), chosen)


def starting_tables(job: Job, method: str, features: Features, radius: int, noise: Noise | None) -> tuple[jax.Array, ...]:
    """Random tables, or the explicit solution: U below the noise, or its noisy rows where these are trained."""
    if method == "cold":
        key = jax.random.key(job.config.seed)
        return cold_start(key, features=features, radius=radius, vocab_size=len(job.counts[0]))
    model = {"features": features, "radius": radius, "eos": job.config.eos}
    if noise is not None:
        return explicit_solution(cooccurrence_blocks(job.counts, **model), radius)
    tables = explicit_language_model(job.counts, **model).tables
    return tables[:1] if features == "sum" else tables


def _perplexities(entry: Any) -> dict[str, float]:
    with np.errstate(over="ignore"):  # a diverging run is worth its line: infinite perplexity
        return {name.replace("loss", "perplexity"): float(np.exp(entry[name])) for name in entry if name.endswith("loss")}


def _twin_row(job: Job, method: str) -> dict[str, Any] | None:
    return next((row for row in job.folder.rows() if (row["method"], row["radius"]) == (method, 1)), None)


def _checkpoints(job: Job, method: str, features: str, radius: int) -> Path:
    return job.folder.path / "checkpoints" / "training" / f"{method}_{features}_{radius}"
