"""Tables and figures of a run of launch.digits; docs/digits.md has the same tables."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from launch.digits.data import load_model, row_name
from launch.kit.views import (
    COLOURS,
    Column,
    Images,
    Lines,
    Results,
    Row,
    Section,
    Table,
    View,
    figure,
    legend_outside,
    log_ticks,
    picture,
    where,
)


def epochs(row: Row) -> str:
    """Sweeps or epochs; a plus where training reached its last epoch before it stopped."""
    unit = " sweeps" * (row["solver"] in ("scaling", "quadratic", "softmax"))
    return f"{row['epochs']}{unit}{'+' * (not row.get('stopped', True))}" if row["epochs"] else ""


COLUMNS = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("test %", "test_accuracy", ".2f", 100),
    Column("train %", "train_accuracy", ".2f", 100),
    Column("test loss, nats", "test_loss", ".4f"),
    Column("calibration error, %", "calibration_error", ".2f", 100),
    Column("epochs", epochs),
    Column("D", "dimensions", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("seconds", "seconds", ".1f"),
)
# Models that are all fitted to the same nine tenths of the training images, and those fitted to all images after that.
FAIR = (
    Column("method", row_name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("held-out loss, nats", "dev_loss", ".4f"),
    Column("test %", lambda row: row.get("part_test_accuracy") or row["test_accuracy"], ".2f", 100),
    Column("test %, all images", lambda row: row["test_accuracy"] if "part_test_accuracy" in row else None, ".2f", 100),
    Column("fitted numbers", "parameters", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("TFLOP", "flops", ".2f", 1e-12),
)


def patient(rows: Sequence[Row]) -> list[Row]:
    """Without the rows of `rise`, a rule of stopping of earlier versions."""
    return [row for row in rows if row.get("stop") != "rise"]


def table(**fields: Any) -> Table:
    """A table of the rows with these values."""
    return Table(COLUMNS, lambda results: where(patient(results.rows), **fields))


ALL = Table(COLUMNS, lambda results: sorted(results.rows, key=lambda row: row["test_accuracy"]))
PAPER = table(method=("explicit", "delta", "cold", "warm"))
SOLVED = table(method=("explicit", "scaling", "quadratic", "features"), layers=1)
KERNEL = table(method=("kernel", "feature-machine"))
_FITTED = ("kernel", "feature-machine", "trained_readout", "cnn", "network")
OPPONENTS = Table(FAIR, lambda results: where(patient(results.rows), method=_FITTED))


def methods(results: Results) -> list[str]:
    """Test error against seconds: blue without backpropagation, orange trained by gradients."""
    with figure(results.path / "figures" / "methods.png", size=(6.6, 4.6)) as axes:
        draw_errors(axes[0, 0], patient(results.rows))
    return picture(results, "methods", "test error against seconds")


def draw_errors(ax: Any, rows: Sequence[Row], loaded: Sequence[Row] = ()) -> None:
    """A named point for every model; hollow if timed on shared cores."""
    for row in (*rows, *loaded):
        x, y, name = max(row["seconds"], 1e-3), max(100 * (1 - row["test_accuracy"]), 1e-2), row_name(row)
        colour = COLOURS[not row["backprop_free"]]
        ax.plot(x, y, marker="o", color=colour, markerfacecolor="white" if row in loaded else colour)
        left = name.startswith(("cold", "scaling", "kernel, least", "trained"))
        place = {"xytext": (-6 if left else 6, -3), "textcoords": "offset points", "ha": "right" if left else "left"}
        ax.annotate(name, (x, y), fontsize=8, **place)
    ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="test error (%)")
    ax.margins(x=0.15, y=0.1)
    log_ticks(ax)
    log_ticks(ax, "x")


def bins(results: Results) -> list[Row]:
    """Confidence and accuracy by bin, for bins of 20 images or more."""
    return [
        {"name": event["name"], "confidence": confidence, "accuracy": accuracy}
        for event in results.events("reliability", "name")
        if event["name"].startswith(("explicit, 1 layer", "kernel", "logistic regression", "network"))
        for confidence, accuracy, share in zip(event["confidence"], event["accuracy"], event["share"], strict=True)
        if share * results.rows[0]["test_images"] >= 20
    ]


def diagonal(axes: np.ndarray) -> None:
    """On it a model is right as often as it is confident."""
    axes[0, 0].plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    legend_outside(axes[0, 0])


_axes = {"ylabel": "share of right guesses", "xlim": (0, 1.01), "ylim": (0, 1.01)}
_reliable: Any = {"axes": _axes, "size": (6.6, 4.0), "finish": diagonal}
RELIABILITY = Lines("reliability", "confidence", "accuracy", "name", rows=bins, **_reliable)


def class_columns(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """Each class's column of U, minus the mean over classes."""
    grid, row = {}, results.rows[0]
    for model in ("explicit", "scaling", "warm", "cold"):
        if (path := results.path / "checkpoints" / f"{model}_1").is_dir():
            U = np.asarray(jax.tree.leaves(load_model(path))[0]).reshape(row["height"], row["width"], -1)
            U = U - U.mean(axis=-1, keepdims=True)
            limit = np.quantile(np.abs(U), 0.99)
            grid[model] = {str(i): U.clip(-limit, limit)[..., i] for i in range(U.shape[-1])}
    return grid


def about(results: Results) -> list[str]:
    """What the rows were measured on."""
    row = results.rows[0]
    return [
        f"Data `{row['data']}`: {row['train_images']:,} train and {row['test_images']:,} test images of {row['height']} x "
        f"{row['width']}, {row['outputs']} classes, mean L1 norm {row['mean_norm']:.2f}, sha256 `{row['sha256'][:16]}`.",
        "",
    ]


_columns = "Each class's column of U, minus the mean over classes: red is evidence for the class, blue against it."
VIEWS: Sequence[View] = [
    about,
    ALL,
    OPPONENTS._replace(note="Fitted to the same nine tenths of the training images; the solved ones then to all of them."),
    methods,
    Section("Explicit, cold and warm", [PAPER]),
    Section("Calibration", [RELIABILITY], note="Below the diagonal a model is too sure; bins have 20 images or more."),
    Section("Pictures", [Images("columns", class_columns, scale=False, shared="row", size=(0.95, 1.1))], note=_columns),
]
