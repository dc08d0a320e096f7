"""Shared parts of launch.icl: runs, models, tables and figures with the paper's numbers.

An experiment is a config and a line of COMMANDS in launch.icl.config, and `measure`, views and `experiment` in a file here.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax import Array

from icl.rates import Spectrum, spectral_law
from icl.tasks import Tasks
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import compile_quickly, use_devices
from jexplicit.runs.files import host_bytes
from launch.icl.config import COMMANDS, Flags, InputFlags, LayerFlags, TaskFlags
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, groups, means

# Streams of random numbers that depend on --seed; none of them is a training seed's own.
VALIDATION, TEST, SPECTRUM, SWEEP = 101, 102, 103, 104
_short = 1 << 20  # tasks of a training: fewer take longer to compile than to train on
_copies = 8  # of a float32 batch and of the weights, while a step is computed


C_co = TypeVar("C_co", bound=Flags, covariant=True)


class Job(NamedTuple, Generic[C_co]):
    """A run: its flags and its folder."""

    config: C_co
    folder: RunFolder


def experiment(
    name: str,
    measure: Callable[[Job[Any]], Iterable[Part]],
    views: list[View],
    *,
    title: str,
    check: Callable[[Any], None] = lambda config: None,
) -> Experiment:
    """An experiment whose rows name it, and which refuses sizes that do not fit."""

    def parts(config: Any, folder: RunFolder) -> Iterator[Part]:
        about = {"task": "linear", "heads": 1, "steps": 0}
        for key, part in measure(Job(config, folder)):
            yield {"experiment": name, **key}, lambda part=part: [{**about, **row} for row in part()]

    def checked(config: Flags) -> None:
        check_flags(config)
        check(config)
        use_devices(config.devices)

    return Experiment(f"icl {name}", COMMANDS[name].config, parts, views, COMMANDS[name].presets, checked, title=title)


def check_flags(config: Flags) -> None:
    """Refuse flags without values, and sizes beyond memory; set compilation effort."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) == ():
            flag, default = field.name.replace("_", "-"), " ".join(map(str, field.default))  # pyright: ignore[reportArgumentType]
            raise ValueError(f"--{flag} without a value: leave the flag out, or give some, such as {default}")
    if isinstance(config, LayerFlags):
        d, layers = config.dim + 1, getattr(config, "layers", 1)
        numbers = config.batch_size * (config.context + 1) * d + layers * d**2
        flags = f"--dim {config.dim} --context {config.context} --batch-size {config.batch_size}"
        check_memory(_copies * 4 * numbers, f"{flags}: tokens and weights take", "use smaller values")
        if config.batch_size * config.steps <= _short:
            compile_quickly()


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse what takes more bytes than this machine has."""
    if needed > (present := host_bytes()):
        raise ValueError(f"{what} {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: {remedy}")


def random_key(config: Flags, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(key_of_seed(config.seed), stream)


class Model(NamedTuple):
    """K layers on some tasks, with shared weights (recurrent) or separate ones."""

    tasks: Tasks
    layers: int
    recurrent: bool

    @property
    def sizes(self) -> dict[str, Any]:
        """Its sizes, as rows have them."""
        tasks = self.tasks
        return {"layers": self.layers, "recurrent": self.recurrent, "dim": tasks.dim, "context": tasks.context}

    @property
    def reference(self) -> str:
        """The descent that K layers are expected to perform."""
        return "gd" if self.layers == 1 else "gd++"

    def row(self, predictor: str, **more: Any) -> dict[str, Any]:
        """A row about these tasks of linear regression."""
        return {"predictor": predictor, "reference": self.reference, "inputs": self.tasks.inputs} | self.sizes | more


def make_model(config: TaskFlags, layers: int = 1, *, recurrent: bool = True) -> Model:
    """K layers on the flags' tasks, by default of inputs U(-1/2, 1/2)."""
    inputs = config.inputs if isinstance(config, InputFlags) else "uniform"
    return Model(Tasks(dim=config.dim, context=config.context, inputs=inputs), layers, recurrent or layers == 1)


def model_name(row: Row) -> str:
    """The name in files and events of K layers, from their sizes.

    Example:
        >>> model_name({"layers": 2, "recurrent": True, "dim": 10, "context": 25})
        'K2_recurrent_d10_N25'
    """
    kind = "" if row["layers"] == 1 else "_recurrent" if row["recurrent"] else "_layers"
    return f"K{row['layers']}{kind}_d{row['dim']}_N{row['context']}"


@functools.lru_cache(maxsize=16)
def spectrum(config: TaskFlags, tasks: Tasks) -> Spectrum:
    """The law of the eigenvalues that layers are solved for."""
    return spectral_law(random_key(config, SPECTRUM), tasks, config.test_tasks)


# Tables and figures of several experiments, with the paper's numbers.

COLOURS = {  # distinguishable for colour-blind readers too
    "gd": "#e69f00",
    "gd++": "#009e73",
    "closed_form": "#000000",
    "constructed": "#56b4e9",
    "trained": "#0072b2",
    "warm": "#cc79a7",
    "interpolated": "#d55e00",
    "ridge": "#999999",
}
NAMES = {"gd": "GD", "gd++": "GD++", "closed_form": "closed form"}
LOSS = "loss (half mean square)"
STYLES = {name: {"color": colour, "label": NAMES.get(name, name)} for name, colour in COLOURS.items()}
READING = """Losses are half mean squared errors, means over seeds with their range in brackets. *GD* and *GD++* are K steps at
their best rates, tied across steps where the layers share weights; the best single layer is a *closed form*. *Constructed* are
attention weights that perform the reference, GD for one layer and GD++ for more; *interpolated* is the mean of trained and
constructed weights; *ridge* knows the noise. Cosines and differences compare with the reference. Numbers with a dagger were
measured with the paper's published code on 10,000 tasks, whose losses are 0.3 to 1.5 % above the population's."""
# The paper's numbers, d = N = 10 and inputs U(-1/2, 1/2), by (K, recurrent, predictor). The figures print few numbers.
PAPER_LOSS = {
    (1, True, "gd"): "0.2074†",
    (1, True, "trained"): "0.2076†",
    (1, True, "interpolated"): "0.2074†",
    (2, True, "gd"): "0.1588†",
    (2, True, "gd++"): "0.1116†",
    (5, False, "gd"): "0.1096†",
    (5, False, "gd++"): "0.0363† after 6000 of 30,000 steps",
}
BY_STEP = {"xlabel": "training step", "ylabel": f"validation {LOSS}", "yscale": "log"}
Models = Mapping[str, str]  # names of trained models in files and events, by label

