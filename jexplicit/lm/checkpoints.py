"""Language models on disk: one file for a model of any kind, and the models of a run.

A model file is a safetensors file: the arrays by name, and in its metadata what they are (kinds of rows and their sizes), where
the model comes from, and a checksum. With a tokenizer in it, it stands alone: that is an export.

A run keeps its counts, from which baselines and explicit solutions are solved again in a second, and a file for every other
model.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jexplicit.counts.dense import Counts
from jexplicit.counts.sparse import SparseCounts, sparse_table
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.model import Constant, LanguageModel, TokenTables
from jexplicit.lm.rows.bitcipher import CodedTables
from jexplicit.lm.rows.cache import Cache, CacheRows
from jexplicit.lm.rows.explicit import bigram_model, explicit_language_model, unigram_model
from jexplicit.lm.rows.log_tables import SparseRows
from jexplicit.lm.rows.network import NetworkRows
from jexplicit.lm.rows.ngrams import Children, NgramRows
from jexplicit.lm.rows.sharded import ShardedTables
from jexplicit.lm.rows.sparse import SparseTables, sparse_bigram_model, sparse_language_model, sparse_unigram_model
from jexplicit.nn.networks import MLPLanguageModel
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.folder import read_config, read_rows

FROM_COUNTS = ("unigram", "bigram", "explicit")  # solved again from a run's counts
_format = 2
_types = (LanguageModel, Constant, TokenTables, SparseTables, CodedTables, NgramRows, CacheRows, NetworkRows, MLPLanguageModel)
_known = {cls.__name__: cls for cls in (*_types, SparseRows, Children, Cache)}


class SavedModel(NamedTuple):
    """A language model, the tokenizer whose ids it speaks of, and where it comes from: the fields of its row."""

    model: LanguageModel
    tokenizer: Tokenizer
    about: dict[str, Any]


def save_model(
    path: str | os.PathLike, model: LanguageModel, *, tokenizer: Tokenizer | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write a model of any kind to a safetensors file, whole or not at all.

    Args:
        path: of the file; its folder is made.
        model: of any kind; sharded tables are gathered.
        tokenizer: the model's own, for a file that stands alone.
        about: where it comes from; plain values.

    Raises:
        ValueError: a model with a NaN; a file that cannot be written.
    """
    path, tensors = Path(path), {}
    description = _describe(model, "model", tensors)
    if tokenizer is not None:
        tensors["tokenizer"] = np.frombuffer(tokenizer.model, np.uint8)
    _check_numbers(path, tensors)
    header = {"format": _format, "model": description, "tokenizer": tokenizer and tokenizer.kind, "about": dict(about or {})}
    text = json.dumps(header)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        save_file(tensors, partial, metadata={"jexplicit": text, "sha256": _checksum(text, tensors)})
        partial.chmod(0o666 & ~_umask())
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be written ({error}): make room, or choose another place") from error


def export_model(path: str | os.PathLike, saved: SavedModel) -> None:
    """Write one model, its tokenizer and its provenance to a safetensors file that stands alone."""
    save_model(path, saved.model, tokenizer=saved.tokenizer, about=saved.about)


def import_model(path: str | os.PathLike) -> SavedModel:
    """The model of a file that `export_model` wrote.

    Raises:
        ValueError: no such file; a damaged one; one without a tokenizer; a model whose parts do not fit together.
    """
    model, tokenizer, about = _read_file(Path(path))
    if tokenizer is None:
        raise ValueError(f"{path} is a model of a run, without its tokenizer: pass the run folder, or export the model")
    _check_sizes(path, model, tokenizer)
    return SavedModel(model, tokenizer, about)


