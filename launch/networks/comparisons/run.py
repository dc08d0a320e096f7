"""launch.networks compare: one part of a network or of its training exchanged, every variant from several seeds."""

import time
from typing import Any

import numpy as np

from jexplicit.data.images import read_images
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import console, stage
from jexplicit.runs.tables import rich_table
from launch.networks.comparisons.choices import variants_of
from launch.networks.comparisons.measures import log_measures
from launch.networks.comparisons.report import COLUMNS, summaries, write_comparison_report
from launch.networks.comparisons.variants import Outcome, Variant, train_variant
from launch.networks.config import CompareConfig, check
from launch.networks.pictures import centred_data


def run(config: CompareConfig) -> dict[str, Any]:
    """A whole comparison: check the flags, train, write report and figures, print the table."""
    start = time.perf_counter()
    check(config)
    folder = RunFolder(config.out, config, resume=config.resume)
    with stage("reading"):
        images = read_images(config.data, config.data_dir, limit=config.limit)
    data = centred_data(images)
    console.print(
        f"[bold]{images.name}[/]: {len(data.train.X):,} train, {len(data.dev.X):,} dev, {len(data.test.X):,} test images"
    )
    seeds = range(config.seed, config.seed + config.seeds)
    done = {row["variant"] for row in folder.rows()}
    for variant in variants_of(config, data):
        if variant.name in done:
            continue
        begin = time.perf_counter()
        with stage(f"{config.what}: {variant.name}"):
            outcome = train_variant(variant, data, seeds)
            log_measures(folder, config.what, variant, outcome, data, seeds[0])
        folder.log(**curves_event(config, variant, outcome))
        about = {"data": images.name, "sha256": images.sha256, "train_examples": len((variant.data or data).labels)}
        folder.add_rows(rows_of(config, variant, outcome, seeds, (time.perf_counter() - begin) / len(seeds), about))
    report = write_comparison_report(folder.path)
    return present_run(folder, rich_table(COLUMNS, summaries(folder.rows()), title=config.what), report, start)


def rows_of(
    config: CompareConfig, variant: Variant, outcome: Outcome, seeds: range, seconds: float, about: dict[str, Any]
) -> list[dict[str, Any]]:
    """One row per seed. The numbers of a run that diverged are None."""
    shared = {
        "comparison": config.what,
        "variant": variant.name,
        "group": variant.group,
        "value": variant.value,
        "learning_rate": outcome.rate,
        "rates": len(variant.rates),
        "batch_size": min(variant.batch_size or about["train_examples"], about["train_examples"]),
        "epochs": variant.epochs,
        "steps": outcome.steps,
        "seconds": seconds,
        **about,
    }
    scores = {f"{part}_loss": values for part, values in outcome.losses.items()}
    scores |= {f"{part}_accuracy": values for part, values in outcome.accuracies.items()}
    diverged = np.logical_not(np.isfinite(np.stack(list(outcome.losses.values()))).all(axis=0))
    return [
        {**shared, "seed": seed, **{name: None if diverged[n] else finite(values[n]) for name, values in scores.items()}}
        for n, seed in enumerate(seeds)
    ]


def curves_event(config: CompareConfig, variant: Variant, outcome: Outcome) -> dict[str, Any]:
    """Curves by epoch of every seed, and the dev loss of every rate, for the figure."""
    curves = {name: [list(map(finite, seed)) for seed in curve] for name, curve in outcome.curves.items()}
    rates = {"rates": list(variant.rates), "rate_losses": list(map(finite, outcome.rate_losses))}
    return {"event": "curves", "comparison": config.what, "variant": variant.name, "group": variant.group, **curves, **rates}


def finite(x: Any) -> float | None:
    """A number for JSON."""
    return float(x) if np.isfinite(x) else None
