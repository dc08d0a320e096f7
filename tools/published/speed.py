"""docs/speed.md, docs/scaling_out.md, docs/trillion_tokens.md, and the times of docs/commands.md."""

from collections.abc import Iterable

from jexplicit.runs.tables import Column
from launch.bench.stages import COLUMNS
from tools.declarations import Row, Table, Value, cell, pivot, where

_peers = {
    "numpy.bincount": "jexplicit, times `numpy.bincount`",
    "numpy.bincount, given the ids": "... with the ids given to `numpy.bincount`",
    "scipy.sparse": "`scipy.sparse`, times `numpy.bincount`",
    "increments of ready ids": "jexplicit, share of the machine's limit (increments of ready ids)",
}
_jobs = {
    "ngram": "ngram, order 5",
    "mixture": "mixture (offsets, contexts, gaps), 17 fitted exponents",
    "kenlm": "KenLM, order 5",
}
_models = ("unigram", "bigram", "Cat K = 1", "Cat K = 2", "Sum K = 2")


def _beside_kenlm(row: Row) -> str:
    return f"{row['ratio']:.1f} times faster" if "ratio" in row else "1"


def _perplexity(row: Row) -> str:
    """With five decimals where tables that should agree are compared."""
    digits = 5 if row["vocab_size"] < 100_000 and " K" in row["model"] else 1
    return f"{row['dev_perplexity']:.{digits}f}"


def _bytes_of_counts(line: Row) -> str:
    row = line[_models[-1]]
    return (
        f"{row['devices']} x {row['count_bytes'] / 1e6:.0f} MB" if row["devices"] > 1 else f"{row['count_bytes'] / 1e6:.0f} MB"
    )


def _both(row: Row) -> str:
    return f"{row['embedding']:.1f} ({row['fastest']:.1f})"


_calls = (("before", "before"), ("first call", "first"), ("second call", "second"))
_functions = {
    "counting": "counting, 4 M positions",
    "log partition functions": "log partition functions, 32,768 contexts",
    "log partition by columns": "the same, columns spread over devices",
    "moments of a mixture": "moments of a mixture, 64 positions",
    "moments on devices": "the same of 4096 positions, on the device",
    "mixture on devices": "log-probabilities of 32,768 positions, on the device",
    "attribution": "attribution, 2048 positions",
    "Adagrad step": "Adagrad step",
    "gradient of 2^18 contexts": "gradient of 2^18 contexts",
    "ICL step, 1 layer": "step of one layer of attention, 5 seeds",
    "ICL step, 5 layers": "step of five layers",
    "BLUR scores": "scores of 8 genomes, 8 learners each",
    "BLUR meta-step": "meta-step of 8 genomes, 10 updates",
    "BLUR learning curves": "learning curves, 10 seeds",
    "descent curves": "those of descent, 16 rates",
}


def _by_function(rows: Iterable[Row]) -> list[Row]:
    """A line for each function: its kernels now, and those of the code before."""
    lines = {line["function"]: line for line in pivot(rows, ["function"], "file")}
    return [{**lines[function], "name": name} for function, name in _functions.items()]


def _pod(platform: str) -> Table:
    """The stages on a pod of these chips."""
    return Table(["trillion-tokens"], COLUMNS, rows=lambda rows: where(rows, platform=platform), commands=False)


TABLES = {
    "speed-counting": Table(
        ["speed-counting"],
        [Column("", lambda line: _peers[line["peer"]]), *(Column(f"K = {K}", cell(K, "ratio"), ".2f") for K in (1, 2, 4))],
        rows=lambda rows: pivot(rows, ["peer"], "radius"),
    ),
    "speed-lm": Table(
        ["speed-lm"],
        [
            Column("", lambda row: _jobs[row["case"]]),
            Column("fit, s", "fit_seconds", ".1f"),
            Column("vs. KenLM", _beside_kenlm),
            Column("M tokens fitted a second", "tokens_per_second", ".1f", 1e-6),
            Column("dev, s", "eval_seconds", ".2f"),
            Column("tokens scored a second", "scored_per_second", ",d"),
            Column("tokens generated a second", "generated_per_second", ",d"),
            Column("CPU seconds", "cpu_seconds", ".1f"),
            Column("peak, GB", "peak_bytes", ".1f", 1e-9),
            Column("perplexity", "perplexity", ".2f"),
        ],
    ),
    "speed-training": Table(
        ["speed-training"],
        [Column("batch", "batch", "d"), *(Column(f"K = {K}", cell(K, _both)) for K in (1, 4))],
        rows=lambda rows: pivot(rows, ["batch"], "radius"),
    ),
    "kernels": Table(
        ["kernels", "kernels-before"],
        [
            Column("function, on an H100", "name"),
            Column("kernels", cell("kernels", "kernels"), ",d"),
            Column("before", cell("kernels-before", "before"), ",d"),
            Column("MB", cell("kernels", "bytes"), ",.0f", 1e-6),
            Column("estimate, ms", cell("kernels", "estimated_ms"), ".2f"),
            Column("bytes alone, ms", cell("kernels", "roofline_ms"), ".2f"),
        ],
        rows=_by_function,
    ),
    "compiled-functions": Table(
        ["compiled-functions"],
        [
            Column("command", "job"),
            *(Column(name, field) for name, field in _calls),
        ],
        commands=False,
    ),
    "trillion-h100": _pod("h100"),
    "trillion-v5e": _pod("v5e"),
    "scaling-memory": Table(
        ["scaling-memory"],
        [
            Column("M tokens", "tokens", ".0f", 1e-6),
            Column("`--memory`", "memory"),
            Column("ranges", "ranges", "d"),
            Column("CPU seconds", "cpu_seconds", ".1f"),
            Column("peak memory, GB", "peak_bytes", ".2f", 1e-9),
            Column("tables, GB", "bytes", ".2f", 1e-9),
            Column("disk meanwhile, GB", "disk_bytes", ".2f", 1e-9),
        ],
    ),
    "scaling-vocabulary": Table(
        ["scaling-vocabulary"],
        [
            Column("vocabulary", "vocab_size", ",d"),
            Column("tables", "tables"),
            *(Column(model, cell(model, _perplexity)) for model in _models),
            Column("counts, K = 2", _bytes_of_counts),
        ],
        rows=lambda rows: pivot(rows, ["vocab_size", "tables"], "model"),
    ),
}
VALUES: dict[str, Value] = {}
