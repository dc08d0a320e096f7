"""What reports and figures of launch.icl read from the files of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.folder import read_events

CURVATURE, WEIGHTS, WAVES, HEADS = "curvature.npz", "weights_{model}.npz", "waves.npz", "heads.npz"


def curve(out: Path, model: str) -> list[dict[str, Any]]:
    """The evaluations of a trained model from metrics.jsonl; one that a resumed run repeated counts once."""
    entries = {event["step"]: event for event in read_events(out, "evaluation") if event["model"] == model}
    return [entries[step] for step in sorted(entries)]


def groups(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows that differ in the seed alone."""
    names = ("experiment", "task", "layers", "heads", "recurrent", "dim", "context", "predictor", "start", "training_tasks")
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return list(found.values())


def mean_of(group: Sequence[dict[str, Any]], what: str, form: str) -> str:
    """The mean of a measure over rows that have it, as text; nothing where none has.

    Example:
        >>> mean_of([{"loss": 1.0}, {"loss": 2.0}, {"loss": None}], "loss", ".2f")
        '1.50'
    """
    values = [row[what] for row in group if row.get(what) is not None]
    return format(float(np.mean(values)), form) if values else ""
