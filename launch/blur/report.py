"""Tables and report of a run of launch.blur: on the terminal and in report.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.results import read_config, read_events, read_rows
from jexplicit.runs.tables import Column, markdown_table, rich_table
from launch.blur.comparison import Comparison, compare_seeds
from launch.blur.figures import (
    curl_figure,
    depth_figure,
    designs_figure,
    grid_figure,
    learning_figure,
    meta_figure,
    stability_figure,
    transfer_figure,
)

_Rows = Sequence[dict[str, Any]]
_shown_steps = (1, 2, 5, 10, 20, 50, 100, 400)

_reading = """\
Accuracies are means over learners with different initial synapses and minibatches, ± their standard deviation, in % of test
images. Neither meta-training nor the choice of a genome or a learning rate uses the test images. *Descent* has, for each number
of updates, the learning rate (and hidden activation) with the highest accuracy on dev, with other learners. *Normalised*
networks normalise all layers over the minibatch as the learned rule does, with trainable scales and shifts. Both use batch
statistics in prediction too.
"""
_paper = """\
The paper prints no table of accuracies. It states: learned rules are ahead of descent with any learning rate and momentum early
on, and descent catches up at about 100 updates (Fig. 5, 6); genomes work at other resolutions only with both passes normalised
(Fig. 8); genomes of deeper networks work in shallower ones, not vice versa (Fig. 10); more states are better (Fig. 13); with
Oja's term and normalised synapses accuracy keeps rising (Fig. 15, 16); evolution reaches 0.84 on 14 x 14 MNIST (Sec. 4.4).
"""


def jacobian_path(out: Path, name: str) -> Path:
    """The file of a run with the Jacobian of a rule's update on exclusive or."""
    folder = out / "jacobians"
    folder.mkdir(exist_ok=True)
    return folder / f"{Path(name).stem}.npy"


def blur_table(rows: _Rows) -> Table:
    """The results as a table for the terminal."""
    checks = _of(rows, "sgd-check")
    if checks or _of(rows, "curl"):
        network = Column("network", lambda row: f"{row['network']} {row['activation']}")
        columns = [network, *_fields("loss", "precision"), Column("largest difference", "max_difference", ".1e")]
        return rich_table(columns, checks, title="gradient descent as a genome")
    learner = Column("learner", lambda row: f"{row['where']}: {row['learner']}" if row["where"] else row["learner"])
    if _of(rows, "grid"):
        return rich_table(_grid_columns(rows), _best_rates(rows), title="highest test accuracy of all learning rates, in %")
    table = rich_table([learner, *_accuracies(rows, "")], _learners(rows), title="test accuracy in %, by number of updates")
    for column in table.columns:
        column.no_wrap = True
    return table


