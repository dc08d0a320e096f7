"""launch.networks transformer-lm: a language model of windows."""

import functools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import TextSizes, read_corpus, text_corpus
from jexplicit.data.shards import tokenize_corpus
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.checkpoints import save_run_model, save_tokenizer
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.evaluation import comparable_measures, document_losses, loss_fields, spelling
from jexplicit.lm.generation import generate_text
from jexplicit.lm.rows import network_model
from jexplicit.nn.networks import init_variables, train_network
from jexplicit.nn.sequences import (
    Transformer,
    induction_start,
    sequence_loss,
    sequence_optimizer,
    stream_log_probabilities,
    window_batch,
    window_order,
)
from jexplicit.nn.training import TrainingResult
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import on_cpu, use_devices
from jexplicit.runs.files import read_texts, write_json
from jexplicit.runs.progress import console, stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, Texts
from launch.networks.config import TransformerConfig, checked

_block = 1000  # predictions of a single document, which is resampled in blocks


class Text(NamedTuple):
    """Token streams of train, dev and test, dev's sizes, the text's origin."""

    tokenizer: Tokenizer
    streams: dict[str, np.ndarray]
    sizes: TextSizes | None
    about: dict[str, Any]


class Job(NamedTuple):
    """Shared inputs and devices of the networks of a run."""

    config: TransformerConfig
    folder: RunFolder
    text: Text
    mesh: Mesh


def mesh_of(config: TransformerConfig) -> Mesh:
    """The devices that share a batch."""
    return use_devices(config.devices or (1 if jax.default_backend() == "cpu" else None))


def checked_with_devices(config: TransformerConfig) -> TransformerConfig:
    """The configuration to run, on devices that are there and share a batch evenly."""
    config = checked(config)
    if config.batch_size % (size := mesh_of(config).size):
        raise ValueError(f"--batch-size {config.batch_size} on {size} devices: give a multiple of {size}")
    return config


def measure(config: TransformerConfig, folder: RunFolder) -> Iterator[Part]:
    """A network from every start and seed, and documents sampled from each."""
    text = read_text(config)
    folder.note_data("text", corpus_sha256=text.about["corpus_sha256"], tokenizer_sha256=text.tokenizer.sha256)
    save_tokenizer(folder.path, text.tokenizer)
    job = Job(config, folder, text, mesh_of(config))
    for seed in range(config.seed, config.seed + config.seeds):
        for start in config.start:
            parts = ["transformer", start * (start != "none"), str(seed) * (config.seeds > 1)]
            method = "-".join(filter(None, parts))
            yield {"method": method}, functools.partial(measure_network, job, method, start, seed)


def read_text(config: TransformerConfig) -> Text:
    """Train, dev and test as streams of token ids."""
    reading: Any = {"field": config.field, "documents": config.documents}
    with stage("reading"):
        corpus = read_corpus(config.corpus, config.train, config.dev, split=config.split, **reading)
        corpus = (corpus.limit(config.limit) if config.limit else corpus).in_memory()
        test = list(text_corpus([*config.train, *config.dev], config.test, **reading).dev) if config.test else []
    with stage("tokenising", "documents") as progress:
        text = tokenize_corpus(corpus, config.tokenizer, config.vocab_size, progress=progress)
    streams = {"train": text.train, "dev": text.dev}
    if test:
        streams["test"] = encode_documents(text.tokenizer, test)
    about = {"corpus": corpus.name, "corpus_sha256": corpus.sha256, "vocab_size": text.tokenizer.vocab_size}
    return Text(text.tokenizer, streams, text.dev_sizes, about)


