"""Tables and report of a run of launch.blur: on the terminal and in report.md."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.folder import read_config, read_events, read_rows
from launch.blur.figures import (
    curl_figure,
    depth_figure,
    designs_figure,
    learning_figure,
    meta_figure,
    stability_figure,
    transfer_figure,
)

_main = 10  # updates that transfers and designs are compared after, or fewer where there were fewer

_reading = """\
Accuracies are means over learners with first synapses and minibatches of their own, ± their standard deviation, in % of test
images that neither meta-training nor the choice of a genome or of a learning rate has seen. *Descent* has, for each number of
updates, the learning rate (and hidden activation) that was best for it on the dev part, with other learners; *normalised*
networks normalise all layers over the minibatch as the learned rule does, with scales and shifts that are trained. Statistics
are those of the batch also when learners are asked, for both.
"""
_paper = """\
The paper prints no table of accuracies. What it states: learned rules are ahead of descent with any rate and momentum early
on, and descent reaches them at about 100 updates (Fig. 5, 6); genomes work at other resolutions only with both passes
normalised (Fig. 8); genomes of deeper networks work in shallower ones, not vice versa (Fig. 10); more states are better
(Fig. 13); with Oja's term and normalised synapses accuracy keeps rising (Fig. 15, 16); evolution reaches 0.84 on 14 x 14
MNIST (Sec. 4.4).
"""


def jacobian_path(out: Path, name: str) -> Path:
    """Where a run keeps the Jacobian of a rule's update on exclusive or."""
    folder = out / "jacobians"
    folder.mkdir(exist_ok=True)
    return folder / f"{Path(name).stem}.npy"


