"""Genomes of designs that differ in one choice each: which differences exceed what another seed would have changed?"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev, variance
from typing import Any

from launch.blur.config import VARIANTS, AblationConfig
from launch.blur.data import load_sets, read_sets
from launch.blur.learners import ACCURACY, learners, main_step, percent, ready, stability
from launch.blur.presets import PRESETS
from launch.blur.train import META, find_genome
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, groups, where
from launch.kit.tables import Column
from launch.kit.views import Bars, Section, Table, pivot_table


def designs(config: AblationConfig) -> dict[str, AblationConfig]:
    """The configurations to compare: the reference, and others that differ from it in one choice.

    Normalisation of the hidden layers' passes and of the output are two choices: all their combinations are designs.
    """
    changes: dict[str, dict[str, Any]] = {"reference": {}}
    for passes in config.normalisations:
        changes[f"normalise {passes} + output"] = {"normalise": passes, "normalise_output": True}
        changes[f"normalise {passes}"] = {"normalise": passes, "normalise_output": False}
    changes |= {f"{states} states": {"states": states} for states in config.numbers_of_states}
    changes |= {f"{name} neurons": {"hidden_activation": name} for name in config.nonlinearities}
    changes |= {name: VARIANTS[name] for name in config.variants}
    if "evolution" in changes:
        changes["evolution"] = changes["evolution"] | {"meta_steps": (config.generations,), "unroll": config.unroll[-1:]}
    return {name: dataclasses.replace(config, **change) for name, change in changes.items()}


def measure(config: AblationConfig, folder: RunFolder) -> Iterator[Part]:
    """Learners in the networks of the meta-training, on larger images and in deeper networks.

    The genomes of several seeds run the same learners, so that their accuracies differ by meta-training alone.
    """
    sets, hidden, made = load_sets(config), config.widths, designs(config)
    larger = read_sets(config, side=2 * round(sets.inputs**0.5))
    places = {"same": (sets, hidden), "larger images": (larger, hidden), "deeper": (sets, (*hidden, hidden[-1]))}
    for name, design in made.items():
        first = next(other for other, same in made.items() if same == design)  # the reference occurs repeatedly
        for seed in range(config.seed, config.seed + config.seeds):
            rule = find_genome(folder, f"{first}/{seed}", dataclasses.replace(design, seed=seed), sets)
            fields = {"skipped": rule.provenance["skipped"], "meta_seconds": rule.provenance["seconds"]}
            fields |= {"output_normalised": design.normalise_output, "activation": design.hidden_activation}
            for label, place in places.items():
                key: Any = {"experiment": "ablation", "genome": name, "seed": seed, "where": label}
                key, rows = learners(folder, config, rule, place, **key)
                yield key, lambda rows=rows, fields=fields: [{**row, **fields} for row in rows()]


# --- views ---------------------------------------------------------------------------------------------------------------


def compare_seeds(design: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The difference of two means over seeds and its standard error, `√(s₁²/n₁ + s₂²/n₂)` with s² the variances over n - 1.

    Example:
        >>> found = compare_seeds((0.75, 0.75, 0.75), (0.25, 0.5, 0.75))
        >>> found["difference"], round(found["error"], 4)
        (0.25, 0.1443)
    """
    error = sum(variance(values) / len(values) for values in (design, reference)) ** 0.5
    return {"difference": fmean(design) - fmean(reference), "error": error}


def _texts(results: Results) -> list[Row]:
    """Learners by design and place with a text of their accuracy, and how that differs from the reference's.

    The standard deviation over seeds is a field of transcribed results. `clear` differences exceed twice their standard error.
    """
    step = main_step(results.rows)

    def accuracies(name: str, place: str, n: int = step) -> list[float]:
        return [row["test_accuracy"] for row in where(results.rows, genome=name, where=place, step=n)]

    lines = []
    for (name, place), own in groups(where(results.rows, step=step), ["genome", "where"]).items():
        found, later, reference = accuracies(name, place), accuracies(name, place, 100), accuracies("reference", place)
        spread = stdev(found) if len(found) > 1 else own[0].get("spread_over_seeds")
        words = [percent(fmean(found)), *([] if spread is None else [f"± {percent(spread)}"])]
        line = {"design": name, "where": place, "text": " ".join([*words, *([f"({percent(fmean(later))})"] if later else [])])}
        lines.append(line | (compare_seeds(found, reference) if min(len(found), len(reference)) > 1 else {}))
    return lines


DESIGNS = pivot_table([Column("design", "design")], "where", "text", rows=_texts)
_about = (
    "Accuracy in % after 10 updates, mean ± standard deviation over seeds of meta-training (after 100 in brackets). *same*: "
    "the network of the meta-training; *larger images*: twice the side; *deeper*: one more hidden layer."
)
CLEAR = Table(
    [
        *(Column(name, name) for name in ("design", "where")),
        Column("less the reference, points", "difference", "+.1f", 100),
        Column("standard error", "error", ".1f", 100),
    ],
    lambda results: [line for line in _texts(results) if abs(line.get("difference", 0)) > 2 * line.get("error", 0)],
    note="Differences from the reference of more than twice their standard error. The others these seeds do not tell apart.",
)
_axes = {"xlabel": "", "ylabel": f"{ACCURACY}, mean and range of seeds", "ylim": (0, 1)}
_bars = functools.partial(Bars, axes=_axes, size=(11, 4.6), finish=lambda axes: axes[0, 0].tick_params("x", rotation=90))
views = [
    Section("Accuracy", [DESIGNS, CLEAR], note=_about),
    _bars(
        "designs", "genome", "test_accuracy", "where", rows=lambda results: where(results.rows, step=main_step(results.rows))
    ),
    stability,
    META,
]
EXPERIMENT = Experiment("blur", AblationConfig, measure, views, PRESETS["ablation"], ready, title="Designs of learned rules")
run = EXPERIMENT.run