def load_model(
    path: str | os.PathLike,
    *,
    method: str | None = None,
    features: str | None = None,
    radius: int | None = None,
    history: str | None = None,
) -> SavedModel:
    """Load a language model of a run folder, or of an exported file.

    Args:
        path: the folder of a run of `launch.lm` or `launch.networks mlp-lm`, or a file of `export_model`.
        method: how the model was fitted; default, that of the run's lowest dev perplexity.
        features: of the model wanted; default likewise.
        radius: K of the model wanted; default likewise.
        history: "none" or "all", what it sees of the text before; default likewise.

    Raises:
        ValueError: no model there, or none of this kind.

    Example::

        from jexplicit import load_model
        model, tokenizer, about = load_model("runs/demo")
    """
    path = Path(path).expanduser()
    wanted = {"method": method, "features": features, "radius": radius, "history": history}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if path.is_file():
        saved = import_model(path)
        if other := {name: saved.about.get(name) for name, value in wanted.items() if saved.about.get(name) != value}:
            raise ValueError(f"{path} holds one model, with {_worded(other)}: leave out {', '.join(wanted)}, or pass its run")
        return saved
    if read_config(path) is None:
        raise ValueError(f"no run at {path}: pass the folder of a run of launch.lm, or an exported .safetensors file")
    rows = [row for row in map(_normalised, read_rows(path)) if row and (row["method"] in FROM_COUNTS or _file_of(path, row))]
    if not rows:
        raise ValueError(f"{path} has no language model: pass the folder of a run of launch.lm, or of launch.networks mlp-lm")
    candidates = [row for row in rows if wanted.items() <= row.items()]
    if not candidates:
        raise ValueError(f"{path} has no model with {_worded(wanted)}: it has {', '.join(map(model_name, rows))}")
    row = min(candidates, key=lambda row: row["dev_perplexity"])
    tokenizer = Tokenizer.load(_tokenizer_path(path))
    file = _file_of(path, row)
    model = _read_file(file)[0] if file else _solve_again(path, row)
    _check_sizes(path, model, tokenizer)
    return SavedModel(model, tokenizer, row)


def model_name(row: Mapping[str, Any]) -> str:
    """What a row's model is called, in file names too: method, features, radius, and what else tells rows apart."""
    parts = [row["method"], row["features"], row["radius"], row.get("history", "none"), row.get("bits")]
    return "_".join(str(part) for part in parts if part not in (None, "none", ""))


def save_run_model(run: str | os.PathLike, row: Mapping[str, Any], model: LanguageModel) -> Path:
    """Save the model of a row of a run, beside its counts."""
    path = _model_path(run, row)
    save_model(path, model, about={name: row[name] for name in ("method", "features", "radius", "history") if name in row})
    return path


def save_counts(run: str | os.PathLike, counts: Counts) -> None:
    """Save a run's counts as `checkpoints/counts`."""
    save_checkpoint(_counts_path(run), {"counts": list(counts)})


def has_counts(run: str | os.PathLike) -> bool:
    """Whether a run has finished counting."""
    return is_checkpoint(_counts_path(run))


def load_counts(run: str | os.PathLike) -> Counts:
    """The counts of a run.

    Raises:
        ValueError: no readable counts there.
    """
    return tuple(np.asarray(C) for C in load_checkpoint(_counts_path(run))["counts"])


def save_sparse_counts(run: str | os.PathLike, counts: SparseCounts) -> None:
    """Save a run's sparse counts as `checkpoints/sparse_counts`."""
    parts = [{name: np.asarray(getattr(C, name)) for name in ("data", "indices", "indptr")} for C in counts]
    save_checkpoint(_sparse_counts_path(run), {"counts": parts})


def has_sparse_counts(run: str | os.PathLike) -> bool:
    """Whether a run has finished counting into sparse tables."""
    return is_checkpoint(_sparse_counts_path(run))


def load_sparse_counts(run: str | os.PathLike) -> SparseCounts:
    """The sparse counts of a run.

    Raises:
        ValueError: no readable counts there.
    """
    parts = load_checkpoint(_sparse_counts_path(run))["counts"]
    return tuple(sparse_table(*(np.asarray(part[name]) for name in ("data", "indices", "indptr"))) for part in parts)


def save_tokenizer(run: str | os.PathLike, tokenizer: Tokenizer) -> None:
    """Save a run's tokenizer as `tokenizer.model`."""
    tokenizer.save(_tokenizer_path(run))


def _solve_again(run: Path, row: Mapping[str, Any]) -> LanguageModel:
    """A baseline or an explicit solution, from the counts of its run."""
    eos = (read_config(run) or {}).get("eos", False)
    method, K = row["method"], row["radius"]
    if has_counts(run):
        counts = load_counts(run)
        if method == "explicit":
            return explicit_language_model(counts, features=row["features"], radius=K, eos=eos)
        return (unigram_model if method == "unigram" else bigram_model)(counts, eos=eos)
    counts = load_sparse_counts(run)
    if method == "explicit":
        return sparse_language_model(counts, features=row["features"], radius=K, eos=eos)
    return (sparse_unigram_model if method == "unigram" else sparse_bigram_model)(counts, eos=eos)


