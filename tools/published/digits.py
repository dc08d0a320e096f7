"""docs/digits.md."""

from collections.abc import Iterable

from jexplicit.runs.tables import Column
from launch.digits.report import PAPER_ACCURACY, PAPER_EPOCHS
from tools.declarations import Row, Table, Value, cell, only, pivot, where

_shown = {
    "explicit": "explicit",
    "delta": "explicit with the best exponent",
    "mean_cooccurrence": "explicit with the weights of Eq. 14 before its last step",
    "intercept": "explicit with the best intercept",
    "cold": "cold",
    "warm": "warm",
}
_first_layers = {
    "network": "a network of 256 hidden units, trained by backpropagation",
    "cold": "a softmax layer, cold start",
    "warm": "a softmax layer, warm start",
}
_solvers = {"explicit": "explicit", "scaling": "iterative scaling", "quadratic": "curvature bound"}
_readouts = {"least_squares": "kernel least squares", "softmax": "softmax layer"}
_features = {"pixels": "pixels", "random": "random, D = 2048", "patches": "patches, D = 2048"}


def _patient(rows: Iterable[Row]) -> list[Row]:
    """Without the starts that stopped as soon as the loss rose."""
    return [row for row in rows if row.get("stop") != "rise"]


def _beside_paper(rows: Iterable[Row]) -> list[Row]:
    found = _patient(rows)
    return [{**row, "name": name} for method, name in _shown.items() for row in where(found, method=method)]


def _paper(row: Row) -> float | None:
    return PAPER_ACCURACY.get((row["method"], row["layers"]))


def _paper_epochs(row: Row) -> str | None:
    return PAPER_EPOCHS.get((row["method"], row["layers"]))


def _epochs(row: Row) -> str | None:
    return f"{row['epochs']} sweeps" if row["method"] == "intercept" else str(row["epochs"] or "")


def _by_features(rows: Iterable[Row]) -> list[Row]:
    """A line for each kind of features."""
    found = where(rows, method=("explicit", "scaling", "quadratic", "features"), layers=1)
    return [{**line, "name": _features[line["features"]]} for line in pivot(found, ["features"], "solver")]


def _with_sweeps(row: Row) -> str:
    sweeps = f" ({row['epochs']} sweeps)" if row["epochs"] else ""
    return f"{100 * row['test_accuracy']:.2f}{sweeps}"


def _with_seconds(row: Row) -> str:
    return f"{100 * row['test_accuracy']:.2f} ({row['seconds']} s)"


def _second_layers(rows: Iterable[Row]) -> list[Row]:
    """A line for each trained first layer: the accuracy of its own model, and of second layers that are solved."""
    found = list(rows)
    lines = pivot(where(found, method="solved_second"), ["features"], "solver")
    own = [*where(_patient(found), method=("cold", "warm"), layers=1), *where(_patient(found), method="network")]
    return [{**line, "name": _first_layers[line["features"]], "own": only(own, method=line["features"])} for line in lines]


_test = Column("test %", "test_accuracy", ".2f", 100)

TABLES = {
    "mnist": Table(
        ["mnist"],
        [
            Column("", "name"),
            Column("layers", "layers", "d"),
            _test,
            Column("paper", _paper, ".2f", 100),
            Column("epochs", _epochs),
            Column("paper", _paper_epochs),
        ],
        rows=_beside_paper,
    ),
    "mnist-sweeps": Table(
        ["mnist"],
        [Column("features", "name"), *(Column(name, cell(solver, _with_sweeps)) for solver, name in _solvers.items())],
        rows=_by_features,
        commands=False,
    ),
    "mnist-best": Table(
        ["mnist-best"],
        [
            Column("", lambda row: _readouts[row["solver"]]),
            _test,
            Column("train %", "train_accuracy", ".2f", 100),
            Column("test loss, nats", "test_loss", ".4f"),
            Column("calibration error, %", "calibration_error", ".2f", 100),
        ],
        rows=lambda rows: where(rows, method="kernel"),
    ),
    "mnist-frontier": Table(
        ["mnist-frontier"],
        [
            Column("", lambda line: f"`{line['flags']}`"),
            Column("D", "dimensions", ",d"),
            *(Column(f"{name}, %", cell(solver, _with_seconds)) for solver, name in _readouts.items()),
        ],
        rows=lambda rows: pivot(rows, ["flags", "dimensions"], "solver"),
        commands=False,
    ),
    "mnist-descriptors": Table(
        ["mnist-descriptors"],
        [
            Column("descriptor", "descriptor"),
            Column("%", "test_accuracy", ".2f", 100),
            Column("squared error", "squared_error", ".5f"),
        ],
    ),
    "mnist-elsewhere": Table(
        ["mnist-elsewhere"],
        [
            Column("", "images"),
            *(Column(f"{name}, test %", cell(solver, "test_accuracy"), ".2f", 100) for solver, name in _readouts.items()),
        ],
        rows=lambda rows: pivot(rows, ["images"], "solver"),
    ),
    "mnist-second": Table(
        ["mnist"],
        [
            Column("first layer of", "name"),
            Column("its own model", cell("own", "test_accuracy"), ".2f", 100),
            *(
                Column(name, cell(solver, "test_accuracy"), ".2f", 100)
                for solver, name in (("explicit", "explicit"), ("quadratic", "sweeps"))
            ),
        ],
        rows=_second_layers,
    ),
}
_found = {
    "explicit": {"method": "explicit", "layers": 1},
    "logistic": {"method": "logistic_regression"},
    "network": {"method": "network", "stop": "patience"},
}
VALUES = {
    f"mnist-{name}": Value("mnist", lambda row: 100 * row["test_accuracy"], ".2f", fields) for name, fields in _found.items()
} | {
    "mnist-best": Value("mnist-best", lambda row: 100 * row["test_accuracy"], ".2f", {"solver": "softmax"}),
    "mnist-best-features-seconds": Value("mnist-best", "feature_seconds", ".0f", {"solver": "softmax"}),
    "mnist-best-seconds": Value("mnist-best", "seconds", ".0f", {"solver": "softmax"}),
    "mnist-best-least-squares-seconds": Value("mnist-best", "seconds", ".0f", {"solver": "least_squares"}),
    "mnist-patches-seconds": Value("mnist", "seconds", ".0f", {"features": "patches", "solver": "quadratic"}),
    "mnist-network-seconds": Value("mnist", "seconds", ".0f", {"method": "network", "stop": "patience"}),
}
