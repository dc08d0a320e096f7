"""Tables of a launch.lm run: on the terminal and in report.md, the paper's numbers beside ours."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.lm.fits.ablation import kind_name
from jexplicit.lm.names import label
from jexplicit.runs.results import read_config, read_events, read_rows
from jexplicit.runs.tables import Column, markdown_table, rich_table
from launch.lm import figures
from launch.lm.figures import Curves

Row = dict[str, Any]

_much = 0.01  # of the dev documents in train: worth a warning

# Table 1 of the paper, (train, dev) perplexity on its BabyLM 10 M-word data. Columns T-c D-c, T-p D-p and T-w D-w.
PAPER_TABLE: dict[str, dict[str, dict[int, tuple[float, float]]]] = {
    "cold": {
        "sum": {1: (51.4, 56.4), 2: (47.6, 56.3), 4: (60.7, 75.0)},
        "cat": {1: (51.4, 56.4), 2: (30.0, 35.6), 4: (24.6, 31.6)},
    },
    "explicit": {
        "sum": {1: (85.4, 91.8), 2: (104.0, 121.5), 4: (144.0, 176.9)},
        "cat": {1: (85.4, 91.8), 2: (52.0, 61.8), 4: (40.3, 55.4)},
    },
    "warm": {
        "sum": {1: (40.1, 45.7), 2: (41.0, 51.3), 4: (53.8, 72.2)},
        "cat": {1: (40.1, 45.7), 2: (25.8, 33.0), 4: (20.7, 31.2)},
    },
}

_about_results = """\
Perplexity is `exp` of the mean negative log-likelihood in nats per token, which *nats* shows of dev. *explicit* is the paper's
closed form with its noise model; *unigram* has no context; *bigram* is interpolated Kneser-Ney. *history* is what a model sees
beyond its context of K tokens: nothing, what stands before in the document, the last W tokens (*window:W*), or all of the text
before. One counting pass serves every row, so its seconds are stated once. Dev perplexity is over all positions unless
--dev-sample bounds them; train perplexity over those in the column *positions*.