_identity = (
    *("experiment", "task", "layers", "heads", "recurrent", "dim", "context", "predictor", "start"),
    *("training_tasks", "attention", "layernorm"),
)


def over_seeds(results: Results) -> list[Row]:
    """Rows over seeds as one row of means, with `number` and `losses`."""
    losses = [[row["loss"] for row in own] for own in groups(results.rows, _identity).values()]
    return [{**row, "losses": own} for row, own in zip(means(results.rows, _identity), losses, strict=True)]


def curve(results: Results, model: str) -> list[Row]:
    """The evaluations of a trained model by step, measures by seed."""
    return sorted((e for e in results.events("evaluation", "model", "step") if e["model"] == model), key=lambda e: e["step"])


def curves(results: Results, models: Models) -> list[Row]:
    """The evaluations of models as a series `trained`, and constant losses."""
    rows: list[Row] = []
    for label, model in models.items():
        rows += [{"label": label, "series": "trained", **entry} for entry in curve(results, model)]
        found = {event["predictor"]: event["loss"] for event in results.events("reference") if event["model"] == model}
        rows += [{"label": label, "series": name, "loss": loss} for name, loss in found.items()]
    return rows


def loss_by_step(name: str, models: Models | Callable[[Results], Models]) -> Lines:
    """The figure of validation losses by step, a panel for each model."""

    def rows(results: Results) -> list[Row]:
        return curves(results, models(results) if callable(models) else models)

    return Lines(name, "step", "loss", "series", "label", rows, STYLES, BY_STEP, sharey=True)


def _predictor(row: Row) -> str:
    starts = {"warm": " from the solution", "trained": " on the features of trained", "control": " on the features of control"}
    fitted = row["predictor"] == "closed_form" and row.get("reference") == "gd++"
    name = "GD++, separate rates" if fitted else NAMES.get(row["predictor"], row["predictor"])
    return name + starts.get(row.get("start") or "", "") + (f", {row['number']} seeds" if row["number"] > 1 else "")


def _layers(row: Row) -> str:
    return f"{row['layers']}" + ("" if row["layers"] < 2 else " recurrent" if row["recurrent"] else " separate")


def _paper_loss(row: Row) -> str:
    """The paper's loss in the same setting, for cold starts alone."""
    same = row["dim"] == row["context"] == 10 and row.get("start") in (None, "cold")
    same = same and row["experiment"] in ("one-step", "multi-step") and row.get("inputs", "uniform") == "uniform"
    return PAPER_LOSS.get((row["layers"], row["recurrent"], row["predictor"]), "") if same else ""


def _loss_with_range(row: Row) -> str:
    losses = row["losses"]
    return f"{row['loss']:#.5g}" + (f" ({min(losses):#.5g} to {max(losses):#.5g})" if len(losses) > 1 else "")


def _rates(values: Any, form: str) -> str:
    """A rate, or one per layer; of several γ the last has no effect."""
    kept = values[:-1] if form == ".3g" and isinstance(values, list) else values
    return "" if values is None else ", ".join(f"{rate:{form}}" for rate in np.ravel(kept))


_fields = {"task": ("task", "linear"), "K": (_layers, "1"), "heads": ("heads", "1"), "d": ("dim", None), "N": ("context", None)}
_forms = {
    ".5g": "initial_loss population_loss train_loss",
    ".4f": "adjusted_loss cosine model_difference prediction_difference",
    ".3f": "sensitivity_own sensitivity_next sensitivity_other",
    ".0e": "penalty",
}
_measures = [
    Column("loss", _loss_with_range),
    Column("paper", _paper_loss),
    *(Column(name.replace("_", " "), name, form) for form, names in _forms.items() for name in names.split()),
    Column("η/N", lambda row: _rates(None if row.get("eta") is None else np.divide(row["eta"], row["context"]), ".4g")),
    Column("γ", lambda row: _rates(row.get("gamma"), ".3g")),
    Column("steps", lambda row: row["steps"] or None),
    Column("seconds", "seconds", ".0f"),
]


def measures(names: Mapping[str, str] | None = None, note: str = "", tasks: Collection[str] = ()) -> Table:
    """A table of an experiment: varied fields, predictor and measures.

    Args:
        names: further fields, with their headings.
        note: a sentence below the table.
        tasks: values of the field `task` to show; default, all.
    """
    fields = {heading: (name, None) for name, heading in (names or {}).items()} | _fields

    def columns(rows: list[Row]) -> list[Column]:
        about = [
            Column(heading, value)
            for heading, (value, usual) in fields.items()
            if len({Column("", value).cell(row) for row in rows} | {usual} - {None}) > 1
        ]
        return [*about, Column("predictor", _predictor), *(c for c in _measures if any(map(c.cell, rows)))]

    return Table(columns, lambda results: over_seeds(results.where(task=tuple(tasks)) if tasks else results), note)


COMPARISON = measures(note=READING.replace("\n", " "))
