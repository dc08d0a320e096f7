"""A language model with its tokenizer, in memory, in files and in runs."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.sparse import issparse

from jexplicit.counts.pairs import Counts, SparseCounts, sparse_table
from jexplicit.data.contexts import PAD
from jexplicit.data.inputs import input_head, is_compressed, is_input, is_pipe, refuse_other_formats
from jexplicit.data.tokenizers import Progress, Tokenizer, encode_documents
from jexplicit.lm.arpa import is_arpa, read_arpa, write_arpa
from jexplicit.lm.attribution import Attribution, explain
from jexplicit.lm.core.model import read_text
from jexplicit.lm.evaluation import AnyModel, evaluate, score
from jexplicit.lm.generation import generate_text, next_token, prompt_ids
from jexplicit.lm.model_files import check_sizes, library, read_model_file, save_model
from jexplicit.lm.rows import bigram_model, explicit_language_model, unigram_model
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.files import (
    file_inside,
    is_measured,
    local_path,
    read_command,
    read_config,
    read_rows,
    read_stored,
    write_json,
    write_whole,
)
from jexplicit.runs.loop import is_checkpoint, load_checkpoint, save_checkpoint

# Methods that counts alone serve: solved again from those of a run, of text in shards, and by several processes.
FROM_COUNTS = ("unigram", "bigram", "explicit")
_of_sparse = ("data", "indices", "indptr")  # arrays of a table


class TextModel(NamedTuple):
    """A language model, its tokenizer, and its provenance as fields of a row.

    `jexplicit.fit` and `jexplicit.load_model` make it. Texts are documents, across which no context flows; a model of the past
    (history "all") reads the texts of one call in their order, as one text.

    Example:
        >>> from jexplicit.lm.fits.fit import fit
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

        Of a model that predicts the end of a document, the last number of a text is that of its end. texts: a list; one text is
        `[text]`, or else a ValueError.
        """
        return [log_p for _, log_p in self.score_tokens(texts, progress=progress)]

    def score_tokens(self, texts: Sequence[str], *, progress: Progress | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """The predicted token ids of every text, and their scores."""
        texts = [*texts] if isinstance(texts, Iterable) and not isinstance(texts, str) else texts
        pad, ids = np.array([PAD], np.int32), self.tokenizer.encode_all(texts)
        parts = [part for of_text in ids if len(of_text) for part in (of_text, pad)]
        scored = score(self.model, np.concatenate([pad, *parts]), progress=progress) if parts else np.zeros(0)
        predicted = [np.append(of_text, pad[: self.model.eos and len(of_text) > 0]) for of_text in ids]
        log_p = np.split(scored.astype(np.float64), np.cumsum([len(of_text) for of_text in predicted])[:-1])
        return list(zip(predicted, log_p, strict=False))  # of no text np.split gives one part

    def perplexity(self, texts: Sequence[str]) -> float:
        """The perplexity per token of texts, that of all predictions together."""
        texts = [*texts] if isinstance(texts, Iterable) and not isinstance(texts, str) else texts
        stream = encode_documents(self.tokenizer, texts)
        if not (stream != PAD).any():
            raise ValueError(f"no token in {len(texts)} texts: give some text")
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
        """Write the model to a file, or a folder to share, that `jexplicit.load_model` reads.

        NAME.safetensors has the model, its tokenizer and its provenance; NAME.arpa and NAME.arpa.gz have an n-gram model, with
        its tokens as words, for other decoders (jexplicit.lm.arpa). A name without an ending is a folder: model.safetensors,
        config.json with the provenance, and a model card, README.md, unless there is one.
        """
        file = model_path(path)
        if is_arpa(file):
            return write_arpa(file, self.model, self.tokenizer)
        save_model(file, self.model, tokenizer=self.tokenizer, about=self.about)
        if file != local_path(path):
            own = {"library_name": "jexplicit", **library(), "file": file.name, "bytes": file.stat().st_size}
            write_json(file.with_name("config.json"), config := own | self.about | own)
            if not (card := file.with_name("README.md")).exists():
                text = model_card(file.parent.resolve().name, config)
                write_whole(card, lambda file: file.write(text.encode()))


def model_path(path: str | os.PathLike) -> Path:
    """The file that `TextModel.save` writes, in a folder if the name has no ending."""
    given, path = path, local_path(path)
    if is_arpa(path) or path.suffix.lower() == ".safetensors":
        return path
    if path.suffix and not path.is_dir():
        raise ValueError(f"{given}: give a folder, or a file name that ends in .safetensors, .arpa or .arpa.gz")
    if (path / "config.json").exists() and read_stored(path).get("library_name") != "jexplicit":
        raise ValueError(f"{path} has a config.json of a run or of another program: choose another folder for the model")
    return path / "model.safetensors"


def model_card(name: str, config: Mapping[str, Any]) -> str:
    """The README.md of a shared model, with the front matter of Hugging Face."""
    shown = {field: f"{value:.4f}" if isinstance(value, float) else value for field, value in config.items()}
    lines = [f"* {field}: {value}" for field, value in shown.items() if isinstance(value, str | int)]
    return f"""---