def write_blur_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.blur` run."""
    rows, config, figures = read_rows(out), read_config(out) or {}, out / "figures"
    lines = ["# Learned update rules", ""]
    for experiment, section in _sections.items():
        if found := _of(rows, experiment):
            lines += section(out, found, config, figures)
    if not _of(rows, "sgd-check") and not _of(rows, "curl"):
        lines += [*_meta_section(out, figures), *([] if _of(rows, "grid") else [_reading]), _paper]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def _train_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    horizon, curve = max(config["unroll"]), _curves(out, "train", "genome")
    descents = {event["baseline"]: event for event in read_events(out, "descent")}
    learning_figure(curve[rows[0]["genome"]], descents, config["steps"], horizon, figures / "learning.png")
    stability_figure(curve, horizon, figures / "stability.png")
    network = "-".join(map(str, (rows[0]["inputs"], *rows[0]["hidden"])))
    return [
        f"Data `{rows[0]['data']}`, networks {network} and the outputs, minibatches of {config['batch_size']}, "
        f"{config['states']} states, meta-trained to T = {horizon} updates.",
        *_accuracy_table(rows),
        *_image("learning", "learning"),
        *_image("far past the horizon", "stability"),
    ]


def _transfer_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    places = {where: {"learned rule": event["accuracy"]} for where, event in _curves(out, "transfer", "where").items()}
    for event in read_events(out, "descent"):
        places[event["where"]][event["baseline"]] = event["best"]
    transfer_figure(places, figures / "transfer.png")
    title = f"## The genome `{Path(rows[0]['genome']).name}` in other networks"
    return [title, *_accuracy_table(rows), *_image("transfer", "transfer")]


def _depth_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    steps = [n for n in (_main_step(rows), 50) if n in {row["step"] for row in rows}]
    accuracy: dict[int, dict[str, dict[int, float]]] = {n: {} for n in steps}
    for row in rows:
        if row["step"] in steps:
            accuracy[row["step"]].setdefault(row["genome"], {})[row["layers"]] = row["test_accuracy"]
    depth_figure(accuracy, figures / "depth.png")
    columns = [*_fields("genome", "n"), *_percents(sorted({row["layers"] for row in rows}))]
    lines = [{"genome": name, "n": n, **accuracy[n][name]} for n in steps for name in accuracy[n]]
    return [
        "## Depth",
        "",
        "Test accuracy in % after n updates, by the hidden layers of meta-training and of the learners.",
        *markdown_table(columns, lines),
        *_image("depth", "depth"),
    ]


def _ablation_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    step, compared = _main_step(rows), {}
    found = {n: _by_seed(rows, n) for n in sorted({row["step"] for row in rows}) if n == step or n in _shown_steps}
    for (name, where), accuracy in found[step].items():
        reference = found[step]["reference", where]
        compared.setdefault(name, {})[where] = compare_seeds(accuracy, reference)
    bars = {name: {where: (one.mean, one.spread or 0.0) for where, one in places.items()} for name, places in compared.items()}
    designs_figure(bars, step, figures / "designs.png")
    same = _curves(out, "ablation", "genome", where="same", seed=config["seed"])
    stability_figure(same, max(config["unroll"]), figures / "stability.png")
    lines: list[Any] = [
        {"design": name, "where": where, **one._asdict(), "clear": "yes" if one.clear else ""}
        | {n: float(np.mean(found[n][name, where])) for n in found}
        for name, places in compared.items()
        for where, one in places.items()
    ]
    columns = [*_fields("design", "where"), *_percents([n for n in found if n <= step], "n = ")]
    columns += [Column("± over seeds", "spread", ".1f", 100), *_percents([n for n in found if n > step], "n = ")]
    columns += [Column("less the reference", "difference", "+.1f", 100), Column("± of that", "error", ".1f", 100)]
    return [
        "## Designs",
        "",
        "*same*: the network of the meta-training; *larger images*: twice the side; *deeper*: one more hidden layer. "
        f"Each design is meta-trained from {config['seeds']} seeds, for {sum(config['meta_steps'])} steps with a population of "
        f"{config['population']}; all genomes run the same {config['learners']} learners. In %, means over the seeds.",
        *markdown_table([*columns, Column("over twice that", "clear")], lines),
        *_clear_differences({name: places["same"] for name, places in compared.items()}, step),
        *_image("designs", "designs"),
        *_image(f"stability, seed {config['seed']}", "stability"),
    ]


def _by_seed(rows: _Rows, step: int) -> dict[tuple[str, str], list[float]]:
    """The accuracies after a number of updates, one for each seed, by design and place."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["step"] == step:
            found.setdefault((row["genome"], row["where"]), []).append(row["test_accuracy"])
    return found


def _clear_differences(compared: dict[str, Comparison], step: int) -> list[str]:
    """Sentences on the designs whose difference from the reference, where they were meta-trained, is clear."""

    def names(sign: int) -> str:
        found = [name for name, one in compared.items() if one.clear and sign * one.difference > 0]
        return ", ".join(found) or "none"

    if all(one.error is None for one in compared.values()):
        return ["One seed has no spread: whether a difference is more than chance needs more `--seeds`.", ""]
    return [
        f"Where they were meta-trained, after {step} updates, designs that differ from the reference by more than twice the "
        f"standard error of the difference. Better: {names(1)}. Worse: {names(-1)}. The others these seeds do not tell apart.",
        "",
    ]


def _grid_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    momenta, rates = config["momenta"], config["rates"]
    cells = [row for row in rows if row["baseline"]]
    steps = sorted({row["step"] for row in cells})
    learned = {row["step"]: row["test_accuracy"] for row in rows if row["genome"] and row["step"] in steps}
    tables: dict[str, dict[int, np.ndarray]] = {}
    for kind, name in (("none", "descent"), ("forward", "the same normalisation")):
        tables[name] = {n: np.full((len(momenta), len(rates)), np.nan) for n in steps}
        for row in cells:
            if row["normalisation"] == kind:
                at = momenta.index(row["momentum"]), rates.index(row["learning_rate"])
                tables[name][row["step"]][at] = row["test_accuracy"]
    grid_figure(tables, learned, momenta, rates, figures / "grid.png")
    network = "-".join(map(str, (rows[0]["inputs"], *rows[0]["hidden"])))
    return [
        "## Learning rates and momenta",
        "",
        f"Data `{rows[0]['data']}`, networks {network} and the outputs, minibatches of {config['batch_size']}. For each "
        "momentum the highest test accuracy of all learning rates in %, and that rate: chosen on the test images, in favour of "
        "descent. Accuracies are means over learners with different initial weights and minibatches.",
        *markdown_table(_grid_columns(rows), _best_rates(rows)),
        *_image("grid", "grid"),
    ]


def _grid_columns(rows: _Rows) -> list[Column]:
    columns = [Column("learner", "learner"), Column("momentum", "momentum", "g")]
    for n in sorted({row["step"] for row in rows if row["baseline"]}):
        columns += [Column(f"n = {n}", str(n), ".1f", 100), Column("rate", f"rate {n}", "g")]
    return columns


def _best_rates(rows: _Rows) -> _Rows:
    """A line for the learned rule, and one for every kind of network and momentum with the best of its learning rates."""
    found: dict[Any, dict[str, Any]] = {}
    steps = {row["step"] for row in rows if row["baseline"]}
    for row in rows:
        n, learner = row["step"], row["baseline"] or f"genome {Path(str(row['genome'])).name}"
        line = found.setdefault((learner, row.get("momentum")), {"learner": learner, "momentum": row.get("momentum")})
        if n in steps and row["test_accuracy"] > line.get(str(n), -1.0):
            line |= {str(n): row["test_accuracy"], f"rate {n}": row["learning_rate"]}
    return list(found.values())


def _sgd_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    columns = _fields("network", "activation", "loss", "precision")
    columns += [Column("after one step", "one_step", ".1e"), Column("after all steps", "max_difference", ".1e")]
    return [
        "## Gradient descent as a genome",
        "",
        f"Largest difference of a weight from descent with `jax.grad` after {rows[0]['step']} steps, each on its own weights.",
        *markdown_table([*columns, Column("largest change of a weight", "moved", ".1e")], rows),
    ]


def _curl_section(out: Path, rows: _Rows, config: dict[str, Any], figures: Path) -> list[str]:
    curl_figure({Path(row["genome"]).stem: np.load(jacobian_path(out, row["genome"])) for row in rows}, figures / "curl.png")
    columns = [*_fields("genome", "variables"), Column("largest", "curl", ".2e")]
    columns += [Column("relative to J", "relative_curl", ".3f"), Column("numerical error (float32)", "numerical_error", ".1e")]
    return [
        "## Not a gradient",
        "",
        "Curl of the update on exclusive or: `J - Jᵀ`, with J the Jacobian of the update with respect to the synapses.",
        *markdown_table(columns, rows),
        *_image("curl", "curl"),
    ]


def _meta_section(out: Path, figures: Path) -> list[str]:
    histories: dict[str, dict[int, dict[str, Any]]] = {}
    for event in read_events(out, "meta"):
        histories.setdefault(event["genome"], {})[event["step"]] = event  # a resumed run may log a step again
    if not histories:
        return []
    panels: dict[str, list[list[dict[str, Any]]]] = {}
    for name, history in histories.items():  # DESIGN/SEED in an ablation
        panels.setdefault(name.rpartition("/")[0] or name, []).append(list(history.values()))
    meta_figure(panels, figures / "meta.png")
    found = {event["genome"]: event for event in read_events(out, "meta_trained")}
    rows = [{**list(histories[name].values())[-1], **event} for name, event in found.items() if name in histories]
    columns = [
        Column("genome", "genome"),
        Column("meta-steps", "step"),
        Column("last T", "unroll"),
        Column("best dev accuracy, %", "dev_accuracy", ".1f", 100),
        Column("steps not finite", "skipped"),
        Column("seconds", "seconds", ".0f"),
    ]
    return ["## Meta-training", *markdown_table(columns, rows), *_image("meta-training", "meta")]


_sections = {
    "train": _train_section,
    "transfer": _transfer_section,
    "depth": _depth_section,
    "ablation": _ablation_section,
    "grid": _grid_section,
    "sgd-check": _sgd_section,
    "curl": _curl_section,
}


def _of(rows: _Rows, experiment: str) -> _Rows:
    return [row for row in rows if row["experiment"] == experiment]


def _fields(*names: str) -> list[Column]:
    return [Column(name, name) for name in names]


def _image(text: str, name: str) -> list[str]:
    return [f"![{text}](figures/{name}.png)", ""]


def _curves(out: Path, experiment: str, by: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """The learning curves of an experiment, by a field."""
    events = [event for event in read_events(out, "curve") if event["experiment"] == experiment]
    return {event[by]: event for event in events if all(event[name] == value for name, value in fields.items())}


def _accuracy_table(rows: _Rows) -> list[str]:
    columns = [Column("", "where"), Column("learner", "learner"), *_accuracies(rows, "n = ")]
    return markdown_table([*columns, Column(f"± at {_main_step(rows)}", "spread", ".1f", 100)], _learners(rows))


def _learners(rows: _Rows) -> _Rows:
    """A row for each learner: accuracies by number of updates, and their spread at the number that learners are compared at.

    Those of several seeds of meta-training are averaged.
    """
    found: dict[Any, dict[Any, Any]] = {}
    for row in rows:
        learner = row["baseline"] or f"genome {Path(str(row['genome'])).name}"
        where = row.get("where") or (f"{row['layers']} hidden" if row["experiment"] == "depth" else None)
        line = found.setdefault((row["experiment"], learner, where), {"learner": learner, "where": where})
        line.setdefault(row["step"], []).append(row["test_accuracy"])
        if row["step"] == _main_step(_of(rows, row["experiment"])):
            line.setdefault("spread", []).append(row["spread"])
    return [
        {name: float(np.mean(cell)) if isinstance(cell, list) else cell for name, cell in line.items()}
        for line in found.values()
    ]


def _accuracies(rows: _Rows, prefix: str) -> list[Column]:
    steps = sorted({row["step"] for row in rows})
    return _percents([n for n in steps if n in _shown_steps] or steps, prefix)


def _percents(numbers: Sequence[int], prefix: str = "") -> list[Column]:
    return [Column(f"{prefix}{n}", lambda line, n=n: line.get(n), ".1f", 100) for n in numbers]


def _main_step(rows: _Rows) -> int:
    """The number of updates to compare learners at: 10, or all if there are fewer."""
    steps = {row["step"] for row in rows}
    return 10 if 10 in steps else max(steps)
