"""Gradient descent at every learning rate and momentum, and the learners of a genome."""

import functools
from collections.abc import Iterator
from typing import Any

from icl.blur.baselines import momentum_grid
from icl.blur.data import Sets
from icl.blur.genome_files import load_genome
from launch.blur.config import GridConfig
from launch.blur.data import first_examples, load_sets
from launch.blur.learners import (
    ACCURACY,
    learner_name,
    learner_options,
    learners,
    network_of,
    part,
    percent,
    place_of,
    ready,
)
from launch.blur.presets import PRESETS
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, groups, only, where
from launch.kit.tables import Column
from launch.kit.views import Lines, Section, pivot_table


def measure(config: GridConfig, folder: RunFolder) -> Iterator[Part]:
    """The learners, then every rate and momentum, plain and normalised."""
    sets, rule = load_sets(config), load_genome(config.genome)
    yield learners(folder, config, rule, (sets, config.widths), experiment="grid", genome=config.genome)
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
    fixed = {"activation": config.baseline_activation, "normalisation": network_of(normalised)}
    return [
        {**place_of(sets, config.widths), **fixed, "momentum": beta, "learning_rate": rate, "step": n}
        | {"test_accuracy": float(mean[b, r, i]), "spread": float(spread[b, r, i])}
        for b, beta in enumerate(config.momenta)
        for r, rate in enumerate(config.rates)
        for i, n in enumerate(at)
    ]


# --- views ---------------------------------------------------------------------------------------------------------------


def compared(results: Results) -> list[Row]:
    """The rows of descent, and in each panel of theirs the learned rule as a level after the same number of updates."""
    kinds = {"sgd": "plain descent", "sgd, normalised": "the same normalisation"}
    rows = [
        {**row, "panel": f"{kinds[row['baseline']]}, n = {row['step']}"} for row in where(results.rows, baseline=tuple(kinds))
    ]
    panels = {row["panel"]: row["step"] for row in sorted(rows, key=lambda row: row["panel"])}
    learned = [{**only(results.rows, baseline=None, step=n), "panel": panel} for panel, n in panels.items()]
    return [{**row, "learning_rate": row.get("learning_rate") if row.get("baseline") else None} for row in [*learned, *rows]]


def best_rates(results: Results) -> list[Row]:
    """The learned rule, and the best of all learning rates for each kind of network and momentum, by number of updates."""
    lines = groups(compared(results), lambda row: (learner_name(row), row.get("momentum"), row["step"]))
    return [{**max(own, key=lambda row: row["test_accuracy"]), "learner": name} for (name, *_), own in lines.items()]


def _hue(row: Row) -> str:
    return f"momentum {row['momentum']:g}" if row.get("baseline") else f"{learner_name(row)}, n = {row['step']}"


def _text(row: Row) -> str:
    return percent(row["test_accuracy"]) + (f" ({row['learning_rate']:g})" if row["learning_rate"] else "")


BEST = pivot_table(
    [Column("learner", "learner"), Column("momentum", "momentum", "g")], "step", _text, heading="n = {}", rows=best_rates
)
_axes = {"xscale": "log", "xlabel": "learning rate", "ylabel": ACCURACY}
_lines = functools.partial(Lines, axes=_axes, sharey=True, legend="below", size=(3.6, 3.4))
_note = "The highest test accuracy of all learning rates in % (and that rate): chosen on the test images, in favour of descent."
views = [
    Section("Best learning rates", [BEST], note=_note),
    _lines("grid", "learning_rate", "test_accuracy", _hue, "panel", compared),
]
EXPERIMENT = Experiment("blur", GridConfig, measure, views, PRESETS["grid"], ready, title="Learning rates and momenta")
run = EXPERIMENT.run