library_name: jexplicit
pipeline_tag: text-generation
---

# {name}

A language model with its tokenizer, in one safetensors file, and its provenance (config.json):

{chr(10).join(lines)}

```python
import jexplicit

model = jexplicit.load_model("{name}")  # this folder
model.generate("", 40)
```

Whoever shares the model says under which licence: the text that it was made of may have one (`license:` in the first lines).
"""


def import_model(path: str | os.PathLike) -> TextModel:
    """The model of a file of `TextModel.save`, or of any ARPA file."""
    path = local_path(path)
    refuse_other_formats(path, head := input_head(path))
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


def load_model(
    path: str | os.PathLike,
    *,
    method: str | None = None,
    features: str | None = None,
    radius: int | None = None,
    history: str | None = None,
) -> TextModel:
    """Load a language model from a run, an export or a shared folder.

    Args:
        path: the folder of a run of `launch.lm` or `launch.networks`, a file or a folder of `TextModel.save`, or an ARPA file.
        method, features, radius, history: of the model wanted; default, that of the run's lowest dev perplexity.

    Example::

        from jexplicit import load_model
        model = load_model("runs/demo")
        model.generate("Return the", 20)
    """
    path, given = model_file(path), {"method": method, "features": features, "radius": radius, "history": history}
    wanted = {name: value for name, value in given.items() if value is not None}
    if is_input(path):
        saved = import_model(path)
        if other := {name: saved.about.get(name) for name, value in wanted.items() if saved.about.get(name) != value}:
            raise ValueError(f"{path} holds one model, with {_worded(other)}: leave out {', '.join(wanted)}, or pass its run")
        return saved
    row = min(model_rows(path, **{name: (value,) for name, value in wanted.items()}), key=lambda row: row["dev_perplexity"])
    return load_row(path, row)


def model_file(path: str | os.PathLike) -> Path:
    """The model file of a shared folder; any other path unchanged."""
    path = local_path(path)
    found = sorted(file.name for file in path.glob("*.safetensors"))
    if not found or (path / "results.json").exists():  # no folder, or that of a run, which may have its export in it
        return path
    config = read_stored(path) if (path / "config.json").exists() else None
    if config is not None and config.get("library_name") != "jexplicit":
        remedy = "pass a folder that TextModel.save wrote, or a file of one"
        raise ValueError(f"{path / 'config.json'} is of another program (no library_name jexplicit): {remedy}")
    if len(found) > 1 and "file" not in (config or {}):
        raise ValueError(f"{path} has {', '.join(found)}: pass one of them, such as {path / found[0]}")
    return file_inside(path, (config or {}).get("file", found[0]), path / "config.json")


def model_rows(path: str | os.PathLike, **wanted: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of a run with a model that `load_row` can load, in order.

    wanted: method, features, radius or history -> the values to take; default, any.
    """
    if read_config(path := local_path(path)) is None:
        remedy = "pass the folder of a run of jexplicit lm, or an exported .safetensors or .arpa file"
        raise ValueError(f"no run at {path}: {remedy}")
    rows = [row for row in map(_normalised, read_rows(path)) if row and (row["method"] in FROM_COUNTS or _file_of(path, row))]
    if not rows:
        raise ValueError(f"{path} has no language model with a dev perplexity: pass a run of launch.lm or launch.networks")
    if found := [row for row in rows if all(row[name] in values for name, values in wanted.items())]:
        return found
    words = _worded({name: " or ".join(map(str, values)) for name, values in wanted.items()})
    raise ValueError(f"{path} has no model with {words}: it has {', '.join(map(model_name, rows))}")


