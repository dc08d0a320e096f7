"""A genome in other networks and on other data, with tuned descent; then genomes of some depths at others."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from icl.blur.genome_files import load_genome
from launch.blur.config import TransferConfig, hidden_layers
from launch.blur.data import load_sets, read_sets
from launch.blur.learners import (
    ABOUT,
    ACCURACIES,
    ACCURACY,
    by_updates,
    curve_rows,
    descent,
    learners,
    main_step,
    percent,
    ready,
)
from launch.blur.opponents import EQUAL, opponents
from launch.blur.presets import PRESETS
from launch.blur.train import META, find_genome
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, groups, where
from launch.kit.tables import Column
from launch.kit.views import Lines, Section, pivot_table

_rates = tuple(float(f"{rate:.3g}") for rate in np.geomspace(0.03, 10, 9))


def measure(config: TransferConfig, folder: RunFolder) -> Iterator[Part]:
    """Learners of the genome and of descent in every place, then of genomes of every depth at every depth."""
    sets, rule, hidden = load_sets(config), load_genome(config.genome), config.widths
    places = {"same": (sets, hidden)}
    places |= {f"hidden {network}": (sets, hidden_layers(network)) for network in config.networks}
    places |= {f"{side} x {side}": (read_sets(config, side=side), hidden) for side in config.sides}
    places |= {name: (read_sets(config, name), hidden) for name in config.others}
    if config.to_classes:
        others = read_sets(config, side=config.side, classes=config.to_classes)
        places[f"classes {' '.join(map(str, config.to_classes))}"] = others, hidden
    for name, place in places.items():
        key: Any = {"experiment": "transfer", "where": name}
        yield learners(folder, config, rule, place, **key, genome=config.genome)
        yield from descent(folder, config, "sgd", place, _rates, **key)
        yield from opponents(config, rule, place, _rates, classify=name == "same" or place[0] is not sets, **key)
    for depth in config.train_depths:
        name = f"depth {depth}"
        rule = find_genome(folder, name, dataclasses.replace(config, widths=hidden[:1] * depth), sets)
        for layers in config.depths:
            key = {"experiment": "depth", "genome": name, "layers": layers}
            yield learners(folder, config, rule, (sets, hidden[:1] * layers), **key)


# --- views ---------------------------------------------------------------------------------------------------------------


def curves(results: Results) -> list[Row]:
    """Accuracy by updates in every place, of the learned rule and of descent; five places beside each other."""
    rows = [{**event, "learner": "learned rule"} for event in where(results.events("curve"), experiment="transfer")]
    line = {event["where"]: n // 5 for n, event in enumerate(rows)}
    rows += [{**e, "learner": f"{e['baseline']}, best rates", "accuracy": e["best"]} for e in results.events("descent")]
    return [{**row, "line": line[row["where"]]} for row in curve_rows(rows, "accuracy")]


def depths(results: Results) -> list[Row]:
    """The learners of each genome by their depth, with a text of their accuracy, bold where the best of this depth."""
    rows = where(results.rows, step=main_step(results.rows))
    best = {layers: [row["test_accuracy"] for row in own] for layers, own in groups(rows, lambda row: row["layers"]).items()}

    def text(row: Row) -> str:
        later = where(results.rows, step=50, layers=row["layers"], genome=row["genome"])
        words = [percent(row["test_accuracy"], best[row["layers"]]), *(f"({percent(r['test_accuracy'])})" for r in later)]
        return " ".join(words)

    return [{**row, "text": text(row), "after": f"after {row['step']} updates"} for row in rows]


DEPTHS = pivot_table([Column("meta-trained with", "genome")], "layers", "text", heading="run with {}", rows=depths)
_depths = Lines("depth", "layers", "test_accuracy", "genome", "after", depths, axes={"xlabel": "hidden layers"})
_curves = Lines(
    "transfer", "n", "accuracy", "learner", "where", curves, size=(2.7, 2.5), sharey=True, row="line", legend="below"
)
_curves = _curves._replace(axes={"ylabel": ACCURACY, "ylim": (0, 1)}, finish=lambda axes: [by_updates(ax) for ax in axes.flat])
views = [
    Section("A genome in other networks", [ACCURACIES, _curves], {"experiment": "transfer"}, ABOUT),
    Section("On equal terms", [EQUAL], {"experiment": "transfer"}),
    Section("Depth", [DEPTHS, _depths], {"experiment": "depth"}, "Test accuracy in % after 10 updates (after 50 in brackets)."),
    META,
]
EXPERIMENT = Experiment("blur", TransferConfig, measure, views, PRESETS["transfer"], ready, title="A learned rule elsewhere")
run = EXPERIMENT.run
