"""Files of language models, and the models of a run.

A model is one safetensors file, alone or with its tokenizer.
The metadata says what the arrays are, where they come from, and a checksum.
"""

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save
from scipy.sparse import issparse

import jexplicit
from jexplicit.counts import Counts, SparseCounts, sparse_table
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.counted.contexts import Context
from jexplicit.lm.counted.model import COUNTED, CountedModel
from jexplicit.lm.evaluation import AnyModel, Combination, CombinationState
from jexplicit.lm.layers import explicit_language_model
from jexplicit.lm.model import LanguageModel, NetworkRows, SequenceRows, Sparse, State, TokenTables, is_token_model
from jexplicit.lm.ngram import BackOffChain, Children, bigram_model, unigram_model
from jexplicit.runs.devices import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.files import (
    file_inside,
    is_measured,
    is_of,
    local_path,
    parse_json,
    plain,
    read_config,
    read_rows,
    refuse_errors,
    write_whole,
)

# Methods that counts alone serve: solved again from those of a run, of text in shards, and by several processes.
FROM_COUNTS = ("unigram", "bigram", "explicit")
_of_sparse = ("data", "indices", "indptr")  # arrays of a table
_format = 5
_rows = (LanguageModel, TokenTables, Sparse, BackOffChain, Children, NetworkRows, SequenceRows)
_known: dict[str, type] = {cls.__name__: cls for cls in (*_rows, *COUNTED, Combination, CombinationState, State)}
_networks = {"MLPLanguageModel": "networks", "Transformer": "sequences"}


def _class_of(name: str) -> type | None:
    """The class of a name in a file; flax is imported with networks only."""
    if name in _networks:
        return getattr(importlib.import_module(f"jexplicit.nn.{_networks[name]}"), name)
    return _known.get(name)