def blur_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table for the terminal: one line for each learner, a column for each number of updates."""
    if rows and rows[0]["experiment"] in ("sgd-check", "curl"):
        table = Table(title="gradient descent as a genome", title_justify="left")
        for heading in ("network", "loss", "precision", "largest difference"):
            table.add_column(heading, justify="right" if heading == "largest difference" else "left")
        for row in (row for row in rows if row["experiment"] == "sgd-check"):
            name = f"{row['network']} {row['activation']}"
            table.add_row(name, row["loss"], row["precision"], f"{row['max_difference']:.1e}")
        return table
    steps = _columns(rows)
    table = Table(title="test accuracy in %, by number of updates", title_justify="left")
    for heading in ("learner", *map(str, steps)):
        table.add_column(heading, justify="left" if heading == "learner" else "right", no_wrap=True)
    for (_, name, where), by_step in _lines(rows).items():
        table.add_row(
            f"{where}: {name}" if where else name, *(f"{100 * by_step[n]:.1f}" if n in by_step else "" for n in steps)
        )
    return table


def write_blur_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.blur` run."""
    rows, config = read_rows(out), read_config(out) or {}
    kinds = {row["experiment"] for row in rows}
    lines = ["# Learned update rules", ""]
    if "train" in kinds:
        lines += _train_section(out, rows, config)
    if kinds & {"transfer", "depth"}:
        lines += _transfer_section(out, rows)
    if "ablation" in kinds:
        lines += _ablation_section(out, rows, config)
    if kinds & {"sgd-check", "curl"}:
        lines += _sgd_section(out, rows)
    else:
        lines += _meta_section(out)
        lines += [_reading, _paper]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def _train_section(out: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    horizon = max(config["unroll"])
    curve = next(event for event in read_events(out, "curve") if event["experiment"] == "train")
    descents = {event["name"]: event for event in read_events(out, "descent")}
    learning_figure(curve, descents, config["steps"], horizon, out / "figures" / "learning.png")
    stability_figure({curve["name"]: curve}, horizon, out / "figures" / "stability.png")
    shown = [row for row in rows if row["experiment"] == "train"]
    shape = "-".join(map(str, (shown[0]["inputs"], *shown[0]["hidden"])))
    return [
        f"Data `{shown[0]['data']}`, networks {shape} and the outputs, minibatches of {config['batch_size']}, "
        f"{config['states']} states, meta-trained to T = {horizon} updates.",
        "",
        *_accuracy_table(shown),
        "![learning](figures/learning.png)",
        "",
        "![far past the horizon](figures/stability.png)",
        "",
    ]


def _transfer_section(out: Path, rows: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    moved = [row for row in rows if row["experiment"] == "transfer"]
    if moved:
        curves = {event["name"]: event for event in read_events(out, "curve") if event["experiment"] == "transfer"}
        descents = {event["name"]: event for event in read_events(out, "descent")}
        places = {
            where: {
                "genome": curve,
                **{name: {"accuracy": descents[f"{where}: {name}"]["best"]} for name in ("sgd", "sgd, normalised")},
            }
            for where, curve in curves.items()
            if f"{where}: sgd, normalised" in descents
        }
        transfer_figure(places, out / "figures" / "transfer.png")
        lines += [f"## The genome `{Path(moved[0]['genome']).name}` elsewhere", "", *_accuracy_table(moved)]
        lines += ["![transfer](figures/transfer.png)", ""]
    deep = [row for row in rows if row["experiment"] == "depth"]
    if deep:
        step = _at(deep)
        table: dict[str, dict[int, float]] = {}
        for row in deep:
            if row["step"] == step:
                table.setdefault(row["genome"], {})[row["layers"]] = row["test_accuracy"]
        depth_figure(table, step, out / "figures" / "depth.png")
        lines += ["## Depth", "", f"Hidden layers that a genome was meta-trained at, and runs at: % after {step} updates.", ""]
        depths = sorted({row["layers"] for row in deep})
        lines += _table(
            ["genome", *map(str, depths)],
            (
                [name, *(f"{100 * found[depth]:.1f}" if depth in found else "" for depth in depths)]
                for name, found in table.items()
            ),
        )
        lines += ["![depth](figures/depth.png)", ""]
    return lines


def _ablation_section(out: Path, rows: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    shown = [row for row in rows if row["experiment"] == "ablation"]
    step = _at(shown)
    table: dict[str, dict[str, float]] = {}
    for row in shown:
        if row["step"] == step:
            table.setdefault(row["genome"], {})[row["where"]] = row["test_accuracy"]
    designs_figure(table, step, out / "figures" / "designs.png")
    far = {event["name"]: event for event in read_events(out, "curve") if event["experiment"] == "ablation, same"}
    stability_figure(far, max(config["unroll"]), out / "figures" / "stability.png")
    return [
        "## Designs",
        "",
        "*same*: where the genome was meta-trained; *larger images*: twice the side; *deeper*: one more hidden layer. "
        f"Meta-trained for {sum(config['meta_steps'])} steps each, a population of {config['population']}.",
        "",
        *_accuracy_table(shown),
        "![designs](figures/designs.png)",
        "",
        "![stability](figures/stability.png)",
        "",
    ]


def _sgd_section(out: Path, rows: list[dict[str, Any]]) -> list[str]:
    lines = ["## Gradient descent as a genome", ""]
    checks = [row for row in rows if row["experiment"] == "sgd-check"]
    if checks:
        lines += [
            f"Largest difference of any weight from `jax.grad` descent, each on its own, after {checks[0]['step']} steps.",
            "",
        ]
        lines += _table(
            ["network", "activation", "loss", "precision", "after one step", "after all", "weights moved by"],
            (
                [row["network"], row["activation"], row["loss"], row["precision"]]
                + [f"{row[name]:.1e}" for name in ("one_step", "max_difference", "moved")]
                for row in checks
            ),
        )
    curls = [row for row in rows if row["experiment"] == "curl"]
    if curls:
        names = [row["genome"] for row in curls]
        jacobians = {Path(name).stem: np.load(jacobian_path(out, name)) for name in names}
        curl_figure(jacobians, out / "figures" / "curl.png")
        lines += [
            "## Not a gradient",
            "",
            "Curl of the update on exclusive or, `J - Jᵀ` of its Jacobian J over the synapses.",
            "",
        ]
        lines += _table(
            ["genome", "variables", "largest", "relative to J", "numerical error (float32)"],
            (
                [row["genome"], str(row["variables"]), f"{row['curl']:.2e}", f"{row['relative_curl']:.3f}"]
                + [f"{row['numerical_error']:.1e}"]
                for row in curls
            ),
        )
        lines += ["![curl](figures/curl.png)", ""]
    return lines


def _meta_section(out: Path) -> list[str]:
    histories: dict[str, list[dict[str, Any]]] = {}
    for event in read_events(out, "meta"):
        known = histories.setdefault(event["genome"], [])
        known[:] = [entry for entry in known if entry["step"] < event["step"]] + [event]  # a resumed run says some again
    done = {event["genome"]: event for event in read_events(out, "meta_trained")}
    if not histories:
        return []
    meta_figure(histories, out / "figures" / "meta.png")
    told = (
        [name, str(history[-1]["step"]), str(history[-1]["unroll"])]
        + ([f"{100 * done[name]['dev_accuracy']:.1f}", str(done[name]["skipped"]), f"{done[name]['seconds']:.0f}"])
        for name, history in histories.items()
        if name in done
    )
    return [
        "## Meta-training",
        "",
        *_table(["genome", "meta-steps", "last T", "dev % of the best", "steps not finite", "seconds"], told),
        "![meta-training](figures/meta.png)",
        "",
    ]


def _accuracy_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    steps = _columns(rows)
    spread = {_line(row): row.get("spread") for row in rows if row["step"] == _at(rows)}
    body = []
    for line, by_step in _lines(rows).items():
        _, name, where = line
        cells = [f"{100 * by_step[n]:.1f}" if n in by_step else "" for n in steps]
        body.append([where or "", name, *cells, f"{100 * (spread.get(line) or 0):.1f}"])
    headings = ["", "learner", *(f"n = {n}" for n in steps), f"± at {_at(rows)}"]
    return _table(headings, body)


def _lines(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str | None], dict[int, float]]:
    """Accuracy by number of updates of each learner."""
    found: dict[tuple[str, str, str | None], dict[int, float]] = {}
    for row in rows:
        if row["test_accuracy"] is not None:
            found.setdefault(_line(row), {})[row["step"]] = row["test_accuracy"]
    return found


def _line(row: dict[str, Any]) -> tuple[str, str, str | None]:
    name = row["baseline"] or f"genome {Path(str(row['genome'])).name}"
    return row["experiment"], name, row.get("where") or (f"{row['layers']} hidden" if row["experiment"] == "depth" else None)


def _columns(rows: Sequence[dict[str, Any]]) -> list[int]:
    steps = sorted({row["step"] for row in rows if row["test_accuracy"] is not None})
    return [n for n in steps if n in (1, 2, 5, 10, 20, 50, 100, 400)] or steps


def _at(rows: Sequence[dict[str, Any]]) -> int:
    """The number of updates to compare after."""
    steps = {row["step"] for row in rows if row["step"] is not None}
    return _main if _main in steps else max(steps)


def _table(headings: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(headings) + " |",
        "|---" * len(headings) + "|",
        *("| " + " | ".join(cells) + " |" for cells in body),
        "",
    ]
