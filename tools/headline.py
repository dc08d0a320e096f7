"""Draws the picture of README.md, and makes the tables of docs/results.md.

python -m tools.headline

docs/headline.png has a point for a model that is fitted without SGD and a curve for a trained one, from docs/results/; a model
without a comparable time is a line across. Times are those of one seed. docs/headline.toml names the models.
"""

import itertools
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
    results: the name in docs/results/; empty for a number that others published.
    where: the fields of its rows there; several rows are seeds, and rows of one run were trained together.
    loss: the field of its loss, or the published number.
    curve: the event that the picture shows in place of the rows, and the field of the loss there.
    trained: whether it was trained by backpropagation.
    known: fields that its results lack, or that are not comparable.
    drawn: whether it is in the picture, or in the table alone.
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

    def chosen(self, found: Sequence[Row]) -> list[Row]:
        """The rows or evaluations of the model; missing fields match."""
        own = [row for row in found if all(row.get(name, value) == value for name, value in self.where.items())]
        if not own:
            raise ValueError(f"docs/results/{self.results}.json has nothing with {self.where}")
        return own

    def rows(self) -> list[Row]:
        """Its rows, with their loss and the CPU seconds of one seed."""
        about = {"model": self.name, "reads": self.reads, "found": "trained" if self.trained else "without SGD"}
        if not self.results:
            return [{**about, "error": self.loss, **self.known}]
        own = self.chosen(tables.kept(self.results).rows)
        together = Counter(row.get("run") for row in own)
        times = [cpu_seconds(row, seeds=together[row.get("run")]) for row in own]
        return [
            {**row, **about, "error": row[str(self.loss)], "cpu": cpu, **self.known}
            for row, cpu in zip(own, times, strict=True)
        ]

    def on_test(self) -> str:
        """Its test loss, perplexity or accuracy, with a standard error."""
        if not self.test:
            return ""
        row = self._replace(**self.test).chosen(tables.kept(self.test["results"]).rows)[0]
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
        own = self.chosen(tables.kept(self.results).events(event))
        if not self.trained:
            return [(self.rows()[0]["cpu"], mean(row[field] for row in own))]
        steps = groups(own, lambda row: row.get("step", row.get("epoch")))
        return [
            (mean(cpu_seconds(row, seeds=np.size(row[field])) for row in own), mean(row[field] for row in own))
            for step, own in steps.items()
            if step
        ]


MODELS = [Model(**fields) for fields in tomllib.loads(PICTURE.with_suffix(".toml").read_text())["model"]]


def cpu_seconds(row: Row, seeds: int = 1) -> float | None:
    """CPU seconds of one seed: measured, or twice the wall-clock time."""
    clock = row.get("solve_seconds", row.get("seconds"))
    cpu = row.get("cpu_seconds") or (clock and 2 * clock)
    return cpu and cpu / seeds


def mean(numbers: Iterable[Any]) -> float:
    """The mean of numbers, or of lists of them."""
    return float(np.mean(list(numbers)))


def compared(results: Results) -> list[str]:
    """The tables of docs/results.md, a row for every model."""
    tasks: dict[str, list[Row]] = {}
    for model in MODELS:
        own = model.rows()
        if model.end:  # the cost of its rows, as their loss
            cpu = mean(row["cpu"] for row in own)
        else:
            cpu = model.points()[-1][0] if model.curve else own[0].get("cpu")
        means = {"error": mean(row["error"] for row in own), "cpu": cpu}
        spread = max(row["error"] for row in own) - min(row["error"] for row in own)
        row = {**own[0], **means, "spread": spread if len(own) > 1 else None, "test": model.on_test()}
        tasks.setdefault(model.task, []).append(row)
    found = [[f"## {task[0].upper()}{task[1:]}", *markdown_table(COLUMNS, rows)] for task, rows in tasks.items()]
    return [*itertools.chain.from_iterable(found), NOTE]


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
    tasks = list(dict.fromkeys(model.task for model in MODELS))
    with figure(path, 2, 2, size=(9.0, 7.6)) as axes:
        for ax, task in zip(axes.flat, tasks, strict=False):
            own = [model for model in MODELS if model.task == task and model.drawn]
            ends = [_draw(ax, model) for model in own]
            ax.set_title(task, fontsize=9)
            ax.set(xscale="log", xlabel="CPU seconds of one seed")
            log_ticks(ax, "x")
            if task not in tasks[:2]:  # losses near 0
                ax.set_yscale("log")
                log_ticks(ax)
            middle = np.sqrt(np.prod(ax.get_xlim()))
            for model, (x, y) in zip(own, ends, strict=True):
                place, side = ((10, -10) if model.curve else (-6, -3), "right") if x and x > middle else ((6, -3), "left")
                where = {"xy": (x, y)} if x else {"xy": (0.01, y), "xycoords": ("axes fraction", "data")}
                ax.annotate(model.name, **where, xytext=place if x else (0, 1), textcoords="offset points", fontsize=8, ha=side)


def _draw(ax: Any, model: Model) -> tuple[float | None, float]:
    """Draw a model; the point where its name stands."""
    points = model.points()
    (x, y), end, colour = zip(*points, strict=True), points[-1], COLOURS[model.trained]
    if x[0] is None:
        ax.axhline(y[0], linestyle="--", linewidth=1, color=colour)
        return end
    ax.plot(x, y, marker="o", markersize=3 if len(x) > 1 else 5, color=colour)
    if model.end:
        end = mean(row["cpu"] for row in model.rows()), mean(row["error"] for row in model.rows())
        ax.plot(*zip(points[-1], end, strict=True), linestyle=":", color=colour)
        ax.plot(*end, marker="o", markersize=5, color=colour, markerfacecolor="white")
    return end


if __name__ == "__main__":
    draw()
