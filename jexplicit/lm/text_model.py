"""A language model with its tokenizer, in memory, in files and in runs.

A file is of safetensors. Its metadata says what the arrays are, where they come from, and a checksum.
"""

import dataclasses
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save
from scipy.sparse import issparse

from jexplicit.counts import Counts, SparseCounts, sparse_table
from jexplicit.data.text import is_compressed, is_input, is_pipe, read_input, refuse_other_formats
from jexplicit.data.tokenizers import PAD, Progress, Tokenizer, encode_documents
from jexplicit.lm.attribution import Attribution, explain
from jexplicit.lm.counted.contexts import Context
from jexplicit.lm.counted.model import COUNTED, CountedModel
from jexplicit.lm.evaluation import AnyModel, Combination, CombinationState, evaluate, score
from jexplicit.lm.generation import generate_text, next_token, prompt_ids
from jexplicit.lm.layers import explicit_language_model
from jexplicit.lm.model import (
    LanguageModel,
    NetworkRows,
    SequenceRows,
    Sparse,
    State,
    TokenTables,
    is_token_model,
    read_text,
)
from jexplicit.lm.ngram import BackOffChain, Children, bigram_model, is_arpa, read_arpa, unigram_model, write_arpa
from jexplicit.runs.devices import is_checkpoint, key_of_seed, load_checkpoint, save_checkpoint
from jexplicit.runs.files import (
    file_inside,
    is_measured,
    is_of,
    local_path,
    parse_json,
    plain,
    read_command,
    read_config,
    read_rows,
    refuse_errors,
    write_whole,
)

# Methods that counts alone serve: solved again from those of a run, of text in shards, and by several processes.
FROM_COUNTS = ("unigram", "bigram", "explicit")
_of_sparse = ("data", "indices", "indptr")  # arrays of a table
_format = 6
_rows = (LanguageModel, TokenTables, Sparse, BackOffChain, Children, NetworkRows, SequenceRows)
_known: dict[str, type] = {cls.__name__: cls for cls in (*_rows, *COUNTED, Combination, CombinationState, State)}
_networks = {"MLPLanguageModel": "networks", "Transformer": "sequences"}


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
        pad, ids = np.array([PAD], np.int32), self.tokenizer.encode_all(texts)  # a predicted end of a text is a `<pad>`
        parts = [part for of_text in ids if len(of_text) for part in (of_text, pad)]
        scored = score(self.model, np.concatenate([pad, *parts]), progress=progress) if parts else np.zeros(0)
        sizes = [len(of_text) + (self.model.eos and len(of_text) > 0) for of_text in ids]
        scores = np.split(scored.astype(np.float64), np.cumsum(sizes, dtype=int)[:-1])[: len(ids)]  # one part of no text
        return [(np.pad(of_text, (0, len(log_p) - len(of_text))), log_p) for of_text, log_p in zip(ids, scores, strict=True)]

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
        read = read_text(stream, self.model.context, eos=self.model.eos)
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
    context: int | None = None,
    history: str | None = None,
) -> TextModel:
    """Load a language model from a run or an export.

    Args:
        path: the folder of a run of `launch.lm` or `launch.networks`, a file of `TextModel.save`, or an ARPA file.
        method, features, context, history: of the model wanted; default, that of the run's lowest dev perplexity.

    Raises:
        ValueError: no run or model there, one of another version, a damaged file, or no model that matches.

    Example::

        from jexplicit import load_model
        model = load_model("runs/demo")
        model.generate("Return the", 20)
    """
    given = {"method": method, "features": features, "context": context, "history": history}
    (saved,) = load_models(path, best=True, **{name: (value,) for name, value in given.items() if value is not None})
    return saved


def load_models(path: str | os.PathLike, *, best: bool = False, **wanted: Sequence[Any]) -> Iterator[TextModel]:
    """Load models of a run, or that of an export, one after the other.

    wanted: values of method, features, context or history to take. best: only the model with the lowest dev perplexity.
    """
    if not is_input(path := local_path(path)):
        rows = model_rows(path, **wanted)
        yield from (load_row(path, row) for row in (sorted(rows, key=lambda row: row["dev_perplexity"])[:1] if best else rows))
        return
    saved = _load_file(path)
    if other := [f"{name} {saved.about.get(name)}" for name, values in wanted.items() if saved.about.get(name) not in values]:
        raise ValueError(f"{path} holds one model, with {', '.join(other)}: leave out {', '.join(wanted)}, or pass its run")
    yield saved


