"""Draws the picture of README.md, docs/headline.png: loss against compute, of what is solved or counted and what is trained.

python -m tools.headline

A model that is solved or counted is a point, a trained one a curve, from docs/results/. `COMPARED` is the table beside the
picture: both sides with what they read, their bytes and their compute.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.experiments.figures import COLOURS, figure, log_ticks
from jexplicit.experiments.rows import Results, Row, groups, where
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Table
from tools import tables

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"


class Model(NamedTuple):
    """A model of the picture.

    task: its panel.
    name: of the model.
    reads: its inputs, and how much of the text before a prediction it sees.
    results: the name in docs/results/; empty for a number that others published.
    where: the fields of its rows there; several rows are seeds.
    loss: the field of its loss, or the published number.
    curve: the event of its curve, the field of the loss there; empty for a point, or a line across.
    trained: whether it was trained by backpropagation.
    """

    task: str
    name: str
    reads: str
    results: str
    where: dict[str, Any]
    loss: str | float
    curve: tuple[str, ...] = ()
    trained: bool = False

    def rows(self) -> list[Row]:
        """Its rows, with the loss, and CPU seconds of all cores: measured, or else those of the clock on both cores."""
        about = {"task": self.task, "model": self.name, "reads": self.reads, "trained": self.trained}
        if not self.results:
            return [{**about, "error": self.loss}]
        found = where(tables.kept(self.results).rows, **self.where)
        if not found:
            raise ValueError(f"docs/results/{self.results}.json has no row with {self.where}")
        return [
            {**row, **about, "error": row[str(self.loss)], "cpu": row.get("cpu_seconds") or 2 * row["seconds"]} for row in found
        ]

    def points(self) -> list[Row]:
        """What is drawn of it: the evaluations of training, or a point."""
        if not self.curve:
            return [{**row, "cpu": row.get("cpu") if not self.trained else None} for row in self.rows()[:1]]
        event, field = self.curve
        chosen = groups(where(tables.kept(self.results).events(event), **self.where), "step")  # of all seeds
        times = {step: [row.get("cpu_seconds") or 2 * row["seconds"] for row in own] for step, own in chosen.items()}
        return [{"error": mean([row[field] for row in own]), "cpu": mean(times[step])} for step, own in chosen.items() if step]


CHARACTERS, WORDS = "characters of Shakespeare, nats per character", "10 M words, nats per token"
MODELS = (
    Model(CHARACTERS, "Kneser-Ney 5-gram", "4 characters", "shakespeare", {"method": "ngram"}, "dev_loss"),
    Model(CHARACTERS, "mixture", "16 characters", "shakespeare", {"method": "mixture", "history": "none"}, "dev_loss"),
    Model(
        CHARACTERS,
        "mixture, last 256",
        "256 characters",
        "shakespeare",
        {"method": "mixture", "history": "window:256"},
        "dev_loss",
    ),
    Model(
        CHARACTERS,
        "transformer, 0.8 M weights",
        "48 to 64 characters",
        "transformer-shakespeare-cpu",
        {},
        "dev_loss",
        ("epoch", "dev_loss"),
        trained=True,
    ),
    Model(CHARACTERS, "nanoGPT, 10.6 M weights, A100", "128 characters on average", "", {}, 1.4697, trained=True),
    Model(WORDS, "Kneser-Ney 5-gram", "4 tokens", "babylm-mixture", {"method": "ngram"}, "dev_loss"),
    Model(WORDS, "mixture", "16 tokens", "babylm-mixture", {"method": "mixture", "history": "none"}, "dev_loss"),
    Model(
        WORDS, "mixture, all before", "all text before", "babylm-mixture", {"method": "mixture", "history": "all"}, "dev_loss"
    ),
)


def mean(numbers: list[Any]) -> float:
    """The mean of numbers, or of lists of them."""
    return float(np.mean(numbers))


def compared(results: Results) -> list[Row]:
    """A row for every model of the picture, with the mean over its seeds."""
    rows = []
    for model in MODELS:
        own = model.rows()
        means = {name: mean([row[name] for row in own]) for name in ("error", "cpu") if name in own[0]}
        spread = max(row["error"] for row in own) - min(row["error"] for row in own)
        rows.append(
            {**own[0], **means, "spread": spread if len(own) > 1 else None, "by": "trained" if model.trained else "counted"}
        )
    return rows


COMPARED = Table(
    [
        Column("", "task"),
        Column("model", "model"),
        Column("found by", "by"),
        Column("reads", "reads"),
        Column("MB", "bytes", ",.1f", 1e-6),
        Column("TFLOP", "flops", ",.2f", 1e-12),
        Column("CPU s", "cpu", ",.0f"),
        Column("loss", "error", ".4g"),
        Column("seeds, highest less lowest", "spread", ".2g"),
    ],
    rows=compared,
    note="CPU seconds are of both cores: measured, or else twice those of the clock. MB are those of the model in memory. FLOP "
    "of training are by formula, where there is one.",
)


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    tasks = list(dict.fromkeys(model.task for model in MODELS))
    with figure(path, 2, 2, size=(11.0, 7.4)) as axes:
        for ax, task in zip(axes.flat, tasks, strict=False):
            for model in (model for model in MODELS if model.task == task):
                _draw(ax, model)
            ax.set(title=task, xscale="log", xlabel="CPU seconds")
            log_ticks(ax, "x")


def _draw(ax: Any, model: Model) -> None:
    rows, style = model.points(), {"color": COLOURS[model.trained], "label": None}
    x, y = [row["cpu"] for row in rows], [row["error"] for row in rows]
    if x[0] is None:
        ax.axhline(y[0], linestyle="--", linewidth=1, color=COLOURS[1])
        ax.annotate(model.name, (0.02, y[0]), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
        return
    ax.plot(x, y, marker="o", markersize=4, **style)
    ax.annotate(model.name, (x[-1], y[-1]), xytext=(4, 4), textcoords="offset points", fontsize=8)


if __name__ == "__main__":
    draw()
