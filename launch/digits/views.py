"""Tables and figures of a run of launch.digits; docs/digits.md has the same tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from launch.digits.base import PICTURES, SCAN, load_model, row_name
from launch.kit.figures import COLOURS, figure, legend_below, legend_outside, plain_ticks
from launch.kit.rows import Results, Row, melt, some_epochs, where
from launch.kit.tables import Column
from launch.kit.views import Images, Lines, Section, Table, View, picture

# Section 4 of the paper, on MNIST: test accuracy by (method, layers), epochs until the early stop, and mean norm.
PAPER_ACCURACY = {
    ("explicit", 1): 0.8286,
    ("cold", 1): 0.9168,
    ("cold", 2): 0.7564,
    ("warm", 1): 0.9257,
    ("warm", 2): 0.9293,
}
PAPER_EPOCHS = {("cold", 1): "93", ("warm", 1): "23", ("cold", 2): "never"}
PAPER_NORM = 105.99
# Published test accuracy on MNIST without backpropagation through layers; none of them states seconds on a CPU.
PUBLISHED = {
    "convolutional kernel network, SVM": 0.9961,  # Mairal et al. 2014
    "ScatNet-2, SVM": 0.9957,  # Bruna & Mallat 2013
    "SoftHebb (trained readout), Tsetlin machine, PCANet": 0.994,  # Journé 2023; Granmo 2019; Chan 2015, which has 99.38
    "Forward-Forward (local gradients)": 0.986,  # Hinton 2022; up to 99.4
}


def of_paper(numbers: Mapping[tuple[str, int], Any]) -> Any:
    """A column of the paper's numbers."""
    return lambda row: numbers.get((row["method"], row["layers"])) if row["data"] == "mnist" else None


def epochs(row: Row) -> str:
    """Sweeps or epochs; a plus where training reached its last epoch before it stopped."""
    unit = " sweeps" * (row["solver"] in ("scaling", "quadratic", "softmax"))
    return f"{row['epochs']}{unit}{'+' * (not row.get('stopped', True))}" if row["epochs"] else ""


def name(row: Row) -> str:
    """The name of a row; the rule `patience` goes without saying."""
    return row_name(row).removesuffix(", patience")


