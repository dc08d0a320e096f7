"""Tables of a run: on the terminal and in report.md, the paper's numbers beside ours."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jexplicit.runs.figures import perplexity_by_radius, scaling_assumption
from jexplicit.runs.folder import read_config, read_rows
from launch.lm.report_generalising import generalising_section, row_name
from launch.lm.report_starts import starts_section

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

_reading = """\
Perplexity is `exp` of the mean negative log-likelihood in nats per token. *explicit* is the paper's closed form with its
noise model; *unigram* has no context; *bigram* is interpolated Kneser-Ney. The counting pass serves every row, so its
seconds are stated with each. Dev perplexity is over all positions; train perplexity over those in the column *positions*.

The paper's numbers belong to its own 10 M-word data and cannot all follow from its formulas: at K = 1 the explicit solution
*is* the bigram maximum likelihood up to one pseudo-count, so no training can lower its train perplexity from 85.4 to 40.1.
They stand beside ours for comparison only.
"""


def scaling_path(out: Path, features: str, radius: int) -> Path:
    """Where a run keeps the points of the scaling figure of one model: f [N] and log_means [N]."""
    return out / "scaling" / f"{features}_{radius}.npz"


def language_model_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The results as a table for the terminal, like the paper's Table 1."""
    table = Table(title="perplexity (the paper's, on its own data, in grey)", title_justify="left")
    for heading in ("method", "features", "K", "train", "paper", "dev", "paper", "solve s", "eval s"):
        table.add_column(heading, justify="left" if heading in ("method", "features") else "right")
    for row in rows:
        train, dev = _paper(row)
        table.add_row(
            row_name(row),
            row["features"],
            str(row["radius"]),
            f"{row['train_perplexity']:.1f}",
            f"[dim]{train}[/]",
            f"[bold]{row['dev_perplexity']:.1f}[/]",
            f"[dim]{dev}[/]",
            f"{row['solve_seconds']:.2f}",
            f"{row['eval_seconds']:.2f}",
        )
    return table


def write_language_model_report(out: Path) -> Path:
    """Write report.md and its figures from the files of a `launch.lm` run."""
    rows, config = read_rows(out), read_config(out) or {}
    samples = json.loads((out / "samples.json").read_text())
    explicit = [row for row in rows if row["method"] == "explicit"]
    if explicit:
        perplexity_by_radius(rows, PAPER_TABLE["explicit"], out / "figures" / "perplexity.png")
    scaled = [row for row in explicit if "scaling_slope" in row]  # of dense tables
    if scaled:
        scaling_assumption([_panel(out, row) for row in scaled], out / "figures" / "scaling.png")
    first = rows[0]
    lines = [
        "# The explicit language model",
        "",
        f"Corpus `{first['corpus']}` ({first['train_tokens']:,} train and {first['dev_tokens']:,} dev tokens, sha256 "
        f"`{first['corpus_sha256'][:16]}`), {config.get('tokenizer')} vocabulary of {first['vocab_size']:,}; one counting pass "
        f"of {first['count_seconds']:.2f} s.",
        "",
        "| method | features | K | train | paper | dev | paper | positions | count s | solve s | eval s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        train, dev = _paper(row)
        lines.append(
            f"| {row_name(row)} | {row['features']} | {row['radius']} | {row['train_perplexity']:.1f} | {train} | "
            f"**{row['dev_perplexity']:.1f}** | {dev} | {row['train_positions']:,} | {row['count_seconds']:.2f} | "
            f"{row['solve_seconds']:.2f} | {row['eval_seconds']:.2f} |"
        )
    lines += [
        "",
        _reading,
        *(("![perplexity by radius](figures/perplexity.png)", "") if explicit else ()),
        *starts_section(out, rows),
        *generalising_section(out, rows),
        *(_scaling_section(scaled) if scaled else ()),
        *(("## Sampled text", "", *(f"```text\n{sample}\n```\n" for sample in samples)) if samples else ()),
    ]
    report = out / "report.md"
    report.write_text("\n".join(lines))
    return report


def _scaling_section(explicit: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of the scaling assumption, one per explicit model."""
    return [
        "## The scaling assumption",
        "",
        "The solution assumes that the mean co-occurrence of an output grows as its count, slope 1 (Eq. 11-14, Fig. 1 left).",
        "",
        "| features | K | fitted slope | correlation |",
        "|---|---|---|---|",
        *(
            f"| {row['features']} | {row['radius']} | {row['scaling_slope']:.3f} | {row['scaling_correlation']:.3f} |"
            for row in explicit
        ),
        "",
        "![scaling assumption](figures/scaling.png)",
        "",
    ]


def _panel(out: Path, row: dict[str, Any]) -> dict[str, Any]:
    """One panel of the scaling figure."""
    points = np.load(scaling_path(out, row["features"], row["radius"]))
    title = f"{row['features'].capitalize()}, K = {row['radius']}"
    return {**points, "title": title, "slope": row["scaling_slope"], "intercept": row["scaling_intercept"]}


def _paper(row: dict[str, Any]) -> tuple[str, str]:
    """The paper's train and dev perplexity of the same model, or blanks."""
    values = PAPER_TABLE.get(row["method"], {}).get(row["features"], {}).get(row["radius"])
    return (f"{values[0]}", f"{values[1]}") if values else ("", "")
