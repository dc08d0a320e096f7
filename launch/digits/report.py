"""Tables of a digits run, on the terminal and in report.md, with the paper's numbers beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.results import read_config, read_events, read_rows
from jexplicit.runs.tables import Column, markdown_table, rich_table
from launch.digits.figures import (
    columns_figure,
    curves_figure,
    methods_figure,
    mistakes_figure,
    reliability_figure,
    scan_figure,
    sweeps_figure,
)

# Section 4 of the paper, on MNIST: test accuracy by (method, layers), epochs until the early stop, and mean norm and accuracy.
PAPER_ACCURACY = {("explicit", 1): 0.8286, ("cold", 1): 0.9168, ("cold", 2): 0.7564, ("warm", 1): 0.9257, ("warm", 2): 0.9293}
PAPER_EPOCHS = {("cold", 1): "93", ("warm", 1): "23", ("cold", 2): "never"}
PAPER_NORM = (105.99, 0.8286)
PICTURES = "pictures.npz"

_trained_text = """\
*explicit* is the closed form, layer by layer. *delta* corrects its exponent by one number, *mean cooccurrence* has its weights
before the scaling assumption (Sec. 2.2, Eq. 14), and *intercept* freezes log F and fits one weight per class. *cold* and *warm*
are trained by gradients from random parameters and from the explicit solution. Two stopping rules, a row each: *rise*, the
paper's, stops as soon as the loss is higher than an epoch before; *patience* stops after several epochs without a lower loss. A
plus means that training reached its last epoch first. Accuracies are those of the epoch with the lowest loss so far. *Reaches
explicit* is the first epoch whose test accuracy is at least that of the explicit solution with as many layers. The solution
treats correlated pixels as independent evidence, as naive Bayes does: its predictions are good but overconfident, and training
first unlearns the confidence."""
_all_text = """\
*scaling* is generalised iterative scaling, `U += (1/K) log(F / HᵀP)`: no autodiff, no learning rate, and every sweep lowers the
loss. *quadratic* replaces the logarithm by a fixed bound on the curvature, `U += 2 (HᵀH)⁻¹ (F - HᵀP)`. *features* are explicit,
too: *patches* are convolutions with whitened patches of training images, *random* are random directions, both split into
positive parts. *kernel* is least squares, or a softmax layer fitted by the same bound, on random Fourier features of
descriptors of images; a held-out tenth chose its ridge and a temperature. *second layer over* a trained model keeps its first
layer and solves the next one; the figure leaves these rows out. The calibration error is the mean gap between a model's
confidence and its accuracy, over 15 bins of confidence of the test images. Rows with *no* under backprop differentiate nothing.
Seconds include computing the features or training the first layer."""


def read_curve(out: Path, method: str, layers: int) -> list[dict[str, Any]]:
    """The epochs of a trained model from metrics.jsonl; an epoch that a resumed run repeated counts once."""
    epochs = {e["epoch"]: e for e in read_events(out, "epoch") if (e["method"], e["layers"]) == (method, layers)}
    return [epochs[n] for n in sorted(epochs)]


def write_scan(out: Path, K: np.ndarray, train: np.ndarray, test: np.ndarray) -> None:
    """Write scan.csv: the accuracy at every priming number."""
    lines = [f"{k:g},{a:.6f},{b:.6f}" for k, a, b in zip(K, train, test, strict=True)]
    (out / "scan.csv").write_text("\n".join(["K,train_accuracy,test_accuracy", *lines]) + "\n")


def read_scan(out: Path) -> dict[str, np.ndarray]:
    """The columns of scan.csv."""
    K, train, test = np.loadtxt(out / "scan.csv", delimiter=",", skiprows=1, ndmin=2).T
    return {"K": K, "train_accuracy": train, "test_accuracy": test}


def row_name(row: dict[str, Any]) -> str:
    """The name of a row in tables and figures, unique within a run.

    Example:
        >>> row_name({"method": "warm", "layers": 2, "features": "pixels", "stop": "rise"})
        'warm, 2 layers, rise'
    """
    if row["method"] == "kernel":
        return f"kernel, {row['solver'].replace('_', ' ')}"
    if row["method"] == "solved_second":
        return f"second layer over {row['features']}, {row['solver']}"
    if row["method"] == "features":
        return f"{row['solver']} on {row['features']}"
    name = row["method"].replace("_", " ")
    if row["method"] in ("explicit", "cold", "warm"):
        name += f", {_layers(row['layers'])}"
    return name + (f", {row['stop']}" if "stop" in row else "")


def results_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table for the terminal."""
    test, train, seconds = _TEST._replace(heading="test"), _TRAIN._replace(heading="train"), _SECONDS._replace(heading="s")
    columns = [_NAME, test, _PAPER, train, Column("epochs", _epochs), seconds, _BACKPROP]
    return rich_table(columns, rows, title="accuracy in % (the paper's is on MNIST)")


