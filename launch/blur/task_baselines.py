"""The baselines of `launch.blur tasks`: tuned descent on every task, kept in the run folder, since no genome changes it.

baselines.json has the settings that all tasks share, and for each task what identifies its data and network, and rows.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icl.blur.data import Sets
from icl.blur.judging.baseline_grid import GRID_OPTIMIZERS, descent_grid
from icl.blur.judging.suite import Task
from icl.names import RATES
from jexplicit.nn.names import Activation
from jexplicit.runs.folder import environment, write_json
from launch.blur.data import describe_data
from launch.blur.measurements import learner_seeds
from launch.blur.task_config import TasksConfig

UPDATES = (1, 2, 5, 10, 20, 50, 100)
"""Numbers of updates that learners are compared after."""
ACTIVATIONS: tuple[Activation, ...] = ("tanh", "relu")
"""Hidden activations of the baselines; for each number of updates the better one on dev."""

_file = "baselines.json"
_large = 60_000  # weights from which on the grid of rates is half as dense
_libraries = ("jax", "jaxlib", "numpy", "optax")  # whose versions may change a baseline
Baselines = dict[str, dict[str, Any]]  # by task: `key`, what it was measured on, and `rows`


def shared_settings(config: TasksConfig) -> dict[str, Any]:
    """What the baselines of all tasks depend on."""
    versions = environment()["versions"]
    return {
        "learners": config.learners,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "updates": list(UPDATES),
        "optimizers": list(GRID_OPTIMIZERS),
        "activations": list(ACTIVATIONS),
        "versions": {name: versions[name] for name in _libraries},
    }


def task_key(task: Task, sets: Sets) -> dict[str, Any]:
    """What the baselines of one task depend on besides."""
    return {"data": describe_data(sets), "hidden": list(task.hidden), "rates": list(task_rates(task, sets))}


def task_rates(task: Task, sets: Sets) -> tuple[float, ...]:
    """The learning rates of a task's baselines: RATES, or every other one for networks of more than 60,000 weights."""
    sizes = (sets.inputs, *task.hidden, sets.outputs)
    return RATES[::2] if sum(a * b for a, b in zip(sizes, sizes[1:], strict=False)) > _large else RATES


def read_baselines(path: Path, config: TasksConfig, keys: Mapping[str, Any]) -> Baselines:
    """The baselines in a run folder of those tasks whose keys are given; tasks that it lacks are left out.

    Raises:
        ValueError: no or damaged baselines there; others settings, versions, data, networks or rates.
    """
    file, remedy = path / _file, "leave --baselines out, or give a run of tasks with the same flags and versions"
    try:
        found = json.loads(file.read_text())
        settings, tasks = found["settings"], {name: found["tasks"][name] for name in keys if name in found["tasks"]}
        wrong = [name for name, task in tasks.items() if not isinstance(task["rows"], list) or "key" not in task]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be read as baselines ({error}): {remedy}") from error
    wanted = shared_settings(config)
    differ = [f"{name} {settings.get(name)} (now {value})" for name, value in wanted.items() if settings.get(name) != value]
    differ += [f"data, network or rates of {name}" for name in tasks if name in wrong or tasks[name]["key"] != keys[name]]
    if differ:
        raise ValueError(f"{file} was measured with other {'; '.join(differ)}: {remedy}")
    return tasks


def write_baselines(path: Path, config: TasksConfig, baselines: Baselines) -> None:
    """Write the baselines of a run; `read_baselines` reads them back."""
    write_json(path / _file, {"settings": shared_settings(config), "tasks": baselines})


def has_baselines(path: Path) -> bool:
    """Whether a run folder has baselines."""
    return (path / _file).exists()


def measure_baselines(config: TasksConfig, task: Task, sets: Sets) -> list[dict[str, Any]]:
    """A row for each optimiser, plain and normalised, and each number of updates.

    Learning rate and activation are those with the best mean accuracy on dev after this number of updates; the accuracy is
    that of the same networks on test.
    """
    start, rates = time.perf_counter(), task_rates(task, sets)
    options: dict[str, Any] = {
        "at": UPDATES,
        "batch_size": min(config.batch_size, len(sets.train.X)),
        "seeds": learner_seeds(config),
    }
    rows = []
    for normalised in (False, True):
        grids = [
            descent_grid(
                rates, task.hidden, sets.train, (sets.dev, sets.test), normalised=normalised, hidden_activation=name, **options
            )
            for name in ACTIVATIONS
        ]
        # [optimizers, activations * rates, learners, updates]
        dev, test = (np.concatenate(parts, axis=1) for parts in zip(*grids, strict=True))
        for i, optimizer in enumerate(GRID_OPTIMIZERS):
            chosen = dev[i].mean(axis=1).argmax(axis=0)
            for j, (n, best) in enumerate(zip(UPDATES, chosen.tolist(), strict=True)):
                accuracy, spread = mean_and_spread(test[i, best, :, j], len(sets.test.X))
                rows.append(
                    {
                        "n": n,
                        "baseline": optimizer + ", normalised" * normalised,
                        "activation": ACTIVATIONS[best // len(rates)],
                        "learning_rate": rates[best % len(rates)],
                        "dev_accuracy": mean_and_spread(dev[i, best, :, j], len(sets.dev.X))[0],
                        "test_accuracy": accuracy,
                        "spread": spread,
                    }
                )
    seconds = time.perf_counter() - start
    return [{**row, "seconds": seconds} for row in rows]


def mean_and_spread(accuracies: np.ndarray, examples: int) -> tuple[float, float]:
    """Mean and standard deviation over learners, from whole numbers of examples: equal means are equal to the last bit.

    Example:
        >>> mean_and_spread(np.array([0.1, 0.3]), 10) == mean_and_spread(np.array([0.3, 0.1]), 10)
        True
    """
    correct = np.rint(accuracies.astype(np.float64) * examples)
    return float(correct.sum() / (examples * len(correct))), float(correct.std() / examples)
