"""Learners of a genome, and networks trained by tuned gradient descent beside them: parts of an experiment, and their views."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from icl.blur.baselines import descent_curves
from icl.blur.data import Sets
from icl.blur.genome_files import LearnedRule, load_genome
from icl.blur.judging.flops import descent_flops, rule_flops
from icl.blur.learning import learning_curves
from jexplicit.nn.parts.names import OptimizerName
from jexplicit.runs.devices import use_devices
from jexplicit.runs.progress import stage
from launch.blur.config import LearnersConfig, TasksConfig, check
from launch.blur.data import first_examples
from launch.kit.experiment import Part
from launch.kit.figures import plain_ticks
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, groups, melt, where
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

Place = tuple[Sets, tuple[int, ...]]  # data, and the hidden layers of the networks that learn them

FIELDS = (
    "experiment genome states layers normalisation unroll step test_accuracy baseline learning_rate max_difference seconds"
).split()
REPORTED_STEPS = (0, 1, 2, 5, 10, 15, 20, 30, 50, 100, 200, 400, 800)
"""Numbers of updates that have rows."""
ACCURACY = "test accuracy"
TUNING = 1000
"""Networks for the choice of a learning rate have seeds from here on."""
_shown = (1, 2, 5, 10, 20, 50, 100, 400)  # numbers of updates in tables


def ready(config: Any) -> None:
    """Refuse bad flags and genomes before anything is written, and start JAX on the devices of the flags."""
    check(config)
    use_devices(config.devices)
    if genome := getattr(config, "genome", None):
        load_genome(genome)


def part(measure: Callable[[], list[dict[str, Any]]], **key: Any) -> Part:
    """A measurement, with a line on the terminal; its rows have all FIELDS, and its seconds."""

    def rows() -> list[dict[str, Any]]:
        start = time.perf_counter()
        with stage(", ".join(map(str, key.values()))):
            found = measure()
        shared = {**dict.fromkeys(FIELDS), **key, "seconds": time.perf_counter() - start}
        return [{**shared, **row} for row in found]

    return key, rows


def learner_options(config: LearnersConfig | TasksConfig, sets: Sets) -> dict[str, Any]:
    """The minibatch, and a seed for each learner."""
    seeds = tuple(range(config.seed, config.seed + config.learners))
    return {"batch_size": min(config.batch_size, len(sets.train.X)), "seeds": seeds}


def learners(folder: RunFolder, config: LearnersConfig, rule: LearnedRule, place: Place, steps: int = 0, **key: Any) -> Part:
    """Rows of the test accuracy of learners with a learned rule, and their learning curve as an event."""

    def measure() -> list[dict[str, Any]]:
        sets, hidden = place
        options = {"steps": steps or config.steps, **learner_options(config, sets)}
        curves = learning_curves(*rule[:2], hidden, sets.train, first_examples(sets.test), **options)
        mean, spread = curves.accuracy.mean(axis=0), curves.accuracy.std(axis=0)
        size = [float(value) if np.isfinite(value) else None for value in curves.size.mean(axis=0)]
        folder.log(event="curve", **key, accuracy=mean.round(5).tolist(), spread=spread.round(5).tolist(), size=size)
        flops = rule_flops(*rule[:2], layer_sizes(place), options["batch_size"])
        rows = _accuracy_rows(mean, spread, place, options["batch_size"], flops)
        return [{**design_of(rule), "learners": config.learners, **r, "synapse_size": size[r["step"]]} for r in rows]

    return part(measure, **key)


def descent(
    folder: RunFolder, config: LearnersConfig, optimizer: OptimizerName, place: Place, rates: tuple[float, ...], **key: Any
) -> Iterator[Part]:
    """Rows of the test accuracy of gradient descent, plain and normalised, and all its curves as an event.

    For each number of updates, learning rate and activation are those with the best accuracy on dev, with other networks.
    """
    (sets, hidden), activations = place, getattr(config, "baseline_activations", ("tanh",))

    def curves(name: str, first_seed: int, normalised: bool) -> np.ndarray:  # [activations * rates, learners, n + 1]
        options = {**learner_options(config, sets), "steps": config.steps, "normalised": normalised}
        options["seeds"] = tuple(seed + first_seed for seed in options["seeds"])
        run = functools.partial(descent_curves, optimizer, rates, hidden, sets.train, first_examples(getattr(sets, name)))
        return np.concatenate([run(hidden_activation=activation, **options) for activation in activations])

    def measure(normalised: bool, **key: Any) -> list[dict[str, Any]]:
        dev, test = curves("dev", TUNING, normalised), curves("test", 0, normalised)
        chosen = dev.mean(axis=1).argmax(axis=0)  # [n + 1]
        best = test[chosen, :, np.arange(config.steps + 1)]  # [n + 1, learners]
        mean, spread, every = best.mean(axis=1), best.std(axis=1), test.mean(axis=1).round(4).tolist()
        folder.log(event="descent", **key, rates=rates, curves=every, best=mean.tolist(), spread=spread.tolist())
        B = learner_options(config, sets)["batch_size"]
        flops = descent_flops(layer_sizes(place), B, normalised=normalised)
        rows = _accuracy_rows(mean, spread, place, B, flops)
        for row in rows:
            activation, rate = divmod(int(chosen[row["step"]]), len(rates))
            row |= {"normalisation": network_of(normalised), "learning_rate": rates[rate]}
            row["activation"] = activations[activation]
        return rows

    for normalised in (False, True):
        named = {**key, "baseline": optimizer + ", normalised" * normalised}
        yield part(functools.partial(measure, normalised, **named), **named)


def design_of(rule: LearnedRule) -> Row:
    """The fields of rows about a learned rule."""
    return {"states": rule.rules.states, "normalisation": rule.rules.normalise, "unroll": rule.provenance.get("unroll")}


def place_of(sets: Sets, hidden: Sequence[int]) -> Row:
    """The fields of rows about data and network."""
    return {"layers": len(hidden), "hidden": list(hidden), "data": sets.name, "inputs": sets.inputs}


def layer_sizes(place: Place) -> tuple[int, ...]:
    """n_0 (inputs) .. n_L (outputs)."""
    sets, hidden = place
    return (sets.inputs, *hidden, sets.outputs)


def examples_seen(updates: int, batch_size: int, sets: Sets) -> int:
    """Different training examples in the first minibatches, which are epochs over all of them."""
    return min(updates * batch_size, len(sets.train.X))


def network_of(normalised: bool) -> str:
    """The field `normalisation` of networks trained by descent."""
    return "forward" if normalised else "none"


def _accuracy_rows(mean: np.ndarray, spread: np.ndarray, place: Place, batch_size: int, flops: int) -> list[dict[str, Any]]:
    """A row for each reported number of updates, the last one included, with its examples and its FLOPs of so many updates."""
    network, last = place_of(*place), len(mean) - 1
    shown = sorted({n for n in REPORTED_STEPS if n < last} | {last})
    return [
        {**network, "step": n, "test_accuracy": float(mean[n]), "spread": float(spread[n])}
        | {"examples": examples_seen(n, batch_size, place[0]), "flops": n * flops}
        for n in shown
    ]


# --- views ---------------------------------------------------------------------------------------------------------------


def learner_name(row: Row) -> str:
    """The optimiser, or the genome: by its name, or that of the run that it is from."""
    path = Path(str(row.get("genome")))
    return row.get("baseline") or f"genome {path.parent.name if path.suffix else path.name}"


def place_name(row: Row) -> str:
    """Where learners run: other data or networks, or the hidden layers of the flags."""
    hidden = "-".join(map(str, row.get("hidden") or row.get("widths") or ()))
    return row["where"] if row.get("where") not in (None, "same") else f"hidden {hidden}" if hidden else "same"


def main_step(rows: Iterable[Row]) -> int:
    """The number of updates to compare learners at: 10, or all if there are fewer."""
    steps = {row["step"] for row in rows}
    return 10 if 10 in steps else max(steps)


def percent(value: float, among: Sequence[float] = ()) -> str:
    """An accuracy in %, bold where it is the best of a group in which they differ."""
    text, rounded = f"{100 * value:.1f}", [round(100 * other, 1) for other in among]
    return f"**{text}**" if rounded and min(rounded) < max(rounded) == round(100 * value, 1) else text


def accuracy_lines(rows: Sequence[Row]) -> list[Row]:
    """A line for each place and learner: accuracies by number of updates, bold where the best of all learners there."""
    lines = []
    for place, here in groups(where(rows, step=_shown, momentum=None, equal=None), place_name).items():
        curves = {name: {row["step"]: row["test_accuracy"] for row in own} for name, own in groups(here, learner_name).items()}
        for name, curve in curves.items():
            among = {n: [other[n] for other in curves.values()] for n in curve if all(n in other for other in curves.values())}
            lines.append({"where": place, "learner": name, **{n: percent(x, among.get(n, ())) for n, x in curve.items()}})
    return lines


def _columns(lines: Sequence[Row]) -> list[Column]:
    steps = [Column(f"n = {n}", lambda line, n=n: line.get(n)) for n in _shown if any(n in line for line in lines)]
    places = [Column("", "where")] if len({line["where"] for line in lines}) > 1 else []
    return [*places, Column("test accuracy in %", "learner"), *steps]


ACCURACIES = Table(_columns, lambda results: accuracy_lines(results.rows))
ABOUT = (
    "Accuracies in % are means over learners with other initial synapses and minibatches. For each number of updates n, "
    "descent has the learning rate and hidden activation that are best on dev. *Normalised* networks normalise all layers over "
    "the minibatch, as the learned rule does, with trainable scales and shifts."
)


def curve_rows(events: Iterable[Row], *names: str) -> list[dict[str, Any]]:
    """A row for each number of updates from 1, with these fields of an event, which are lists, and its others."""
    return [{**e, "n": n, **{name: e[name][n] for name in names}} for e in events for n in range(1, len(e[names[0]]))]


def by_updates(ax: Any, horizon: int | None = None) -> None:
    """A logarithmic axis of updates, with a dotted line where meta-training ended."""
    ax.set(xscale="log", xlabel="updates n")
    plain_ticks(ax.xaxis)
    if horizon:
        ax.axvline(horizon, color="black", linestyle=":", linewidth=1)


def stability(results: Results) -> list[str]:
    """Accuracy and size of the synapses by genome, far past the training horizon (paper, Fig. 15 and 16)."""
    measures = {"accuracy": ACCURACY, "size": "root mean square of first synapses"}
    curves = where(results.events("curve"), where=(None, "same"), seed=(None, results.config["seed"]))
    rows = melt(curve_rows(curves, *measures), measures)

    def finish(axes: np.ndarray) -> None:
        axes[0, 1].set_yscale("log")
        for ax in axes[0]:
            by_updates(ax, max(results.config["unroll"]))

    draw = functools.partial(Lines, size=(5, 3.6), axes={"ylabel": ""}, finish=finish, legend="below")
    return draw("stability", "n", "value", "genome", "measure", lambda _: rows)(results)
