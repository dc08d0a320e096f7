"""launch.networks transformer-lm and lstm-lm: a language model that reads windows of a text, trained by gradients."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.data.corpus.cache import cached_streams
from jexplicit.data.corpus.sources import read_corpus
from jexplicit.data.sizes import TextSizes
from jexplicit.data.text import text_corpus
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.experiments.experiment import Experiment, Part
from jexplicit.experiments.folder import RunFolder, write_json
from jexplicit.experiments.rows import Results, Row
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Lines, Table, Texts
from jexplicit.lm.checkpoints import save_run_model, save_tokenizer
from jexplicit.lm.generation import generate_text
from jexplicit.lm.measures import comparable_measures, document_losses, loss_fields
from jexplicit.lm.rows.network import network_model
from jexplicit.nn.lstm import LSTM
from jexplicit.nn.networks import init_variables
from jexplicit.nn.residual import Residual, network_of_residual, residual_batch
from jexplicit.nn.sequences import (
    sequence_loss,
    sequence_optimizer,
    stream_log_probabilities,
    window_batch,
    window_order,
)
from jexplicit.nn.steps import initial_state, training_step, variables_of
from jexplicit.nn.training import TrainingResult, train
from jexplicit.nn.transformer import Transformer
from jexplicit.runs.devices import on_cpu, replicate, use_devices
from jexplicit.runs.progress import console, stage
from launch.networks.config import SequenceConfig, TransformerConfig, checked
from launch.shared.base import Base, based_model, counted_base, window_loss

_block = 1000  # predictions of a single document, which is resampled in blocks


class Text(NamedTuple):
    """A text as tokens.

    streams: of train, dev and test, as far as they are there.
    sizes: of the dev text.
    about: where it comes from, for the rows.
    """

    tokenizer: Tokenizer
    streams: dict[str, np.ndarray]
    sizes: TextSizes | None
    about: dict[str, Any]


def measure(config: SequenceConfig, folder: RunFolder) -> Iterator[Part]:
    """The network, and documents sampled from it."""
    method = "transformer" if isinstance(config, TransformerConfig) else "lstm"
    yield {"method": method}, functools.partial(measure_network, config, folder, method)


def read_text(config: SequenceConfig) -> Text:
    """Train, dev and test as streams of token ids."""
    reading: Any = {"field": config.field, "documents": config.documents}
    with stage("reading"):
        corpus = read_corpus(config.corpus, config.train, config.dev, split=config.split, keep=True, **reading)
        corpus = (corpus.limit(config.limit) if config.limit else corpus).in_memory()
        test = list(text_corpus([*config.train, *config.dev], config.test, **reading).dev) if config.test else []
    with stage("tokenising", "documents") as progress:
        text = cached_streams(corpus, kind=config.tokenizer, vocab_size=config.vocab_size, progress=progress)
    streams = {"train": np.asarray(text.train[:]), "dev": np.asarray(text.dev)}
    if test:
        streams["test"] = encode_documents(text.tokenizer, test)
    about = {"corpus": corpus.name, "corpus_sha256": corpus.sha256, "vocab_size": text.tokenizer.vocab_size}
    return Text(text.tokenizer, streams, text.dev_sizes, about)


def network_of(config: SequenceConfig, vocab_size: int, precision: str) -> Transformer | LSTM:
    """The network of the flags."""
    names = ["window", "width", "layers", "dropout", "tied"]
    kind = Transformer if isinstance(config, TransformerConfig) else LSTM
    names += ["heads", "positions", "remat"] if kind is Transformer else []
    flags: Any = {name: getattr(config, name) for name in names}
    return kind(vocab_size=vocab_size, precision=precision, **flags)


def measure_network(config: SequenceConfig, folder: RunFolder, method: str) -> list[Row]:
    """Train the network, save it, and sample from it."""
    mesh = use_devices(config.devices or (1 if jax.default_backend() == "cpu" else None))
    text = read_text(config)
    folder.note_data("text", corpus_sha256=text.about["corpus_sha256"], tokenizer_sha256=text.tokenizer.sha256)
    save_tokenizer(folder.path, text.tokenizer)
    precision = config.precision if config.precision != "auto" else "float32" if on_cpu(mesh) else "bfloat16"
    network = network_of(config, text.tokenizer.vocab_size, precision)
    partial = folder.path / "checkpoints" / f"{method}.partial"
    kept = folder.path / "checkpoints" / "base"
    base = counted_base(config, text.streams, text.tokenizer, kept) if config.start == "base" else None
    result = train_sequences(config, folder, network, text, partial, mesh, base)
    params = jax.tree.map(np.asarray, result.params)
    if base:
        variables, exponent = network_of_residual(params)
        model = based_model(base, network_model(network, variables, eos=config.eos), exponent)
    else:
        model = network_model(network, params, eos=config.eos)
    fields = {"features": "none", "radius": 1, "history": f"window:{config.window}"}
    save_run_model(folder.path, {"method": method, **fields}, model)
    with stage("evaluating", "positions") as progress:
        found = {
            part: document_losses(model, stream, block=_block, mesh=mesh, progress=progress)
            for part, stream in text.streams.items()
            if part != "train"
        }
    key, prompts = jax.random.key(config.seed), [""] * config.samples
    length = 4 * config.window if config.tokenizer == "char" else 40
    write_json(folder.path / "samples.json", generate_text(key, model, text.tokenizer, prompts, length) if prompts else [])
    last, updates = result.history[-1], updates_per_evaluation(config)
    trained = result.epochs * updates * windows_per_update(config) * config.window
    row = {
        **fields,
        **{f"{part}_{name}": value for part, own in found.items() for name, value in loss_fields([own]).items()},
        **comparable_measures(float(found["dev"].nll.sum()), text.sizes),
        "train_loss": last["train_loss"],
        "window_loss": min(entry["dev_loss"] for entry in result.history),
        "last_window_loss": last["dev_loss"],
        "best_step": result.best_epoch * updates,
        **{
            "steps": result.epochs * updates,
            "batch_size": windows_per_update(config),
            "train_tokens": len(text.streams["train"]),
        },
        **{"trained_tokens": trained, "flops": network.flops_per_token() * trained, "seconds": result.seconds},
        "cpu_seconds": last["cpu_seconds"],
        "tokens_per_second": trained / result.seconds,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(result.params)),
        "bytes": model.nbytes,
        "precision": precision,
        "start": config.start,
        **({"base_seconds": base.seconds} if base else {}),
        **text.about,
    }
    for folder_of in (partial, kept):
        shutil.rmtree(folder_of, ignore_errors=True)  # only for resuming
    return [row]


def updates_per_evaluation(config: SequenceConfig) -> int:
    """Updates between two dev losses; training ends with one, so that it makes a few more where --steps is no multiple."""
    return max(1, config.steps // config.evaluations)


def windows_per_update(config: SequenceConfig) -> int:
    """Windows whose gradients are averaged."""
    return config.accumulate * config.batch_size


def train_sequences(
    config: SequenceConfig,
    folder: RunFolder,
    network: Transformer | LSTM,
    text: Text,
    checkpoints: Path,
    mesh: Any,
    base: Base | None = None,
) -> TrainingResult:
    """Train the network, over a base or alone; the parameters of the evaluation with the lowest dev loss are kept."""
    stream, dev, updates = text.streams["train"], text.streams["dev"], updates_per_evaluation(config)
    size = updates * windows_per_update(config)
    if config.batch_size % mesh.size:
        raise ValueError(f"--batch-size {config.batch_size} on {mesh.size} devices: give a multiple of {mesh.size}")
    optimizer = sequence_optimizer(
        config.learning_rate,
        config.steps,
        warmup=config.warmup,
        decay=config.weight_decay,
        accumulate=config.accumulate,
    )
    tokens, N = np.zeros((1, config.window), np.int32), text.tokenizer.vocab_size
    trained = Residual(network=network) if base else network
    inputs = (tokens, np.zeros((*tokens.shape, N), np.float32)) if base else tokens
    variables = init_variables(trained, jax.random.key(config.seed), inputs)
    batch = residual_batch(stream, base.train, config.window, mesh) if base else window_batch(stream, config.window, mesh)
    wanted = slice(None) if config.eos else dev[1:] != PAD
    per_update = network.flops_per_token() * windows_per_update(config) * config.window

    def evaluate_windows(variables: Any) -> float:
        if base:
            own, exponent = network_of_residual(variables)
            return window_loss(network, own, exponent, base, dev, config.window, eos=config.eos, mesh=mesh)
        options: Any = {"window": config.window, "stride": config.window, "mesh": mesh}
        return -float(stream_log_probabilities(network, variables, dev, **options)[wanted].mean(dtype=np.float64))

    def on_epoch(entry: Any) -> None:
        step = round(entry["epoch"]) * updates
        folder.log(event="epoch", name=type(network).__name__.lower(), **entry, step=step, flops=step * per_update)
        losses = ", ".join(f"{part} {entry[f'{part}_loss']:.4f}" for part in ("train", "dev") if f"{part}_loss" in entry)
        console.print(f"    step {step:,}: {losses}, {entry.get('seconds', 0):.0f} s")

    with stage("training", "windows") as progress:
        return train(
            replicate(initial_state(variables, optimizer), mesh),
            training_step(trained, sequence_loss(config.eos), optimizer, seed=config.seed),
            batch,
            evaluate_windows,
            params=variables_of,
            size=size,
            batch_size=config.batch_size,
            epochs=-(-config.steps // updates),
            seed=config.seed,
            order=window_order(len(stream), config.window, size),
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )


def _curve(results: Results) -> list[Row]:
    return results.events("epoch", "name", "epoch")


RESULTS = Table(
    [
        Column("network", "method"),
        Column("seed", lambda row: row.get("seed", 0), "d"),
        *(Column(part, f"{part}_loss", ".4f") for part in ("train", "dev", "test")),
        Column("± dev", "dev_loss_se", ".4f"),
        Column("in windows", "window_loss", ".4f"),
        Column("dev perplexity", "dev_perplexity", ".2f"),
        Column("bits per byte", "bits_per_byte", ".3f"),
        Column("parameters", "parameters", ",d"),
        Column("MB", "bytes", ".1f", 1e-6),
        Column("tokens", "trained_tokens", ",d"),
        Column("TFLOP", "flops", ",.1f", 1e-12),
        Column("tokens/s", "tokens_per_second", ",.0f"),
        Column("s", "seconds", ",.0f"),
    ],
    note="Losses are nats per token. *dev* and *test*: each token after at least three quarters of a window of its document or "
    "all of the document before it. *in windows*: after half a window on average, at the best evaluation of training. FLOP of "
    "training by formula, without evaluations.",
)
_axes = {"xlabel": "CPU seconds", "ylabel": "dev loss in windows"}
CURVE = Lines("curves", "cpu_seconds", "dev_loss", "name", rows=_curve, axes=_axes, size=(6.4, 4.2))
VIEWS = [RESULTS, CURVE, Texts("Sampled documents", "samples.json")]
EXPERIMENT = Experiment(
    "networks", SequenceConfig, measure, VIEWS, check=checked, title="launch.networks: language models of windows"
)