def _load_file(path: Path) -> TextModel:
    """The model of a file of `TextModel.save`, or of any ARPA file."""
    refuse_other_formats(path, head := read_input(path, 512))
    if head[8:10] != b'{"' and (is_arpa(path) or b"\\data\\" in head):
        model, tokenizer = read_arpa(path)
        about = {"method": "ngram", "features": "none", "context": model.context, "history": "none"}
    elif is_pipe(str(path)) or is_compressed(str(path)):
        raise ValueError(f"{path}: a .safetensors file is neither read from a pipe nor compressed: write it to a file")
    else:
        model, tokenizer, about = read_model_file(path)
        if tokenizer is None:
            raise ValueError(f"{path} is a model of a run, without its tokenizer: pass the run folder, or export the model")
        check_sizes(path, model, tokenizer)
        past = model.history if isinstance(model.history, str) else "none"
        by_hand = {"method": type(model).__name__, "features": "none", "context": model.context, "history": past}
        about = about if "method" in about else by_hand | about
    return TextModel(model, tokenizer, about)


def load_row(path: str | os.PathLike, row: Mapping[str, Any]) -> TextModel:
    """The model of one row of a run, loaded or solved again from counts."""
    path = local_path(path)
    tokenizer = Tokenizer.load(path / "tokenizer.model")
    if file := _file_of(path, row):
        model = read_model_file(file)[0]
    else:
        counts, eos = load_counts(path) or load_counts(path, sparse=True), (read_config(path) or {}).get("eos", False)
        if row["method"] == "explicit":
            model = explicit_language_model(counts, features=row["features"], context=row["context"], eos=eos)
        else:
            model = (unigram_model if row["method"] == "unigram" else bigram_model)(counts, eos=eos)
    check_sizes(path, model, tokenizer)
    return TextModel(model, tokenizer, {**row, "command": read_command(path)})


# Files


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
    header = {"format": _format, "library_version": importlib.import_module("jexplicit").__version__, "model": description}
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
        ids = [jax.ShapeDtypeStruct((n,), np.int32) for n in (model.context, model.history)]
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
    """The rows of a run with a model that `load_row` can load, in order.

    wanted: method, features, context or history -> the values to take; default, any.
    """
    if read_config(path := local_path(path)) is None:
        remedy = "pass the folder of a run of jexplicit lm, or an exported .safetensors or .arpa file"
        raise ValueError(f"no run at {path}: {remedy}")
    rows = []
    for given in read_rows(path):
        row = {"method": given.get("name"), "features": "none", "context": None, "history": "none", **given}
        named = row["method"] and all(isinstance(row[name], str) for name in ("method", "features", "history"))
        measured = named and isinstance(row["context"], int) and is_measured(row.get("dev_perplexity"))
        if measured and (row["method"] in FROM_COUNTS or _file_of(path, row)):
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} has no language model by this version with a dev perplexity: pass a run of launch.lm")
    if found := [row for row in rows if all(row[name] in values for name, values in wanted.items())]:
        return found
    words = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in wanted.items())
    raise ValueError(f"{path} has no model with {words}: it has {', '.join(map(model_name, rows))}")


def model_name(row: Mapping[str, Any]) -> str:
    """The name of a row's model, also in files: method, features, context, and more."""
    parts = [row["method"], row["features"], row["context"], row.get("history", "none")]
    return "_".join(str(part) for part in parts if part not in (None, "none", ""))


def save_run_model(run: str | os.PathLike, row: Mapping[str, Any], model: AnyModel) -> None:
    """Save the model of a row of a run, beside its counts."""
    about = {name: row[name] for name in ("method", "features", "context", "history") if name in row}
    save_model(_saved(run, "models") / f"{model_name(row)}.safetensors", model, about=about)


def _file_of(run: Path, row: Mapping[str, Any]) -> Path | None:
    """The file of a row's model, if any; K = 1 is shared."""
    alike = ("sum", "cat") if row["context"] == 1 and row["features"] in ("sum", "cat") else ()
    for features in (row["features"], *alike):
        name = f"{model_name({**row, 'features': features})}.safetensors"
        if (_saved(run, "models") / name).exists():
            return file_inside(_saved(run, "models"), name, run / "results.json")
    return None


def _saved(run: str | os.PathLike, name: str) -> Path:
    return local_path(run) / "checkpoints" / name


def save_counts(run: str | os.PathLike, counts: Counts | SparseCounts) -> None:
    """Save a run's counts as `checkpoints/counts`, sparse ones as `checkpoints/sparse_counts`."""
    sparse = issparse(counts[0])
    parts = [{name: np.asarray(getattr(C, name)) for name in _of_sparse} for C in counts] if sparse else list(counts)
    save_checkpoint(_saved(run, "sparse_counts" if sparse else "counts"), {"counts": parts})


def load_counts(run: str | os.PathLike, *, sparse: bool = False) -> Counts | SparseCounts:
    """The counts of a run; none if it has not finished counting."""
    if not is_checkpoint(path := _saved(run, "sparse_counts" if sparse else "counts")):
        return ()
    stored = load_checkpoint(path)
    with refuse_errors(f"{path} holds no counts", "delete it and run again"):
        if sparse:
            return tuple(sparse_table(*(np.asarray(part[name]) for name in _of_sparse)) for part in stored["counts"])
        return tuple(map(np.asarray, stored["counts"]))
