"""Language models on disk.

The counts are all that the explicit solution needs, so a run saves them once (orbax) beside its tokenizer, and any of its
models is solved again from them in a second. One model can be exported to a safetensors file that holds everything.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jexplicit.cooccurrence import Counts
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.language_model import Features, TokenTables, explicit_language_model
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.folder import read_config, read_rows


class LanguageModel(NamedTuple):
    """Tables and the tokenizer whose ids they speak of."""

    tables: TokenTables
    tokenizer: Tokenizer


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


def save_tokenizer(run: str | os.PathLike, tokenizer: Tokenizer) -> None:
    """Save a run's tokenizer as `tokenizer.model`."""
    tokenizer.save(_tokenizer_path(run))


def load_model(path: str | os.PathLike, *, features: Features | None = None, radius: int | None = None) -> LanguageModel:
    """Load a language model from a run folder or a safetensors file.

    Args:
        path: the `--out` of `launch.lm`, or a file written by `export_model`.
        features: of the model wanted; default, those of the run's lowest dev perplexity.
        radius: K of the model wanted; default likewise.

    Raises:
        ValueError: no model there, or none with these features and radius.

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
        if row["method"] == "explicit"
        and row["features"] == (features or row["features"])
        and row["radius"] == (radius or row["radius"])
    ]
    if not candidates:
        raise ValueError(f"{path} has no explicit model with features {features or 'any'} and radius {radius or 'any'}")
    best = min(candidates, key=lambda row: row["dev_perplexity"])
    tokenizer = Tokenizer.load(_tokenizer_path(path))
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

    Tensors `table_1` .. `table_K` [N, N] (Sum: `table_1` only) hold the logits of each context token, `tokenizer` the
    sentencepiece model's bytes; the metadata say features, radius and eos.
    """
    tables, tokenizer = model
    distinct = tables.tables if tables.ordered else tables.tables[:1]
    tensors = {f"table_{k}": np.asarray(table) for k, table in enumerate(distinct, 1)}
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
            names = [f"table_{k}" for k in range(1, K + 1)] if about["features"] == "cat" else ["table_1"]
            tables = tuple(jnp.asarray(file.get_tensor(name)) for name in names)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a model exported by jexplicit ({error}): write one with launch.lm --export") from error
    return LanguageModel(TokenTables(tables * (K // len(tables)), about["features"], about["eos"]), tokenizer)


def _counts_path(run: str | os.PathLike) -> Path:
    return Path(run) / "checkpoints" / "counts"


def _tokenizer_path(run: str | os.PathLike) -> Path:
    return Path(run) / "tokenizer.model"
