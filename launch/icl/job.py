"""What every experiment of launch.icl shares: the run, its random streams, and its rows."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from icl.tasks import Tasks
from jexplicit.runs.folder import RunFolder
from launch.icl.config import Config

# Arrays that the experiments save for the figures.
CURVATURE, WEIGHTS, WAVES, HEADS = "curvature.npz", "weights_{model}.npz", "waves_K{layers}.npz", "heads.npz"
CHAINS = "chains.npz"

# Streams of random numbers that depend on --seed; none of them is a training seed's own.
VALIDATION, TEST, SPECTRUM, SWEEP = 101, 102, 103, 104

_measures = (
    *("seed", "start", "loss", "cosine", "model_difference", "prediction_difference", "gamma", "eta", "seconds"),
    *("sensitivity_own", "sensitivity_next", "sensitivity_other", "adjusted_loss", "prefix"),
)


class Job(NamedTuple):
    """A run: its configuration, its folder, and the tasks of its linear experiments."""

    config: Config
    folder: RunFolder
    tasks: Tasks


def model_name(row: Mapping[str, Any]) -> str:
    """The name in files and events of K layers, from their sizes.

    Example:
        >>> model_name({"layers": 2, "recurrent": True, "dim": 10, "context": 25})
        'K2_recurrent_d10_N25'
    """
    kind = "" if row["layers"] == 1 else "_recurrent" if row["recurrent"] else "_layers"
    return f"K{row['layers']}{kind}_d{row['dim']}_N{row['context']}"


def wave_model(predictor: str, layers: int) -> str:
    """The name in files and events of layers of attention on waves, or of their control.

    Example:
        >>> wave_model("control", 2)
        'nonlinear_control_K2'
    """
    return f"nonlinear_{predictor}_K{layers}"


def block_model(row: Mapping[str, Any]) -> str:
    """The name in files and events of blocks, from what they are and how many tasks they see.

    Example:
        >>> block_model({"attention": "softmax", "layernorm": False, "training_tasks": 8192})
        'blocks_softmax_8192_tasks'
    """
    kind = row["attention"] + "_layernorm" * row["layernorm"]
    return f"blocks_{kind}" + (f"_{row['training_tasks']}_tasks" if row["training_tasks"] else "")


def copy_model(first: str) -> str:
    """The name in files and events of layers that copy, the first with softmax or linear."""
    return "copy" if first == "softmax" else f"copy_{first}"


def random_key(config: Config, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(jax.random.key(config.seed), stream)


def has_rows(job: Job, experiment: str, **wanted: Any) -> bool:
    """Whether the run has already finished (a part of) an experiment."""
    rows = [row for row in job.folder.rows() if row["experiment"] == experiment]
    return any(all(row.get(name) == value for name, value in wanted.items()) for row in rows)


def add_rows(job: Job, rows: Iterable[dict[str, Any]], **shared: Any) -> None:
    """Add the rows of (a part of) an experiment to results.json, all at once; measures that a row lacks are null.

    Args:
        job: the run.
        rows: one per predictor and seed.
        shared: fields that all of them have.
    """
    defaults = {"task": "linear", "heads": 1, "steps": 0, "settings": job.config.settings, **dict.fromkeys(_measures)}
    job.folder.add_rows([defaults | shared | row for row in rows])
