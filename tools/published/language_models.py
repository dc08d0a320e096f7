"""docs/language_models.md."""

from collections.abc import Iterable, Mapping, Sequence

from jexplicit.runs.tables import Column
from launch.lm.report import PAPER_TABLE
from tools.declarations import Row, Table, Value, cell, context_length, pivot, read_events, where

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


def _place(row: Row) -> tuple[bool, bool]:
    """K = 1 stands first, then Sum, then Cat."""
    return row["radius"] > 1, row["features"] == "cat"


def _explicit_first(rows: list[Row]) -> list[Row]:
    explicit = sorted(_once(where(rows, method="explicit")), key=_place)
    return [*explicit, *where(rows, method="bigram"), *where(rows, method="unigram")]


def _train_dev(row: Row) -> str:
    return f"{row['train_perplexity']:.1f} / {row['dev_perplexity']:.1f}"


def _by_method(rows: Iterable[Row]) -> list[Row]:
    """A line for each model, with its rows by method."""
    lines = pivot(where(rows, features=("sum", "cat")), ("features", "radius"), "method")
    return [{**line, "method": "explicit"} for line in sorted(_once(lines), key=_place)]


def _by_radius(form: str, radii: Sequence[int] = (1, 2, 4)) -> list[Column]:
    """Columns of dev perplexity by K."""
    return [Column(f"K = {K}", cell(K, "dev_perplexity"), form) for K in radii]


_kind = ("file", "method", "features", "history")
_solutions = {
    ("babylm-methods", "explicit", "cat", "none"): "explicit, the paper's noise (Cat)",
    ("babylm-methods", "log-linear", "sum", "none"): "log-linear Sum, with attention",
    ("babylm-methods", "log-linear", "cat", "none"): "log-linear Cat",
    ("babylm-sweeps", "iterative-scaling", "cat", "none"): "iterative-scaling Cat",
    ("babylm-methods", "ngram", "none", "none"): "*ngram*: Kneser-Ney 5-gram, four tokens of context",
    (
        "babylm-methods",
        "mixture",
        "cat",
        "none",
    ): "mixture, history none: contexts of 1-4 tokens, 8 offsets, 4 pairs with a gap",
    ("babylm-methods", "mixture", "cat", "all"): "mixture, history all: the same and the recent past",
    (
        "babylm-mixture",
        "mixture",
        "cat",
        "none",
    ): "[with classes of tokens, repeats](counted_not_trained.md#words-and-subwords), history none",
    ("babylm-mixture", "mixture", "cat", "all"): "the same with longer caches, history all",
}


def _by_solution(rows: Iterable[Row]) -> list[Row]:
    """A line for each kind of solution, with its rows by K."""
    lines = {tuple(line[name] for name in _kind): line for line in pivot(rows, _kind, "radius")}
    return [{**lines[kind], "name": name} for kind, name in _solutions.items()]


def _fitted(line: Row) -> str:
    """How many numbers were fitted, for the smallest and the largest K."""
    numbers = sorted(row["scalars"] for row in line.values() if isinstance(row, dict))
    return f"{numbers[0]}" + (f" to {numbers[-1]}" if numbers[-1] > numbers[0] else "")


_steps = {
    "Kneser-Ney 5-gram": "a Kneser-Ney 5-gram",
    "its levels weighed": "its five levels, weighted",
    "and tokens at eight offsets": "with tokens at eight offsets",
    "mixture, history none": "with pairs that have a gap",
    "mixture, history all": "with the recent past (`--history all`)",
}
_starts = ("explicit", "cold", "warm", "optimum")
_coarse = "mixture of [coarse tokens](counted_not_trained.md#grammar), `--preset grammar`, 30,000 subwords"


def _judge(row: Row) -> str:
    """A model as a judge of grammar."""
    if row["file"] == "grammar":
        return _coarse
    if row["method"] == "explicit":
        return (
            f"explicit, K = {row['radius']}"
            if row["radius"] == 1
            else f"explicit, {row['features'].capitalize()}, K = {row['radius']}"
        )
    return f"mixture, history {row['history']}" if row["method"] == "mixture" else row["method"]


