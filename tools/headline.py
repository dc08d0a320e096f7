"""Draws the picture of README.md, docs/headline.png: loss against compute, of what is solved or counted and what is trained.
And docs/starts.png: loss against compute of one network from several starts.

python -m tools.headline

A model that is solved or counted is a point, a trained one a curve, from docs/results/; a model without a comparable time is a
line across. Times are of one seed. docs/headline.toml names the models. `COMPARED` is the table beside the picture: both sides
with what they read, their bytes and their compute.
"""

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from launch.kit.figures import COLOURS, figure, log_ticks
from launch.kit.rows import Column, Results, Row, groups
from launch.kit.views import Table
from launch.networks.sequence_lm import curves
from tools import tables

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"
STARTS_PICTURE = PICTURE.with_name("starts.png")
STARTS = {
    "characters of Shakespeare, nats per character": ("starts-characters",),
    "10 M words, nats per token": ("starts-words",),
}


class Model(NamedTuple):
    """A model of docs/headline.toml.

    task: its panel.
    name: of the model.
    reads: its inputs, and how much of the text before a prediction it sees.
    results: the name in docs/results/; empty for a number that others published.
    where: the fields of its rows there; several rows are seeds, and rows of one run were trained together.
    loss: the field of its loss, or the published number.
    curve: the event that the picture shows in place of the rows, and the field of the loss there.
    trained: whether it was trained by backpropagation.
    left: whether its name ends at the point, below it.
    known: fields that its results lack, or that are not comparable.
    drawn: whether it is in the picture, or in the table alone.
    end: whether the loss of its rows is drawn, too, as a hollow point: that of its curve is measured in another way.
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
    left: bool = False
    known: Row = MappingProxyType({})
    drawn: bool = True
    end: bool = False
    test: Row = MappingProxyType({})

    def chosen(self, found: Sequence[Row]) -> list[Row]:
        """The rows, or the evaluations, that are its own: a field that they lack tells nothing apart."""
        own = [row for row in found if all(row.get(name, value) == value for name, value in self.where.items())]
        if not own:
            raise ValueError(f"docs/results/{self.results}.json has nothing with {self.where}")
        return own

    def rows(self) -> list[Row]:
        """Its rows, with their loss and the CPU seconds of one seed."""
        about = {
            "task": self.task,
            "model": self.name,
            "reads": self.reads,
            "found": "trained" if self.trained else "solved, counted",
        }
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
        """Its loss, perplexity or accuracy on a text or on images that chose nothing, with the standard error of a loss."""
        if not self.test:
            return ""
        row = self._replace(**self.test).chosen(tables.kept(self.test["results"]).rows)[0]
        if "test_accuracy" in row:
            return f"{100 * (row.get('part_test_accuracy') or row['test_accuracy']):.2f} %"
        if "perplexity" in self.task:
            error = row.get("test_loss_se")
            return f"{row['test_perplexity']:.1f}" + (f" ± {row['test_perplexity'] * error:.1f}" if error else "")
        return f"{row['test_loss']:.3f} ± {row['test_loss_se']:.3f}"

    def points(self) -> list[tuple[float | None, float]]:
        """CPU seconds of one seed, None for a line across, and loss: of a point, or of the evaluations of training."""
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


def cpu_seconds(row: Row, seeds: int = 1) -> float | None:
    """CPU seconds of all cores, after features are made, of one of the seeds that the row's seconds are of: measured, or else
    twice those of the clock."""
    clock = row.get("solve_seconds", row.get("seconds"))
    cpu = row.get("cpu_seconds") or (clock and 2 * clock)
    return cpu and cpu / seeds


def models() -> list[Model]:
    """The models of docs/headline.toml, in their order."""
    return [Model(**fields) for fields in tomllib.loads(PICTURE.with_suffix(".toml").read_text())["model"]]


def mean(numbers: Iterable[Any]) -> float:
    """The mean of numbers, or of lists of them."""
    return float(np.mean(list(numbers)))


def compared(results: Results) -> list[Row]:
    """A row for every model of the picture, with the mean over its seeds."""
    rows = []
    for model in models():
        own = model.rows()
        if model.end:  # the cost of its rows, as their loss
            cpu = mean(row["cpu"] for row in own)
        else:
            cpu = model.points()[-1][0] if model.curve else own[0].get("cpu")
        means = {"error": mean(row["error"] for row in own), "cpu": cpu}
        spread = max(row["error"] for row in own) - min(row["error"] for row in own)
        rows.append({**own[0], **means, "spread": spread if len(own) > 1 else None, "test": model.on_test()})
    return rows


COMPARED = Table(
    [
        Column("", "task"),
        Column("model", "model"),
        Column("found by", "found"),
        Column("reads", "reads"),
        Column("MB", "bytes", ",.4g", 1e-6),
        Column("TFLOP", "flops", ",.2f", 1e-12),
        Column("CPU s", "cpu", ",.0f"),
        Column("loss", "error", ".4g"),
        Column("on test", "test"),
        Column("seeds, highest less lowest", "spread", ".2g"),
    ],
    rows=compared,
    note="CPU seconds are of one seed and of both cores: measured, or else twice those of the clock. MB are those of the model "
    "in memory. TFLOP are those of training, by formula where there is one. An empty cell is a number that is not known.",
)


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    every = models()
    tasks = list(dict.fromkeys(model.task for model in every))
    with figure(path, 2, 2, size=(12.0, 9.0)) as axes:
        for ax, task in zip(axes.flat, tasks, strict=False):
            for model in (model for model in every if model.task == task and model.drawn):
                _draw(ax, model)
            ax.set(title=task, xscale="log", xlabel="CPU seconds of one seed")
            log_ticks(ax, "x")
            if task not in tasks[:2]:  # losses near 0
                ax.set_yscale("log")
                log_ticks(ax)


def _draw(ax: Any, model: Model) -> None:
    x, y = zip(*model.points(), strict=True)
    colour = COLOURS[model.trained]
    if x[0] is None:
        ax.axhline(y[0], linestyle="--", linewidth=1, color=colour)
        ax.annotate(model.name, (0.02, y[0]), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
        return
    ax.plot(x, y, marker="o", markersize=4, color=colour)
    last = y[-1]
    if model.end:
        last = mean(row["error"] for row in model.rows())
        ax.plot(x[-1], last, marker="o", markersize=5, color=colour, markerfacecolor="white")
    place, side = ((-5, -7), "right") if model.left else ((4, 4), "left")
    ax.annotate(model.name, (x[-1], last), xytext=place, textcoords="offset points", fontsize=8, ha=side)


def draw_starts(path: Path = STARTS_PICTURE) -> None:
    """Write the picture of the starts, means over seeds."""
    with figure(path, 1, 2, size=(12.0, 4.4)) as axes:
        names = dict.fromkeys(event["start"] for results in STARTS.values() for event in curves(tables.kept(*results)))
        colours = dict(zip(names, itertools.cycle(COLOURS), strict=False))
        for ax, (title, results) in zip(axes.flat, STARTS.items(), strict=True):
            for start, events in groups(curves(tables.kept(*results)), lambda event: event["start"]).items():
                steps = groups([event for event in events if event["step"]], lambda event: event["flops"])
                losses = [mean(event["dev_loss"] for event in own) for own in steps.values()]
                ax.plot(np.array(list(steps)) / 1e12, losses, marker=".", label=start, color=colours[start])
            ax.set(title=title, xscale="log", xlabel="TFLOP of training", ylabel="dev loss in windows")
            ax.legend(fontsize=8, frameon=False)
            log_ticks(ax, "x")


if __name__ == "__main__":
    draw()
    draw_starts()
