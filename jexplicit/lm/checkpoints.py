"""Language models on disk.

The counts are all that the explicit solution needs, so a run saves them once (orbax) beside its tokenizer, and any of its
models is solved again from them in a second. One model can be exported to a safetensors file that holds everything.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jexplicit.counts.dense import Counts
from jexplicit.counts.sparse import SparseCounts, sparse_table
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.explicit import Features, TokenTables, explicit_language_model
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.folder import read_config, read_rows


class LanguageModel(NamedTuple):
    """Tables and the tokenizer whose ids they speak of."""

    tables: TokenTables
    tokenizer: Tokenizer


_without_tables = (
    "unigram",
    "bigram",
    "5-gram",
    "joint",
    "joint+cache",
    "bitcipher",
)  # rows of results that no K tables stand behind


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
    save_checkpoint(Path(run) / "checkpoints" / "sparse_counts", {"counts": parts})


def has_sparse_counts(run: str | os.PathLike) -> bool:
    """Whether a run has finished counting into sparse tables."""
    return is_checkpoint(Path(run) / "checkpoints" / "sparse_counts")


def load_sparse_counts(run: str | os.PathLike) -> SparseCounts:
    """The sparse counts of a run.

    Raises:
        ValueError: no readable counts there.
    """
    parts = load_checkpoint(Path(run) / "checkpoints" / "sparse_counts")["counts"]
    return tuple(sparse_table(*(np.asarray(part[name]) for name in ("data", "indices", "indptr"))) for part in parts)


def save_tokenizer(run: str | os.PathLike, tokenizer: Tokenizer) -> None:
    """Save a run's tokenizer as `tokenizer.model`."""
    tokenizer.save(_tokenizer_path(run))


def save_tables(run: str | os.PathLike, method: str, model: TokenTables) -> None:
    """Save the tables of a trained model; the explicit ones follow from the counts."""
    tables = [np.asarray(table) for table in distinct_tables(model)]
    save_checkpoint(_tables_path(run, method, model.features, model.radius), {"tables": tables})


def distinct_tables(model: TokenTables) -> tuple[Array, ...]:
    """The tables without repetition: one where all offsets read the same."""
    return model.tables if model.ordered else model.tables[:1]


def has_model(run: str | os.PathLike) -> bool:
    """Whether a run has measured a model that `load_model` can load."""
    return any(_has_tables(row) for row in read_rows(run))


def load_model(
    path: str | os.PathLike, *, method: str | None = None, features: Features | None = None, radius: int | None = None
) -> LanguageModel:
    """Load a language model from a run folder or a safetensors file.

    Args:
        path: the `--out` of `launch.lm`, or a file written by `export_model`.
        method: "explicit" or how the model was trained ("cold", "warm", "optimum"); default, that of the run's lowest dev
            perplexity.
        features: of the model wanted; default likewise.
        radius: K of the model wanted; default likewise.

    Raises:
        ValueError: no model there, or none of this method with these features and radius.

    Example::

        from jexplicit import load_model
        model, tokenizer = load_model("runs/demo")
    """
    path = Path(path)
    if path.is_file():
        model = _load_export(path)
        if (features or model.tables.features, radius or model.tables.radius) != (model.tables.features, model.tables.radius):
            raise ValueError(f"{path} holds features {model.tables.features} with radius {model.tables.radius} only")
        return model
    config = read_config(path)
    if config is None:
        raise ValueError(f"no run at {path}: pass the --out of a launch.lm run, or an exported .safetensors file")
    candidates = [
        row
        for row in read_rows(path)
        if _has_tables(row)
        and row["method"] == (method or row["method"])
        and row["features"] == (features or row["features"])
        and row["radius"] == (radius or row["radius"])
    ]
    if not candidates:
        wanted = f"method {method or 'any'}, features {features or 'any'} and radius {radius or 'any'}"
        raise ValueError(f"{path} has no model with {wanted}: it has {_listed(read_rows(path))}")
    best = min(candidates, key=lambda row: row["dev_perplexity"])
    tokenizer = Tokenizer.load(_tokenizer_path(path))
    if best["method"] != "explicit":
        return LanguageModel(_load_tables(path, best, config["eos"]), tokenizer)
    counts = load_counts(path)
    if counts[0].shape != (tokenizer.vocab_size,) * 2:
        raise ValueError(
            f"{path} has counts of shape {counts[0].shape} and a tokenizer of {tokenizer.vocab_size} tokens: "
            "its files come from different runs; run again into a fresh folder"
        )
    tables = explicit_language_model(counts, features=best["features"], radius=best["radius"], eos=config["eos"])
    return LanguageModel(tables, tokenizer)


def export_model(path: str | os.PathLike, model: LanguageModel) -> None:
    """Write one model, tokenizer included, to a safetensors file.

    Tensors `table_1` .. `table_K` [N, N] (unweighted Sum: `table_1` only) hold the logits of each context token, `tokenizer`
    the sentencepiece model's bytes; the metadata say features, radius and eos.
    """
    tables, tokenizer = model
    tensors = {f"table_{k}": np.asarray(table) for k, table in enumerate(distinct_tables(tables), 1)}
    tensors["tokenizer"] = np.frombuffer(tokenizer.model, np.uint8)
    about = {"features": tables.features, "radius": tables.radius, "eos": tables.eos, "kind": tokenizer.kind}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"jexplicit": json.dumps(about)})


def _load_export(path: Path) -> LanguageModel:
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["jexplicit"])
            tokenizer = Tokenizer(model=file.get_tensor("tokenizer").tobytes(), kind=about["kind"])
            K = about["radius"]
            names = [name for k in range(1, K + 1) if (name := f"table_{k}") in file.keys()]
            tables = tuple(jnp.asarray(file.get_tensor(name)) for name in names)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a model exported by jexplicit ({error}): write one with launch.lm --export") from error
    return LanguageModel(TokenTables(tables * (K // len(tables)), about["features"], about["eos"]), tokenizer)


def _load_tables(run: Path, row: dict[str, Any], eos: bool) -> TokenTables:
    # at K = 1 Sum and Cat are one model, saved once
    alike = ("sum", "cat") if row["radius"] == 1 else (row["features"],)
    paths = [_tables_path(run, row["method"], features, row["radius"]) for features in alike]
    path = next((path for path in paths if is_checkpoint(path)), paths[0])
    tables = tuple(jnp.asarray(table) for table in load_checkpoint(path)["tables"])
    return TokenTables(tables * (row["radius"] // len(tables)), row["features"], eos)


def _has_tables(row: dict[str, Any]) -> bool:
    return row["method"] not in _without_tables and row.get("tables", "dense") == "dense"


def _listed(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['method']} {row['features']} {row['radius']}" for row in rows)


def _tables_path(run: str | os.PathLike, method: str, features: str, radius: int) -> Path:
    return Path(run) / "checkpoints" / f"{method}_{features}_{radius}"


def _counts_path(run: str | os.PathLike) -> Path:
    return Path(run) / "checkpoints" / "counts"


def _tokenizer_path(run: str | os.PathLike) -> Path:
    return Path(run) / "tokenizer.model"
