"""Does attention learn in context by gradient descent? Layers are constructed, solved in closed form, and trained.

python -m launch.icl --out runs/icl_one
python -m launch.icl --experiment multi-step --layers 2 --out runs/icl_two
python -m launch.icl --experiment all --out runs/icl
python -m launch.icl --experiment copy softmax --out runs/icl_copy
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from jexplicit.runs.command import Preset
from jexplicit.runs.devices import compile_quickly, use_devices
from jexplicit.runs.experiment import Experiment, Part
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.host import host_bytes
from jexplicit.runs.views import Section
from launch.icl.base import Flags
from launch.icl.tables import OVERVIEW

GROUPS = {
    "all": ("one-step", "multi-step", "depths", "out-of-distribution", "rollout", "curvature", "scaling-N"),
    "beyond": (
        *("nonlinear", "copy", "softmax", "layernorm", "phase", "finite-data", "blocks", "noisy"),
        "function-classes",
    ),
    "recent": ("task-diversity", "looped", "newton", "mesa", "markov"),
}
_order = [name for group in GROUPS.values() for name in group]
_short = 1 << 20  # tasks of a training: fewer take longer to compile than to train on
_copies = 8  # of a float32 batch and of the weights, while a step is computed


def find_experiments() -> list[Experiment]:
    """The experiments in the modules of this folder, those of a group in its order and others at the end."""
    names = [found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.name != "__main__"]
    modules = [importlib.import_module(f"launch.icl.{name}") for name in names]
    found = {e.name: e for module in modules for e in vars(module).values() if isinstance(e, Experiment)}
    return sorted(found.values(), key=lambda e: _order.index(e.name) if e.name in _order else len(_order))


EXPERIMENTS = {experiment.name: experiment for experiment in find_experiments()}
_help = f"""Which experiments to run, by name or all of a group. {
    " ".join(
        f"{name}: {inspect.cleandoc(experiment.measure.__doc__ or '').splitlines()[0]}"
        for name, experiment in EXPERIMENTS.items()
    )
} all: those on linear regression. beyond: those beyond linear layers. recent: those on papers since 2023."""


def join_flags() -> Any:
    """The flags of all experiments in one dataclass."""
    bases = dict.fromkeys(experiment.config for experiment in EXPERIMENTS.values())
    names = Literal[*EXPERIMENTS, *GROUPS]  # pyright: ignore[reportInvalidTypeForm]
    field = ("experiment", tuple[names, ...], dataclasses.field(default=("one-step",)))
    made = dataclasses.make_dataclass(
        "Config", [field], bases=tuple(b for b in bases if b is not Flags) or (Flags,), frozen=True
    )
    made.__module__, made.__doc__, made.HELP = __name__, Flags.__doc__, {"experiment": _help}
    return made


Config = join_flags()


def selected_experiments(config: Any) -> list[Experiment]:
    """The requested experiments, ordered so that those that train a model precede those that reuse it."""
    wanted = {name for asked in config.experiment for name in GROUPS.get(asked, (asked,))}
    return [experiment for name, experiment in EXPERIMENTS.items() if name in wanted]


_no_measures = dict.fromkeys(
    (
        *("seed", "start", "loss", "cosine", "model_difference", "prediction_difference", "gamma", "eta", "seconds"),
        *("sensitivity_own", "sensitivity_next", "sensitivity_other", "adjusted_loss", "prefix"),
    )
)


def measure(config: Any, folder: RunFolder) -> Iterator[Part]:
    """The parts of the requested experiments; measures that a row lacks are null."""
    defaults = {"task": "linear", "heads": 1, "steps": 0, "settings": config.settings, **_no_measures}
    for experiment in selected_experiments(config):
        for key, part in experiment.measure(config, folder):
            yield {"experiment": experiment.name, **key}, functools.partial(_rows, defaults, part)


def _rows(defaults: dict[str, Any], part: Any) -> list[dict[str, Any]]:
    return [defaults | row for row in part()]


def check(config: Any) -> None:
    """Refuse flags without values and sizes that do not fit, before anything is written."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) == ():
            default = " ".join(map(str, field.default))  # pyright: ignore[reportArgumentType]
            raise ValueError(
                f"--{field.name.replace('_', '-')} without a value: leave the flag out, or give some, such as {default}"
            )
    for experiment in selected_experiments(config):
        experiment.check(config)
    numbers = config.batch_size * (config.context + 1) * (config.dim + 1)
    if (needed := _copies * 4 * numbers) > (present := host_bytes()):
        sizes = f"--dim {config.dim} --context {config.context} --batch-size {config.batch_size}"
        raise ValueError(
            f"{sizes}: tokens take {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: use smaller values"
        )
    if config.batch_size * (config.steps or 2000) <= _short:
        compile_quickly()
    use_devices(config.devices)


PRESETS: dict[str, Preset] = {}
EXPERIMENT = Experiment(
    "icl",
    Config,
    measure,
    title="In-context learning by gradient descent",
    views=[Section(e.title, e.views, {"experiment": e.name}) for e in EXPERIMENTS.values()],
    terminal=OVERVIEW,
    presets=PRESETS,
    check=check,
)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return EXPERIMENT.main(argv, description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
