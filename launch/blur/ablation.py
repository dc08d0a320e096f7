"""Genomes of designs that differ in one choice each: which differences exceed what another seed would have changed?"""

import dataclasses
from collections.abc import Iterator, Sequence
from statistics import fmean, variance
from typing import Any

import numpy as np

from jexplicit.runs.experiment import Experiment, Part
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.rows import Results, Row, groups, where
from jexplicit.runs.tables import Column
from jexplicit.runs.views import Bars, Table
from launch.blur.config import VARIANTS, AblationConfig
from launch.blur.data import load_sets, read_sets
from launch.blur.learners import ACCURACY, learners, main_step, percent, ready, stability
from launch.blur.presets import PRESETS
from launch.blur.train import META, find_genome


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
            fields: Any = {"skipped": rule.provenance["skipped"], "meta_seconds": rule.provenance["seconds"]}
            fields |= {"output_normalised": design.normalise_output, "activation": design.hidden_activation}
            for place, network in places.items():
                key: Any = {"experiment": "ablation", "genome": name, "seed": seed, "where": place}
                yield learners(folder, config, rule, *network, fields=fields, **key)


# --- views ---------------------------------------------------------------------------------------------------------------


def compare_seeds(design: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The difference of two means over seeds and its standard error, `√(s₁²/n₁ + s₂²/n₂)` with s² the variances over n - 1.

    Example:
        >>> found = compare_seeds((0.75, 0.75, 0.75), (0.25, 0.5, 0.75))
        >>> found["difference"], round(found["error"], 4)
        (0.25, 0.1443)
    """
    difference = {"difference": fmean(design) - fmean(reference)}
    if min(len(design), len(reference)) < 2:
        return difference
    return difference | {"error": float(np.sqrt(sum(variance(values) / len(values) for values in (design, reference))))}


def design_lines(results: Results) -> list[Row]:
    """A line for each design: accuracies by place, and in its own network the difference from the reference."""
    step, lines = main_step(results.rows), []
    reference = _accuracies(results.rows, step, "reference", "same")
    for (name,), own in groups(results.rows, ["genome"]).items():
        cells = {place: _cell(results.rows, step, name, place) for (place,) in groups(own, ["where"])}
        lines.append({"design": name, **cells})
        if len(reference) > 1:
            lines[-1] |= compare_seeds(_accuracies(own, step, name, "same"), reference)
    return lines


def _accuracies(rows: Sequence[Row], step: int, name: str, place: str) -> list[float]:
    return [row["test_accuracy"] for row in where(rows, genome=name, where=place, step=step)]


def _cell(rows: Sequence[Row], step: int, name: str, place: str) -> str:
    """Accuracy ± the standard deviation over seeds, which transcribed results have as a field, and in brackets after 100."""
    found, later = _accuracies(rows, step, name, place), _accuracies(rows, 100, name, place)
    kept = where(rows, genome=name, where=place, step=step)[0].get("spread_over_seeds")
    spread = variance(found) ** 0.5 if len(found) > 1 else kept
    words = [percent(fmean(found)), *([f"± {percent(spread)}"] if spread is not None else [])]
    return " ".join([*words, *([f"({percent(fmean(later))})"] if later else [])])


def _columns(lines: Sequence[Row]) -> list[Column]:
    places = [name for name in lines[0] if name not in ("design", "difference", "error")]
    compared = [Column("same, less the reference", "difference", "+.1f", 100), Column("± of that", "error", ".1f", 100)]
    compared += [Column("over twice that", lambda line: "yes" if abs(line["difference"]) > 2 * line["error"] else "")]
    return [Column("design", "design"), *(Column(place, place) for place in places), *(compared if "error" in lines[0] else [])]


DESIGNS = Table(
    _columns,
    design_lines,
    note="Accuracy in % after 10 updates, mean ± standard deviation over seeds of meta-training (after 100 updates in brackets). "
    "*same*: the network of the meta-training; *larger images*: twice the side; *deeper*: one more hidden layer.",
)
EXPERIMENT = Experiment(
    "blur",
    AblationConfig,
    measure,
    views=[
        DESIGNS,
        Bars(
            "designs",
            "genome",
            "test_accuracy",
            "where",
            rows=lambda results: where(results.rows, step=main_step(results.rows)),
            axes={"xlabel": "", "ylabel": f"{ACCURACY}, mean and range of seeds", "ylim": (0, 1)},
            size=(11, 4.6),
            finish=lambda axes: axes[0, 0].tick_params(axis="x", rotation=90),
        ),
        lambda results: stability(results, where="same", seed=results.config["seed"]),
        META,
    ],
    presets=PRESETS["ablation"],
    check=ready,
    title="Designs of learned update rules",
)
run = EXPERIMENT.run
