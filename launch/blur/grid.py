"""Gradient descent at every learning rate and momentum, and the learners of a genome."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from icl.blur.baselines import momentum_grid

from icl.blur.data import Sets
from icl.blur.genome import load_genome
from jexplicit.runs.experiment import Experiment, Part
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.rows import Results, Row, groups, where
from jexplicit.runs.tables import Column
from jexplicit.runs.views import Lines, Table
from launch.blur.config import GridConfig
from launch.blur.data import first_examples, load_sets
from launch.blur.learners import ACCURACY, learner_name, learner_options, learners, network_of, part, ready
from launch.blur.presets import PRESETS


def measure(config: GridConfig, folder: RunFolder) -> Iterator[Part]:
    """The learners, then every rate and momentum, plain and normalised."""
    sets, rule = load_sets(config), load_genome(config.genome)
    yield learners(folder, config, rule, sets, config.widths, experiment="grid", genome=config.genome)
    for normalised in (False, True):
        name = "sgd" + ", normalised" * normalised
        yield part(functools.partial(cells, config, sets, normalised), experiment="grid", baseline=name)


def cells(config: GridConfig, sets: Sets, normalised: bool) -> list[dict[str, Any]]:
    """Rows of the test accuracy for each momentum and learning rate: early on, and in the end."""
    at = tuple(sorted({min(10, config.steps), config.steps}))
    options: Any = {"normalised": normalised, "hidden_activation": config.baseline_activation, "at": at}
    data = sets.train, first_examples(sets.test)
    found = momentum_grid(config.rates, config.momenta, config.widths, *data, **options, **learner_options(config, sets))
    mean, spread = found.mean(axis=2), found.std(axis=2)  # [momenta, rates, updates]
    network = {"layers": len(config.widths), "hidden": list(config.widths), "data": sets.name, "inputs": sets.inputs}
    network |= {"activation": config.baseline_activation, "normalisation": network_of(normalised)}
    return [
        {**network, "momentum": beta, "learning_rate": rate, "step": n}
        | {"test_accuracy": float(mean[b, r, i]), "spread": float(spread[b, r, i])}
        for b, beta in enumerate(config.momenta)
        for r, rate in enumerate(config.rates)
        for i, n in enumerate(at)
    ]


# --- views ---------------------------------------------------------------------------------------------------------------


def compared(results: Results) -> list[Row]:
    """The rows of descent, and of the learned rule after the same numbers of updates."""
    steps = tuple({row["step"] for row in results.rows if "momentum" in row})
    kinds = {"none": "plain descent", "forward": "the same normalisation"}
    rows = [{**row, "kind": kind} for name, kind in kinds.items() for row in where(results.rows, normalisation=name)]
    learned = [row for row in where(results.rows, step=steps) if "momentum" not in row]
    rows += [{**row, "kind": kind, "learning_rate": None} for row in learned for kind in kinds.values()]
    return [{**r, "panel": f"{r['kind']}, n = {r['step']}"} for r in sorted(rows, key=lambda r: (r["kind"], r["step"]))]


def best_rates(results: Results) -> list[Row]:
    """A line for the learned rule, and one for each kind of network and momentum with the best of its learning rates."""
    lines = []
    for (name, beta), own in groups(compared(results), lambda row: (learner_name(row), row.get("momentum"))).items():
        line: dict[Any, Any] = {"learner": name, "momentum": beta}
        for n, there in groups(own, lambda row: row["step"]).items():
            best = max(there, key=lambda row: row["test_accuracy"])
            line |= {n: best["test_accuracy"], f"rate {n}": best["learning_rate"]}
        lines.append(line)
    return sorted(lines, key=lambda line: line["momentum"] is not None)


def _columns(lines: Sequence[Row]) -> list[Column]:
    columns = [Column("learner", "learner"), Column("momentum", "momentum", "g")]
    for n in (n for n in lines[0] if isinstance(n, int)):
        columns += [Column(f"n = {n}", lambda line, n=n: line[n], ".1f", 100), Column("rate", f"rate {n}", "g")]
    return columns


BEST = Table(
    _columns,
    best_rates,
    note="For each momentum the highest test accuracy of all learning rates in %, and that rate: chosen on the test images, "
    "in favour of descent.",
)
EXPERIMENT = Experiment(
    "blur",
    GridConfig,
    measure,
    views=[
        BEST,
        Lines(
            "grid",
            "learning_rate",
            "test_accuracy",
            lambda row: f"momentum {row['momentum']:g}" if "momentum" in row else learner_name(row),
            "panel",
            rows=compared,
            axes={"xscale": "log", "xlabel": "learning rate", "ylabel": ACCURACY},
            sharey=True,
            shared_legend=True,
        ),
    ],
    presets=PRESETS["grid"],
    check=ready,
    title="Learning rates and momenta",
)
run = EXPERIMENT.run
