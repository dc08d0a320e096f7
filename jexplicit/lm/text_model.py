"""A language model with its tokenizer, in memory, in files and in runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jexplicit.data.text import is_compressed, is_input, is_pipe, read_input, refuse_other_formats
from jexplicit.data.tokenizers import PAD, Progress, Tokenizer, encode_documents
from jexplicit.lm.attribution import Attribution, explain
from jexplicit.lm.evaluation import AnyModel, evaluate, score
from jexplicit.lm.files import check_sizes, model_rows, read_model_file, row_model, save_model
from jexplicit.lm.generation import generate_text, next_token, prompt_ids
from jexplicit.lm.model import read_text
from jexplicit.lm.ngram import is_arpa, read_arpa, write_arpa
from jexplicit.runs.devices import key_of_seed
from jexplicit.runs.files import local_path, read_command


class TextModel(NamedTuple):
    """A language model, its tokenizer, and its provenance as fields of a row.

    `jexplicit.fit` and `jexplicit.load_model` make it. Texts are documents, across which no context flows; a model of the past
    (history "all") reads the texts of one call in their order, as one text.

    Example:
        >>> from jexplicit.lm.fit import fit
        >>> model = fit(["the cat sat", "the dog sat"], "bigram", tokenizer="word")
        >>> [token for token, p in model.next_token("the", top=2)]
        ['▁cat', '▁dog']
        >>> [len(log_p) for log_p in model.score(["the cat", ""])]
        [2, 0]
    """

    model: AnyModel
    tokenizer: Tokenizer
    about: dict[str, Any]

    def __repr__(self) -> str:
        return f"TextModel({self.model!r}, {self.tokenizer!r}, about: {len(self.about)} fields)"

    def score(self, texts: Sequence[str], *, progress: Progress | None = None) -> list[np.ndarray]:
        """`log p` of each token of every text given its context, in nats.

        Of a model that predicts the end of a document, the last number of a text is that of its end. One text is `[text]`, or
        else a ValueError.
        """
        return [log_p for _, log_p in self.score_tokens(texts, progress=progress)]

    def score_tokens(self, texts: Sequence[str], *, progress: Progress | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """The predicted token ids of every text, and their scores."""
        pad, ids = np.array([PAD], np.int32), self.tokenizer.encode_all(texts)
        parts = [part for of_text in ids if len(of_text) for part in (of_text, pad)]
        scored = score(self.model, np.concatenate([pad, *parts]), progress=progress) if parts else np.zeros(0)
        predicted = [np.append(of_text, pad[: self.model.eos and len(of_text) > 0]) for of_text in ids]
        log_p = np.split(scored.astype(np.float64), np.cumsum([len(of_text) for of_text in predicted])[:-1])
        return list(zip(predicted, log_p, strict=False))  # of no text np.split gives one part

    def perplexity(self, texts: Sequence[str]) -> float:
        """The perplexity per token of texts, that of all predictions together."""
        if not (stream := encode_documents(self.tokenizer, texts)).any():
            raise ValueError("no token in the texts: give some text")
        return evaluate(self.model, stream).perplexity

    def explain(self, text: str) -> Attribution:
        """The part of every row in each prediction of a text (`jexplicit.explain`)."""
        stream = encode_documents(self.tokenizer, [text])
        if len(stream) < 2:
            raise ValueError("no token in the text: give some text")
        read = read_text(stream, self.model.radius, eos=self.model.eos)
        return explain(self.model, read.X, read.Y, past=read.past)

    def next_token(self, prompt: str, top: int = 10) -> list[tuple[str, float]]:
        """The `top` likeliest tokens after a prompt, with their probabilities."""
        if not isinstance(top, int) or top < 1:
            raise ValueError(f"top={top!r}: ask for at least one token")
        p = np.exp(next_token(self.model, *prompt_ids(self.tokenizer, prompt)))
        return [(self.tokenizer.piece(int(i)), float(p[i])) for i in np.argsort(-p, kind="stable")[:top]]

    def generate(
        self,
        prompt: str | Sequence[str] = "",
        length: int = 60,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | jax.Array = 0,
    ) -> Any:
        """The model's continuation of a prompt, or of each of several.

        Args:
            prompt: text, empty for the start of a document; or a list of texts.
            length: tokens to generate, fewer where the model ends the document.
            temperature, top_k, top_p: see `jexplicit.generate`, also for errors.
            seed: a whole number from 0 to 2^63 - 1, or a jax.random key; the same gives the same text.
        """
        options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        return generate_text(key_of_seed(seed), self.model, self.tokenizer, prompt, length, **options)

    def save(self, path: str | os.PathLike) -> None:
        """Write the model to a file that `jexplicit.load_model` reads.

        NAME.safetensors has the model, its tokenizer and its provenance; NAME.arpa and NAME.arpa.gz have an n-gram model, with
        its tokens as words, for other decoders (jexplicit.lm.ngram).
        """
        if is_arpa(file := model_path(path)):
            write_arpa(file, self.model, self.tokenizer)
        else:
            save_model(file, self.model, tokenizer=self.tokenizer, about=self.about)


def model_path(path: str | os.PathLike) -> Path:
    """The file that `TextModel.save` writes."""
    file = local_path(path)
    if not is_arpa(file) and file.suffix.lower() != ".safetensors":
        raise ValueError(f"{path}: give a file name that ends in .safetensors, .arpa or .arpa.gz")
    return file


def load_model(
    path: str | os.PathLike,
    *,
    method: str | None = None,
    features: str | None = None,
    radius: int | None = None,
    history: str | None = None,
) -> TextModel:
    """Load a language model from a run or an export.

    Args:
        path: the folder of a run of `launch.lm` or `launch.networks`, a file of `TextModel.save`, or an ARPA file.
        method, features, radius, history: of the model wanted; default, that of the run's lowest dev perplexity.

    Raises:
        ValueError: no run or model there, one of another version, a damaged file, or no model that matches.

    Example::

        from jexplicit import load_model
        model = load_model("runs/demo")
        model.generate("Return the", 20)
    """
    path, given = local_path(path), {"method": method, "features": features, "radius": radius, "history": history}
    wanted = {name: value for name, value in given.items() if value is not None}
    if not is_input(path):
        rows = model_rows(path, **{name: (value,) for name, value in wanted.items()})
        return load_row(path, min(rows, key=lambda row: row["dev_perplexity"]))
    saved = _load_file(path)
    if other := [f"{name} {saved.about.get(name)}" for name, value in wanted.items() if saved.about.get(name) != value]:
        raise ValueError(f"{path} holds one model, with {', '.join(other)}: leave out {', '.join(wanted)}, or pass its run")
    return saved


def _load_file(path: Path) -> TextModel:
    """The model of a file of `TextModel.save`, or of any ARPA file."""
    refuse_other_formats(path, head := read_input(path, 512))
    if head[8:10] != b'{"' and (is_arpa(path) or b"\\data\\" in head):
        model, tokenizer = read_arpa(path)
        return TextModel(model, tokenizer, {"method": "ngram", "features": "none", "radius": model.radius, "history": "none"})
    if is_pipe(str(path)) or is_compressed(str(path)):
        raise ValueError(f"{path}: a .safetensors file is neither read from a pipe nor compressed: write it to a file")
    model, tokenizer, about = read_model_file(path)
    if tokenizer is None:
        raise ValueError(f"{path} is a model of a run, without its tokenizer: pass the run folder, or export the model")
    check_sizes(path, model, tokenizer)
    history = model.history if isinstance(model.history, str) else "none"
    by_hand = {"method": type(model).__name__, "features": "none", "radius": model.radius, "history": history}
    return TextModel(model, tokenizer, about if "method" in about else by_hand | about)


def load_row(path: str | os.PathLike, row: Mapping[str, Any]) -> TextModel:
    """The model of one row of a run."""
    path = local_path(path)
    tokenizer, model = Tokenizer.load(path / "tokenizer.model"), row_model(path, row)
    check_sizes(path, model, tokenizer)
    return TextModel(model, tokenizer, {**row, "command": read_command(path)})