def _normalised(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row with the fields that models are chosen by; None for a row of no language model."""
    row = {"method": row.get("name"), "features": "none", "radius": row.get("context"), "history": "none", **row}
    return row if row["method"] and row["radius"] is not None and "dev_perplexity" in row else None


def _describe(value: Any, name: str, tensors: dict[str, np.ndarray]) -> Any:
    """A value as JSON, its arrays put aside by name."""
    if isinstance(value, ShardedTables):
        value = value.gathered()
    if isinstance(value, jax.Array | np.ndarray):
        tensors[name] = np.ascontiguousarray(value)
        return {"array": name}
    if type(value).__name__ in _known and isinstance(value, SparseRows | Children | Cache):
        return {"type": type(value).__name__, "fields": _describe(value._asdict(), name, tensors)}
    if dataclasses.is_dataclass(value) and type(value).__name__ in _known:
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in ("parent",)}
        if isinstance(value, MLPLanguageModel):
            fields = {k: np.dtype(v).name if k == "dtype" else v for k, v in fields.items() if k != "name"}
        return {"type": type(value).__name__, "fields": _describe(fields, name, tensors)}
    if isinstance(value, dict):
        return {key: _describe(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return {"tuple": [_describe(item, f"{name}.{n}", tensors) for n, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{name} of a model is a {type(value).__name__}, which no file can hold")


def _rebuild(described: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    if not isinstance(described, dict):
        return described
    if "array" in described:
        array = tensors[described["array"]]
        return array if array.dtype == np.float64 else jnp.asarray(array)
    if "tuple" in described:
        return tuple(_rebuild(item, tensors) for item in described["tuple"])
    if "type" in described:
        fields = {key: _rebuild(item, tensors) for key, item in described["fields"].items()}
        if described["type"] == "MLPLanguageModel":
            fields["dtype"] = jnp.dtype(fields["dtype"])
        return _known[described["type"]](**fields)
    return {key: _rebuild(item, tensors) for key, item in described.items()}


def _read_file(path: Path) -> tuple[LanguageModel, Tokenizer | None, dict[str, Any]]:
    remedy = "fit or export the model again (python -m launch.export)"
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if "jexplicit" not in metadata:
                raise ValueError("it was not written by jexplicit")
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if _checksum(metadata["jexplicit"], tensors) != metadata.get("sha256"):
            raise ValueError("its checksum is another one: it is damaged")
        header = json.loads(metadata["jexplicit"])
        model = _rebuild(header["model"], tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no model that can be read ({error}): {remedy}") from error
    _check_numbers(path, tensors)
    tokenizer = Tokenizer(model=tensors["tokenizer"].tobytes(), kind=header["tokenizer"]) if header["tokenizer"] else None
    return model, tokenizer, header["about"]


def _checksum(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).data.cast("B") if tensors[name].size else b"")
    return digest.hexdigest()


def _check_numbers(path: Any, tensors: Mapping[str, np.ndarray]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype.kind == "f" and np.isnan(tensor).any():
            raise ValueError(f"{path}: {name} of the model has a NaN: fit the model again")


def _check_sizes(path: Any, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Refuse a model whose parts do not fit together, or a tokenizer that is another model's."""
    N = tokenizer.vocab_size
    sizes = {type(kind).__name__: kind.vocab_size for kind in model.rows}
    tables = [table.shape for kind in model.rows if isinstance(kind, TokenTables) for table in kind.tables]
    if set(sizes.values()) != {N} or any(shape != (N, N) for shape in tables) or len(model.exponents) != len(model.names):
        raise ValueError(
            f"{path} has a tokenizer of {N} tokens and rows of {sizes}, tables {tables}, with {len(model.exponents)} exponents "
            f"for {len(model.names)} rows: its files come from different runs; run again into a fresh folder"
        )


def _file_of(run: Path, row: Mapping[str, Any]) -> Path | None:
    """The file of a row's model, where there is one. At K = 1 Sum and Cat are one model, saved once."""
    alike = ("sum", "cat") if row["radius"] == 1 and row["features"] in ("sum", "cat") else (row["features"],)
    paths = [_model_path(run, {**row, "features": features}) for features in (row["features"], *alike)]
    return next((path for path in paths if path.exists()), None)


def _umask() -> int:
    """The process's own: safetensors makes files that only their owner can read."""
    os.umask(mask := os.umask(0))
    return mask


def _worded(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items()) or "these fields"


def _model_path(run: str | os.PathLike, row: Mapping[str, Any]) -> Path:
    return Path(run) / "checkpoints" / "models" / f"{model_name(row)}.safetensors"


def _counts_path(run: str | os.PathLike) -> Path:
    return Path(run) / "checkpoints" / "counts"


def _sparse_counts_path(run: str | os.PathLike) -> Path:
    return Path(run) / "checkpoints" / "sparse_counts"


def _tokenizer_path(run: str | os.PathLike) -> Path:
    return Path(run) / "tokenizer.model"
