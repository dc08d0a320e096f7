"""Language models of launch.networks: mlp-lm, of some context tokens, and transformer-lm, of windows."""

import functools
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jexplicit.data import text as corpora
from jexplicit.data.streams import contexts, tokenize_corpus
from jexplicit.data.text import Corpus, TextSizes, text_corpus
from jexplicit.data.tokenizers import PAD, Tokenizer, encode_documents
from jexplicit.lm.evaluation import comparable_measures, document_losses, loss_fields, spelling
from jexplicit.lm.generation import generate_text
from jexplicit.lm.model import LanguageModel, network_model
from jexplicit.lm.text_model import save_run_model
from jexplicit.nn import sequences
from jexplicit.nn.networks import MLPLanguageModel, init_variables
from jexplicit.nn.sequences import Transformer
from jexplicit.runs.devices import key_of_seed, load_checkpoint, on_cpu, use_devices
from jexplicit.runs.files import read_texts, write_json
from jexplicit.runs.progress import stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, texts
from launch.networks import training
from launch.networks.config import MLPConfig, TransformerConfig, checked
from launch.networks.training import CURVES, Data, SplitData, train_model

_docs_vocabulary = 1026
_block = 1000  # predictions of a single document, which is resampled in blocks


class Text(NamedTuple):
    """Token streams of train, dev and test, dev's sizes, the text's origin."""

    tokenizer: Tokenizer
    streams: dict[str, np.ndarray]
    sizes: TextSizes | None
    about: dict[str, Any]

    def samples(self, model: LanguageModel, number: int, length: int, seed: int) -> list[str]:
        """Documents sampled from a model."""
        return generate_text(key_of_seed(seed), model, self.tokenizer, [""] * number, length) if number else []


def _tokenised(
    config: MLPConfig | TransformerConfig, folder: RunFolder, corpus: Corpus, test: Sequence[str], vocab_size: int | None
) -> Text:
    """Token streams; a resumed run refuses another text."""
    with stage("tokenising", "documents") as progress:
        text = tokenize_corpus(corpus, config.tokenizer, vocab_size, progress=progress)
    streams = {"train": text.train, "dev": text.dev}
    if test:
        streams["test"] = encode_documents(text.tokenizer, list(test))
    about = {"corpus": corpus.name, "corpus_sha256": corpus.sha256, "vocab_size": text.tokenizer.vocab_size}
    folder.note_data("text", corpus_sha256=corpus.sha256, tokenizer_sha256=text.tokenizer.sha256)
    text.tokenizer.save(folder.path / "tokenizer.model")
    return Text(text.tokenizer, streams, text.dev_sizes, about)


# --- some context tokens -------------------------------------------------------------------------------------------------


