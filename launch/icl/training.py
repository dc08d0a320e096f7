"""One training run of launch.icl: its progress, events, checkpoints, and the trained parameters that a resumed run reads."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.training import Problem, Recipe, train
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage


def load_trained(folder: RunFolder, name: str, structure: Any) -> Any | None:
    """The parameters of a finished training run, each leaf with the seeds first; None where there are none yet.

    Args:
        folder: of the run.
        name: of the model.
        structure: of the parameters' pytree.
    """
    path = _path(folder, name)
    if not is_checkpoint(path):
        return None
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in load_checkpoint(path)["params"]])


def train_and_save(
    folder: RunFolder,
    name: str,
    start: Any,
    problem: Problem,
    recipe: Recipe,
    *,
    steps: int,
    seeds: list[int],
    evaluate: Callable[[Any], Mapping[str, Any]],
    every: int = 100,
    devices: int | None = None,
) -> Any:
    """Train a model once per seed; an interrupted run goes on where it was.

    Args:
        folder: of the run; gets an event `evaluation` every so many steps, and `trained` at the end.
        name: of the model.
        start: where each seed starts.
        problem, recipe, steps, seeds, every, devices: as in `icl.train`.
        evaluate: `params -> {measure: one number per seed}`.
    """
    path = _path(folder, name)
    tenth = max(every, steps // 10 // every * every)

    def on_evaluation(entry: Mapping[str, Any]) -> None:
        folder.log(event="evaluation", model=name, **entry)
        if entry["step"] % tenth == 0:
            told = ", ".join(f"{what} {np.mean(entry[what]):.4f}" for what in ("loss", "cosine") if what in entry)
            console.print(f"    {name}: step {entry['step']}, {told}, {entry['seconds']:.0f} s")

    partial = path.with_name(f"{name}.partial")
    with stage(f"training {name}, {len(seeds)} seed{'s' * (len(seeds) > 1)}", "steps") as progress:
        trained = train(
            start,
            problem,
            recipe,
            steps=steps,
            seeds=seeds,
            every=every,
            evaluate=evaluate,
            devices=devices,
            checkpoints=partial,
            on_evaluation=on_evaluation,
            progress=progress,
        )
    folder.log(event="trained", model=name, steps=steps, seconds=trained.seconds, seeds=seeds)
    save_checkpoint(path, {"params": [np.asarray(leaf) for leaf in jax.tree.leaves(trained.params)]})
    shutil.rmtree(partial, ignore_errors=True)
    return jax.tree.map(jnp.asarray, trained.params)


def _path(folder: RunFolder, name: str) -> Path:
    return folder.path / "checkpoints" / name
