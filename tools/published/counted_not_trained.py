"""docs/counted_not_trained.md."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from jexplicit.runs.tables import Column
from tools.declarations import Row, Table, Value, cell, only, pivot, read_events, where

_models = (
    {"method": "ngram", "model": "Kneser-Ney 5-gram", "sees": "4 characters"},
    {
        "method": "mixture",
        "history": "none",
        "model": "mixture",
        "sees": "the nearest 48 characters, from counts of the training text alone",
    },
    {
        "method": "mixture",
        "history": "window:256",
        "model": "mixture, history window:256",
        "sees": "and what followed the same characters within the last 256",
    },
)


class Published(NamedTuple):
    """A model of nanoGPT's README: its sizes and training, its windows, its loss, its parameters."""

    model: str
    windows: int
    nats: float
    parameters: str


NANOGPT = (
    Published("6 layers of 384 channels, 3 minutes on an A100", 256, 1.4697, "12 x 6 x 384² = 10.6 M"),
    Published("4 layers of 128 channels, 3 minutes on a CPU", 64, 1.88, "12 x 4 x 128² = 0.8 M"),
)


def _line(model: Published) -> Row:
    return {
        "model": f"*nanoGPT's README: {model.model}*",
        "sees": f"*windows of {model.windows}*",
        "dev_loss": f"*{model.nats}*",
        "scalars": f"*{model.parameters}*",
    }


def _beside_nanogpt(rows: Iterable[Row]) -> list[Row]:
    found = where(rows, method=("ngram", "mixture"))
    ours = [{**only(found, **{k: v for k, v in model.items() if k in ("method", "history")}), **model} for model in _models]
    return [*ours, *map(_line, NANOGPT)]


# What a step adds, by its kind, or by its name where it has none.
_added = {
    "Kneser-Ney 9-gram": "Kneser-Ney, contexts of 1 to 8 characters",
    "its levels weighed": "`contexts-8`, weighed",
    "skip": "`skips`: contexts of 2-5 and 3-6 back, without the nearest",
    "word": "`words`: the part of the word, and the two words before",
    "class": "`word-classes`: the same with classes of the words (30, 150 and 500)",
    "cache": "history `window:256`: what followed the same 0, 1, 2, 3, 4 and 6 characters, and the same part of a word",
}


def _steps(_: Iterable[Row]) -> list[Row]:
    """The steps of the mixture without history, and the last one of that with history."""
    steps = read_events("shakespeare", "step")
    shown = [*where(steps, history="none"), where(steps, history="window:256")[-1]]
    return [{**step, "added": _added[step.get("kind") or step["step"]]} for step in shown]


_texts = {
    "babylm-mixture": "10 M words (BabyLM-like), 4098 subwords",
    "words-mixture": "1 M words of subtitles, vocabulary 10,000, `--eos`",
}


def _on_words(rows: Iterable[Row]) -> list[Row]:
    """A line for each text: the 5-gram, and the mixtures without and with history."""
    found = [{**row, "model": row["method"] if row["method"] == "ngram" else row["history"]} for row in rows]
    return [
        {**line, "text": _texts[line["file"]]}
        for line in pivot(where(found, model=("ngram", "none", "all")), ["file"], "model")
    ]


def _share(history: str):
    """The perplexity of a mixture divided by that of the 5-gram."""
    return lambda line: line[history]["dev_perplexity"] / line["ngram"]["dev_perplexity"]


_left_out = {
    "offset": "`offsets`",
    "gap": "`gaps`",
    "class": "tokens after classes",
    "next": "the class of the next token",
    "repeat": "`repeats`",
    None: "nothing",
}


def _ablations(_: Iterable[Row]) -> list[Row]:
    """The mixture without history, without each kind of rows and with all."""
    found = {event.get("without"): event for event in where(read_events("babylm-mixture", "ablation"), history="none")}
    return [{**found[kind], "name": name} for kind, name in _left_out.items()]


_judged = {
    "judge-blimp": "tokens, Kneser-Ney 5-gram",
    "grammar": "the preset, its five exponents fitted on corrupted sentences of the training text",
}


def _designs(rows: Iterable[Row]) -> list[Row]:
    """The 5-gram, the designs tried, and the preset."""
    found = list(rows)
    shown = [*where(found, file="judge-blimp", method="ngram"), *where(found, file=("grammar-designs", "grammar"))]
    return [{"design": _judged.get(row["file"]), **row} for row in shown]


TABLES = {
    "words": Table(
        ["babylm-mixture", "words-mixture"],
        [
            Column("text", "text"),
            Column("5-gram", cell("ngram", "dev_perplexity"), ".1f"),
            Column("mixture", cell("none", "dev_perplexity"), ".1f"),
            Column("share", _share("none"), ".2f"),
            Column("mixture, history all", cell("all", "dev_perplexity"), ".1f"),
            Column("share", _share("all"), ".2f"),
            Column("fitted numbers", lambda line: f"{line['none']['scalars']} and {line['all']['scalars']}"),
        ],
        rows=_on_words,
    ),
    "babylm-rows": Table(
        ["babylm-mixture"],
        [Column("left out", "name"), Column("held-out perplexity", "held_out_perplexity", ".2f")],
        rows=_ablations,
        commands=False,
    ),
    "mixture-trials": Table(
        ["mixture-trials"],
        [
            Column("rows", "rows"),
            *(Column(f"{text}, {how}", f"{text}_{how}") for text in ("words", "subwords") for how in ("without", "with")),
        ],
    ),
    "grammar-designs": Table(
        ["judge-blimp", "grammar-designs", "grammar"],
        [Column("on all pairs", "design"), Column("accuracy, %", "accuracy", ".1f", 100)],
        rows=_designs,
    ),
    "shakespeare": Table(
        ["shakespeare"],
        [
            Column("model", "model"),
            Column("what it sees", "sees"),
            Column("nats per character", "dev_loss", ".3f"),
            Column("fitted numbers", "scalars", "d"),
        ],
        rows=_beside_nanogpt,
    ),
    "shakespeare-rows": Table(
        ["shakespeare"],
        [Column("rows", "added"), Column("exponents", "scalars", "d"), Column("perplexity", "held_out_perplexity", ".2f")],
        rows=_steps,
        commands=False,
    ),
}
VALUES: Mapping[str, Value] = {
    "shakespeare-ngram": Value("shakespeare", "dev_loss", ".3f", {"method": "ngram"}),
    "shakespeare": Value("shakespeare", "dev_loss", ".3f", {"method": "mixture", "history": "window:256"}),
}
