"""docs/language_models.md."""

from collections.abc import Iterable, Mapping

from jexplicit.runs.tables import Column
from launch.lm.report import PAPER_TABLE
from tools.declarations import Row, Table, Value, cell, context_length, pivot, where

_baselines = {"unigram": "*unigram*", "bigram": "*Kneser-Ney bigram*"}


def _features(row: Row) -> str:
    """How the context is combined: at K = 1 both ways are the same."""
    return _baselines.get(row["method"]) or ("Sum = Cat" if row["radius"] == 1 else row["features"].capitalize())


def _once(rows: Iterable[Row]) -> list[Row]:
    """Without the rows of Sum at K = 1, which are those of Cat."""
    return [row for row in rows if (row["features"], row["radius"]) != ("sum", 1)]


def _in_table_1(part: int):
    return lambda row: PAPER_TABLE[row["method"]][row["features"]][row["radius"]][part]


def _in_paper(part: int):
    def find(row: Row) -> float | None:
        return PAPER_TABLE["explicit"][row["features"]][row["radius"]][part] if row["method"] == "explicit" else None

    return find


def _explicit_first(rows: list[Row]) -> list[Row]:
    explicit = sorted(_once(where(rows, method="explicit")), key=lambda row: (row["radius"] > 1, row["features"] == "cat"))
    return [*explicit, *where(rows, method="bigram"), *where(rows, method="unigram")]


_model = [Column("features", _features), Column("K", context_length, "d")]

TABLES = {
    "babylm": Table(
        ["babylm"],
        [
            *_model,
            Column("train", "train_perplexity", ".1f"),
            Column("paper", _in_paper(0), ".1f"),
            Column("dev", "dev_perplexity", ".1f"),
            Column("paper", _in_paper(1), ".1f"),
        ],
        rows=_explicit_first,
    ),
    "table1": Table(
        ["table1"],
        [
            Column("start", "method"),
            *_model,
            Column("train, last epoch", "last_train_perplexity", ".1f"),
            Column("paper", _in_table_1(0), ".1f"),
            Column("dev, last epoch", "last_dev_perplexity", ".1f"),
            Column("paper", _in_table_1(1), ".1f"),
            Column("best epoch", "best_epoch", "d"),
            Column("train, best", "train_perplexity", ".1f"),
            Column("dev, best", "dev_perplexity", ".1f"),
        ],
        rows=lambda rows: sorted(_once(where(rows, method=("cold", "warm"))), key=lambda row: (row["method"], row["radius"])),
    ),
    "sum-sweeps": Table(
        ["sumscale"],
        [Column("", "method"), Column("train", "train_perplexity", ".1f"), Column("dev", "dev_perplexity", ".1f")],
        rows=lambda rows: where(rows, method=("log-linear", "iterative-scaling")),
    ),
    "bitcipher": Table(
        ["bitcipher"],
        [
            Column("b", "bits", "d"),
            *(Column(f"K = {K}", cell(K, "dev_perplexity"), ".1f") for K in (1, 2, 4)),
            Column("MB", cell(2, "bytes"), ".1f", scale=1e-6),
        ],
        rows=lambda rows: pivot(where(rows, method="bitcipher"), ["bits"], "radius"),
    ),
}
VALUES: Mapping[str, Value] = {}
