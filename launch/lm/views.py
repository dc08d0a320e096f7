"""Tables and figures of a launch.lm run, also of the docs."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import NullLocator

from jexplicit.lm.names import label
from launch.kit.views import Column, Lines, Results, Row, Table, View, figure, pivot, section, texts, where

_much = 0.01  # of the dev documents in train: worth a warning
_parts = {"train_perplexity": "train", "dev_perplexity": "dev"}
_trained, _swept = ("delta", "cold", "warm", "optimum"), ("log-linear", "iterative-scaling")
_log: Any = {"xscale": "log", "yscale": "log", "ylabel": "perplexity"}


def scaling_file(features: str, radius: int) -> str:
    """The file of a model's scaling points: f and log_means [N]."""
    return f"scaling/{features}_{radius}.npz"


def repetition(row: Row) -> str:
    """A warning if 1 % of the dev documents occur in train."""
    if (row.get("dev_in_train") or 0) < _much:
        return ""
    shares = f"{row['dev_in_train']:.1%} of the dev documents, {row['dev_bytes_in_train']:.1%} of the dev bytes,"
    return f"{shares} stand in train word for word: the dev numbers are better than those of new text"


def _about(results: Results) -> list[str]:
    """The text of a run, with unknown tokens and repeated documents."""
    row, warning, unknown = results.rows[0], repetition(results.rows[0]), results.rows[0]["unknown_share"]
    about = f"{row['corpus_about']}; " if row.get("corpus_about") else ""
    sizes = f"{row['train_tokens']:,} train and {row['dev_tokens']:,} dev tokens, sha256 `{row['corpus_sha256'][:16]}`"
    counting = f"{results.config['tokenizer']} vocabulary of {row['vocab_size']:,}, counted in {row['count_seconds']:.2f} s"
    lines = [f"Corpus `{row['corpus']}` ({about}{sizes}); {counting}.", f"{unknown:.2%} of the dev tokens are `<unk>`."]
    return [*lines, *([f"**Warning:** {warning}."] if warning else []), ""]


def _model(row: Row) -> str:
    return "Sum = Cat, K = 1" if row["radius"] == 1 else f"{row['features'].capitalize()}, K = {row['radius']}"


_test = (Column("test nats", "test_loss", ".4f"), Column("±", "test_loss_se", ".4f"))
RESULTS = Table(
    [
        Column("model", label), Column("train", "train_perplexity", ".1f"), Column("dev", "dev_perplexity", ".1f"),
        Column("nats", lambda row: np.log(row["dev_perplexity"]), ".4f"),
        Column("bits per byte", "bits_per_byte", ".3f"), Column("word perplexity", "word_perplexity", ",.1f"),
        Column("test", "test_perplexity", ".1f"), *_test, Column("fitted numbers", "scalars", "d"),
        Column("held out", "held_out_perplexity", ",.1f"), Column("positions", "train_positions", ","),
        Column("MB", "bytes", ",.1f", 1e-6), Column("solve s", "solve_seconds", ".2f"),
        Column("eval s", "eval_seconds", ".2f"), Column("best epoch", "best_epoch", "d"),
        Column("slope", "scaling_slope", ".3f"),
    ],
    note="""\
Perplexity per token: train over so many *positions*, *held out* over the documents that exponents were fitted on. *Nats*, *bits
per byte* and *word perplexity* are of dev; the last two compare with other tokenizers and with lm-evaluation-harness. *Test* is
measured once, of the models that dev chose: ± is the standard error of its nats over documents. The solution assumes a *slope*
of 1 of mean co-occurrences by counts (Eq. 12-14).""",
)  # fmt: skip
TESTS = Table(
    [
        Column("model", label), Column("file", "file"), Column("documents", "test_documents", ","),
        Column("positions", "test_positions", ","), Column("perplexity", "test_perplexity", ".1f"), *_test,
    ],
    lambda results: results.events("test", "method", "features", "radius", "history", "file"),
    note="The test text by file, each of which is a text of its own.",
)  # fmt: skip


