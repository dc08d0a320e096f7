"""The experiments that are asked for, one after the other, in one report."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jexplicit.runs.devices import compile_quickly, use_devices
from jexplicit.runs.progress import console
from launch.icl.shared.base import check_memory, effort
from launch.icl.shared.config import GROUPS, NAMES, PRESETS, Config
from launch.icl.shared.tables import OVERVIEW, READING
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.views import Section

_short = 1 << 20  # tasks of a training: fewer take longer to compile than to train on
_copies = 8  # of a float32 batch and of the weights, while a step is computed


def find_experiments() -> dict[str, Experiment]:
    """The experiments in the modules of this folder and its subfolders by name, in the order of the groups."""
    names = [module.name for module in pkgutil.walk_packages([str(Path(__file__).parent)], "launch.icl.")]
    modules = [importlib.import_module(name) for name in names if name not in (__name__, "launch.icl.__main__")]
    found = {e.name: e for module in modules for e in vars(module).values() if isinstance(e, Experiment)}
    return {name: found[name] for name in sorted(found, key=NAMES.index)}


EXPERIMENTS = find_experiments()


def selected_experiments(config: Any) -> list[Experiment]:
    """The requested experiments, ordered so that those that train a model precede those that reuse it."""
    wanted = {name for asked in config.experiment for name in GROUPS.get(asked, (asked,))}
    return [experiment for name, experiment in EXPERIMENTS.items() if name in wanted]


_measures = (
    *("seed", "start", "loss", "cosine", "model_difference", "prediction_difference", "gamma", "eta", "seconds"),
    *("sensitivity_own", "sensitivity_next", "sensitivity_other", "adjusted_loss", "prefix"),
)


def measure(config: Any, folder: RunFolder) -> Iterator[Part]:
    """The parts of the requested experiments; measures that a row lacks are null."""
    defaults = {"task": "linear", "heads": 1, "steps": 0, "settings": config.settings, **dict.fromkeys(_measures)}
    for experiment in selected_experiments(config):
        for key, part in experiment.measure(config, folder):
            yield {"experiment": experiment.name, **key}, lambda part=part: [{**defaults, **row} for row in part()]


def check(config: Any) -> None:
    """Refuse flags without values and sizes that do not fit, before anything is written."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) == ():
            flag, default = field.name.replace("_", "-"), " ".join(map(str, field.default))  # pyright: ignore[reportArgumentType]
            raise ValueError(f"--{flag} without a value: leave the flag out, or give some, such as {default}")
    for experiment in selected_experiments(config):
        experiment.check(config)
    numbers = config.batch_size * (config.context + 1) * (config.dim + 1) + config.layers * (config.dim + 1) ** 2
    flags = f"--dim {config.dim} --context {config.context} --batch-size {config.batch_size}"
    check_memory(_copies * 4 * numbers, f"{flags}: tokens and weights take", "use smaller values")
    if config.batch_size * effort(config).steps <= _short:
        compile_quickly()
    mesh = use_devices(config.devices)
    sizes = f"d = {config.dim}, N = {config.context}, on {mesh.size} x {mesh.devices.flat[0].device_kind}"
    console.print(f"[bold]in-context learning[/] {sizes}")


VIEWS = [lambda _: [READING, ""], *(Section(e.title, e.views, {"experiment": e.name}) for e in EXPERIMENTS.values())]
TITLE = "In-context learning by gradient descent"
EXPERIMENT = Experiment("icl", Config, measure, VIEWS, PRESETS, check, title=TITLE, terminal=OVERVIEW)
