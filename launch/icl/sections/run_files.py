"""What sections of a report read from the files of a run, and how they show figures."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.runs.results import read_events
from launch.icl.panels import NAMES, Curve, Sweeps


def draw_figure(out: Path, name: str, draw: Callable[..., None], *data: Any, **options: Any) -> list[str]:
    """Draw a figure, and return the lines that show it."""
    draw(*data, out / "figures" / f"{name}.png", **options)
    return [f"![{name.replace('_', ' ')}](figures/{name}.png)", ""]


def last_events(events: Iterable[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The last event for each value of the named fields: a resumed run may repeat some."""
    return list({tuple(event[name] for name in names): event for event in events}.values())


def training_curve(out: Path, model: str) -> list[dict[str, Any]]:
    """The evaluations of a trained model, by step."""
    events = (event for event in read_events(out, "evaluation") if event["model"] == model)
    return sorted(last_events(events, "step"), key=lambda event: event["step"])


def curves_by_heads(out: Path, experiment: str) -> dict[str, list[dict[str, Any]]]:
    return {f"{heads} head{'s' * (heads > 1)}": training_curve(out, f"{experiment}_{heads}_heads") for heads in (1, 2)}


def reference_losses(out: Path, model: str) -> dict[str, float]:
    """The losses that a model is compared with, by predictor."""
    return {event["predictor"]: event["loss"] for event in read_events(out, "reference") if event["model"] == model}


def named_losses(out: Path, model: str) -> dict[str, float]:
    return {NAMES.get(name, name): loss for name, loss in reference_losses(out, model).items()}


def read_sweeps(out: Path, experiment: str, model: str) -> Mapping[str, Sweeps]:
    """shift -> predictor -> (values, losses [seeds, values])."""
    sweeps: dict[str, dict[str, tuple[list[float], Any]]] = {}
    events = (e for e in read_events(out, "sweep") if (e["experiment"], e["model"]) == (experiment, model))
    for event in last_events(events, "shift", "predictor", "seed"):
        values, losses = sweeps.setdefault(event["shift"], {}).get(event["predictor"], (event["values"], []))
        sweeps[event["shift"]][event["predictor"]] = values, np.array([*losses, event["losses"]])
    return sweeps


def first_step(curve: Curve, condition: Callable[[Mapping[str, Any]], Any]) -> int | None:
    """The first step whose evaluation meets a condition."""
    return next((entry["step"] for entry in curve if condition(entry)), None)


def first_steps(curve: Curve, condition: Callable[[Mapping[str, Any], int], Any]) -> list[int | None]:
    """By seed n, the first step whose evaluation meets a condition of it and n."""
    return [first_step(curve, lambda entry, n=n: condition(entry, n)) for n in range(len(curve[0]["loss"]))]


def step_or_never(step: int | None) -> str:
    return "never" if step is None else str(step)
