"""A language model in one safetensors file, alone or with its tokenizer.

The metadata says what the arrays are (kinds of rows and their sizes), where the model comes from, and a checksum.
"""

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.model import LanguageModel, Sparse, State, TokenTables, is_token_model
from jexplicit.lm.counted.contexts import Context
from jexplicit.lm.counted.model import COUNTED, CountedModel
from jexplicit.lm.evaluation import AnyModel, Combination, CombinationState
from jexplicit.lm.rows import BackOffChain, Children, NetworkRows, SequenceRows
from jexplicit.runs.bounds import is_of
from jexplicit.runs.files import local_path, parse_json, plain

_format = 5
_rows = (LanguageModel, TokenTables, Sparse, BackOffChain, Children, NetworkRows, SequenceRows)
_on_host = (*COUNTED, CombinationState, State)  # integers of 64 bits stay what they are
_known: dict[str, type] = {cls.__name__: cls for cls in (*_rows, *_on_host, Combination)}
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
    header = {"format": _format, **library(), "model": description, "tokenizer": tokenizer and tokenizer.kind}
    text = json.dumps(header | {"about": dict(about or {})}, default=plain)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        save_file(tensors, partial, metadata={"jexplicit": text, "sha256": _checksum(text, tensors)})
        os.umask(mask := os.umask(0))  # the process's own: safetensors makes files that only their owner can read
        partial.chmod(0o666 & ~mask)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be written ({error}): make room, or choose another place") from error


def library() -> dict[str, Any]:
    """The version of this library and its licence; None if not installed."""
    try:
        found = metadata.metadata("jexplicit").json
    except metadata.PackageNotFoundError:
        found = {}
    return {f"library_{name}": found.get(key) for name, key in (("version", "version"), ("license", "license_expression"))}


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


def _rebuild(described: Any, tensor: Callable[[str], np.ndarray], *, host: bool = False) -> Any:
    """The value that `_describe` described, from arrays by name."""
    if not isinstance(described, dict):
        return described
    if "array" in described:
        array = tensor(described["array"])
        return array if host or array.dtype == np.float64 else jax.device_put(array, may_alias=True)
    if "context" in described:
        return Context(*described["context"]["columns"], window=described["context"]["window"])
    if "tuple" in described:
        return tuple(_rebuild(item, tensor, host=host) for item in described["tuple"])
    if "type" in described:
        kind: Any = _class_of(described["type"])
        if kind is None:
            raise ValueError(f"it has a {described['type']}, which this version does not know")
        host = host or kind in _on_host
        own = {key: host or kind is Combination and key != "other" for key in described["fields"]}
        fields = {key: _rebuild(item, tensor, host=own[key]) for key, item in described["fields"].items()}
        if described["type"] == "Spelling":
            fields["classes"] = {int(size): classes for size, classes in fields["classes"].items()}
        if described["type"] == "MLPLanguageModel":
            fields["dtype"] = jnp.dtype(fields["dtype"])
        if wrong := [name for name, hint in kind.__annotations__.items() if name in fields and not is_of(fields[name], hint)]:
            raise ValueError(f"the {' and '.join(wrong)} of its {described['type']} is of another type")
        return kind(**fields)
    return {key: _rebuild(item, tensor, host=host) for key, item in described.items()}


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
                version = header.get("library_version")
                raise ValueError(
                    f"it has format {header.get('format')} of jexplicit {version}, and this version reads {_format}"
                )
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
