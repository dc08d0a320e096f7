"""A genome in other networks and on other data, with tuned descent; then genomes of some depths at others."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from icl.blur.genome import load_genome
from jexplicit.runs.experiment import Experiment, Part
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.rows import Results, Row, groups, pivot, where
from jexplicit.runs.tables import Column
from jexplicit.runs.views import Lines, Section, Table
from launch.blur.config import TransferConfig, hidden_layers
from launch.blur.data import load_sets, read_sets
from launch.blur.learners import ACCURACIES, ACCURACY, by_updates, curve_rows, descent, learners, main_step, percent, ready
from launch.blur.presets import PRESETS
from launch.blur.train import META, find_genome

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
    for place, network in places.items():
        key: Any = {"experiment": "transfer", "where": place}
        yield learners(folder, config, rule, *network, **key, genome=config.genome)
        yield from descent(folder, config, "sgd", *network, rates=_rates, **key)
    for depth in config.train_depths:
        name = f"depth {depth}"
        rule = find_genome(folder, name, dataclasses.replace(config, widths=hidden[:1] * depth), sets)
        for layers in config.depths:
            yield learners(folder, config, rule, sets, hidden[:1] * layers, experiment="depth", genome=name, layers=layers)


# --- views ---------------------------------------------------------------------------------------------------------------


def curves(results: Results) -> list[Row]:
    """Accuracy by updates in every place, of the learned rule and of descent; five places beside each other."""
    learned = [event for event in results.events("curve") if event["experiment"] == "transfer"]
    rules = [{"where": event["where"], "learner": "learned rule", "accuracy": event["accuracy"]} for event in learned]
    baselines = [
        {"where": event["where"], "learner": f"{event['baseline']}, best rates", "accuracy": event["best"]}
        for event in results.events("descent")
    ]
    line = {event["where"]: n // 5 for n, event in enumerate(rules)}
    return [{**row, "line": line[row["where"]]} for row in curve_rows([*rules, *baselines], "accuracy")]


def depth_lines(results: Results) -> list[Row]:
    """A line for each genome: its accuracy by depth of the learners, the best of each depth bold."""
    rows = where(results.rows, step=main_step(results.rows))
    best = {layers: [row["test_accuracy"] for row in own] for layers, own in groups(rows, lambda row: row["layers"]).items()}

    def text(row: Row) -> str:
        later = where(results.rows, step=50, layers=row["layers"], genome=row["genome"])
        return " ".join(
            [percent(row["test_accuracy"], best[row["layers"]]), *(f"({percent(r['test_accuracy'])})" for r in later)]
        )

    return pivot([{**row, "text": text(row)} for row in rows], ["genome"], "layers")


DEPTHS = Table(
    lambda lines: [
        Column("meta-trained at", lambda line: line["genome"].removeprefix("depth ")),
        *(Column(f"{n} hidden layers", lambda line, n=n: line[n]["text"]) for n in lines[0] if isinstance(n, int)),
    ],
    depth_lines,
    note="Test accuracy in % after 10 updates (after 50 in brackets), by the hidden layers of meta-training and of the learners.",
)
EXPERIMENT = Experiment(
    "blur",
    TransferConfig,
    measure,
    views=[
        Section(
            "A genome in other networks",
            [
                ACCURACIES,
                Lines(
                    "transfer",
                    "updates n",
                    "accuracy",
                    "learner",
                    "where",
                    rows=curves,
                    axes={"ylabel": ACCURACY, "ylim": (0, 1)},
                    size=(2.7, 2.5),
                    finish=lambda axes: [by_updates(ax) for ax in axes.flat],
                    row="line",
                    shared_legend=True,
                ),
            ],
            {"experiment": "transfer"},
        ),
        Section(
            "Depth",
            [
                DEPTHS,
                Lines(
                    "depth",
                    "layers",
                    "test_accuracy",
                    "genome",
                    lambda row: f"after {row['step']} updates",
                    rows=lambda results: where(results.rows, step=(main_step(results.rows), 50)),
                    styles={f"depth {n}": {"label": f"meta-trained at {n}", "marker": "o"} for n in range(1, 100)},
                    axes={"xlabel": "hidden layers of the learners"},
                    sharey=True,
                ),
            ],
            {"experiment": "depth"},
        ),
        META,
    ],
    presets=PRESETS["transfer"],
    check=ready,
    title="Learned update rules elsewhere",
)
run = EXPERIMENT.run
