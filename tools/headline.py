"""Draws the picture of README.md, docs/headline.png: loss against compute, of what is solved or counted and what is trained.

python -m tools.headline

A model that is solved or counted is a point, a trained one a curve, from docs/results/. `COMPARED` is the table beside the
picture: both sides with what they read, their bytes and their compute.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.experiments.figures import COLOURS, figure, log_ticks
from jexplicit.experiments.rows import Results, Row, groups
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
    left: whether its name ends at the point, below it.
    """

    task: str
    name: str
    reads: str
    results: str
    where: dict[str, Any]
    loss: str | float
    curve: tuple[str, ...] = ()
    trained: bool = False
    left: bool = False

    def chosen(self, found: Sequence[Row]) -> list[Row]:
        """The rows, or the evaluations, that are its own: a field that they lack tells nothing apart."""
        own = [row for row in found if all(row.get(name, value) == value for name, value in self.where.items())]
        if not own:
            raise ValueError(f"docs/results/{self.results}.json has nothing with {self.where}")
        return own

    def rows(self) -> list[Row]:
        """Its rows, with their loss and CPU seconds."""
        about = {
            "task": self.task,
            "model": self.name,
            "reads": self.reads,
            "found": "trained" if self.trained else "solved, counted",
        }
        if not self.results:
            return [{**about, "error": self.loss}]
        own = self.chosen(tables.kept(self.results).rows)
        return [{**row, **about, "error": row[str(self.loss)], "cpu": cpu_seconds(row)} for row in own]

    def points(self) -> list[tuple[float | None, float]]:
        """CPU seconds and loss: at the evaluations of training, means over seeds, or of a point. None for a line across."""
        if not self.curve:
            rows = self.rows()
            return [(None if self.trained else rows[0]["cpu"], mean(row["error"] for row in rows))]
        event, field = self.curve
        steps = groups(self.chosen(tables.kept(self.results).events(event)), lambda row: row.get("step", row.get("epoch")))
        return [(mean(map(cpu_seconds, own)), mean(row[field] for row in own)) for step, own in steps.items() if step]


def cpu_seconds(row: Row) -> float | None:
    """CPU seconds of all cores: measured, or else twice the seconds of the clock, after features are made."""
    clock = row.get("solve_seconds", row.get("seconds"))
    return row.get("cpu_seconds") or (clock and 2 * clock)


CHARACTERS, WORDS = "characters of Shakespeare, nats per character", "10 M words, perplexity per token"
DIGITS, CONTEXTS = "MNIST, nats on held-out images", "linear regression in context, loss of five layers"
LAST, ALL = {"method": "mixture", "history": "window:256"}, {"method": "mixture", "history": "all"}
ADAPTIVE = {"method": "mixture", "history": "adaptive"}
_trained_layers = {"predictor": "trained", "start": "cold", "model": "cold_K5_layers_d10_N10"}
MODELS = (
    Model(CHARACTERS, "Kneser-Ney 5-gram", "4 characters", "shakespeare", {"method": "ngram"}, "dev_loss"),
    Model(CHARACTERS, "9-gram with a cache", "256 characters", "shakespeare-cache", {"radius": 8}, "dev_loss", left=True),
    Model(CHARACTERS, "mixture", "48 characters", "shakespeare", {"method": "mixture", "history": "none"}, "dev_loss"),
    Model(CHARACTERS, "mixture, last 256", "256 characters", "shakespeare", LAST, "dev_loss"),
    Model(CHARACTERS, "adaptive mixture", "all text before", "shakespeare", ADAPTIVE, "dev_loss"),
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
    Model(CHARACTERS, "nanoGPT, 10.6 M weights, on an A100", "128 characters on average", "", {}, 1.4697, trained=True),
    Model(WORDS, "Kneser-Ney 5-gram", "4 tokens", "babylm-mixture", {"method": "ngram"}, "dev_perplexity"),
    Model(WORDS, "mixture", "16 tokens", "babylm-mixture", {"method": "mixture", "history": "none"}, "dev_perplexity"),
    Model(WORDS, "5-gram with a cache", "all text before", "babylm-cache", ALL, "dev_perplexity"),
    Model(WORDS, "mixture, all before", "all text before", "babylm-mixture", ALL, "dev_perplexity"),
    Model(WORDS, "adaptive mixture", "all text before", "babylm-adaptive", ADAPTIVE, "dev_perplexity", left=True),
    Model(
        WORDS,
        "the paper's layer by Adagrad, 3 epochs",
        "4 tokens",
        "babylm-trained",
        {"method": "cold", "features": "cat", "radius": 4},
        "dev_perplexity",
        trained=True,
    ),
    Model(DIGITS, "explicit solution", "pixels", "mnist-pixels", {"method": "explicit", "layers": 1}, "dev_loss"),
    Model(DIGITS, "layer solved", "scattering features", "mnist-readout", {"solver": "softmax"}, "dev_loss"),
    Model(
        DIGITS,
        "layer trained",
        "the same features",
        "mnist-readout",
        {"method": "trained_readout"},
        "dev_loss",
        ("epoch", "dev_loss"),
        trained=True,
    ),
    Model(
        DIGITS,
        "convolutional network",
        "pixels",
        "mnist-cnn",
        {"method": "cnn"},
        "dev_loss",
        ("epoch", "dev_loss"),
        trained=True,
    ),
    Model(CONTEXTS, "GD, one rate", "10 examples", "icl-five-decayed", {"predictor": "gd"}, "loss"),
    Model(
        CONTEXTS, "GD++, rates fitted to the law of inputs", "10 examples", "icl-five-decayed", {"predictor": "gd++"}, "loss"
    ),
    Model(CONTEXTS, "layers trained", "10 examples", "icl-five-decayed", _trained_layers, "loss", ("evaluation", "loss"), True),
    Model(
        CONTEXTS, "... at a constant rate", "10 examples", "icl-five-trained", {"predictor": "trained"}, "loss", trained=True
    ),
)


def mean(numbers: Iterable[Any]) -> float:
    """The mean of numbers, or of lists of them."""
    return float(np.mean(list(numbers)))


def compared(results: Results) -> list[Row]:
    """A row for every model of the picture, with the mean over its seeds."""
    rows = []
    for model in MODELS:
        own = model.rows()
        means = {"error": mean(row["error"] for row in own), "cpu": model.points()[-1][0] if model.curve else own[0].get("cpu")}
        spread = max(row["error"] for row in own) - min(row["error"] for row in own)
        rows.append(
            {**own[0], **means, "spread": spread if len(own) > 1 else None, "by": "trained" if model.trained else "counted"}
        )
    return rows


COMPARED = Table(
    [
        Column("", "task"),
        Column("model", "model"),
        Column("found by", "found"),
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
            if task in (DIGITS, CONTEXTS):
                ax.set_yscale("log")
                log_ticks(ax)


def _draw(ax: Any, model: Model) -> None:
    x, y = zip(*model.points(), strict=True)
    if x[0] is None:
        ax.axhline(y[0], linestyle="--", linewidth=1, color=COLOURS[1])
        ax.annotate(model.name, (0.02, y[0]), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
        return
    ax.plot(x, y, marker="o", markersize=4, color=COLOURS[model.trained])
    place, side = ((-5, -7), "right") if model.left else ((4, 4), "left")
    ax.annotate(model.name, (x[-1], y[-1]), xytext=place, textcoords="offset points", fontsize=8, ha=side)


if __name__ == "__main__":
    draw()