def _of_methods(lines: list[Row]) -> Sequence[Column]:
    methods = dict.fromkeys(name.removesuffix(" pair") for line in lines for name in line if name.endswith(" pair"))
    epochs, delta = Column("epochs", "cold epochs", "d"), Column("δ", "delta delta", ".3f")
    return [Column("model", "model"), epochs, *(Column(method, f"{method} pair") for method in methods), delta]


def _pairs(results: Results) -> list[Row]:
    """Train / dev perplexity by model and method."""
    pair = "{train_perplexity:.1f} / {dev_perplexity:.1f}"
    rows = [{**row, "model": _model(row), "pair": pair.format(**row)} for row in where(results.rows, **_compared)]
    return pivot(rows, "model", "method")


_compared = {"method": ("explicit", *_trained, *_swept)}
BY_METHOD = Table(_of_methods, _pairs)


def _line(row: Row) -> str:
    return label(row) if row["features"] == "none" else f"{row['method']}, {row['features']}"


def _loss_curves(results: Results) -> list[Row]:
    """The epochs by features and part; both features share K = 1."""
    epochs = results.events("epoch", "method", "features", "radius", "epoch")
    return [
        {**row, "model": f"{row['method']}, K = {row['radius']}", "y": row[name], "panel": f"{features.capitalize()}, {part}"}
        for features, (name, part) in itertools.product(("sum", "cat"), _parts.items())
        for row in epochs
        if row["features"] == features or row["radius"] == 1
    ]


def _scaling(results: Results) -> list[str]:
    """The scaling assumption (paper, Fig. 1 left), with the fitted line."""
    rows = [row for row in results.rows if "scaling_slope" in row]
    if not rows:
        return []
    columns, lines = min(len(rows), 3), -(-len(rows) // 3)
    with figure(results.path / "figures" / "scaling.png", lines, columns, size=(3.6 * columns, 3.3 * lines)) as axes:
        for ax, row in zip(axes.flat, rows, strict=False):
            points, slope = np.load(results.path / scaling_file(row["features"], row["radius"])), row["scaling_slope"]
            f = points["f"][points["f"] > 0].astype(float)
            means = np.exp(points["log_means"][points["f"] > 0].astype(float))
            ax.hexbin(f, means, xscale="log", yscale="log", gridsize=45, mincnt=1, cmap="viridis", norm=LogNorm())
            ends = np.array([f.min(), f.max()])
            ax.plot(ends, np.exp(row["scaling_intercept"]) * ends**slope, color="#d55e00", label=f"fitted slope {slope:.3f}")
            level = np.exp(np.log(means).mean() - np.log(f).mean())
            ax.plot(ends, level * ends, "--", color="black", linewidth=1, label="slope 1 (assumed)")
            ax.set(title=_model(row), xlabel="token count $f_i$", ylabel=r"$\langle E_G[F_i] \rangle$")
            for axis in (ax.xaxis, ax.yaxis):  # of six panels they take seconds to lay out
                axis.set_minor_locator(NullLocator())
            ax.legend(fontsize=8, loc="lower right")
    return ["![scaling assumption](figures/scaling.png)", ""]


_by_radius = lambda row: None if row["features"] == "none" else row["radius"]  # noqa: E731  (other models are levels)
PERPLEXITY = Lines("perplexity", _by_radius, _parts, _line, "measure", axes={**_log, "xlabel": "radius"}, sharey=True)
_linear = {**_log, "xscale": "linear"}
LOSS_CURVES = Lines("loss_curves", "epoch", "y", "model", "panel", _loss_curves, axes=_linear)
VIEWS: Sequence[View] = (
    _about,
    RESULTS,
    TESTS,
    PERPLEXITY,
    section("Methods", BY_METHOD, LOSS_CURVES, **_compared),
    _scaling,
    texts("Sampled text", "samples.json"),
)