def load_row(path: str | os.PathLike, row: Mapping[str, Any]) -> TextModel:
    """The model of one row of a run."""
    path = local_path(path)
    tokenizer, file = Tokenizer.load(path / "tokenizer.model"), _file_of(path, row)
    if file:
        model = read_model_file(file)[0]
    else:  # solved again, in a second
        counts, eos = load_counts(path, sparse=not has_counts(path)), (read_config(path) or {}).get("eos", False)
        if row["method"] == "explicit":
            model = explicit_language_model(counts, features=row["features"], radius=row["radius"], eos=eos)
        else:
            model = (unigram_model if row["method"] == "unigram" else bigram_model)(counts, eos=eos)
    check_sizes(path, model, tokenizer)
    return TextModel(model, tokenizer, {**row, "command": read_command(path)})


def model_name(row: Mapping[str, Any]) -> str:
    """The name of a row's model, also in files: method, features, radius, and more."""
    parts = [row["method"], row["features"], row["radius"], row.get("history", "none")]
    return "_".join(str(part) for part in parts if part not in (None, "none", ""))


def save_run_model(run: str | os.PathLike, row: Mapping[str, Any], model: AnyModel) -> None:
    """Save the model of a row of a run, beside its counts."""
    about = {name: row[name] for name in ("method", "features", "radius", "history") if name in row}
    save_model(_models(run) / f"{model_name(row)}.safetensors", model, about=about)


def save_counts(run: str | os.PathLike, counts: Counts | SparseCounts) -> None:
    """Save a run's counts as `checkpoints/counts`, sparse ones as `checkpoints/sparse_counts`."""
    sparse = issparse(counts[0])
    parts = [{name: np.asarray(getattr(C, name)) for name in _of_sparse} for C in counts] if sparse else list(counts)
    save_checkpoint(_counts_path(run, sparse=sparse), {"counts": parts})


def has_counts(run: str | os.PathLike, *, sparse: bool = False) -> bool:
    """Whether a run has finished counting."""
    return is_checkpoint(_counts_path(run, sparse=sparse))


def load_counts(run: str | os.PathLike, *, sparse: bool = False) -> Counts | SparseCounts:
    """The counts of a run."""
    stored = load_checkpoint(path := _counts_path(run, sparse=sparse))
    try:
        if sparse:
            return tuple(sparse_table(*(np.asarray(part[name]) for name in _of_sparse)) for part in stored["counts"])
        return tuple(map(np.asarray, stored["counts"]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"{path} holds no counts ({error}): delete it and run again") from error


def save_tokenizer(run: str | os.PathLike, tokenizer: Tokenizer) -> None:
    """Save a run's tokenizer as `tokenizer.model`."""
    tokenizer.save(local_path(run) / "tokenizer.model")


def _normalised(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row with the fields that choose models; None without a dev perplexity."""
    row = {"method": row.get("name"), "features": "none", "radius": row.get("context"), "history": "none", **row}
    named = row["method"] and all(isinstance(row[name], str) for name in ("method", "features", "history"))
    return row if named and isinstance(row["radius"], int) and is_measured(row.get("dev_perplexity")) else None


def _file_of(run: Path, row: Mapping[str, Any]) -> Path | None:
    """The file of a row's model, if any; K = 1 is shared."""
    alike = ("sum", "cat") if row["radius"] == 1 and row["features"] in ("sum", "cat") else ()
    names = [f"{model_name({**row, 'features': features})}.safetensors" for features in (row["features"], *alike)]
    found = next((name for name in names if (_models(run) / name).exists()), None)
    return None if found is None else file_inside(_models(run), found, run / "results.json")


def _worded(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items()) or "these fields"


def _models(run: str | os.PathLike) -> Path:
    return local_path(run) / "checkpoints" / "models"


def _counts_path(run: str | os.PathLike, *, sparse: bool) -> Path:
    return local_path(run) / "checkpoints" / ("sparse_counts" if sparse else "counts")