def _judged(rows: Iterable[Row]) -> list[Row]:
    """The accuracy of models with one or two tokens of context and of those with more, and their perplexities."""
    found = list(rows)
    named = ("method", "features", "radius", "history")
    models = {tuple(row[name] for name in named): row for row in where(found, file="babylm-methods")}
    rows = _once(where(found, file="judge-blimp"))
    explicit = sorted((row for row in where(rows, method="explicit") if row["radius"] <= 2), key=_place)
    judged = [*where(rows, method=("unigram", "bigram")), *explicit, *where(rows, method=("ngram", "mixture"))]
    return [*({**models[tuple(row[name] for name in named)], **row} for row in judged), *where(found, file="grammar")]


_one_number_each = {
    "explicit": "explicit",
    "intercept": "with the best intercept",
    "warm": "warm",
    "log-linear": "with one exponent per offset",
}
_model = [Column("features", _features), Column("K", context_length, "d")]


def _difference(row: Row) -> str | None:
    return f"{row['difference']:+.4f} ± {row['standard_error']:.4f}" if "difference" in row else None


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
    "babylm-weights": Table(
        ["babylm-weights"],
        [
            *_model,
            Column("explicit", cell("explicit", _train_dev)),
            Column("delta", cell("delta", _train_dev)),
            Column("δ", cell("delta", "delta"), ".3f"),
            Column("mean-cooccurrence", cell("mean-cooccurrence", _train_dev)),
        ],
        rows=_by_method,
    ),
    "starts": Table(
        ["starts"],
        [*_model, *(Column(method, cell(method, _train_dev)) for method in _starts)],
        rows=_by_method,
    ),
    "babylm-trained": Table(
        ["babylm-trained"],
        [*_model, Column("epochs", cell("cold", "epochs"), "d"), *(Column(m, cell(m, _train_dev)) for m in _starts)],
        rows=_by_method,
    ),
    "intercept": Table(
        ["intercept", "starts"],
        [
            *_model,
            *(Column(heading, cell(method, _train_dev)) for method, heading in _one_number_each.items()),
        ],
        rows=_by_method,
    ),
    "babylm-methods": Table(
        ["babylm-methods", "babylm-sweeps", "babylm-mixture"],
        [Column("", "name"), *_by_radius(".1f", (1, 2, 4, 8, 16)), Column("fitted numbers", _fitted)],
        rows=_by_solution,
    ),
    "babylm-steps": Table(
        ["babylm-methods"],
        [
            Column("rows", lambda event: _steps[event["step"]]),
            Column("exponents", "scalars", "d"),
            Column("held-out perplexity", "held_out_perplexity", ".1f"),
        ],
        rows=lambda _: {event["step"]: event for event in read_events("babylm-methods", "step")}.values(),
        commands=False,
    ),
    "compare": Table(
        ["compare"],
        [
            Column("", "model"),
            Column("bits per byte", "bits_per_byte", ".3f"),
            Column("less the unigram's", _difference),
        ],
        rows=lambda rows: [row for row in rows if "model" in row],
    ),
    "blimp": Table(
        ["judge-blimp", "babylm-methods", "grammar"],
        [
            Column("", _judge),
            Column("BLiMP accuracy, %", "accuracy", ".1f", 100),
            Column("dev perplexity", "dev_perplexity", ".1f"),
            Column("bits per byte", "bits_per_byte", ".3f"),
        ],
        rows=_judged,
        commands=False,
    ),
    "word-vectors": Table(
        ["word-vectors"],
        [Column("features per token", "bits", "d"), *_by_radius(".0f")],
        rows=lambda rows: pivot(where(rows, method="word-vectors"), ["bits"], "radius"),
    ),
    "bitcipher": Table(
        ["bitcipher"],
        [
            Column("b", "bits", "d"),
            *_by_radius(".1f"),
            Column("MB", cell(2, "bytes"), ".1f", scale=1e-6),
        ],
        rows=lambda rows: pivot(where(rows, method="bitcipher"), ["bits"], "radius"),
    ),
}
VALUES: Mapping[str, Value] = {
    "babylm-explicit": Value("babylm", "dev_perplexity", ".1f", {"method": "explicit", "features": "cat", "radius": 1}),
    "babylm-cold": Value("babylm-trained", "dev_perplexity", ".1f", {"method": "cold", "features": "cat", "radius": 4}),
    "babylm-ngram": Value("babylm-mixture", "dev_perplexity", ".1f", {"method": "ngram"}),
    "babylm-mixture": Value("babylm-mixture", "dev_perplexity", ".1f", {"method": "mixture", "history": "none"}),
    "babylm-mixture-past": Value("babylm-mixture", "dev_perplexity", ".1f", {"method": "mixture", "history": "all"}),
}
