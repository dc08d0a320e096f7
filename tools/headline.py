"""Draws the picture of README.md, and makes the tables of docs/results.md.

python -m tools.headline

docs/headline.png has a point for a model that is fitted without SGD and a curve for a trained one, from docs/results/; a model
without a comparable time is a line across. Times are those of one seed. docs/headline.toml names the models.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from launch.kit.views import COLOURS, Column, Results, Row, figure, groups, log_ticks, markdown_table
from tools import tables

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"


class Model(NamedTuple):
    """A model of docs/headline.toml.

    task: its panel. reads: its inputs, or the length of its context.
    results: the name in docs/results/; empty for a number that others published. where: the fields of its rows there; several
    rows are seeds, and rows of one run were trained together.
    loss: the field of its loss, or the published number.
    curve: the event that the picture shows in place of the rows, and the field of the loss there.
    trained: whether it was trained by backpropagation. drawn: whether it is in the picture, or in the table alone.
    known: fields that its results lack, or that are not comparable.
    end: whether a hollow point has the loss and the time of its rows, where its curve is measured in another way.
    test: the results of its test text, and `where` there; empty without any.
    """

    task: str
    name: str
    reads: str
    results: str
    where: Row
    loss: str | float
    curve: Sequence[str] = ()
    trained: bool = False
    known: Row = MappingProxyType({})
    drawn: bool = True
    end: bool = False
    test: Row = MappingProxyType({})

    def chosen(self, event: str = "") -> list[Row]:
        """The rows or the events of the model; missing fields match."""
        kept = tables.kept(self.results)
        found = kept.events(event) if event else kept.rows
        own = [row for row in found if all(row.get(name, value) == value for name, value in self.where.items())]
        if not own:
            raise ValueError(f"docs/results/{self.results}.json has nothing with {self.where}")
        return own

    def rows(self) -> list[Row]:
        """Its rows, with their loss and the CPU seconds of one seed."""
        about = {"model": self.name, "reads": self.reads, "found": "trained" if self.trained else "without SGD"}
        if not self.results:
            return [{**about, "error": self.loss, **self.known}]
        own = self.chosen()
        together = Counter(row.get("run") for row in own)
        costs = [{"error": row[str(self.loss)], "cpu": cpu_seconds(row, together[row.get("run")])} for row in own]
        return [{**row, **about, **cost, **self.known} for row, cost in zip(own, costs, strict=True)]

    def on_test(self) -> str:
        """Its test loss, perplexity or accuracy, with a standard error."""
        if not self.test:
            return ""
        row = self._replace(**self.test).chosen()[0]
        if "test_accuracy" in row:
            return f"{100 * (row.get('part_test_accuracy') or row['test_accuracy']):.2f} %"
        if "perplexity" not in self.task:
            return f"{row['test_loss']:.3f} ± {row['test_loss_se']:.3f}"
        error = row.get("test_loss_se")
        return f"{row['test_perplexity']:.1f}" + (f" ± {row['test_perplexity'] * error:.1f}" if error else "")

    def points(self) -> list[tuple[float | None, float]]:
        """CPU seconds (None: unknown) and loss, of a point or curve."""
        if not self.curve:
            rows = self.rows()
            return [(None if self.trained else rows[0]["cpu"], mean(row["error"] for row in rows))]
        event, field = self.curve
        own = self.chosen(event)
        if not self.trained:
            return [(self.rows()[0]["cpu"], mean(row[field] for row in own))]
        steps = groups(own, lambda row: row.get("step", row.get("epoch")))
        seconds = {step: mean(cpu_seconds(row, np.size(row[field])) for row in own) for step, own in steps.items() if step}
        return [(cpu, mean(row[field] for row in steps[step])) for step, cpu in seconds.items()]


MODELS = [Model(**fields) for fields in tomllib.loads(PICTURE.with_suffix(".toml").read_text())["model"]]
TASKS = groups(MODELS, lambda model: model.task)


def cpu_seconds(row: Row, seeds: int) -> float | None:
    """CPU seconds of one seed: measured, or twice the wall-clock time."""
    clock = row.get("solve_seconds", row.get("seconds"))
    cpu = row.get("cpu_seconds") or (clock and 2 * clock)
    return cpu and cpu / seeds


def mean(numbers: Iterable[Any]) -> float:
    """The mean of numbers, or of lists of them."""
    return float(np.mean(list(numbers)))


def compared(results: Results) -> list[str]:
    """The tables of docs/results.md, a row for every model."""
    lines = []
    for task, models in TASKS.items():
        rows = []
        for model in models:
            own = model.rows()
            errors = [row["error"] for row in own]
            cpu = own[0].get("cpu")
            if model.end:  # the cost of its rows, as their loss
                cpu = mean(row["cpu"] for row in own)
            elif model.curve:
                cpu = model.points()[-1][0]
            spread = max(errors) - min(errors) if len(own) > 1 else None
            rows.append({**own[0], "error": mean(errors), "cpu": cpu, "spread": spread, "test": model.on_test()})
        lines += [f"## {task[0].upper()}{task[1:]}", *markdown_table(COLUMNS, rows)]
    return [*lines, NOTE]


COLUMNS = (
    Column("model", "model"),
    Column("fitted", "found"),
    Column("context or input", "reads"),
    Column("MB", "bytes", ",.4g", 1e-6),
    Column("TFLOP", "flops", ",.2f", 1e-12),
    Column("CPU s", "cpu", ",.0f"),
    Column("loss", "error", ".4g"),
    Column("on test", "test"),
    Column("range over seeds", "spread", ".2g"),
)
NOTE = (
    "CPU seconds cover one seed and both cores: measured, or else twice wall-clock seconds. MB are those of the model in "
    "memory. TFLOP are those of training, by formula where there is one. ± is a standard error. An empty cell is not known."
)


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    with figure(path, 2, 2, size=(9.0, 7.6)) as axes:
        for ax, (n, (task, models)) in zip(axes.flat, enumerate(TASKS.items()), strict=False):
            drawn = [(model, *_draw(ax, model)) for model in models if model.drawn]
            ax.set_title(task, fontsize=9)
            ax.set(xscale="log", xlabel="CPU seconds of one seed")
            log_ticks(ax, "x")
            if n >= 2:  # losses near 0
                ax.set_yscale("log")
                log_ticks(ax)
            middle = np.sqrt(np.prod(ax.get_xlim()))
            for model, x, y in drawn:
                place, side = ((10, -10) if model.curve else (-6, -3), "right") if x and x > middle else ((6, -3), "left")
                where = {"xy": (x, y)} if x else {"xy": (0.01, y), "xycoords": ("axes fraction", "data")}
                ax.annotate(model.name, **where, xytext=place if x else (0, 1), textcoords="offset points", fontsize=8, ha=side)


def _draw(ax: Any, model: Model) -> tuple[float | None, float]:
    """Draw a model; the point where its name stands."""
    points, colour = model.points(), COLOURS[model.trained]
    if points[0][0] is None:
        ax.axhline(points[0][1], linestyle="--", linewidth=1, color=colour)
        return points[-1]
    ax.plot(*zip(*points, strict=True), marker="o", markersize=3 if len(points) > 1 else 5, color=colour)
    if not model.end:
        return points[-1]
    end = mean(row["cpu"] for row in model.rows()), mean(row["error"] for row in model.rows())
    ax.plot(*zip(points[-1], end, strict=True), linestyle=":", color=colour)
    ax.plot(*end, marker="o", markersize=5, color=colour, markerfacecolor="white")
    return end


if __name__ == "__main__":
    draw()