def save_model(
    path: str | os.PathLike, model: Any, *, tokenizer: Tokenizer | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write a model or a state to a safetensors file, whole or never."""
    path, tensors = local_path(path), {}
    description = _describe(model, "model", tensors)
    if tokenizer is not None:
        tensors["tokenizer"] = np.frombuffer(tokenizer.model, np.uint8)
    header = {"format": _format, "library_version": jexplicit.__version__, "model": description}
    header |= {"tokenizer": tokenizer and tokenizer.kind, "about": dict(about or {})}
    text = json.dumps(header, default=plain)
    data = save(tensors, metadata={"jexplicit": text, "sha256": _checksum(text, tensors)})
    write_whole(path, lambda file: file.write(data))


def _describe(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """A value as JSON, its arrays put aside by name."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, jax.Array | np.ndarray):
        tensors[name] = np.asarray(value, order="C")  # ascontiguousarray would give a number an axis
        return {"array": name}
    if _class_of(type(value).__name__) is type(value):
        return {"type": type(value).__name__, "fields": _describe(_fields(value), name, tensors)}
    if isinstance(value, Context):
        if any(map(callable, value.columns)):
            remedy = "give it a name in jexplicit.lm.counted.contexts.COLUMNS, and the context that name"
            raise ValueError(f"{name} is {value!r} with a function of its own, which no file can hold: {remedy}")
        return {"context": {"columns": list(value.columns), "window": value.window}}
    if isinstance(value, dict):
        return {key: _describe(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return {"tuple": [_describe(item, f"{name}.{n}", tensors) for n, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{name} is a {type(value).__name__}, which no file can hold: use rows of the library's own kinds")


def _fields(value: Any) -> dict[str, Any]:
    """The fields that make a value again."""
    if isinstance(value, tuple):
        return cast(Any, value)._asdict()
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.metadata.get("saved", True)}
    if "parent" in fields:  # of flax's modules
        fields = {k: np.dtype(v).name if k == "dtype" else v for k, v in fields.items() if k not in ("name", "parent")}
    return fields


def _rebuild(described: Any, tensor: Callable[[str], np.ndarray]) -> Any:
    """The value that `_describe` described, from arrays by name."""
    if not isinstance(described, dict):
        return described
    if "array" in described:
        return tensor(described["array"])
    if "context" in described:
        return Context(*described["context"]["columns"], window=described["context"]["window"])
    if "tuple" in described:
        return tuple(_rebuild(item, tensor) for item in described["tuple"])
    if "type" not in described:
        return {key: _rebuild(item, tensor) for key, item in described.items()}
    kind: Any = _class_of(described["type"])
    if kind is None:
        raise ValueError(f"it has a {described['type']}, which this version does not know")
    fields = {key: _rebuild(item, tensor) for key, item in described["fields"].items()}
    if kind.__name__ == "Spelling":
        fields["classes"] = {int(size): classes for size, classes in fields["classes"].items()}
    if kind.__name__ == "MLPLanguageModel":
        fields["dtype"] = jnp.dtype(fields["dtype"])
    if wrong := [name for name, hint in kind.__annotations__.items() if name in fields and not is_of(fields[name], hint)]:
        raise ValueError(f"the {' and '.join(wrong)} of its {kind.__name__} is of another type")
    value = kind(**fields)
    if kind is LanguageModel:  # on the device, but for what JAX would round
        value = jax.tree.map(lambda leaf: leaf if leaf.dtype == np.float64 else jax.device_put(leaf, may_alias=True), value)
    return value


def read_model_file(path: Path, kind: Any = None) -> tuple[Any, Tokenizer | None, dict[str, Any]]:
    """The model or state of a file, its tokenizer if there, and its provenance."""
    try:
        with safe_open(path, framework="numpy") as file:
            stored, names = file.metadata() or {}, file.keys()
            if "jexplicit" not in stored:
                raise ValueError("it was not written by jexplicit")
            if _checksum(stored["jexplicit"], names, file.get_tensor) != stored.get("sha256"):
                raise ValueError("its checksum is another one: it is damaged")
            header = parse_json(stored["jexplicit"])
            if not isinstance(header, dict) or not {"model", "tokenizer", "about"} <= set(header):
                raise ValueError("its header is incomplete")
            if header.get("format") != _format:
                written = f"format {header.get('format')} of jexplicit {header.get('library_version')}"
                raise ValueError(f"it has {written}, and this version reads {_format}")
            model, tokenizer = _rebuild(header["model"], file.get_tensor), header["tokenizer"]
            if kind is None:
                _check_model(model)
            elif not isinstance(model, kind):
                raise ValueError(f"it has a {type(model).__name__}")
            tokenizer = tokenizer and Tokenizer(file.get_tensor("tokenizer").tobytes(), tokenizer)
            return model, tokenizer, dict(header["about"])
    except Exception as error:  # of a file that somebody else wrote
        why = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{path} is no model that can be read ({why}): fit or export the model again (jexplicit export)"
        ) from error


def _check_model(model: Any) -> None:
    """Refuse arrays and fields that do not give N logits."""
    if isinstance(model, LanguageModel):
        N = model.vocab_size
        if is_token_model(model) and {table.shape for table in model.tables} != {(N, N)}:
            raise ValueError(f"its tables have shapes {[table.shape for table in model.tables]}")
        ids = [jax.ShapeDtypeStruct((n,), np.int32) for n in (model.radius, model.history)]
        try:
            row = jax.eval_shape(model.logits, *ids)
        except Exception as error:  # of JAX or flax
            raise ValueError(f"its arrays do not fit together: {error}") from error
        if row.shape != (N,):
            raise ValueError(f"its row has shape {row.shape}, and its vocabulary {N} tokens")
    elif isinstance(model, Combination):
        _check_model(model.other)
        if model.other.vocab_size != model.vocab_size:
            raise ValueError(f"models of {model.vocab_size} and {model.other.vocab_size} tokens together")
    elif not isinstance(model, CountedModel):
        raise ValueError(f"a {type(model).__name__} is no model")


def _checksum(text: str, tensors: Iterable[str], read: Callable[[str], np.ndarray] | None = None) -> str:
    """The sha256 of a header and of arrays, which may have no NaN."""
    digest, read = hashlib.sha256(text.encode()), read or cast(Mapping[str, np.ndarray], tensors).__getitem__
    for name in sorted(tensors):
        array = read(name)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(f"{name} of the model has a NaN: fit the model again")
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def check_sizes(path: Any, model: AnyModel, tokenizer: Tokenizer) -> None:
    """Refuse another model's tokenizer."""
    if model.vocab_size != tokenizer.vocab_size:
        sizes = f"a tokenizer of {tokenizer.vocab_size} tokens and a model of {model.vocab_size}"
        raise ValueError(f"{path} has {sizes}: they are of two models, or of different runs; run again into a fresh folder")


# The models of a run


def model_rows(path: str | os.PathLike, **wanted: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows of a run with a model that `row_model` can load, in order.

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
    words = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in wanted.items())
    raise ValueError(f"{path} has no model with {words}: it has {', '.join(map(model_name, rows))}")


def _normalised(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row with the fields that choose models; None without a dev perplexity."""
    row = {"method": row.get("name"), "features": "none", "radius": row.get("context"), "history": "none", **row}
    named = row["method"] and all(isinstance(row[name], str) for name in ("method", "features", "history"))
    return row if named and isinstance(row["radius"], int) and is_measured(row.get("dev_perplexity")) else None


def row_model(run: Path, row: Mapping[str, Any]) -> AnyModel:
    """The model of a row: its file's, or solved again from counts."""
    if file := _file_of(run, row):
        return read_model_file(file)[0]
    counts, eos = load_counts(run) or load_counts(run, sparse=True), (read_config(run) or {}).get("eos", False)
    if row["method"] == "explicit":
        return explicit_language_model(counts, features=row["features"], radius=row["radius"], eos=eos)
    return (unigram_model if row["method"] == "unigram" else bigram_model)(counts, eos=eos)


def model_name(row: Mapping[str, Any]) -> str:
    """The name of a row's model, also in files: method, features, radius, and more."""
    parts = [row["method"], row["features"], row["radius"], row.get("history", "none")]
    return "_".join(str(part) for part in parts if part not in (None, "none", ""))


def save_run_model(run: str | os.PathLike, row: Mapping[str, Any], model: AnyModel) -> None:
    """Save the model of a row of a run, beside its counts."""
    about = {name: row[name] for name in ("method", "features", "radius", "history") if name in row}
    save_model(_models(run) / f"{model_name(row)}.safetensors", model, about=about)


def _file_of(run: Path, row: Mapping[str, Any]) -> Path | None:
    """The file of a row's model, if any; at K = 1 Sum and Cat share it."""
    alike = ("sum", "cat") if row["radius"] == 1 and row["features"] in ("sum", "cat") else ()
    for features in (row["features"], *alike):
        name = f"{model_name({**row, 'features': features})}.safetensors"
        if (_models(run) / name).exists():
            return file_inside(_models(run), name, run / "results.json")
    return None


def _models(run: str | os.PathLike) -> Path:
    return local_path(run) / "checkpoints" / "models"


def save_counts(run: str | os.PathLike, counts: Counts | SparseCounts) -> None:
    """Save a run's counts as `checkpoints/counts`, sparse ones as `checkpoints/sparse_counts`."""
    sparse = issparse(counts[0])
    parts = [{name: np.asarray(getattr(C, name)) for name in _of_sparse} for C in counts] if sparse else list(counts)
    save_checkpoint(_counts_path(run, sparse=sparse), {"counts": parts})


def load_counts(run: str | os.PathLike, *, sparse: bool = False) -> Counts | SparseCounts:
    """The counts of a run; none if it has not finished counting."""
    if not is_checkpoint(path := _counts_path(run, sparse=sparse)):
        return ()
    stored = load_checkpoint(path)
    with refuse_errors(f"{path} holds no counts", "delete it and run again"):
        if sparse:
            return tuple(sparse_table(*(np.asarray(part[name]) for name in _of_sparse)) for part in stored["counts"])
        return tuple(map(np.asarray, stored["counts"]))


def _counts_path(run: str | os.PathLike, *, sparse: bool) -> Path:
    return local_path(run) / "checkpoints" / ("sparse_counts" if sparse else "counts")