*Bits per byte* and *word perplexity* are of the dev text whatever its tokens are, so they compare with those of other
tokenizers, and of lm-evaluation-harness: words stand between white space, and a sample of positions is scaled to all of them.
"""
_about_paper = """\
The paper's numbers belong to its own 10 M-word data and cannot all follow from its formulas: at K = 1 the explicit solution
*is* the bigram maximum likelihood up to one pseudo-count, so no training can lower its train perplexity from 85.4 to 40.1.
They stand beside ours for comparison only.
"""
_about_table_1 = """\
Cold and warm starts after their last epoch, where the paper's numbers are after 32, and at the epoch with the lowest dev
perplexity (0 is the start). Learning rate {rate:g}, batches of {batch:,}; the paper has 0.01 and does not give its batch. The
train perplexity of the last epoch is the mean over its steps.
"""
_about_starts = """\
*delta* corrects the exponent of the explicit solution by one fitted number (Sec. 2.2), *mean-cooccurrence* has its weights
before the scaling assumption (Eq. 14), and *intercept* keeps its tables and fits one number per token, by sweeps without
gradients. *cold* and *warm* are trained by gradients, from random tables and from the explicit solution; *optimum* is the
minimum of the convex training loss, as far as its iterations went. Perplexities are those of the epoch with the lowest dev
perplexity; epoch 0 is the start itself. *KKT residual* is `||Hᵀ(Y - P)||_1 / (K M)`: the share of co-occurrences that a model
misplaces, counted where they are and where they should be. *Break-even* is when the cold start reaches the train perplexity of
the explicit solution, which took one pass.
"""
_about_floor = """\
At K = 1 the optimum of the training loss gives probability 0 to every pair that never occurs, so its dev perplexity is
infinite. The number in the table belongs to a floor of {floor:g} counts in the place of 0 (--optimum-floor).
"""
_about_generalising = """\
All are sums of log rows of counts, as the explicit solution is; *scalars* is how many numbers were fitted, by Newton's method
on documents held out of the counts. *log-linear* has smoothed rows and an exponent per offset. *iterative-scaling* sweeps on
from there, without gradients: expected co-occurrences come within a discount of the observed ones. *ngram* is modified Kneser-
Ney of order 5. *mixture* weighs the rows that `--rows` names; with a history also rows of the recent past. *bitcipher* and
*word-vectors* are the explicit solution with fewer features than tokens. *MB* are those of the model, *seconds* all that it
takes after the counting pass. *held out* is perplexity on the documents that the scalars were fitted on.
"""

_about_row_kinds = """\
Perplexity of mixtures with fewer kinds of rows, on {positions:,} of the held-out positions. *Added*: with this kind and those
of the rows above it, from the n-gram model on. *Left out*: with all kinds but this one, and how much higher that is than with
all of them, which the row *nothing* is. All are fitted on the positions that they are measured on, from the exponents of the
mixture, so a kind with many *scalars* looks a little better than it is.
"""
_row_kind_columns = [
    Column("history", "history"),
    Column("rows", "rows"),
    Column("scalars", "scalars", "d"),
    Column("added", "added", ".2f"),
    Column("left out", "left_out", ".2f"),
    Column("increase", "increase", "+.1%"),
]


def scaling_path(out: Path, features: str, radius: int) -> Path:
    """Where a run keeps the points of the scaling figure of one model: f [N] and log_means [N]."""
    return out / "scaling" / f"{features}_{radius}.npz"


def row_name(row: Row) -> str:
    """The method of a row, and what tells two rows of a method apart."""
    return f"{row['method']}, {row['bits']} bits" if "bits" in row else row["method"]


_model = [
    Column("method", row_name),
    Column("features", "features"),
    Column("K", "radius", "d"),
    Column("history", "history"),
]
_train, _dev = Column("train", "train_perplexity", ".1f"), Column("dev", "dev_perplexity", ".1f", bold=True)
_nats = Column("nats", lambda row: math.log(row["dev_perplexity"]), ".4f")
_perplexities = [_train, _dev, _nats]
_beside_paper = [
    _train,
    Column("paper", lambda row: _paper(row, 0), ".1f"),
    _dev,
    Column("paper", lambda row: _paper(row, 1), ".1f"),
]
_seconds = [Column("solve s", "solve_seconds", ".2f"), Column("eval s", "eval_seconds", ".2f")]


def comparable_columns() -> list[Column]:
    """Columns of what compares across tokenizers; a dash where it is not known."""

    def or_dash(field: str):
        return lambda row: "-" if row.get(field) is None else row[field]

    fields = (("bits per byte", "bits_per_byte", ".3f"), ("word perplexity", "word_perplexity", ",.1f"))
    return [Column(heading, or_dash(field), form) for heading, field, form in fields]


def repetition(row: Row) -> str:
    """What to say where at least 1 % of the dev documents stand in train; empty where fewer do, or where it is not known."""
    if (row.get("dev_in_train") or 0) < _much:
        return ""
    shares = f"{row['dev_in_train']:.1%} of the dev documents, {row['dev_bytes_in_train']:.1%} of the dev bytes,"
    return f"{shares} stand in train word for word: the dev numbers are better than those of new text"


def results_table(rows: Sequence[Row], *, paper: bool = False) -> Table:
    """The results as a table for the terminal, on request like the paper's Table 1."""
    perplexities, title = (_beside_paper, "perplexity (paper: on its own data)") if paper else (_perplexities, "perplexity")
    if rows and rows[0].get("unknown_share"):
        title += f"; {rows[0]['unknown_share']:.2%} of the dev tokens are <unk>"
    return rich_table([Column("model", label), *perplexities, *comparable_columns(), *_seconds], rows, title=title)


