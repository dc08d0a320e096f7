"""docs/in_context.md, what was published since 2023: Newton's iteration, loops, online estimators."""

from collections.abc import Iterable
from statistics import mean

from launch.icl.sections.newton import steps_per_layer

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, cell, pivot, where

_loops = (2, 5, 10, 20, 50)
_layers = {"gd": "GD, solved", "gd++": "GD++, solved", "trained": "GD++, trained"}


def _newton_steps(task: str) -> Value:
    """How many of Newton's steps one more layer is worth."""
    return Value("icl-newton", lambda rows: steps_per_layer(where(rows, task=task)), ".2f")


def _by_loops(rows: Iterable[Row]) -> list[Row]:
    """A line for each layer, by the loops that it was solved or trained for: its losses by loops run, means over seeds."""
    by_layer: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_layer.setdefault((row["predictor"], row["layers"]), []).append(row)
    return [
        {str(loops): mean(row["loss"] for row in where(seeds, loops=loops)) for loops in _loops}
        | {"name": f"{_layers[predictor]} for {layers}"}
        for (predictor, layers), seeds in by_layer.items()
    ]


def _after_loops(predictor: str, layers: int, loops: int, form: str = ".3g") -> Value:
    """The loss of a layer that was solved or trained for some loops, the mean over seeds."""
    fields = {"predictor": predictor, "layers": layers, "loops": loops}
    return Value("icl-looped", lambda rows: mean(row["loss"] for row in where(rows, **fields)), form)


_streams = {
    "regression": "white keys",
    "ill-conditioned": "ill-conditioned keys, variances ∝ 1/k²",
    "drift": "a map that drifts, memory 0.99",
    "dynamics": "x_{t+1} = W x_t",
}
_keys = {
    "white": "white",
    "ill-conditioned": "condition number 10⁶",
    "half of the directions": "half of the directions",
}
_mesa_layers = ("mesa, Sherman-Morrison", "mesa, recursion", "mesa, conjugate gradients")


def _with_expectation(row: Row) -> str:
    """A loss, and in brackets its closed form where there is one."""
    expected = row.get("population_loss")
    return f"{row['loss']:#.3g}" + (f" ({expected:#.3g})" if expected else "")


def _streams_seen(rows: Iterable[Row]) -> list[Row]:
    """A line for each kind of stream."""
    lines = pivot(where(rows, task=tuple(_streams)), ["task"], "predictor")
    return [{**line, "name": _streams[line["task"]]} for line in lines]


def _float32_error(row: Row) -> str:
    """The largest error, or the token after which it is too large where the outputs end as NaN."""
    error = row.get("float32_error")
    return f"{error:.1e}" if error is not None else f"above 10 % after {row['fails_at']} tokens, then NaN"


def _rounding(rows: Iterable[Row]) -> list[Row]:
    """A line for each kind of keys and forgetting."""
    lines = pivot(where(rows, task="rounding", predictor=_mesa_layers), ["inputs", "forgetting"], "predictor")
    return [{**line, "name": _keys[line["inputs"]]} for line in lines]


def _mesa(predictor: str, task: str, field: str = "loss") -> Value:
    return Value("icl-mesa", field, "#.3g", {"predictor": predictor, "task": task})


def _mesa_seconds(predictor: str) -> Value:
    fields = {"task": "rounding", "inputs": "white", "forgetting": 1.0}
    return Value("icl-mesa", "seconds", ".1g", {"predictor": predictor, **fields})


TABLES = {
    "icl-looped": Table(
        ["icl-looped"],
        [Column("layer", "name"), *(Column(f"{loops} loops", str(loops), ".3g") for loops in _loops)],
        rows=_by_loops,
    ),
    "icl-mesa": Table(
        ["icl-mesa"],
        [
            Column("", "name"),
            Column("mesa", cell("mesa, recursion", _with_expectation)),
            Column("delta rule", cell("delta rule", _with_expectation)),
            Column("delta rule, best rate at every token", cell("delta rule, best rates", _with_expectation)),
            Column("linear attention", cell("linear attention", _with_expectation)),
            Column("ridge, which forgets nothing", cell("ridge", _with_expectation)),
            Column("Kalman filter, the optimum", cell("Kalman filter", _with_expectation)),
        ],
        rows=_streams_seen,
    ),
    "icl-mesa-float32": Table(
        ["icl-mesa"],
        [
            Column("keys", "name"),
            Column("γ", "forgetting", "g"),
            Column("Sherman-Morrison, as in textbooks", cell(_mesa_layers[0], _float32_error)),
            Column("recursion with a square root", cell(_mesa_layers[1], _float32_error)),
            Column("40 conjugate gradients", cell(_mesa_layers[2], _float32_error)),
        ],
        rows=_rounding,
        commands=False,
    ),
}
VALUES = {
    "newton-well": _newton_steps("well-conditioned"),
    "newton-ill": _newton_steps("ill-conditioned"),
    "loops-gd-5": _after_loops("gd", 5, 5),
    "loops-gd-20": _after_loops("gd", 5, 20, ",.0f"),
    **{f"loops-{loops}": _after_loops("gd++", 5, loops) for loops in (5, 20, 50)},
    **{f"loops-trained-{loops}": _after_loops("trained", 2, loops) for loops in (2, 20, 50)},
    "mesa": _mesa("mesa, recursion", "regression"),
    "mesa-closed": _mesa("mesa, recursion", "regression", "population_loss"),
    "mesa-delta": _mesa("delta rule", "regression"),
    "mesa-linear": _mesa("linear attention", "regression"),
    "mesa-seconds": _mesa_seconds("mesa, recursion"),
    "mesa-gradients-seconds": _mesa_seconds("mesa, conjugate gradients"),
}
