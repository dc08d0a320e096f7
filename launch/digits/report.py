"""Tables of a digits run: on the terminal and in report.md, the paper's numbers beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.folder import read_config, read_events, read_rows
from launch.digits.figures import (
    columns_figure,
    curves_figure,
    methods_figure,
    scan_figure,
    sweeps_figure,
    wrong_figure,
)

# Section 4 of the paper, on MNIST: test accuracy by (method, layers), epochs to the early stop, and the scan's mark.
PAPER_ACCURACY = {("explicit", 1): 0.8286, ("cold", 1): 0.9168, ("cold", 2): 0.7564, ("warm", 1): 0.9257, ("warm", 2): 0.9293}
PAPER_EPOCHS = {("cold", 1): "93", ("warm", 1): "23", ("cold", 2): "never"}
PAPER_NORM = (105.99, 0.8286)
PICTURES = "pictures.npz"

_reading = """\
*explicit* is the closed form, layer by layer; *intercept* freezes log F and fits one weight per class; *cold* and *warm* are
trained by gradients from random parameters and from the explicit solution. Two rules of stopping, a row each: *rise*, the
paper's, as soon as the loss is higher than an epoch before; *patience*, after several epochs without a lower one. A plus says
that the epochs ended first. Accuracies are those of the epoch with the lowest loss up to then. *Reaches explicit* is the first
epoch whose test accuracy is at least that of the explicit solution of as many layers. The solution takes correlated pixels for
independent evidence, as naive Bayes does: its guesses are good and its confidence is not, which is what training then unlearns.
"""
_beyond = """\
*scaling* is generalised iterative scaling: `U += (1/K) log(F / HᵀP)`, no autodiff, no learning rate; a sweep lowers the loss.
*quadratic* replaces the logarithm by a fixed bound on the curvature: `U += 2 (HᵀH)⁻¹ (F - HᵀP)`. *features* are explicit too:
*patches* are convolutions with whitened patches of training images, *random* are random directions, both split into positive
parts. Nothing in the rows marked *no backprop* is differentiated. Seconds include making the features.
"""


def stopping_epoch(losses: Sequence[float], *, patience: int) -> tuple[int, bool]:
    """The epoch at which a rule stops, and whether it did before the losses end.

    Epoch 0 is the start. With patience 1 this is the paper's rule: the loss is not lower than before.

    Args:
        losses: by epoch, from epoch 0.
        patience: epochs without a loss below all earlier ones after which to stop.

    Example:
        >>> stopping_epoch([3.0, 2.0, 2.5, 1.0, 1.5, 1.2], patience=1), stopping_epoch([3.0, 2.0, 1.0], patience=1)
        ((2, True), (2, False))
    """
    best = 0
    for epoch, loss in enumerate(losses):
        if loss < losses[best]:
            best = epoch
        if epoch - best >= patience:
            return epoch, True
    return len(losses) - 1, False


def read_curve(out: Path, method: str, layers: int) -> list[dict[str, Any]]:
    """The epochs of a trained model from metrics.jsonl; an epoch that a resumed run repeated counts once."""
    events = read_events(out, "epoch")
    epochs = {e["epoch"]: e for e in events if (e["method"], e["layers"]) == (method, layers)}
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
    """What a row is called in tables and figures.

    Example:
        >>> row_name({"method": "warm", "layers": 2, "features": "pixels", "stop": "rise"})
        'warm, 2 layers, rise'
    """
    if row["method"] == "features":
        return f"{row['solver']} on {row['features']}"
    name = row["method"].replace("_", " ")
    if row["method"] in ("explicit", "cold", "warm"):
        name += f", {row['layers']} layer{'s' * (row['layers'] > 1)}"
    return name + (f", {row['stop']}" if "stop" in row else "")


def digits_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table for the terminal."""
    table = Table(title="accuracy in % (the paper's, on MNIST, in grey)", title_justify="left")
    for heading in ("method", "test", "paper", "train", "epochs", "s", "backprop"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in rows:
        test, train = (f"{100 * row[f'{part}_accuracy']:.2f}" for part in ("test", "train"))
        backprop = "no" if row["backprop_free"] else "yes"
        paper = f"[dim]{_paper(row)}[/]" if row["data"] == "mnist" else ""
        table.add_row(row_name(row), f"[bold]{test}[/]", paper, train, _epochs(row), f"{row['seconds']:.1f}", backprop)
    return table


def write_digits_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.digits` run."""
    rows, config = read_rows(out), read_config(out) or {}
    first, figures = rows[0], out / "figures"
    mnist = first["data"] == "mnist"
    lines = [
        "# Digits: solved and trained",
        "",
        f"Data `{first['data']}`: {first['train_images']:,} train and {first['test_images']:,} test images of "
        f"{first['height']} x {first['width']}, {first['outputs']} classes, sha256 `{first['sha256'][:16]}`. "
        f"Features `(X + 1)/{first['levels']}`, mean L1 norm {first['mean_norm']:.2f}"
        + (f" (the paper prints {PAPER_NORM[0]})." if mnist else "."),
        "",
        *_section_four(out, rows, config, mnist),
        *_section_scan(out, first["mean_norm"], mnist),
        *_section_beyond(out, rows),
        *_section_pictures(out),
    ]
    methods = [row for row in rows if row.get("stop") != "rise" or "patience" not in config.get("stop", [])]
    methods_figure(methods, [row_name(row).removesuffix(", patience") for row in methods], figures / "methods.png")
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def _section_four(out: Path, rows: Sequence[dict[str, Any]], config: dict[str, Any], mnist: bool) -> list[str]:
    """The table of Section 4, the training curves, and what early stopping found."""
    shown = [row for row in rows if row["method"] in ("explicit", "intercept", "cold", "warm")]
    lines = ["## Explicit, cold and warm", "", _reading]
    lines += ["| method | layers | stop | test % | paper | train % | epochs | paper | reaches explicit | seconds |"]
    lines += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in shown:
        epochs = PAPER_EPOCHS.get((row["method"], row["layers"]), "") if mnist else ""
        reached = row.get("explicit_epoch") if row["method"] == "cold" else None
        lines.append(
            f"| {row['method']} | {row['layers']} | {row.get('stop', '')} | **{100 * row['test_accuracy']:.2f}** | "
            f"{_paper(row) if mnist else ''} | {100 * row['train_accuracy']:.2f} | {_epochs(row)} | {epochs} | "
            f"{'' if reached is None else f'epoch {reached}'} | {row['seconds']:.1f} |"
        )
    methods = [(m, n) for m in ("cold", "warm") for n in config.get("layers", [])]
    curves = {key: curve for key in methods if (curve := read_curve(out, *key))}
    if curves:
        explicit = {row["layers"]: row["test_accuracy"] for row in rows if row["method"] == "explicit"}
        curves_figure(curves, explicit, out / "figures" / "curves.png")
        lines += ["", *stopping_findings(out, rows), "", "![training curves](figures/curves.png)"]
    return [*lines, ""]


def stopping_findings(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """What early stopping found, a sentence per number of layers and rule, and how confident the explicit start is."""
    by_model = {(row["method"], row["layers"], row["stop"]): row for row in rows if row["method"] in ("cold", "warm")}
    sentences = []
    for (method, layers, stop), warm in by_model.items():
        cold = by_model.get(("cold", layers, stop))
        if method != "warm" or cold is None:
            continue
        ratio = warm["epochs"] / cold["epochs"]
        verdict = "at most a third" if 3 * warm["epochs"] <= cold["epochs"] else "more than a third"
        sentences.append(
            f"- {layers} layer{'s' * (layers > 1)}, {stop}: warm stops after {_epochs(warm)} epochs and cold after "
            f"{_epochs(cold)}: {ratio:.2f} times as many, {verdict} (the paper has 23 and 93 with one layer)."
        )
    for layers in sorted({layers for _, layers, _ in by_model}):
        cold, warm = read_curve(out, "cold", layers), read_curve(out, "warm", layers)
        reached = [epoch for epoch in cold if warm and epoch["test_accuracy"] >= warm[0]["test_accuracy"]]
        if reached:
            sentences.append(
                f"- {layers} layer{'s' * (layers > 1)}: where the cold run is first as accurate as the warm start, after "
                f"{reached[0]['epoch']} epochs, its test loss is {reached[0]['test_loss']:.2f} nats; the warm start's is "
                f"{warm[0]['test_loss']:.2f}."
            )
    return sentences


def _section_scan(out: Path, mean_norm: float, mnist: bool) -> list[str]:
    if not (out / "scan.csv").exists():
        return []
    scan = read_scan(out)
    scan_figure(scan, mean_norm, PAPER_NORM if mnist else None, out / "figures" / "scan.png")
    wanted = sorted({k for k in (1, 2, 5, 10, 50, round(mean_norm), int(scan["K"][-1])) if k <= scan["K"][-1]})
    best = int(scan["test_accuracy"].argmax())
    return [
        "## The priming number",
        "",
        "| K | " + " | ".join(str(k) for k in wanted) + " |",
        "|---" * (len(wanted) + 1) + "|",
        "| test % | " + " | ".join(f"{100 * scan['test_accuracy'][k - 1]:.2f}" for k in wanted) + " |",
        "",
        f"The highest is {100 * scan['test_accuracy'][best]:.2f} % at K = {scan['K'][best]:g}. From the mean norm, "
        f"K = {round(mean_norm)}, up to {scan['K'][-1]:g} the test accuracy stays within "
        f"{100 * np.ptp(scan['test_accuracy'][min(round(mean_norm), len(scan['K'])) - 1 :]):.2f} points.",
        "",
        "![priming scan](figures/scan.png)",
        "",
    ]


def _section_beyond(out: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["## Without backpropagation, and with", "", _beyond]
    lines += ["| method | backprop | test % | train % | sweeps or epochs | seconds |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row["test_accuracy"]):
        backprop = "no" if row["backprop_free"] else "yes"
        accuracies = " | ".join(f"{100 * row[f'{part}_accuracy']:.2f}" for part in ("test", "train"))
        lines.append(f"| {row_name(row)} | {backprop} | {accuracies} | {_epochs(row)} | {row['seconds']:.1f} |")
    curves: dict[str, list[float]] = {}
    for event in read_events(out, "sweep"):
        curve = curves.setdefault(f"{event['solver']} on {event['features']}", [])
        del curve[event["sweep"] :]  # a sweep that a resumed run repeated counts once
        curve.append(event["loss"])
    lines += ["", "![test error against seconds](figures/methods.png)", ""]
    if curves:
        sweeps_figure(curves, out / "figures" / "sweeps.png")
        lines += ["![loss by sweep](figures/sweeps.png)", ""]
    return lines


def _section_pictures(out: Path) -> list[str]:
    if not (out / PICTURES).exists():
        return []
    pictures = np.load(out / PICTURES)
    columns = {name.removeprefix("U "): pictures[name] for name in pictures.files if name.startswith("U ")}
    lines = ["## Pictures", ""]
    if columns:
        columns_figure(columns, out / "figures" / "columns.png")
        lines += ["Each class's column of U, less what all classes share: red speaks for the class, blue against it.", ""]
        lines += ["![columns of U](figures/columns.png)", ""]
    title = str(pictures["title"])
    wrong_figure(pictures["images"], pictures["labels"], pictures["guesses"], title, out / "figures" / "wrong.png")
    return [*lines, f"{title}.", "", "![wrong](figures/wrong.png)", ""]


def _epochs(row: dict[str, Any]) -> str:
    return f"{row['epochs']}" + ("" if row.get("stopped", True) else "+")


def _paper(row: dict[str, Any]) -> str:
    value = PAPER_ACCURACY.get((row["method"], row["layers"]))
    return "" if value is None else f"{100 * value:.2f}"
