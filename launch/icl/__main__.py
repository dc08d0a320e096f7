"""Does attention learn in context by gradient descent? Layers are constructed, solved, and trained.

python -m launch.icl --out runs/icl_one
python -m launch.icl --experiment multi-step --layers 2 --out runs/icl_two
python -m launch.icl --experiment all --out runs/icl
python -m launch.icl --experiment copy softmax --out runs/icl_copy
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from jexplicit.experiments.command import Preset
from jexplicit.experiments.experiment import Experiment, Part
from jexplicit.experiments.folder import RunFolder
from jexplicit.experiments.views import Section
from jexplicit.runs.devices import compile_quickly, use_devices
from jexplicit.runs.progress import console
from launch.icl.shared.base import Flags, check_memory, effort
from launch.icl.shared.tables import OVERVIEW, READING

GROUPS = {
    "all": ("one-step", "multi-step", "depths", "out-of-distribution", "rollout", "curvature", "scaling-N"),
    "beyond": tuple("nonlinear copy softmax deep-softmax layernorm phase finite-data blocks noisy function-classes".split()),
    "recent": ("task-diversity", "looped", "newton", "mesa", "markov"),
}
_short = 1 << 20  # tasks of a training: fewer take longer to compile than to train on
_copies = 8  # of a float32 batch and of the weights, while a step is computed


def find_experiments() -> dict[str, Experiment]:
    """The experiments in the modules of this folder and its subfolders by name, those of a group first."""
    found = pkgutil.walk_packages([str(Path(__file__).parent)], "launch.icl.")
    modules = [importlib.import_module(module.name) for module in found if not module.name.endswith("__main__")]
    found = {e.name: e for module in modules for e in vars(module).values() if isinstance(e, Experiment)}
    grouped = [name for group in GROUPS.values() for name in group]
    return {name: found[name] for name in dict.fromkeys([*grouped, *found])}


def join_flags() -> Any:
    """The flags of all experiments in one dataclass."""
    all_flags = dict.fromkeys(experiment.config for experiment in EXPERIMENTS.values())
    bases = tuple(one for one in all_flags if not any(other is not one and issubclass(other, one) for other in all_flags))
    names = Literal[*EXPERIMENTS, *GROUPS]  # pyright: ignore[reportInvalidTypeForm]
    field = ("experiment", tuple[names, ...], dataclasses.field(default=("one-step",)))
    made = dataclasses.make_dataclass("Config", [field], bases=bases, frozen=True)
    firsts = {name: (e.measure.__doc__ or " ").splitlines()[0] for name, e in EXPERIMENTS.items()}
    about = " ".join(f"{name}: {text[0].lower()}{text[1:]}" for name, text in firsts.items())
    groups = "all: those on linear regression. beyond: those beyond linear layers. recent: those on papers since 2023."
    made.HELP = {"experiment": f"Which experiments to run, by name or all of a group. {about} {groups}"}
    made.__module__, made.__doc__ = __name__, Flags.__doc__
    return made


EXPERIMENTS = find_experiments()
Config = join_flags()


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


def _preset(out: str, experiment: str, note: str, **flags: Any) -> Preset:
    return Preset(Config(out=f"runs/{out}", experiment=tuple(experiment.split()), **flags), note)


_tiny = {
    **{"dim": 3, "context": 4, "seeds": 2, "steps": 200, "warm_steps": 100, "batch_size": 128, "depths": 3},
    **{"validation_tasks": 500, "test_tasks": 2_000, "solver_contexts": 500, "contexts": (4, 8), "dims": (2, 3)},
    **{"scaling_steps": 100, "wave_layers": (1, 2), "training_tasks": (16, 64), "diagonal_layers": (1, 2), "tokens": 1000},
    **{"functions": ("linear", "tree"), "function_dim": 2, "transformer": (16, 1, 2), "chain_length": 16, "blocks": (2, 2)},
    **{"block_kinds": ("softmax", "linear-layernorm"), "block_batch_size": 64, "block_tasks": (128,), "small_blocks": 1},
    **{"pretraining_tasks": (8, 64), "diversity_points": (8,)},
}
_five = {"layers": 5, "recurrent": False, "seeds": 2, "steps": 50_000, "warm_steps": 5000, "learning_rate": 5e-4}
_ten = {"layers": 10, "seeds": 2, "learning_rate": 5e-4}
_full: dict[str, Any] = {"seeds": 5, "steps": 20_000, "cooling": "constant"}
_waves, _copy = _full | {"wave_layers": (1, 2)}, _full | {"steps": 10_000}
_long = "nonlinear copy softmax layernorm phase finite-data noisy"
_garg = {"steps": 500_001, "batch_size": 64, "learning_rate": 1e-4, "cooling": "constant"}
_garg |= {"function_dim": 20, "transformer": (256, 12, 8)}
_blocks = {
    **{"seeds": 5, "steps": 50_000, "block_kinds": ("softmax", "softmax-layernorm", "linear"), "block_batch_size": 2048},
    **{"block_rate": 5e-4, "block_scale": 0.002 / 12, "small_blocks": 12, "cooling": "constant"},
}
# Losses and times of 2 CPU cores.
PRESETS = {
    "tiny": _preset("icl_tiny", "all beyond recent", "all experiments; three minutes. The numbers mean nothing.", **_tiny),
    "one-step": _preset("icl_one", "one-step", "the defaults: one layer is one step of descent; loss 0.206, cosine 0.999."),
    "two-steps": _preset("icl_two", "multi-step", "two recurrent layers are two steps of GD++: loss 0.1105, gamma 0.175."),
    "five-steps": _preset("icl_five", "multi-step", "five separate layers, the paper's steps; 17 CPU-minutes a seed.", **_five),
    "ten-steps": _preset("icl_ten", "multi-step", "ten recurrent layers, the paper's 5000 steps, as in its Fig. 7.", **_ten),
    "all": _preset("icl", "all", "all experiments on linear regression, with one and two layers."),
    "beyond": _preset("icl_beyond", "beyond", "the ten experiments beyond linear layers, the long ones shortened."),
    "beyond-full": _preset("icl_beyond_full", _long, "seven of them with 20,000 steps and five seeds; hours.", **_full),
    "waves-full": _preset("icl_waves_full", "nonlinear", "sine waves, the paper's steps; 34 CPU-minutes a seed.", **_waves),
    "copy-full": _preset("icl_copy_full", "copy", "copying with the paper's 10,000 steps; 15 CPU-minutes.", **_copy),
    "functions-full": _preset("icl_functions_full", "function-classes", "as Garg et al.; for an accelerator.", **_garg),
    "blocks-full": _preset("icl_blocks_full", "blocks", "twelve blocks, the paper's steps; for an accelerator.", **_blocks),
}
VIEWS = [lambda _: [READING, ""], *(Section(e.title, e.views, {"experiment": e.name}) for e in EXPERIMENTS.values())]
TITLE = "In-context learning by gradient descent"
EXPERIMENT = Experiment("icl", Config, measure, VIEWS, PRESETS, check, title=TITLE, terminal=OVERVIEW)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return EXPERIMENT.main(argv, description=__doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