def _measure_mlp(config: MLPConfig, folder: RunFolder) -> Iterator[Part]:
    """The network, and documents sampled from it."""
    with stage("reading"):
        train, dev, test = _three_parts(config)
        if config.limit:
            tenth = max(1, config.limit // 10)
            train, dev, test = train[: config.limit], dev[:tenth], test[:tenth]
    corpus = Corpus(", ".join(config.train) or "docs", train, dev)
    vocab_size = config.vocab_size or (_docs_vocabulary if not config.train and config.tokenizer in ("bpe", "word") else None)
    text, K = _tokenised(config, folder, corpus, test, vocab_size), config.context
    N = text.tokenizer.vocab_size
    pairs = (contexts(stream, K, eos=True) for stream in text.streams.values())
    train, dev, test = (SplitData(X.astype(np.int32), Y.astype(np.int32)) for X, Y in pairs)
    about = {**text.about, "corpus_about": corpora.about_corpus(config.corpus)}
    about |= {"train_positions": len(train.Y), "dev_positions": len(dev.Y), "test_positions": len(test.Y)}
    data = Data(train, dev, test, outputs=N, about=about)
    network = MLPLanguageModel(vocab_size=N, embedding=config.embedding, hidden=config.hidden, direct=config.direct)
    fields = {"method": "mlp", "features": "none", "radius": K, "history": "none"}

    def saved() -> LanguageModel:
        variables = {"batch_stats": {}, **load_checkpoint(folder.path / "checkpoints" / "mlp")}
        return network_model(network, variables, context=K)

    def part() -> list[Row]:
        kind = "MLP" + " + direct" * (config.direct == "embedding")
        own: Any = {"name": "mlp", "epoch_examples": config.epoch_examples, "model": kind}
        rows = train_model(folder, config, data, network, "softmax_cross_entropy", **own, **fields)
        save_run_model(folder.path, fields, saved())
        return rows

    yield {"name": "mlp"}, part
    write_json(folder.path / "samples.json", text.samples(saved(), config.samples, 40, config.seed))


def _three_parts(config: MLPConfig) -> tuple[list[str], list[str], list[str]]:
    """The documents of train, dev and test."""
    if not config.train:  # neighbouring documents are alike: dev is that of launch.lm, test every ninth block of the rest
        corpus = corpora.docs_corpus()
        train, test = corpora.split_documents(corpus.train, every=9)
        return train, corpus.dev, test
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.dev:
        dev, test = (text_corpus(config.train, files, **reading) for files in (config.dev, config.test))
        return list(dev.train), list(dev.dev), list(test.dev)
    return corpora.split_in_three(corpora.read_documents(config.train, **reading), seed=config.seed)


# --- windows -------------------------------------------------------------------------------------------------------------


def _mesh(config: TransformerConfig) -> Mesh:
    """The devices that share a batch."""
    return use_devices(config.devices or (1 if jax.default_backend() == "cpu" else None))


def _checked_with_devices(config: TransformerConfig) -> TransformerConfig:
    """The configuration to run, on devices that are there and share a batch evenly."""
    config = checked(config)
    if config.batch_size % (size := _mesh(config).size):
        raise ValueError(f"--batch-size {config.batch_size} on {size} devices: give a multiple of {size}")
    return config


def _measure_transformers(config: TransformerConfig, folder: RunFolder) -> Iterator[Part]:
    """A network from every start and seed, and documents sampled from each."""
    reading: Any = {"field": config.field, "documents": config.documents}
    with stage("reading"):
        corpus = corpora.read_corpus(config.corpus, config.train, config.dev, split=config.split, **reading)
        corpus = (corpus.limit(config.limit) if config.limit else corpus).in_memory()
        test = list(text_corpus([*config.train, *config.dev], config.test, **reading).dev) if config.test else []
    text = _tokenised(config, folder, corpus, test, config.vocab_size)
    for seed in range(config.seed, config.seed + config.seeds):
        for start in config.start:
            parts = ["transformer", start * (start != "none"), str(seed) * (config.seeds > 1)]
            method = "-".join(filter(None, parts))
            yield {"method": method}, functools.partial(_transformer_row, config, folder, text, method, start, seed)


def _transformer_row(config: TransformerConfig, folder: RunFolder, text: Text, method: str, start: str, seed: int) -> list[Row]:
    """Train the network from a start, save it, and sample from it."""
    mesh, window = _mesh(config), config.window
    precision = "float32" if on_cpu(mesh) else "bfloat16"  # of products; parameters have float32
    names = ("window", "width", "layers", "heads", "positions", "dropout", "tied")
    flags: Any = {name: getattr(config, name) for name in names}
    network = Transformer(vocab_size=text.tokenizer.vocab_size, precision=precision, **flags)
    begin = time.perf_counter()
    variables = init_variables(network, key_of_seed(seed), np.zeros((1, window), np.int32))
    if start == "induction":
        variables = sequences.induction_start(network, variables, seed=seed)
    start_seconds = time.perf_counter() - begin
    updates, windows = max(1, config.steps // config.evaluations), config.accumulate * config.batch_size  # of an evaluation
    flops, dev, train = network.flops_per_token() * windows * window, text.streams["dev"], text.streams["train"]
    wanted, partial = slice(None) if config.eos else dev[1:] != PAD, folder.path / "checkpoints" / f"{method}.partial"

    def evaluate(variables: Any) -> float:
        log_p = sequences.stream_log_probabilities(network, variables, dev, window=window, stride=window, mesh=mesh)
        return -float(log_p[wanted].mean(dtype=np.float64))

    schedule: Any = {"warmup": config.warmup, "decay": config.weight_decay, "accumulate": config.accumulate}
    optimizer = sequences.sequence_optimizer(config.learning_rate, config.steps, **schedule)
    loss, batch = sequences.sequence_loss(config.eos), sequences.window_batch(train, window, mesh)
    options: Any = {"mesh": mesh, "size": updates * windows, "batch_size": config.batch_size, "seed": seed}
    options |= {"order": sequences.window_order(len(train), window, updates * windows), "checkpoints": partial}
    options |= {"epochs": -(-config.steps // updates), "epoch_steps": updates}
    options["measured"] = lambda step: {"flops": step * flops}
    about = {"name": method.split("-")[0], "start": start, "seed": seed}
    result = training.fit(folder, about, network, loss, optimizer, variables, batch, evaluate, **options)
    model = network_model(network, jax.tree.map(np.asarray, result.params), eos=config.eos)
    fields = {"features": "none", "radius": 1, "history": f"window:{window}"}
    save_run_model(folder.path, {"method": method, **fields}, model)
    with stage("evaluating", "positions") as progress:
        options = {"block": _block, "mesh": mesh, "progress": progress}
        found = {part: document_losses(model, x, **options) for part, x in text.streams.items() if part != "train"}
    path, length = folder.path / "samples.json", 4 * window if config.tokenizer == "char" else 40
    before, own = read_texts(path), text.samples(model, config.samples, length, seed)
    write_json(path, before if own and before[-len(own) :] == own else [*before, *own])  # once, in a resumed run, too
    last, steps = result.history[-1], result.epochs * updates
    trained = steps * windows * window
    spelled = spelling(text.tokenizer, dev, text.sizes)
    row = {
        **fields,
        **{f"{part}_{name}": value for part, own in found.items() for name, value in loss_fields([own]).items()},
        **comparable_measures(float(found["dev"].nll.sum()) + spelled, text.sizes),
        "train_loss": last["train_loss"],
        "window_loss": min(entry["dev_loss"] for entry in result.history),
        "last_window_loss": last["dev_loss"],
        "best_step": result.best_epoch * updates,
        "steps": steps, "batch_size": windows, "train_tokens": len(train),
        "trained_tokens": trained, "flops": steps * flops, "seconds": result.seconds, "cpu_seconds": last["cpu_seconds"],
        "tokens_per_second": trained / result.seconds,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(result.params)),
        "bytes": model.nbytes,
        "precision": precision,
        "start": start, "seed": seed, "start_seconds": start_seconds,
        **text.about,
    }  # fmt: skip
    shutil.rmtree(partial, ignore_errors=True)  # only for resuming
    return [row]


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


def _curves(results: Results) -> list[Row]:
    """Dev losses by TFLOP of training, with the start in the network's name."""
    events = results.events("epoch", "name", "start", "seed", "epoch")
    starts = {start: "" if start == "none" else f", start {start}" for start in {e["start"] for e in events}}
    return [{**e, "TFLOP": e["flops"] / 1e12, "label": e["name"] + starts[e["start"]]} for e in events]


_axes = {"xlabel": "TFLOP of training", "ylabel": "dev loss in windows"}
_figure = Lines("curves", "TFLOP", "dev_loss", "label", rows=_curves, axes=_axes, size=(6.4, 4.2))
_samples = texts("Sampled documents", "samples.json")
_of_windows: Any = {"check": _checked_with_devices, "title": "launch.networks: language models of windows"}
_of_contexts: Any = {"check": checked, "title": "launch.networks mlp-lm"}
MLP = Experiment("networks", MLPConfig, _measure_mlp, [training.RESULTS, CURVES, _samples], **_of_contexts)
TRANSFORMER = Experiment("networks", TransformerConfig, _measure_transformers, [RESULTS, _figure, _samples], **_of_windows)
