"""A language model of any kind in one file, alone or with its tokenizer.

A safetensors file: the arrays by name, and in its metadata what they are (kinds of rows and their sizes), where the model comes
from, and a checksum.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from jexplicit.lm.counted.model import CountedModel
from jexplicit.lm.counted.reading import COUNTED, AnyModel, Combination, CombinationState
from jexplicit.lm.rows import BackOffChain, Children, NetworkRows, SequenceRows
from jexplicit.runs.bounds import is_of
from jexplicit.runs.files import local_path, parse_json, plain

# What `rebuild` raises of JSON or arrays that are none of a model.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError, AssertionError)
_format = 5
_rows = (LanguageModel, TokenTables, Sparse, BackOffChain, Children, NetworkRows, SequenceRows, State)
_known: dict[str, type] = {cls.__name__: cls for cls in (*_rows, *COUNTED, Combination, CombinationState)}
_networks = {"MLPLanguageModel": "networks", "Transformer": "sequences"}


def _class_of(name: str) -> type | None:
    """The class of a name in a file; flax is imported with networks only."""
    if name in _networks and name not in _known:
        _known[name] = getattr(importlib.import_module(f"jexplicit.nn.{_networks[name]}"), name)
    return _known.get(name)


def save_model(
    path: str | os.PathLike, model: AnyModel, *, tokenizer: Tokenizer | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write a model of any kind to a safetensors file, whole or never."""
    path, tensors = local_path(path), {}
    description = describe(model, "model", tensors)
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


def describe(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """A value as JSON, its arrays put aside by name."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, jax.Array | np.ndarray):
        tensors[name] = np.asarray(value, order="C")  # ascontiguousarray would give a number an axis
        return {"array": name}
    if _class_of(type(value).__name__) is type(value):
        return {"type": type(value).__name__, "fields": describe(_fields(value), name, tensors)}
    if isinstance(value, Context):
        if any(map(callable, value.columns)):
            remedy = "give it a name in jexplicit.lm.counted.contexts.COLUMNS, and the context that name"
            raise ValueError(f"{name} is {value!r} with a function of its own, which no file can hold: {remedy}")
        return {"context": {"columns": list(value.columns), "window": value.window}}
    if isinstance(value, dict):
        return {key: describe(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return {"tuple": [describe(item, f"{name}.{n}", tensors) for n, item in enumerate(value)]}
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


def rebuild(described: Any, tensor: Callable[[str], np.ndarray], *, host: bool = False) -> Any:
    """The value that `describe` described, from arrays by name."""
    if not isinstance(described, dict):
        return described
    if "array" in described:
        array = tensor(described["array"])
        return array if host or array.dtype == np.float64 else jax.device_put(array, may_alias=True)
    if "context" in described:
        return Context(*described["context"]["columns"], window=described["context"]["window"])
    if "tuple" in described:
        return tuple(rebuild(item, tensor, host=host) for item in described["tuple"])
    if "type" in described:
        kind: Any = _class_of(described["type"])
        if kind is None:
            raise ValueError(f"it has a {described['type']}, which this version does not know")
        host = host or kind in COUNTED  # which are read on the host, with integers of 64 bits
        own = {key: host or kind is Combination and key != "other" for key in described["fields"]}
        fields = {key: rebuild(item, tensor, host=own[key]) for key, item in described["fields"].items()}
        if described["type"] == "Spelling":
            fields["classes"] = {int(size): classes for size, classes in fields["classes"].items()}
        if described["type"] == "MLPLanguageModel":
            fields["dtype"] = jnp.dtype(fields["dtype"])
        if wrong := [name for name, hint in kind.__annotations__.items() if name in fields and not is_of(fields[name], hint)]:
            raise ValueError(f"the {' and '.join(wrong)} of its {described['type']} is of another type")
        return kind(**fields)
    return {key: rebuild(item, tensor, host=host) for key, item in described.items()}


def read_model_file(path: Path) -> tuple[AnyModel, Tokenizer | None, dict[str, Any]]:
    """The model of a file, its tokenizer if there, and its provenance."""
    with _one_line_errors(path), safe_open(path, framework="numpy") as file:
        stored, names = file.metadata() or {}, file.keys()
        if "jexplicit" not in stored:
            raise ValueError("it was not written by jexplicit")
        if _checksum(stored["jexplicit"], names, file.get_tensor) != stored.get("sha256"):
            raise ValueError("its checksum is another one: it is damaged")
        header = parse_json(stored["jexplicit"])
        if not isinstance(header, dict) or not {"model", "tokenizer", "about"} <= set(header):
            raise ValueError("its header is incomplete")
        if header.get("format") != _format:
            raise ValueError(f"it has format {header.get('format')}, and this version of jexplicit reads {_format}")
        model, kind = rebuild(header["model"], file.get_tensor), header["tokenizer"]
        _check_model(model)
        return model, Tokenizer(file.get_tensor("tokenizer").tobytes(), kind) if kind else None, dict(header["about"])


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


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """What libraries raise for a file that is damaged or no model."""
    try:
        yield
    except (SafetensorError, OSError, *MALFORMED) as error:
        remedy = "fit or export the model again (jexplicit export)"
        why = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} is no model that can be read ({why}): {remedy}") from error


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