def measure_network(job: Job, method: str, start: str, seed: int) -> list[Row]:
    """Train the network from a start, save it, and sample from it."""
    config, folder, text, mesh = job
    precision = "float32" if on_cpu(mesh) else "bfloat16"  # of products; parameters have float32
    names = ("window", "width", "layers", "heads", "positions", "dropout", "tied")
    flags: Any = {name: getattr(config, name) for name in names}
    network = Transformer(vocab_size=text.tokenizer.vocab_size, precision=precision, **flags)
    partial = folder.path / "checkpoints" / f"{method}.partial"
    begin = time.perf_counter()
    variables = init_variables(network, key_of_seed(seed), np.zeros((1, config.window), np.int32))
    if start == "induction":
        variables = induction_start(network, variables, seed=seed)
    start_seconds = time.perf_counter() - begin
    about: Row = {"name": method.split("-")[0], "start": start, "seed": seed}
    result = train_sequences(job, network, variables, partial, about)
    model = network_model(network, jax.tree.map(np.asarray, result.params), eos=config.eos)
    fields = {"features": "none", "radius": 1, "history": f"window:{config.window}"}
    save_run_model(folder.path, {"method": method, **fields}, model)
    with stage("evaluating", "positions") as progress:
        options: Any = {"block": _block, "mesh": mesh, "progress": progress}
        found = {part: document_losses(model, x, **options) for part, x in text.streams.items() if part != "train"}
    add_samples(config, folder, text, model, seed)
    last, (updates, windows) = result.history[-1], updates_and_windows(config)
    trained = result.epochs * updates * windows * config.window
    spelled = spelling(text.tokenizer, text.streams["dev"], text.sizes)
    row = {
        **fields,
        **{f"{part}_{name}": value for part, own in found.items() for name, value in loss_fields([own]).items()},
        **comparable_measures(float(found["dev"].nll.sum()) + spelled, text.sizes),
        "train_loss": last["train_loss"],
        "window_loss": min(entry["dev_loss"] for entry in result.history),
        "last_window_loss": last["dev_loss"],
        "best_step": result.best_epoch * updates,
        **{"steps": result.epochs * updates, "batch_size": windows, "train_tokens": len(text.streams["train"])},
        **{"trained_tokens": trained, "flops": network.flops_per_token() * trained, "seconds": result.seconds},
        "cpu_seconds": last["cpu_seconds"],
        "tokens_per_second": trained / result.seconds,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(result.params)),
        "bytes": model.nbytes,
        "precision": precision,
        **{"start": start, "seed": seed, "start_seconds": start_seconds},
        **text.about,
    }
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [row]


def add_samples(config: TransformerConfig, folder: RunFolder, text: Text, model: LanguageModel, seed: int) -> None:
    """Add documents of a model to samples.json once."""
    path = folder.path / "samples.json"
    before = read_texts(path)
    prompts, length = [""] * config.samples, 4 * config.window if config.tokenizer == "char" else 40
    own = generate_text(key_of_seed(seed), model, text.tokenizer, prompts, length) if prompts else []
    write_json(path, before if own and before[-len(own) :] == own else [*before, *own])


def updates_and_windows(config: TransformerConfig) -> tuple[int, int]:
    """Updates between two dev losses, and windows of an update."""
    return max(1, config.steps // config.evaluations), config.accumulate * config.batch_size


def train_sequences(job: Job, network: Transformer, variables: dict[str, Any], checkpoints: Path, about: Row) -> TrainingResult:
    """Train the network, and keep the parameters of lowest dev loss."""
    config, folder, text, mesh = job
    stream, dev, (updates, size) = text.streams["train"], text.streams["dev"], updates_and_windows(config)
    per_update, size = network.flops_per_token() * size * config.window, updates * size
    optimizer = sequence_optimizer(
        config.learning_rate, config.steps, warmup=config.warmup, decay=config.weight_decay, accumulate=config.accumulate
    )
    wanted = slice(None) if config.eos else dev[1:] != PAD
    windows: Any = {"window": config.window, "stride": config.window, "mesh": mesh}

    def evaluate_windows(variables: Any) -> float:
        return -float(stream_log_probabilities(network, variables, dev, **windows)[wanted].mean(dtype=np.float64))

    def on_epoch(entry: Any) -> None:
        step = round(entry["epoch"]) * updates
        folder.log(event="epoch", **about, **entry, step=step, flops=step * per_update)
        losses = ", ".join(f"{part} {entry[f'{part}_loss']:.4f}" for part in ("train", "dev") if f"{part}_loss" in entry)
        console.print(f"    step {step:,}: {losses}, {entry.get('seconds', 0):.0f} s")

    with stage("training", "windows") as progress:
        return train_network(
            network,
            sequence_loss(config.eos),
            optimizer,
            variables,
            window_batch(stream, config.window, mesh),
            evaluate_windows,
            mesh=mesh,
            size=size,
            batch_size=config.batch_size,
            epochs=-(-config.steps // updates),
            seed=about["seed"],
            order=window_order(len(stream), config.window, size),
            checkpoints=checkpoints,
            on_epoch=on_epoch,
            progress=progress,
        )


def _name(event: Row) -> str:
    return event["name"] if event["start"] == "none" else f"{event['name']}, start {event['start']}"


def _curves(results: Results) -> list[Row]:
    return results.events("epoch", "name", "start", "seed", "epoch")


RESULTS = Table(
    [
        Column("network", "method"),
        Column("start", "start"),
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
_axes = {"xlabel": "TFLOP of training", "ylabel": "dev loss in windows"}
CURVE = Lines("curves", lambda event: event["flops"] / 1e12, "dev_loss", _name, rows=_curves, axes=_axes, size=(6.4, 4.2))
VIEWS = [RESULTS, CURVE, Texts("Sampled documents", "samples.json")]
_title = "launch.networks: language models of windows"
EXPERIMENT = Experiment("networks", TransformerConfig, measure, VIEWS, check=checked_with_devices, title=_title)
