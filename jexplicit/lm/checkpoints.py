"""Language models on disk: exported files, and a run with counts and models."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from jexplicit.counts.pairs import Counts, SparseCounts, sparse_table
from jexplicit.data.inputs import input_head, is_compressed, is_input, is_pipe, refuse_other_formats
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.arpa import is_arpa, read_arpa
from jexplicit.lm.counted.reading import AnyModel
from jexplicit.lm.model_files import check_sizes, read_model_file, save_model
from jexplicit.lm.rows import bigram_model, explicit_language_model, unigram_model
from jexplicit.lm.text_model import TextModel
from jexplicit.runs.files import file_inside, is_measured, local_path, read_command, read_config, read_rows, read_stored
from jexplicit.runs.loop import is_checkpoint, load_checkpoint, save_checkpoint

# Methods that counts alone serve: solved again from those of a run, of text in shards, and by several processes.
FROM_COUNTS = ("unigram", "bigram", "explicit")
_of_sparse = ("data", "indices", "indptr")  # arrays of a table


def export_model(path: str | os.PathLike, saved: TextModel) -> None:
    """Write a model with its tokenizer and provenance: `TextModel.save`."""
    saved.save(path)


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
    files = sorted(file.name for file in path.glob("*.safetensors"))
    if not files or (path / "results.json").exists():  # no folder, or that of a run, which may have its export in it
        return path
    config = read_stored(path) if (path / "config.json").exists() else None
    if config is not None and config.get("library_name") != "jexplicit":
        remedy = "pass a folder that TextModel.save wrote, or a file of one"
        raise ValueError(f"{path / 'config.json'} is of another program (no library_name jexplicit): {remedy}")
    if len(files) > 1 and "file" not in (config or {}):
        raise ValueError(f"{path} has {', '.join(files)}: pass one of them, such as {path / files[0]}")
    return file_inside(path, (config or {}).get("file", files[0]), path / "config.json")


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
