"""docs/in_context.md."""

from collections.abc import Iterable
from statistics import mean

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, cell, only, pivot, where

_depths = (1, 2, 3, 4, 5, 6, 8, 10, 12)


def _rates(row: Row) -> str:
    """The kind of solved layers: their predictor, and whether they share their rates."""
    return f"{row['predictor']}, {'shared' if row['recurrent'] else 'own'} rates"


def _loss_ratio(rows: list[Row]) -> float:
    """What a layer with a rate of its own divides the loss by, the mean from 5 to 12 layers."""
    first, last = (only(rows, layers=K, predictor="gd++", recurrent=False)["loss"] for K in (5, 12))
    return (first / last) ** (1 / 7)


def _one_layer(rows: Iterable[Row]) -> list[Row]:
    """The closed form, and the mean of the layers trained from several seeds."""
    trained = where(rows, predictor="trained")
    means = {name: mean(row[name] for row in trained) for name in ("loss", "eta", "cosine")}
    name = f"trained, {len(trained)} seeds x {trained[0]['steps']} steps"
    return [{**only(rows, predictor="closed_form"), "name": "closed form"}, {**trained[0], **means, "name": name}]


TABLES = {
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
    "five-layers-trained": Value("icl-five-trained", lambda rows: mean(row["loss"] for row in rows), ".4f"),
    "five-layers-gd": Value("icl-depths", "loss", ".3f", {"layers": 5, "predictor": "gd", "recurrent": True}),
    "depth-ratio": Value("icl-depths", _loss_ratio, ".2f"),
    "five-layers": Value("icl-depths", "loss", ".4f", {"layers": 5, "predictor": "gd++", "recurrent": False}),
}
