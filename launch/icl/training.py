"""Trained parameters of launch.icl: loaded where the run has trained them already, else trained, with progress and events."""

import functools
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icl.training import Recipe, TrainingProblem, train_layers
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.progress import console, stage
from launch.icl.config import Effort
from launch.icl.job import VALIDATION, Job, random_key

Measure = Callable[[Any], Mapping[str, Any]]  # parameters of one seed -> numbers


def train_or_load(
    job: Job,
    name: str,
    init: Callable[[Array], Any],
    problem: TrainingProblem,
    recipe: Recipe,
    evaluation: Callable[[], Measure],
    *,
    effort: Effort,
    every: int = 100,
) -> Any:
    """The parameters of every seed, the seeds first in every leaf. An interrupted training continues where it was.

    Training logs an event `evaluation` every so many steps, and `trained` at the end.

    Args:
        job: the run.
        name: of the model, in files and events.
        init: `key -> parameters` of one seed; best compiled once for all models of a size.
        problem, recipe, every: as in `icl.train_layers`.
        evaluation: returns what to measure of the parameters of one seed; called only if there is something to train.
        effort: steps and seeds.
    """
    config, folder = job.config, job.folder
    seeds = [config.seed + n for n in range(effort.seeds)]
    path = folder.path / "checkpoints" / name
    if is_checkpoint(path):
        structure = jax.tree.structure(jax.eval_shape(init, jax.random.key(0)))
        return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in load_checkpoint(path)["params"]])

    def start(seed: int) -> Any:
        return init(jax.random.fold_in(jax.random.key(seed), 0))

    measure, tenth = evaluation(), max(every, effort.steps // 10 // every * every)

    def evaluate(params: Any) -> Mapping[str, Any]:
        entries = [measure(one) for one in split_seeds(params)]
        return {what: [float(entry[what]) for entry in entries] for what in entries[0]}

    def on_evaluation(entry: Mapping[str, Any]) -> None:
        folder.log(event="evaluation", model=name, **entry)
        if entry["step"] % tenth == 0:
            measures = ", ".join(f"{what} {np.mean(entry[what]):.4f}" for what in ("loss", "cosine") if what in entry)
            console.print(f"    {name}: step {entry['step']}, {measures}, {entry['seconds']:.0f} s")

    partial = path.with_name(f"{name}.partial")
    with stage(f"training {name}, {len(seeds)} seed{'s' * (len(seeds) > 1)}", "steps") as progress:
        trained = train_layers(
            jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *map(start, seeds)),
            problem,
            recipe,
            steps=effort.steps,
            seeds=seeds,
            every=every,
            evaluate=evaluate,
            devices=config.devices,
            checkpoints=partial,
            on_evaluation=on_evaluation,
            progress=progress,
        )
    folder.log(event="trained", model=name, steps=effort.steps, seconds=trained.seconds, seeds=seeds)
    save_checkpoint(path, {"params": [np.asarray(leaf) for leaf in jax.tree.leaves(trained.params)]})
    shutil.rmtree(partial, ignore_errors=True)
    return jax.tree.map(jnp.asarray, trained.params)


@functools.partial(jax.jit, static_argnums=0)
def batch_loss(problem: TrainingProblem, params: Any, batch: Any) -> Array:
    """The loss of parameters on a batch, compiled once for equal problems; a batch that is no argument would be a constant,
    whose share of the loss XLA computes while it compiles."""
    return problem.loss(params, batch)


def validation_loss(job: Job, problem: TrainingProblem, tasks: int) -> Callable[[], Measure]:
    """An evaluation of the loss alone, on so many validation tasks."""

    def evaluation() -> Measure:
        validation = problem.sample(random_key(job.config, VALIDATION), tasks)
        return lambda params: {"loss": batch_loss(problem, params, validation)}

    return evaluation


def training_rows(job: Job, name: str) -> list[dict[str, Any]]:
    """The row fields of a trained model that do not depend on the test: seed, steps and seconds, one entry per seed."""
    event = next(event for event in job.folder.events("trained") if event["model"] == name)
    return [{"seed": seed, "steps": event["steps"], "seconds": event["seconds"]} for seed in event["seeds"]]


def split_seeds(params: Any) -> list[Any]:
    """The entries of stacked parameters."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, params))
    return [jax.tree.unflatten(structure, [jnp.asarray(leaf[n]) for leaf in leaves]) for n in range(len(leaves[0]))]
