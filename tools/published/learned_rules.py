"""docs/learned_rules.md."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, cell, only, pivot, where

_Learners = Sequence[tuple[str, Mapping[str, Any]]]  # how a line of a table begins, and the fields of its rows

_updates = (1, 2, 5, 10, 20, 50, 100, 400)
_descents = {"sgd": "... SGD", "sgd, normalised": "... SGD, normalised", "momentum": "... momentum"}
_both_kinds = ("sgd", "sgd, normalised")
_first_network: _Learners = [
    ("ridge rule, `digits`", {"experiment": "transfer", "genome": "digits"}),
    ("Hebbian rule, `hebbian`, 4 states", {"genome": "hebbian", "baseline": None}),
    ("SGD", {"experiment": "train", "baseline": "sgd"}),
    ("... momentum", {"baseline": "momentum"}),
    ("... Adam", {"baseline": "adam"}),
    ("SGD, same normalisation", {"experiment": "train", "baseline": "sgd, normalised"}),
    ("... momentum", {"baseline": "momentum, normalised"}),
    ("... Adam", {"baseline": "adam, normalised"}),
]
_places = {
    "same": "64-32-10",
    "hidden 16": "width 16",
    "hidden 128": "width 128",
    "hidden 256": "width 256",
    "hidden 32x32x32x32": "4 layers of 32",
    "hidden 32x32x32x32x32x32x32x32x32x32": "10 layers of 32",
    "16 x 16": "16 x 16 pixels",
    "wine": "wine",
    "breast_cancer": "breast cancer",
    "xor": "exclusive or",
    "mnist@10": "MNIST at 10 x 10",
}
_poster_lines: _Learners = [
    ("`digits`", {"experiment": "grid", "baseline": None}),
    ("genome of `poster-small`", {"experiment": "train", "baseline": None}),
    ("SGD", {"experiment": "train", "baseline": "sgd"}),
    ("... momentum 0.9", {"experiment": "train", "baseline": "momentum"}),
    ("SGD, normalised", {"experiment": "train", "baseline": "sgd, normalised"}),
]
_states = {
    "2 states": "2 states",
    "4 states": "4 states",
    "8 states": "8 states",
    "16 states": "16 states",
    "tanh neurons": "tanh (14 x 14 pixels from here on)",
    "relu neurons": "ReLU",
    "sigmoid neurons": "sigmoid",
    "linear neurons": "linear",
    "relu_tanh neurons": "ReLU of tanh",
}
_designs = {
    "reference": "both passes and the output normalised, 4 states",
    "normalise both": "both passes, not the output",
    "normalise backward + output": "backward pass and output",
    "normalise backward": "backward pass alone",
    "normalise forward + output": "forward pass and output",
    "normalise forward": "forward pass alone",
    "normalise none + output": "output alone",
    "normalise none": "nothing normalised",
    "2 states": "2 states",
    "8 states": "8 states",
    "no synapse norm": "synapses read as they are",
    "no path loss": "meta-loss at the end alone",
    "tanh output": "tanh of the outputs sent back, not their softmax",
}

_depths = {1: "runs at 1", 2: "2", 4: "4", 5: "5", 10: "10 hidden layers"}


def _percent(accuracy: float, group: Iterable[float]) -> str:
    """An accuracy in %, bold where it is the best of a group in which they differ."""
    text, shown = f"{100 * accuracy:.1f}", [round(100 * other, 1) for other in group]
    return f"**{text}**" if min(shown) < max(shown) == round(100 * accuracy, 1) else text


def _curves(rows: Iterable[Row], learners: _Learners) -> list[Row]:
    """A line for each learner, with its accuracies by number of updates; the best is bold where all learners have one."""
    rows = list(rows)
    found = [where(rows, **fields) for _, fields in learners]
    curves = [{n: only(one, step=n)["test_accuracy"] for n in _updates if where(one, step=n)} for one in found]
    groups = {n: [curve[n] for curve in curves if n in curve] for n in _updates}
    compared = {n: group for n, group in groups.items() if len(group) == len(curves)}
    lines: list[Any] = [
        {"name": name, **{n: _percent(accuracy, compared.get(n, (accuracy,))) for n, accuracy in curve.items()}}
        for (name, _), curve in zip(learners, curves, strict=True)
    ]
    return lines


def _by_updates(last: int) -> list[Column]:
    """The columns of a table by number of updates."""
    shown = [n for n in _updates if n <= last]
    return [Column("", "name"), *(Column("n = 1" if n == 1 else str(n), lambda line, n=n: line.get(n)) for n in shown)]


def _rule_and_descent(name: str, *baselines: str, **fields: Any) -> _Learners:
    """The learners of a genome, and of descent in the same network."""
    rule = (f"{name}: genome", {**fields, "baseline": None})
    return [rule, *((_descents[baseline], {**fields, "baseline": baseline}) for baseline in baselines)]


def _groups(file: str, last: int, *groups: _Learners) -> Table:
    """A table by number of updates of a genome and descent, in several networks."""
    return Table([file], _by_updates(last), rows=lambda rows: [line for group in groups for line in _curves(rows, group)])


def _elsewhere(rows: Iterable[Row]) -> list[Row]:
    """A line for each network or data: the rule, and the better kind of descent, after 10 and 100 updates."""
    rows, lines = list(rows), []
    for place, name in _places.items():
        line: dict[str, Any] = {"name": name}
        for n in (10, 100):
            rule = only(rows, where=place, step=n, baseline=None)["test_accuracy"]
            descent = max(row["test_accuracy"] for row in where(rows, where=place, step=n) if row.get("baseline"))
            line |= {f"rule {n}": _percent(rule, (rule, descent)), f"SGD {n}": _percent(descent, (rule, descent))}
        lines.append(line)
    return lines


def _in_brackets(rows: Iterable[Row], **fields: Any) -> str:
    """An accuracy after more updates, in brackets where there is one."""
    return "".join(f" ({100 * row['test_accuracy']:.1f})" for row in where(rows, **fields))


def _by_depth(rows: Iterable[Row]) -> list[Row]:
    """A line for each depth of meta-training: accuracy after 10 updates by depth of the learners, and after 50 in brackets."""
    rows = list(rows)
    columns = {layers: [row["test_accuracy"] for row in where(rows, step=10, layers=layers)] for layers in _depths}

    def show(row: Row) -> str:
        later = _in_brackets(rows, step=50, layers=row["layers"], genome=row["genome"])
        return _percent(row["test_accuracy"], columns[row["layers"]]) + later

    return pivot([{**row, "text": show(row)} for row in where(rows, step=10)], ["genome"], "layers")


def _wins(row: Row) -> str:
    return f"{row['wins']}" + (f" ({row['ties']})" if row.get("ties") else "")


def _points(field: str):
    return lambda row: f"{100 * row[field]:+.1f}"


_summary = (
    ("`digits`: wins of 54 (ties)", "digits", _wins),
    ("... mean difference, points", "digits", _points("mean")),
    ("... median difference", "digits", _points("median")),
    ("`hebbian`: wins of 54", "hebbian", _wins),
    ("... mean difference, points", "hebbian", _points("mean")),
)


def _summaries(rows: Iterable[Row]) -> list[Row]:
    """Wins and differences on all tasks by number of updates."""
    found = where(rows, tasks=54)
    return [{"name": name, **{row["n"]: show(row) for row in where(found, genome=genome)}} for name, genome, show in _summary]


def _task_columns(n: int) -> list[Column]:
    """What the learners of the rule have after n updates, and how that compares."""
    return [
        Column(f"rule, n = {n}", lambda line: f"{100 * line[n]['rule_accuracy']:.1f} ± {100 * line[n]['spread']:.1f}"),
        Column("difference", lambda line: line[n]["difference"], "+.1f", 100),
        Column("best baseline", lambda line: line[n]["baseline"]),
    ]


def _best_momentum(rows: Iterable[Row], baseline: str) -> Row:
    """The best accuracy at any momentum and learning rate by number of updates, with the momentum."""
    cells = where(rows, experiment="grid", baseline=baseline)
    line: dict[Any, str] = {"name": "... best momentum"}
    for n in (10, 100):
        best = max(where(cells, step=n), key=lambda row: row["test_accuracy"])
        line[n] = f"{100 * best['test_accuracy']:.1f} ({best['momentum']:g})"
    return line


def _poster(rows: list[Row]) -> list[Row]:
    """Two genomes and descent, by number of updates."""
    *plain, normalised = _curves(rows, _poster_lines)
    return [*plain, _best_momentum(rows, "sgd"), normalised, _best_momentum(rows, "sgd, normalised")]


def _by_design(file: str, names: Mapping[str, str], places: Mapping[str, str]) -> Table:
    """A line for each design: accuracy after 10 updates ± the spread over seeds by place, and after 100 in brackets."""

    def show(rows: list[Row], **fields: Any) -> str:
        row = only(rows, step=10, **fields)
        spread = f" ± {100 * row['spread_over_seeds']:.1f}" if "spread_over_seeds" in row else ""
        return f"{100 * row['test_accuracy']:.1f}{spread}{_in_brackets(rows, step=100, **fields)}"

    def lines(rows: list[Row]) -> list[Row]:
        return [
            {"name": name, **{place: show(rows, genome=design, where=place) for place in places}}
            for design, name in names.items()
        ]

    return Table([file], [Column("", "name"), *(Column(heading, place) for place, heading in places.items())], rows=lines)


def _accuracy(file: str, form: str, **fields: Any) -> Value:
    """An accuracy in %."""
    return Value(file, lambda row: 100 * row["test_accuracy"], form, fields)


def _largest_difference(precision: str) -> Value:
    """The largest difference of a weight between descent as a rule and by `jax.grad`, in all networks."""
    return Value("blur-sgd", lambda rows: max(row["max_difference"] for row in where(rows, precision=precision)), ".1e")


_depth_columns = [
    Column("meta-trained at", lambda line: line["genome"].removeprefix("depth ")),
    *(Column(heading, cell(layers, "text")) for layers, heading in _depths.items()),
]

TABLES = {
    "blur-digits": Table(["blur-digits"], _by_updates(400), rows=lambda rows: _curves(rows, _first_network)),
    "blur-transfer": Table(
        ["blur-transfer"],
        [
            Column("", "name"),
            Column("rule, n = 10", "rule 10"),
            Column("SGD", "SGD 10"),
            Column("rule, n = 100", "rule 100"),
            Column("SGD", "SGD 100"),
        ],
        rows=_elsewhere,
    ),
    "blur-depth": Table(["blur-depth"], _depth_columns, rows=_by_depth),
    "blur-tasks": Table(["blur-tasks"], _by_updates(100), rows=_summaries),
    "blur-task": Table(
        ["blur-tasks"],
        [Column("task", "task"), *_task_columns(10), *_task_columns(100)],
        rows=lambda rows: pivot([row for row in rows if "task" in row], ["task"], "n"),
        commands=False,
    ),
    "blur-poster": Table(["blur-grid", "blur-poster"], _by_updates(400), rows=_poster),
    "blur-depth-mnist": Table(["blur-depth-mnist"], _depth_columns, rows=_by_depth),
    "blur-classes": _groups(
        "blur-classes",
        100,
        _rule_and_descent("0 to 4", *_both_kinds, where="same"),
        _rule_and_descent("5 to 9", *_both_kinds, where="classes 5 6 7 8 9"),
    ),
    "blur-wider": _groups(
        "blur-wider",
        400,
        _rule_and_descent("hidden 512 and 256", *_both_kinds, "momentum", run=0),
        _rule_and_descent("28 x 28 pixels, hidden 256 and 128", *_both_kinds, "momentum", run=1),
        _rule_and_descent("CMA-ES, 14 x 14, hidden 512, 2 states", *_both_kinds, run=2),
    ),
    "blur-elsewhere": _groups(
        "blur-elsewhere",
        100,
        _rule_and_descent("hidden 256 and 128", *_both_kinds, where="same"),
        _rule_and_descent("the same on 28 x 28 pixels", where="28 x 28"),
        _rule_and_descent("one hidden layer of 256", *_both_kinds, where="hidden 256"),
    ),
    "blur-states": _by_design("blur-states", _states, {"same": "trained there", "deeper": "one layer more"}),
    "blur-designs": _by_design("blur-designs", _designs, {"same": "trained there", "larger images": "16 x 16"}),
}
VALUES = {
    "blur-digits-rule": _accuracy("blur-digits", ".1f", experiment="transfer", genome="digits", step=10),
    "blur-digits-sgd": _accuracy("blur-digits", ".1f", experiment="train", baseline="sgd", step=10),
    "blur-digits-rule-400": _accuracy("blur-digits", ".1f", experiment="transfer", genome="digits", step=400),
    "blur-digits-sgd-400": _accuracy("blur-digits", ".1f", run=0, baseline="sgd", step=400),
    "blur-again-10": _accuracy("blur-digits", ".1f", experiment="train", baseline=None, step=10),
    "blur-again-400": _accuracy("blur-digits", ".1f", experiment="train", baseline=None, step=400),
    "blur-wins-10": Value("blur-tasks", "wins", "d", {"genome": "digits", "tasks": 54, "n": 10}),
    "blur-wins-100": Value("blur-tasks", "wins", "d", {"genome": "digits", "tasks": 54, "n": 100}),
    "blur-xor-1": _accuracy("blur-boolean", ".1f", step=1),
    "blur-xor-2": _accuracy("blur-boolean", ".1f", step=2),
    "blur-xor-5": _accuracy("blur-boolean", ".0f", step=5),
    "blur-xor-10": _accuracy("blur-boolean", ".0f", step=10),
    "blur-descent-float32": _largest_difference("float32"),
    "blur-descent-float64": _largest_difference("float64"),
    "blur-curl": Value("blur-sgd", "curl", ".0f", {"experiment": "curl", "genome": "boolean"}),
    "blur-curl-relative": Value("blur-sgd", "relative_curl", ".2f", {"experiment": "curl", "genome": "boolean"}),
    "blur-curl-error": Value("blur-sgd", "numerical_error", ".1e", {"experiment": "curl", "genome": "boolean"}),
    "blur-curl-descent": Value("blur-sgd", "curl", ".1e", {"experiment": "curl", "genome": "sgd"}),
}
