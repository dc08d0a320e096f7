"""launch.networks mlp-lm: a neural language model, next to solved ones."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.data.corpora import (
    Corpus,
    about_corpus,
    docs_corpus,
    read_documents,
    split_documents,
    split_in_three,
    text_corpus,
)
from jexplicit.data.shards import cached_streams
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.checkpoints import save_run_model, save_tokenizer
from jexplicit.lm.core.model import map_contexts
from jexplicit.lm.evaluation import evaluate, log_probabilities
from jexplicit.lm.fits.fit import FitResult, fit_model
from jexplicit.lm.generation import generate_text
from jexplicit.lm.rows import network_model
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.nn.networks import MLPLanguageModel
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import check_memory, data_mesh
from jexplicit.runs.files import write_json
from jexplicit.runs.progress import stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Results, Row, Table, Texts, figure, picture, where
from launch.networks.config import MLPConfig, checked
from launch.networks.training import CURVES, RESULTS, Data, SplitData, load_variables, solved_row, train_model

_docs_vocabulary = 1026
_mapped = 250  # tokens of the map of the embedding
_scored_positions = 100_000  # of the train loss of a solved model, at most
_solved = {"unigram": "unigram", "bigram": "Kneser-Ney bigram", "explicit": "explicit, Cat", "log-linear": "log-linear, Cat"}
_kinds = {**_solved, "ngram": "Kneser-Ney 5-gram", "context-mixing": "context mixing"}  # of launch.lm, too


class TextData(NamedTuple):
    """A text as streams of train, dev and test, and as contexts."""

    tokenizer: Tokenizer
    streams: tuple[np.ndarray, ...]
    data: Data


def measure(config: MLPConfig, folder: RunFolder) -> Iterator[Part]:
    """Solved models, the network, and documents sampled from it."""
    text = open_text(config)
    folder.note_data("text", corpus_sha256=text.data.about["corpus_sha256"], tokenizer_sha256=text.tokenizer.sha256)
    save_tokenizer(folder.path, text.tokenizer)
    training = TrainingText(text.streams[0], text.tokenizer.vocab_size, eos=True)
    options = Options(features="cat", radius=config.context, seed=config.seed)
    for name in _solved if config.baselines else ():
        solve = functools.partial(fit_model, name, training, options)
        yield {"name": name}, functools.partial(measure_solved, folder, text, solve, name)
    network = language_network(config, text)
    yield {"name": "mlp"}, functools.partial(measure_network, config, folder, text, network)
    variables = load_variables(folder, "mlp")
    if not folder.events("embedding"):
        log_embedding(folder, text, np.asarray(variables["params"]["embedding"]["embedding"]), config.seed)
    model = network_model(network, variables, context=config.context)
    key, prompts = key_of_seed(config.seed), [""] * config.samples
    write_json(folder.path / "samples.json", generate_text(key, model, text.tokenizer, prompts, 40) if prompts else [])


def open_text(config: MLPConfig) -> TextData:
    """Documents cut in three, tokenised, and as contexts with their targets."""
    with stage("reading"):
        train, dev, test = _documents(config)
        if config.limit:
            tenth = max(1, config.limit // 10)
            train, dev, test = train[: config.limit], dev[:tenth], test[:tenth]
    corpus = Corpus(", ".join(config.train) or "docs", train, dev)
    vocab_size = config.vocab_size or (_docs_vocabulary if not config.train and config.tokenizer in ("bpe", "word") else None)
    with stage("tokenising", "documents") as progress:
        cached = cached_streams(corpus, kind=config.tokenizer, vocab_size=vocab_size, progress=progress)
    tokenizer = cached.tokenizer
    streams = np.asarray(cached.train), np.asarray(cached.dev), encode_documents(tokenizer, test)
    parts = [SplitData(*(x.astype(np.int32) for x in contexts(stream, config.context, eos=True))) for stream in streams]
    about = {"command": "mlp-lm", "corpus": corpus.name, "corpus_about": about_corpus(config.corpus)}
    about |= {"corpus_sha256": corpus.sha256, "vocab_size": tokenizer.vocab_size, "context": config.context}
    about |= {f"{name}_positions": len(part.Y) for name, part in zip(("train", "dev", "test"), parts, strict=True)}
    return TextData(tokenizer, streams, Data(*parts, labels=parts[0].Y, outputs=tokenizer.vocab_size, about=about))


def _documents(config: MLPConfig) -> tuple[list[str], list[str], list[str]]:
    if not config.train:  # neighbouring documents are alike: dev is that of launch.lm, test every ninth block of the rest
        corpus = docs_corpus()
        train, test = split_documents(corpus.train, every=9)
        return train, corpus.dev, test
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.dev:
        dev, test = (text_corpus(config.train, files, **reading) for files in (config.dev, config.test))
        return list(dev.train), list(dev.dev), list(test.dev)
    return split_in_three(read_documents(config.train, **reading), seed=config.seed)


def language_network(config: MLPConfig, text: TextData) -> MLPLanguageModel:
    """The network of the flags."""
    N = text.tokenizer.vocab_size
    if config.direct == "tokens":
        what = f"{config.context} tables of {N} x {N}, their gradient and the optimiser's state"
        check_memory(data_mesh(1), 6 * 4 * config.context * N**2, what)
    flags: Any = {name: getattr(config, name) for name in ("embedding", "hidden", "direct", "dropout")}
    return MLPLanguageModel(vocab_size=N, **flags)


def measure_network(config: MLPConfig, folder: RunFolder, text: TextData, network: MLPLanguageModel) -> Sequence[Row]:
    """Train the network, and save it."""
    kind = "MLP" + {"none": "", "embedding": " + direct", "tokens": " + direct from tokens"}[config.direct]
    fields = {"method": "mlp", "features": "none", "radius": config.context, "history": "none"}
    rows = train_model(folder, config, text.data, network, "mlp", kind, direct=config.direct, **fields)
    save_run_model(folder.path, fields, network_model(network, load_variables(folder, "mlp"), context=config.context))
    return rows


def measure_solved(folder: RunFolder, text: TextData, solve: Callable[[], FitResult], name: str) -> list[Row]:
    """Solve a model, and save it."""
    with stage(name):
        begin = time.perf_counter()
        model = solve().model
        seconds = time.perf_counter() - begin
        train, (X, Y) = text.data.train.subset(_scored_positions), text.data.test
        train_loss = -float(log_probabilities(model, train.X[:, : model.radius], train.Y).mean(dtype=np.float64))
        dev, test = (evaluate(model, stream).loss for stream in text.streams[1:])
        accuracy = float(np.mean(map_contexts(lambda model, x: jnp.argmax(model.logits(x)), model, X[:, : model.radius]) == Y))
    features = "none" if name in ("unigram", "bigram") else "cat"
    fields = {"method": name, "features": features, "radius": model.radius, "history": "none"}
    save_run_model(folder.path, fields, model)
    losses = {"train": train_loss, "dev": dev, "test": test}
    return [solved_row(text.data, losses, model=_kinds[name], test_accuracy=accuracy, seconds=seconds, **fields)]


def log_embedding(folder: RunFolder, text: TextData, C: np.ndarray, seed: int) -> None:
    """Log a map of frequent tokens by t-SNE of an embedding."""
    from sklearn.manifold import TSNE

    f = np.bincount(text.streams[0], minlength=len(C))
    f[:2] = 0  # <pad> and <unk>
    frequent = np.argsort(-f, kind="stable")[: min(_mapped, np.count_nonzero(f))]
    if len(frequent) < 4:
        return
    with stage("a map of the embedding"):
        perplexity = min(30.0, (len(frequent) - 1) / 3)
        tsne = TSNE(2, perplexity=perplexity, metric="cosine", init="random", random_state=seed)
        points = tsne.fit_transform(C[frequent].astype(np.float32))
    names = text.tokenizer.pieces()
    folder.log(event="embedding", names=[names[j] for j in frequent], points=points.round(3).tolist())


def embedding_figure(results: Results) -> list[str]:
    """Tokens at their points of a map."""
    if not (found := results.events("embedding")):
        return []
    with figure(results.path / "figures" / "embedding.png", size=(9.0, 7.0)) as axes:
        ax, xy = axes[0, 0], np.array(found[-1]["points"])
        ax.grid(False)
        for name, (x, y) in zip(found[-1]["names"], xy, strict=True):
            ax.text(x, y, name, fontsize=7, ha="center", va="center", parse_math=False)
        margin = 0.04 * np.ptp(xy, axis=0) + 1e-6
        (left, bottom), (right, top) = xy.min(axis=0) - margin, xy.max(axis=0) + margin
        ax.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
    return picture(results, "embedding", "map of the embedding")


def model_name(row: Row) -> str:
    """A model, and a network by its sizes."""
    if row["method"] in _kinds:
        return _kinds[row["method"]]
    usual = MLPConfig("")
    size = f"embedding {row.get('embedding', usual.embedding)}, {row.get('hidden', usual.hidden)[0]} tanh units"
    decay = f", weight decay {row['weight_decay']:g}" if row["weight_decay"] != usual.weight_decay else ""
    return f"{row['model']}, {size}{decay}"


def _perplexities(rows: list[Row]) -> list[Column]:
    """Columns of perplexities; of the test set only where all models have one."""

    def column(part: str) -> Column:
        return Column(part, lambda row: row.get(f"{part}_perplexity") or math.exp(row[f"{part}_loss"]), ".1f")

    return [*_models, *map(column, ("train", "dev", "test") if all("test_loss" in row for row in rows) else ("train", "dev"))]


def _compared(results: Results) -> list[Row]:
    """The closed forms and the network, which earlier versions called mlp-cold, once each."""
    rows = where(results.rows, method=("explicit", "log-linear", "mlp", "mlp-cold"))
    return list({(model_name(row), row["radius"]): row for row in rows}.values())


_models = [Column("", model_name), Column("K", lambda row: 0 if row["method"] == "unigram" else row["radius"], "d")]
LOSSES = Table([*_models, *(Column(part, f"{part}_loss", ".3f") for part in ("train", "dev", "test"))], rows=_compared)
PERPLEXITIES = Table(_perplexities)
VIEWS = [RESULTS, CURVES, embedding_figure, Texts("Sampled documents", "samples.json")]
EXPERIMENT = Experiment("networks", MLPConfig, measure, VIEWS, check=checked, title="launch.networks mlp-lm")
