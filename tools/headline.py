"""Draws the picture of README.md, docs/headline.png: loss against compute, of what is solved or counted and what is trained.

python -m tools.headline

A model that is solved or counted is a point, a trained one a curve, from docs/results/. `MODELS` are the rows of the table beside
the picture, too (tools/tables.py): both sides with what they read, their bytes, and their compute.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jexplicit.experiments.rows import Results, Row, where
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Lines, Table
from tools import tables

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"


class Model(NamedTuple):
    """A model of the picture.

    task: its panel.
    name: of the model.
    reads: its inputs, and how many tokens before a prediction it sees.
    results: the name in docs/results/; empty for a number published by others.
    where: the fields of its rows there; several rows are seeds.
    loss: the field of its loss, or a published number.
    curve: the event of its curve; trained models without one are lines across.
    flops: of training, where they are known and not in the rows.
    """

    task: str
    name: str
    reads: str
    results: str
    where: dict[str, Any]
    loss: str | float
    curve: str = ""
    trained: bool = False


CHARACTERS = "characters of Shakespeare, nats"
WORDS = "10 M words, nats per token"
DIGITS = "MNIST, error on held-out images"
CONTEXTS = "regression in context, five layers"
_mixture = {"method": "mixture"}
MODELS = (
    Model(CHARACTERS, "Kneser-Ney 5-gram", "4 characters", "shakespeare", {"method": "ngram"}, "dev_loss"),
    Model(CHARACTERS, "mixture", "16 characters", "shakespeare", {**_mixture, "history": "none"}, "dev_loss"),
    Model(CHARACTERS, "mixture, last 256", "256 characters", "shakespeare", {**_mixture, "history": "window:256"}, "dev_loss"),
    Model(CHARACTERS, "transformer, 0.8 M", "48 to 64 characters", "transformer-shakespeare-cpu", {}, "dev_loss", "epoch", True),
    Model(CHARACTERS, "nanoGPT on an A100, 10.6 M", "128 of 256 characters", "", {}, 1.4697, trained=True),
    Model(WORDS, "Kneser-Ney 5-gram", "4 tokens", "babylm-mixture", {"method": "ngram"}, "dev_loss"),
    Model(WORDS, "mixture", "16 tokens", "babylm-mixture", {**_mixture, "history": "none"}, "dev_loss"),
    Model(WORDS, "mixture, all before", "all text before", "babylm-mixture", {**_mixture, "history": "all"}, "dev_loss"),
)
