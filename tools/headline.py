"""Draws the picture of README.md (python -m tools.headline); tables of docs/results.md.

docs/headline.toml has the models. One fitted without SGD is a point, a trained one a curve. Times are for one seed.
"""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from launch.kit.views import COLOURS, Column, Results, Row, figure, groups, log_ticks, markdown_table
from tools import tables

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"
TASKS = groups(tomllib.loads(PICTURE.with_suffix(".toml").read_text())["model"], lambda model: model["task"])
COLUMNS = (
    Column("model", "model"), Column("fitted", "found"), Column("context or input", "reads"),
    Column("MB", "bytes", ",.4g", 1e-6), Column("TFLOP", "flops", ",.2f", 1e-12), Column("CPU s", "cpu", ",.0f"),
    Column("loss", "error", ".4g"), Column("on test", "test"), Column("range over seeds", "spread", ".2g"),
)  # fmt: skip
NOTE = (
    "CPU seconds cover one seed and both cores: measured, or else twice wall-clock seconds. MB count the model in memory. "
    "TFLOP count its training, by formula where there is one. ± is a standard error. An empty cell is not known."
)


def chosen(results: str, where: Row, event: str = "") -> list[Row]:
    """The rows or the events of a model; missing fields match."""
    kept = tables.kept(results)
    found = kept.events(event) if event else kept.rows
    own = [row for row in found if all(row.get(name, value) == value for name, value in where.items())]
    if not own:
        raise ValueError(f"docs/results/{results}.json has nothing with {where}")
    return own


def measured(model: Row) -> dict[str, Any]:
    """A row of a model, with loss, CPU seconds, test; its points and end."""
    trained, known = model.get("trained", False), model.get("known", {})
    about = {"model": model["name"], "reads": model["reads"], "found": "trained" if trained else "without SGD"}
    if not model["results"]:
        return {**about, "error": model["loss"], **known}
    own = chosen(model["results"], model["where"])
    together = Counter(row.get("run") for row in own)  # rows of one run were trained together
    errors, costs = zip(*((row[model["loss"]], cpu_seconds(row, together[row.get("run")])) for row in own), strict=True)
    found = {**own[0], **about, "error": np.mean(errors), "cpu": costs[0], "test": on_test(model), **known}
    found |= {"spread": max(errors) - min(errors)} if len(own) > 1 else {}
    found["points"] = [(own[0].get("seconds") if trained else found["cpu"], found["error"])]
    if "curve" in model:
        event, field = model["curve"]
        entries = chosen(model["results"], model["where"], event)
        found["points"] = [(found["cpu"], np.mean([row[field] for row in entries]))]
        if trained:
            steps = {n: own for n, own in groups(entries, lambda row: row.get("step", row.get("epoch"))).items() if n}
            seconds = [np.mean([cpu_seconds(row, np.size(row[field])) for row in own]) for own in steps.values()]
            losses = [np.mean([row[field] for row in own]) for own in steps.values()]
            found |= {"points": [*zip(seconds, losses, strict=True)], "cpu": seconds[-1]}
    if model.get("end"):  # the cost and the loss of its rows, where its curve is measured in another way
        found |= {"cpu": np.mean(costs), "end": (np.mean(costs), found["error"])}
    return found


def cpu_seconds(row: Row, seeds: int) -> Any:
    """CPU seconds of one seed: measured, or twice the wall-clock time; None if unknown."""
    clock = row.get("solve_seconds", row.get("seconds"))
    cpu = row.get("cpu_seconds") or (clock and 2 * clock)
    return cpu and cpu / seeds


def on_test(model: Row) -> str:
    """The test loss, perplexity or accuracy of a model, with a standard error."""
    if "test" not in model:
        return ""
    row = chosen(**model["test"])[0]
    if "test_accuracy" in row:
        return f"{100 * (row.get('part_test_accuracy') or row['test_accuracy']):.2f} %"
    name, form = ("perplexity", ".1f") if "perplexity" in model["task"] else ("loss", ".3f")
    value, error = row[f"test_{name}"], row.get("test_loss_se")
    return f"{value:{form}}" + (f" ± {error * (value if name == 'perplexity' else 1):{form}}" if error else "")


def compared(results: Results) -> list[str]:
    """The tables of docs/results.md, a row for every model."""
    tasks = {f"## {task[0].upper()}{task[1:]}": map(measured, models) for task, models in TASKS.items()}
    return [*(line for task, rows in tasks.items() for line in (task, *markdown_table(COLUMNS, rows))), NOTE]


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    with figure(path, 2, 2, size=(9.0, 7.6)) as axes:
        for n, (ax, (task, models)) in enumerate(zip(axes.flat, TASKS.items(), strict=False)):
            drawn = [(model, *_draw(ax, model)) for model in models if model.get("drawn", True)]
            ax.set_title(task, fontsize=9)
            ax.set(xscale="log", xlabel="CPU seconds of one seed")
            log_ticks(ax, "x")
            if n >= 2:  # losses near 0
                ax.set_yscale("log")
                log_ticks(ax)
            middle = np.sqrt(np.prod(ax.get_xlim()))
            for model, x, y in drawn:
                above = (0, 7) if model.get("trained") else (6, -3)
                place, side = ((10, -10) if "curve" in model else (-6, -3), "right") if x > middle else (above, "left")
                ax.annotate(model["name"], (x, y), place, textcoords="offset points", fontsize=8, ha=side)


def _draw(ax: Any, model: Row) -> tuple[float, float]:
    """Draw a model; the point where its name stands."""
    found, trained = measured(model), model.get("trained", False)
    shown = found["points"]
    style: Any = {"linewidth": 0.8} if len(shown) > 50 else {"marker": "o", "markersize": 3 if len(shown) > 1 else 5}
    if trained and len(shown) == 1:
        style |= {"marker": "D", "markerfacecolor": "white"}
    ax.plot(*zip(*shown, strict=True), **style, color=(colour := COLOURS[trained]))
    if "end" not in found:
        return shown[-1]
    ax.plot(*zip(shown[-1], found["end"], strict=True), linestyle=":", color=colour)
    ax.plot(*found["end"], marker="o", markersize=5, color=colour, markerfacecolor="white")
    return found["end"]


if __name__ == "__main__":
    draw()
