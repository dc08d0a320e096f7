"""docs/in_context.md."""

from collections.abc import Callable, Iterable
from statistics import mean
from typing import Any

from launch.icl.sections.linear_regression import PAPER_GAMMA
from launch.icl.sections.run_files import first_step

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, cell, only, pivot, read_events, read_rows, where

_depths = (1, 2, 3, 4, 5, 6, 8, 10, 12)


def _rates(row: Row) -> str:
    """The kind of solved layers: their predictor, and whether they share their rates."""
    return f"{row['predictor']}, {'shared' if row['recurrent'] else 'own'} rates"


def _seeds(rows: Iterable[Row], name: str, fields: Iterable[str], **wanted: Any) -> Row:
    """The mean over the seeds of trained layers."""
    found = where(rows, **wanted)
    about = {"name": f"{name}, {len(found)} seeds x {found[0]['steps']} steps"}
    return {**found[0], **about, **{field: mean(row[field] for row in found) for field in fields}}


def _two_layers(rows: Iterable[Row]) -> list[Row]:
    """The solution, and the means of the layers trained from several seeds and from the solution."""
    found, fields = list(rows), ("loss", "gamma", "cosine")
    solved = only(found, predictor="gd++")
    return [
        {**solved, "gamma": solved["gamma"][0], "name": "solved"},
        _seeds(found, "trained", fields, predictor="trained", start="cold"),
        _seeds(found, "trained from the solution", fields, predictor="trained", start="warm"),
        _seeds(found, "mean of trained and solved weights", ("loss", "cosine"), predictor="interpolated"),
    ]


def _worse_than_solved(start: str) -> Value:
    """How many per cent the loss of two trained layers is above that of the solved ones."""

    def above(rows: list[Row]) -> float:
        trained = mean(row["loss"] for row in where(rows, predictor="trained", start=start))
        return 100 * (trained / only(rows, predictor="gd++")["loss"] - 1)

    return Value("icl-two", above, ".1f")


def _steps_to_solved(_: Iterable[Row]) -> int | None:
    """The step at which the mean validation loss of two layers comes within 3 % of that of the solved ones."""
    name = "cold_K2_recurrent_d10_N10"
    level = only(read_events("icl-two", "reference"), model=name, predictor="gd++")["loss"]
    curve = where(read_events("icl-two", "evaluation"), model=name)
    return first_step(curve, lambda entry: mean(entry["loss"]) <= 1.03 * level)


def _by_context(rows: Iterable[Row]) -> list[Row]:
    """A line for each context length, of the curvature of two recurrent layers."""
    return pivot(where(rows, experiment="curvature"), ["context"], "predictor")


def _largest_eigenvalue(when: str) -> Callable[[Row], Any]:
    """The largest eigenvalue, and in brackets the mean over contexts of a context's largest."""
    return cell("closed_form", lambda row: f"{row[f'eigenvalue_max{when}']:.2f} ({row[f'mean_eigenvalue_max{when}']:.2f})")


def _loss_ratio(rows: list[Row]) -> float:
    """What a layer with a rate of its own divides the loss by, the mean from 5 to 12 layers."""
    first, last = (only(rows, layers=K, predictor="gd++", recurrent=False)["loss"] for K in (5, 12))
    return (first / last) ** (1 / 7)


def _five_layers_by_seed(rows: list[Row]) -> str:
    """The lowest and the highest loss of five solved layers over the seeds of the contexts."""
    seeds = where([*rows, *read_rows("icl-depths")], layers=5, predictor="gd++", recurrent=False)
    losses = [row["loss"] for row in seeds]
    return f"{min(losses):.5f} to {max(losses):.5f}"


def _one_layer(rows: Iterable[Row]) -> list[Row]:
    """The closed form, and the mean of the layers trained from several seeds."""
    trained = _seeds(rows, "trained", ("loss", "eta", "cosine"), predictor="trained")
    return [{**only(rows, predictor="closed_form"), "name": "closed form"}, trained]


_five = {
    "paper": "GD++, the paper's code, by Adam, 6000 of its 30,000 steps",
    "trained": "trained from random weights, 20,000 steps, two seeds",
    "solved": "solved",
}


def _five_layers(rows: Iterable[Row]) -> list[Row]:
    """A line for each way to five layers, with the mean over seeds and the loss of each."""
    found = [(name, where(rows, predictor=predictor)) for predictor, name in _five.items()]
    return [{"name": name, "losses": [row["loss"] for row in seeds], **seeds[0]} for name, seeds in found]