def write_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.lm` run."""
    rows, config = read_rows(out), read_config(out) or {}
    path = out / "samples.json"
    samples = json.loads(path.read_text()) if path.exists() else []  # a run that failed has none
    first, paper = rows[0], bool(config.get("paper"))
    about = f"{first['corpus_about']}; " if first.get("corpus_about") else ""
    perplexities = _beside_paper if paper else _perplexities
    lines = [
        "# Language models",
        "",
        f"Corpus `{first['corpus']}` ({about}{first['train_tokens']:,} train and {first['dev_tokens']:,} dev tokens, sha256 "
        f"`{first['corpus_sha256'][:16]}`), {config.get('tokenizer')} vocabulary of {first['vocab_size']:,}; one counting pass "
        f"of {first['count_seconds']:.2f} s.",
        *_about_dev(first),
        *markdown_table(
            [*_model, *perplexities, *comparable_columns(), Column("positions", "train_positions", ","), *_seconds], rows
        ),
        _about_results,
        *([_about_paper] if paper else []),
        *_radius_section(out, rows, PAPER_TABLE["explicit"] if paper else {}),
        *(_table_1_section(rows) if paper else []),
        *_starts_section(out, rows),
        *_generalising_section(out, rows),
        *_scaling_section(out, rows),
        *(("## Sampled text", "", *(f"```text\n{sample}\n```\n" for sample in samples)) if samples else ()),
    ]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def _about_dev(row: Row) -> list[str]:
    """What the numbers on the dev text suffer from: unknown tokens, and documents that train has too."""
    if row.get("unknown_share") is None:
        return []
    small = ", of which a model need not say what they are: bits per byte are too small by that" if row["unknown_share"] else ""
    unknown = f"{row['unknown_share']:.2%} of the dev tokens are `<unk>`{small}."
    share = row.get("dev_in_train")
    repeats = f"{share:.2%} of the dev documents stand in train word for word." if share is not None else ""
    warning = [f"**Warning:** {note}.", ""] if (note := repetition(row)) else []
    return ["", f"{unknown} {'' if warning else repeats}".strip(), "", *warning]


def _radius_section(out: Path, rows: Sequence[Row], paper: dict[str, dict[int, tuple[float, float]]]) -> list[str]:
    if not _of(rows, "explicit"):
        return []
    figures.perplexity_by_radius(rows, paper, out / "figures" / "perplexity.png")
    return ["![perplexity by radius](figures/perplexity.png)", ""]


def _scaling_section(out: Path, rows: Sequence[Row]) -> list[str]:
    scaled = [row for row in _of(rows, "explicit") if "scaling_slope" in row]  # of dense tables
    if not scaled:
        return []
    panels = [
        {
            **np.load(scaling_path(out, row["features"], row["radius"])),
            "title": f"{row['features'].capitalize()}, K = {row['radius']}",
            "slope": row["scaling_slope"],
            "intercept": row["scaling_intercept"],
        }
        for row in scaled
    ]
    figures.scaling_assumption(panels, out / "figures" / "scaling.png")
    columns = [
        *_model[1:3],
        Column("fitted slope", "scaling_slope", ".3f"),
        Column("correlation", "scaling_correlation", ".3f"),
    ]
    return [
        "## The scaling assumption",
        "",
        "The solution assumes that the mean co-occurrence of an output grows as its count, slope 1 (Eq. 11-14, Fig. 1 left).",
        *markdown_table(columns, scaled),
        "![scaling assumption](figures/scaling.png)",
        "",
    ]


def _table_1_section(rows: Sequence[Row]) -> list[str]:
    """Trained models after their last epoch beside the paper's Table 1, and at their best; nothing without such models."""
    trained = [row for row in _of(rows, "cold", "warm") if "last_dev_perplexity" in row]
    if not trained:
        return []

    def paper(part: int):
        return lambda row: _paper(row, part, ("cold", "warm"))

    columns = [
        *_model[:3],
        Column("epochs", "epochs", "d"),
        Column("train, last", "last_train_perplexity", ".1f"),
        Column("paper", paper(0), ".1f"),
        Column("dev, last", "last_dev_perplexity", ".1f"),
        Column("paper", paper(1), ".1f"),
        Column("best epoch", "best_epoch", "d"),
        Column("train, best", "train_perplexity", ".1f"),
        Column("dev, best", "dev_perplexity", ".1f", bold=True),
    ]
    about = _about_table_1.format(rate=trained[0]["learning_rate"], batch=trained[0]["batch_size"])
    return ["## Table 1", "", about, *markdown_table(columns, trained)]


def _starts_section(out: Path, rows: Sequence[Row]) -> list[str]:
    """Cold and warm starts beside the explicit solution and the optimum; nothing for a run without trained models."""
    trained = _of(rows, "delta", "mean-cooccurrence", "intercept", "cold", "warm", "optimum")
    if not trained:
        return []
    curves = read_curves(out)
    explicit = {(row["features"], row["radius"]): row for row in _of(rows, "explicit")}
    columns = [
        *_model[:3],
        Column("train", "train_perplexity", ".1f"),
        Column("dev", "dev_perplexity", ".1f"),
        Column("epochs", "epochs", "d"),
        Column("best", "best_epoch", "d"),
        Column("KKT residual", "kkt_residual", ".4f"),
        Column("seconds", "seconds", ".1f"),
        Column("positions/s", "positions_per_second", ",.0f"),
        Column("break-even", lambda row: _break_even(row, curves, explicit)),
    ]
    lines = ["## Cold and warm starts", "", _about_starts, *markdown_table(columns, [*explicit.values(), *trained])]
    if floors := [row["floor"] for row in _of(rows, "optimum") if "floor" in row]:
        lines += [_about_floor.format(floor=floors[0])]
    if curves:
        figures.loss_curves(curves, out / "figures" / "loss_curves.png")
        figures.compute_curves(curves, explicit, out / "figures" / "compute.png")
        lines += ["![loss curves](figures/loss_curves.png)", "", "![perplexity against compute](figures/compute.png)", ""]
    return lines


def read_curves(out: Path) -> Curves:
    """The epochs of each trained model, from metrics.jsonl; an epoch that a resumed run repeated counts once."""
    curves: dict[tuple[str, str, int], dict[int, Row]] = {}
    for event in read_events(out, "epoch"):
        curves.setdefault((event["method"], event["features"], event["radius"]), {})[event["epoch"]] = event
    return {model: [epochs[n] for n in sorted(epochs)] for model, epochs in curves.items()}


def break_even(curve: Sequence[Row], perplexity: float) -> Row | None:
    """The first epoch of a training curve with at most this train perplexity, or None."""
    return next((epoch for epoch in curve if epoch["train_perplexity"] <= perplexity), None)


def _break_even(row: Row, curves: Curves, explicit: dict[tuple[str, int], Row]) -> str:
    features, K = row["features"], row["radius"]
    curve = curves.get(("cold", features, K))
    if row["method"] != "cold" or curve is None or (features, K) not in explicit:
        return ""
    epoch = break_even(curve, explicit[features, K]["train_perplexity"])
    return f"epoch {epoch['epoch']}, {epoch['seconds']:.0f} s" if epoch else "not reached"


def _generalising_section(out: Path, rows: Sequence[Row]) -> list[str]:
    """Solutions that generalise, beside all others; nothing for a run without such models."""
    if not _of(rows, "log-linear", "iterative-scaling", "ngram", "mixture", "bitcipher", "word-vectors"):
        return []
    columns = [
        *_model,
        Column("scalars", "scalars", "d"),
        Column("MB", "bytes", ",.1f", scale=1e-6),
        Column("seconds", "seconds", ",.1f"),
        Column("held out", "held_out_perplexity", ",.1f"),
        Column("train", "train_perplexity", ".1f"),
        Column("dev", "dev_perplexity", ".1f", bold=True),
    ]
    folder, order = out / "figures", sorted(rows, key=lambda row: -row["dev_perplexity"])
    lines = ["## Solutions that generalise", "", _about_generalising, *markdown_table(columns, order)]
    if _of(rows, "log-linear", "iterative-scaling"):
        figures.perplexity_by_method(rows, folder / "methods.png")
        lines += ["![dev perplexity by method](figures/methods.png)", ""]
    lines += _row_kinds(out)
    if fitted := _of(rows, "log-linear"):
        figures.exponents_by_offset(fitted, folder / "exponents.png")
        lines += [*_exponents(fitted), "![exponents](figures/exponents.png)", ""]
    if _of(rows, "iterative-scaling"):
        figures.sweep_curves(read_events(out, "sweep"), folder / "sweeps.png")
        lines += ["![perplexity by sweep](figures/sweeps.png)", ""]
    if coded := _of(rows, "bitcipher"):
        figures.perplexity_by_bits(coded, folder / "bits.png")
        lines += ["![perplexity and memory by bits](figures/bits.png)", ""]
    return lines


def _row_kinds(out: Path) -> list[str]:
    """What each kind of row buys a mixture of every history; what a resumed run measured again counts once."""
    steps, ablations = read_events(out, "step"), read_events(out, "ablation")
    if not steps:
        return []
    whole = {event["history"]: event for event in ablations if event["without"] is None}
    lines: dict[tuple[str, str], Row] = {}
    for event in steps:
        name = kind_name(event["kind"]) if event["kind"] else event["step"]
        line = {"history": event["history"], "rows": name, "scalars": event["scalars"], "added": event["held_out_perplexity"]}
        lines[event["history"], name] = line
    for event in ablations:
        all_of_them, kind, perplexity = whole[event["history"]], event["without"], event["held_out_perplexity"]
        line = lines.setdefault((event["history"], kind_name(kind) if kind else "nothing"), {"history": event["history"]})
        line |= {"rows": kind_name(kind) if kind else "nothing", "left_out": perplexity}
        line["scalars"] = all_of_them["scalars"] - event["scalars"] if kind else event["scalars"]
        line["increase"] = perplexity / all_of_them["held_out_perplexity"] - 1 if kind else None
    histories = list(dict.fromkeys(event["history"] for event in steps))
    ordered = sorted(lines.values(), key=lambda line: (histories.index(line["history"]), line["rows"] == "nothing"))
    about = _about_row_kinds.format(positions=max(event["positions"] for event in steps))
    told = ["### What each kind of row buys", "", about, *markdown_table(_row_kind_columns, ordered)]
    if all(line.get("increase") is None for line in ordered):
        return told
    figures.row_kinds(ordered, out / "figures" / "rows.png")
    return [*told, "![what perplexity rises by without each kind of row](figures/rows.png)", ""]


def _exponents(rows: Sequence[Row]) -> list[str]:
    K = max(row["radius"] for row in rows)

    def exponent(k: int):
        return lambda row: row["exponents"][k] if k < len(row["exponents"]) else None

    columns = [
        *_model[1:3],
        Column("mu", exponent(0), ".3f"),
        *(Column(f"lambda_{k}", exponent(k), ".3f") for k in range(1, K + 1)),
        Column("slope", "implied_slope", ".3f"),
    ]
    about = (
        "Fitted exponents: mu of the unigram, lambda_k of offset k, and the slope of the scaling assumption that they imply."
    )
    return [about, *markdown_table(columns, rows)]


def _of(rows: Sequence[Row], *methods: str) -> list[Row]:
    return [row for row in rows if row["method"] in methods]


def _paper(row: Row, part: int, methods: tuple[str, ...] = ("explicit",)) -> float | None:
    """The paper's train (0) or dev (1) perplexity of the same model; those of trained ones belong to their last epoch."""
    values = PAPER_TABLE.get(row["method"] if row["method"] in methods else "", {}).get(row["features"], {}).get(row["radius"])
    return values[part] if values else None