COLUMNS = (
    Column("method", name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("test %", "test_accuracy", ".2f", 100),
    Column("paper", of_paper(PAPER_ACCURACY), ".2f", 100),
    Column("train %", "train_accuracy", ".2f", 100),
    Column("test loss, nats", "test_loss", ".4f"),
    Column("calibration error, %", "calibration_error", ".2f", 100),
    Column("epochs", epochs),
    Column("paper", of_paper(PAPER_EPOCHS)),
    Column("D", "dimensions", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("seconds", "seconds", ".1f"),
)
# Models that are all fitted to the same nine tenths of the training images, and those fitted to all images after that.
FAIR = (
    Column("method", name),
    Column("held-out %", "dev_accuracy", ".2f", 100),
    Column("held-out loss, nats", "dev_loss", ".4f"),
    Column("test %", lambda row: row.get("part_test_accuracy") or row["test_accuracy"], ".2f", 100),
    Column("test %, all images", lambda row: row["test_accuracy"] if "part_test_accuracy" in row else None, ".2f", 100),
    Column("fitted numbers", "parameters", ",d"),
    Column("MB", "bytes", ".2f", 1e-6),
    Column("TFLOP", "flops", ".2f", 1e-12),
)


def patient(rows: Sequence[Row]) -> list[Row]:
    """Without the rows of the rule `rise`, where there are rows of `patience`."""
    rules = {row.get("stop") for row in rows}
    return [row for row in rows if row.get("stop") != "rise" or "patience" not in rules]


def table(**fields: Any) -> Table:
    """A table of the rows with these values."""
    return Table(COLUMNS, lambda results: where(patient(results.rows), **fields))


ALL = Table(COLUMNS, lambda results: sorted(results.rows, key=lambda row: row["test_accuracy"]))
PAPER = table(method=("explicit", "delta", "cold", "warm"))
SOLVED = table(method=("explicit", "scaling", "quadratic", "features"), layers=1)
KERNEL = table(method=("kernel", "feature-machine"))
SECOND = table(method="solved_second")
_FITTED = ("kernel", "feature-machine", "trained_readout", "cnn", "network")
OPPONENTS = Table(FAIR, lambda results: where(patient(results.rows), method=_FITTED))


def by_epoch(results: Results) -> list[Row]:
    """Epochs of single softmax layers, with how near they are to the explicit solution: powers of two, and the last one."""
    found = results.events("epoch", "method", "layers", "epoch")
    return some_epochs((event for event in found if "explicit_cosine" in event), ["method"])


CLOSENESS = Table(
    (
        Column("start", "method"),
        Column("epoch", "epoch", "d"),
        Column("distance", "explicit_distance", ".2f"),
        Column("cosine", "explicit_cosine", ".3f"),
        Column("same guess, held-out %", "explicit_agreement", ".1f", 100),
        Column("right, held-out %", "dev_accuracy", ".2f", 100),
        Column("held-out loss, nats", "dev_loss", ".3f"),
    ),
    rows=by_epoch,
)


def plain(axes: np.ndarray) -> None:
    """Plain numbers on the log axis, and one legend below the panels."""
    for ax in axes.flat:
        plain_ticks(ax.xaxis)
        ax.get_legend().remove()
    legend_below(axes, ncols=3)


def curves(results: Results) -> list[Row]:
    """The epochs of cold and warm starts, and the explicit solution as levels."""
    found = [event for event in results.events("epoch", "method", "layers", "epoch") if event["method"] in ("cold", "warm")]
    levels = where(results.rows, method="explicit") if found else []
    shown = [{**row, "accuracy": 100 * row["test_accuracy"], "name": row_name(row)} for row in found]
    shown += [{"accuracy": 100 * row["test_accuracy"], "name": row_name(row)} for row in levels]
    return melt(shown, {"accuracy": "test accuracy (%)", "test_loss": "test loss (nats)"})


CURVES = Lines(
    "curves",
    lambda row: max(row["epoch"], 0.5) if "epoch" in row else None,
    "value",
    "name",
    "measure",
    rows=curves,
    axes={"xscale": "log", "xlabel": "epoch (start at 0.5)", "ylabel": ""},
    by_panel={"test loss (nats)": {"yscale": "log"}},
    finish=plain,
)
SWEEPS = Lines(
    "sweeps",
    lambda event: max(event["sweep"], 0.5),
    "loss",
    lambda event: f"{event['solver']} on {event['features']}",
    rows=lambda results: [
        event
        for event in results.events("sweep", "features", "solver", "sweep")
        if event["features"] in ("pixels", "patches", "random")
    ],
    axes={"xscale": "log", "yscale": "log", "xlabel": "sweep (start at 0.5)", "ylabel": "train loss (nats)"},
    size=(5.6, 4.2),
    finish=plain,
)


def scan(results: Results) -> list[Row]:
    """Accuracy by priming number, and as points the explicit solution and the paper's (Fig. 2 right)."""
    K, train, test = np.loadtxt(results.path / SCAN, delimiter=",", skiprows=1, ndmin=2).T
    lines: dict[str, Any] = {"train": zip(K, train, strict=True), "test": zip(K, test, strict=True)}
    for row in where(results.rows, method="explicit", layers=1):
        lines[f"explicit, K = {row['priming_number']:.1f}"] = [(row["priming_number"], row["test_accuracy"])]
    if results.rows[0]["data"] == "mnist":
        lines["paper"] = [(PAPER_NORM, PAPER_ACCURACY["explicit", 1])]
    return [{"K": float(k), "accuracy": 100 * accuracy, "of": of} for of, line in lines.items() for k, accuracy in line]


SCANNED = Lines(
    "scan",
    "K",
    "accuracy",
    "of",
    rows=scan,
    axes={"xscale": "log", "xlabel": "priming number K", "ylabel": "accuracy (%)"},
    size=(5.2, 3.8),
    finish=plain,
)


def methods(results: Results) -> list[str]:
    """Test error against seconds; on MNIST, published accuracies as dotted lines. A legend names the numbered points."""
    rows = [row for row in patient(results.rows) if row["method"] != "solved_second"]
    with figure(results.path / "figures" / "methods.png", size=(8.6, 5.0)) as axes:
        ax = axes[0, 0]
        for n, row in enumerate(sorted(rows, key=lambda row: -row["test_accuracy"]), 1):
            x, y = max(row["seconds"], 1e-3), max(100 * (1 - row["test_accuracy"]), 1e-2)
            style = {"marker": "o", "color": COLOURS[0]} if row["backprop_free"] else {"marker": "s", "color": COLOURS[1]}
            ax.plot(x, y, linestyle="", label=f"{n}  {name(row)}, {100 * row['test_accuracy']:.2f}", **style)
            ax.annotate(f"{n}", (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
        for other, accuracy in PUBLISHED.items() if results.rows[0]["data"] == "mnist" else ():
            y = 100 * (1 - accuracy)
            ax.axhline(y, color="0.6", linewidth=0.7, linestyle=":", zorder=0)
            ax.annotate(other, (0.01, y), xycoords=("axes fraction", "data"), fontsize=6, color="0.35", va="bottom")
        ax.set(xscale="log", yscale="log", xlabel="seconds", ylabel="test error (%)")
        ax.set_title("circles: no backpropagation; squares: trained by gradients", fontsize=9)
        ax.margins(x=0.1, y=0.1)
        plain_ticks(ax.xaxis)
        plain_ticks(ax.yaxis)
        legend_outside(ax, fontsize=7)
    return picture(results, "methods", "test error against seconds")


def bins(results: Results) -> list[Row]:
    """Confidence and accuracy by bin of the models whose calibration is of interest, without bins of fewer than 20 images."""
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


RELIABILITY = Lines(
    "reliability",
    "confidence",
    "accuracy",
    "name",
    rows=bins,
    axes={"ylabel": "share of right guesses", "xlim": (0, 1.01), "ylim": (0, 1.01)},
    size=(6.6, 4.0),
    finish=diagonal,
)


def class_columns(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """Each class's column of U, minus the mean over classes, cut at the 99th percentile of a model."""
    grid, row = {}, results.rows[0]
    for model in ("explicit", "scaling", "warm", "cold"):
        if (path := results.path / "checkpoints" / f"{model}_1").is_dir():
            U = np.asarray(jax.tree.leaves(load_model(path))[0]).reshape(row["height"], row["width"], -1)
            U = U - U.mean(axis=-1, keepdims=True)
            limit = np.quantile(np.abs(U), 0.99)
            grid[model] = {str(i): U.clip(-limit, limit)[..., i] for i in range(U.shape[-1])}
    return grid


def mistakes(results: Results) -> dict[str, dict[str, np.ndarray]]:
    """Test images by their numbers, each with its label and the guess of the best model, ten in a row."""
    shown = results.arrays(PICTURES)
    found = list(zip(*(shown[part] for part in ("places", "labels", "guesses", "images")), strict=True)) if shown else []
    titled = [(f"{place}: {label}, guess {guess}", image) for place, label, guess, image in found]
    return {" " * n: dict(titled[n : n + 10]) for n in range(0, len(titled), 10)}


def about(results: Results) -> list[str]:
    """What the rows were measured on."""
    row = results.rows[0]
    return [
        f"Data `{row['data']}`: {row['train_images']:,} train and {row['test_images']:,} test images of {row['height']} x "
        f"{row['width']}, {row['outputs']} classes, mean L1 norm {row['mean_norm']:.2f}, sha256 `{row['sha256'][:16]}`.",
        "",
    ]


VIEWS: Sequence[View] = [
    about,
    ALL,
    OPPONENTS._replace(note="Fitted to the same nine tenths of the training images; the solved ones then to all of them."),
    methods,
    SWEEPS,
    Section("Explicit, cold and warm", [PAPER, CURVES, CLOSENESS]),
    Section("The priming number", [SCANNED]),
    Section(
        "Calibration",
        [RELIABILITY],
        note="Below the diagonal a model is too sure. Bins of confidence with fewer than 20 test images are left out.",
    ),
    Section(
        "Pictures",
        [
            Images("columns", class_columns, scale=False, shared="row", size=(0.95, 1.1)),
            Images("wrong", mistakes, cmap="gray_r", scale=False, size=(1.2, 1.2)),
        ],
        note="Each class's column of U, minus the mean over classes: red is evidence for the class, blue against it. Then "
        "mistakes of the most accurate model without backpropagation.",
    ),
]