def write_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.digits` run."""
    rows, config = read_rows(out), read_config(out) or {}
    first = rows[0]
    paper = f" (the paper prints {PAPER_NORM[0]})" if first["data"] == "mnist" else ""
    lines = [
        "# Digits: solved and trained",
        "",
        f"Data `{first['data']}`: {first['train_images']:,} train and {first['test_images']:,} test images of "
        f"{first['height']} x {first['width']}, {first['outputs']} classes, sha256 `{first['sha256'][:16]}`. "
        f"Features `(X + 1)/{first['levels']}`, mean L1 norm {first['mean_norm']:.2f}{paper}.",
        "",
        *_trained_section(out, rows, config.get("layers", [])),
        *_scan_section(out, first),
        *_all_section(out, rows, config.get("stop", [])),
        *_reliability_section(out, rows),
        *_pictures_section(out),
    ]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def _trained_section(out: Path, rows: Sequence[dict[str, Any]], layers: Sequence[int]) -> list[str]:
    """The paper's Section 4: its table, the training curves, and what early stopping found."""
    columns = [
        Column("method", "method"),
        Column("layers", "layers"),
        Column("stop", "stop"),
        _TEST,
        _PAPER,
        _TRAIN,
        Column("epochs", _epochs),
        Column("paper", lambda row: PAPER_EPOCHS.get((row["method"], row["layers"])) if row["data"] == "mnist" else None),
        Column("reaches explicit", _reaches_explicit),
        _SECONDS,
    ]
    measured = [row for row in rows if row["method"] in ("explicit", "delta", "mean_cooccurrence", "intercept", "cold", "warm")]
    lines = ["## Explicit, cold and warm", "", _trained_text, *markdown_table(columns, measured)]
    lines += [*_calibration_findings(rows), ""]
    curves = {(m, n): curve for m in ("cold", "warm") for n in layers if (curve := read_curve(out, m, n))}
    if curves:
        explicit = {row["layers"]: row["test_accuracy"] for row in rows if row["method"] == "explicit"}
        curves_figure(curves, explicit, out / "figures" / "curves.png")
        lines += [*stopping_findings(out, rows), "", "![training curves](figures/curves.png)", ""]
    return lines


def _calibration_findings(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What one temperature makes of the explicit solution's probabilities, a sentence per number of layers."""
    return [
        f"- {_layers(row['layers'])}, explicit: a temperature of {row['temperature']:.2f}, fitted to a held-out tenth of the "
        f"training images, takes the test loss from {row['test_loss']:.2f} to {row['calibrated_loss']:.2f} nats and the "
        f"calibration error from {100 * row['calibration_error']:.1f} to {100 * row['calibrated_error']:.1f} %."
        for row in rows
        if row["method"] == "explicit"
    ]


def stopping_findings(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """What early stopping found, a sentence per number of layers and rule, and how confident the explicit start is."""
    by_model = {(row["method"], row["layers"], row["stop"]): row for row in rows if row["method"] in ("cold", "warm")}
    sentences = []
    for (method, layers, stop), warm in by_model.items():
        cold = by_model.get(("cold", layers, stop))
        if method != "warm" or cold is None:
            continue
        verdict = "at most a third" if 3 * warm["epochs"] <= cold["epochs"] else "more than a third"
        sentences.append(
            f"- {_layers(layers)}, {stop}: warm stops after {_epochs(warm)} epochs and cold after {_epochs(cold)}, a ratio of "
            f"{warm['epochs'] / cold['epochs']:.2f}, {verdict} (the paper has 23 and 93 with one layer)."
        )
    for layers in sorted({layers for _, layers, _ in by_model}):
        cold, warm = read_curve(out, "cold", layers), read_curve(out, "warm", layers)
        reached = [epoch for epoch in cold if warm and epoch["test_accuracy"] >= warm[0]["test_accuracy"]]
        if reached:
            sentences.append(
                f"- {_layers(layers)}: the cold run is first as accurate as the warm start after {reached[0]['epoch']} epochs; "
                f"its test loss is then {reached[0]['test_loss']:.2f} nats, that of the warm start {warm[0]['test_loss']:.2f}."
            )
    return sentences


def _scan_section(out: Path, first: dict[str, Any]) -> list[str]:
    if not (out / "scan.csv").exists():
        return []
    scan, norm = read_scan(out), round(first["mean_norm"])
    scan_figure(scan, first["mean_norm"], PAPER_NORM if first["data"] == "mnist" else None, out / "figures" / "scan.png")
    largest, test = int(scan["K"][-1]), scan["test_accuracy"]
    numbers = sorted({K for K in (1, 2, 5, 10, 50, norm, largest) if K <= largest})
    columns = [Column("K", "heading"), *(Column(str(K), str(K), ".2f", 100) for K in numbers)]
    best = int(test.argmax())
    return [
        "## The priming number",
        *markdown_table(columns, [{"heading": "test %", **{str(K): test[K - 1] for K in numbers}}]),
        f"The highest is {100 * test[best]:.2f} % at K = {scan['K'][best]:g}. From the mean norm, K = {norm}, up to "
        f"{largest} the test accuracy stays within {100 * np.ptp(test[min(norm, len(test)) - 1 :]):.2f} points.",
        "",
        "![priming scan](figures/scan.png)",
        "",
    ]


def _all_section(out: Path, rows: Sequence[dict[str, Any]], stop: Sequence[str]) -> list[str]:
    drawn = [row for row in rows if row["method"] != "solved_second" and (row.get("stop") != "rise" or "patience" not in stop)]
    methods_figure(drawn, [row_name(row).removesuffix(", patience") for row in drawn], out / "figures" / "methods.png")
    columns = [
        _NAME,
        _BACKPROP,
        _TEST._replace(bold=False),
        _TRAIN,
        _CALIBRATION,
        Column("sweeps or epochs", _epochs),
        _SECONDS,
    ]
    table = markdown_table(columns, sorted(rows, key=lambda row: row["test_accuracy"]))
    lines = ["## Without backpropagation, and with it", "", _all_text, *table]
    published = (
        ["Dotted lines are published accuracies, whose seconds are not known.", ""] if rows[0]["data"] == "mnist" else []
    )
    lines += [*published, "![test error against seconds](figures/methods.png)", ""]
    curves: dict[str, list[float]] = {}
    for event in read_events(out, "sweep"):
        curve = curves.setdefault(f"{event['solver']} on {event['features']}", [])
        del curve[event["sweep"] :]  # a sweep that a resumed run repeated counts once
        curve.append(event["loss"])
    if curves:
        sweeps_figure(curves, out / "figures" / "sweeps.png")
        lines += ["![loss by sweep](figures/sweeps.png)", ""]
    return lines


def _reliability_section(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Whether probabilities can be believed, of the models whose are of interest."""
    drawn = ("explicit, 1 layer", "kernel", "logistic regression", "network")
    events = {event["name"]: event for event in read_events(out, "reliability") if event["name"].startswith(drawn)}
    if not events:
        return []
    reliability_figure(events, rows[0]["test_images"], out / "figures" / "reliability.png")
    text = (
        "Test images are grouped in 15 bins of confidence, the largest probability of a prediction. On the diagonal a model is "
        "right as often as it says; below it, it is too sure. Bins of fewer than 20 images are not drawn."
    )
    return ["## Calibration", "", text, "", "![reliability](figures/reliability.png)", ""]


def _pictures_section(out: Path) -> list[str]:
    if not (out / PICTURES).exists():
        return []
    pictures = np.load(out / PICTURES)
    columns = {name.removeprefix("U "): pictures[name] for name in pictures.files if name.startswith("U ")}
    lines = ["## Pictures", ""]
    if columns:
        columns_figure(columns, out / "figures" / "columns.png")
        lines += ["Each class's column of U, minus the mean over classes: red is evidence for the class, blue against it.", ""]
        lines += ["![columns of U](figures/columns.png)", ""]
    title = str(pictures["title"])
    mistakes_figure(pictures["images"], pictures["labels"], pictures["guesses"], title, out / "figures" / "wrong.png")
    return [*lines, f"{title}.", "", "![mistakes](figures/wrong.png)", ""]


def _layers(number: int) -> str:
    return f"{number} layer{'s' * (number > 1)}"


def _epochs(row: dict[str, Any]) -> str:
    return f"{row['epochs']}" + ("" if row.get("stopped", True) else "+")


def _reaches_explicit(row: dict[str, Any]) -> str | None:
    epoch = row.get("explicit_epoch") if row["method"] == "cold" else None
    return None if epoch is None else f"epoch {epoch}"


def _paper(row: dict[str, Any]) -> float | None:
    return PAPER_ACCURACY.get((row["method"], row["layers"])) if row["data"] == "mnist" else None


_NAME = Column("method", row_name)
_TEST = Column("test %", "test_accuracy", ".2f", 100, bold=True)
_PAPER = Column("paper", _paper, ".2f", 100)
_TRAIN = Column("train %", "train_accuracy", ".2f", 100)
_CALIBRATION = Column("calibration error %", "calibration_error", ".2f", 100)
_SECONDS = Column("seconds", "seconds", ".1f")
_BACKPROP = Column("backprop", lambda row: "no" if row["backprop_free"] else "yes")