def _ten_layers(form: str, measure: str = "loss", **fields: Any) -> Value:
    """A number of ten recurrent layers."""
    return Value("icl-ten", measure, form, fields)


def _trained_loss(rows: list[Row]) -> float:
    return mean(row["loss"] for row in where(rows, predictor="trained"))


def _mean_and_each(row: Row) -> str:
    losses = row["losses"]
    return f"{mean(losses):.4f}" + (f" ({' and '.join(f'{loss:.4f}' for loss in losses)})" if len(losses) > 1 else "")


TABLES = {
    "five-layers": Table(
        ["icl-five-trained"],
        [Column("", "name"), Column("loss", _mean_and_each), Column("seconds", "seconds", "d")],
        rows=_five_layers,
    ),
    "icl-one": Table(
        ["icl-one"],
        [
            Column("one layer, GD", "name"),
            Column("loss", "loss", ".5f"),
            Column("η/N", lambda row: row["eta"] / row["context"], ".4f"),
            Column("cosine of sensitivities", "cosine", ".4f"),
        ],
        rows=_one_layer,
    ),
    "icl-two": Table(
        ["icl-two"],
        [
            Column("two recurrent layers, GD++", "name"),
            Column("loss", "loss", ".5f"),
            Column("γ", "gamma", ".3f"),
            Column("cosine of sensitivities", "cosine", ".4f"),
        ],
        rows=_two_layers,
    ),
    "icl-sizes": Table(
        ["icl-sizes"],
        [
            Column("N", "context", "d"),
            Column("γ: closed form", cell("closed_form", "gamma"), ".4f"),
            Column("trained here", cell("trained", "gamma"), ".4f"),
            Column("steps", cell("trained", "steps"), "d"),
            Column("paper, trained", lambda line: PAPER_GAMMA[line["context"]], ".3f"),
            Column("largest eigenvalue before", _largest_eigenvalue("")),
            Column("after", _largest_eigenvalue("_after")),
            Column("median condition number before", cell("closed_form", "condition_before"), ".3g"),
            Column("after", cell("closed_form", "condition_after"), ".3g"),
        ],
        rows=_by_context,
    ),
    "icl-depths": Table(
        ["icl-depths"],
        [
            Column("K", "layers", "d"),
            Column("GD, one rate", cell("gd, shared rates", "loss"), "#.3g"),
            Column("GD++, recurrent", cell("gd++, shared rates", "loss"), "#.3g"),
            Column("GD++, separate rates", cell("gd++, own rates", "loss"), "#.3g"),
            Column("Chebyshev rates", cell("chebyshev, own rates", "loss"), "#.3g"),
        ],
        rows=lambda rows: pivot(where(rows, layers=_depths), ["layers"], _rates),
    ),
}
VALUES = {
    "five-layers-trained": Value("icl-five-trained", _trained_loss, ".4f"),
    "five-layers-gd": Value("icl-depths", "loss", ".3f", {"layers": 5, "predictor": "gd", "recurrent": True}),
    "five-layers-seeds": Value("icl-depths-seeds", _five_layers_by_seed, ""),
    "five-layers-warm": Value("icl-five-mean", "loss", ".4f", {"predictor": "trained", "start": "warm"}),
    "five-layers-mean": Value("icl-five-mean", "loss", ".1f", {"predictor": "interpolated"}),
    "ten-solved": _ten_layers(".4f", predictor="gd++"),
    "ten-gd": _ten_layers(".4f", predictor="gd"),
    "ten-trained": _ten_layers(".4f", predictor="trained", start="cold"),
    "ten-cosine": _ten_layers(".3f", "cosine", predictor="trained", start="cold"),
    "ten-warm": _ten_layers(".4f", predictor="trained", start="warm"),
    "ten-mean": _ten_layers(".2f", predictor="interpolated"),
    "depth-ratio": Value("icl-depths", _loss_ratio, ".2f"),
    "two-layers-worse": _worse_than_solved("cold"),
    "two-layers-warm-worse": _worse_than_solved("warm"),
    "two-layers-steps": Value("icl-two", _steps_to_solved, "d"),
    "five-layers": Value("icl-depths", "loss", ".4f", {"layers": 5, "predictor": "gd++", "recurrent": False}),
}
