"""launch.networks mlp-lm: a neural language model from random parameters and from explicit solutions, next to solved models."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.cache import cached_streams
from jexplicit.data.contexts import contexts
from jexplicit.data.corpora import Corpus, split_documents, split_in_three
from jexplicit.data.docstrings import about_corpus, docs_corpus
from jexplicit.data.text import read_documents, text_corpus
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.checkpoints import save_run_model, save_tokenizer
from jexplicit.lm.evaluation import evaluate, log_probabilities
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.network_starts import direct_start, output_start, stack_start
from jexplicit.lm.fits.training_text import Options, TrainingText
from jexplicit.lm.generation import generate_text
from jexplicit.lm.model import LanguageModel
from jexplicit.lm.rows.network import network_model
from jexplicit.lm.softmax import map_contexts
from jexplicit.nn.embeddings import embedding_map, nearest_neighbours
from jexplicit.nn.networks import Direct, MLPLanguageModel, TokenStack
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.folder import RunFolder, write_json
from jexplicit.runs.memory import check_memory
from jexplicit.runs.progress import stage
from launch.networks.config import MLPConfig, Text
from launch.networks.training import Data, Job, Part, add_solved, has_row, load_variables, make_plan, measure, subset

_docs_vocabulary = 1026
_shown, _first_rank, _neighbours = 16, 20, 6  # tokens whose neighbours are listed, from this frequency rank on
_mapped = 250  # tokens of the map of the embedding
_scored_positions = 100_000  # of the train loss of a solved model, at most
_kinds = {"bigram": "Kneser-Ney bigram", "explicit": "explicit, Cat", "log-linear": "log-linear, Cat"}  # of solved models

Solve = Callable[[str], LanguageModel]


class TextData(NamedTuple):
    """A text as streams of token ids, and as contexts with their targets."""

    tokenizer: Tokenizer
    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray
    data: Data
    training: TrainingText


def run_mlp_lm(config: MLPConfig, folder: RunFolder) -> None:
    """Solved models, the network from every start, and documents sampled from the best network."""
    job, text = open_text(config, folder, "mlp-lm")
    save_tokenizer(folder.path, text.tokenizer)
    solved = functools.cache(functools.partial(solve, text, config))
    if config.baselines:
        for name in ("unigram", "bigram", "explicit", "log-linear"):
            measure_solved(job, text, solved, name)
    network = language_network(config, text)
    for start in config.starts:
        measure_start(job, text, network, solved, start)
    log_embedding(job, text)
    write_json(folder.path / "samples.json", samples(job, text, network))


def open_text(config: Text, folder: RunFolder, command: str) -> tuple[Job, TextData]:
    """The job of a subcommand on text: documents cut in three, tokenised, and as contexts with their targets."""
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
    parts = [Part(*(x.astype(np.int32) for x in contexts(stream, config.context, eos=True))) for stream in streams]
    about = {
        "command": command,
        "corpus": corpus.name,
        "corpus_about": about_corpus(config.corpus),
        "corpus_sha256": corpus.sha256,
        "vocab_size": tokenizer.vocab_size,
        "context": config.context,
        **{f"{name}_positions": len(part.Y) for name, part in zip(("train", "dev", "test"), parts, strict=True)},
    }
    data = Data(*parts, labels=parts[0].Y, outputs=tokenizer.vocab_size)
    training = TrainingText(streams[0], tokenizer.vocab_size, eos=True)
    return Job(config, folder, about), TextData(tokenizer, *streams, data, training)


def _documents(config: Text) -> tuple[list[str], list[str], list[str]]:
    if not config.train:  # neighbouring documents are alike: dev is that of launch.lm, test every ninth block of the rest
        corpus = docs_corpus()
        train, test = split_documents(corpus.train, every=9)
        return train, corpus.dev, test
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.dev:
        dev, test = (text_corpus(config.train, files, **reading) for files in (config.dev, config.test))
        return list(dev.train), list(dev.dev), list(test.dev)
    return split_in_three(read_documents(config.train, **reading), seed=config.seed)


def language_network(config: Any, text: TextData) -> MLPLanguageModel | TokenStack:
    """The network of the flags."""
    N, K = text.tokenizer.vocab_size, config.context
    if stack := getattr(config, "stack", 0):
        check_memory(data_mesh(1), 6 * 4 * (K + stack - 1) * N**2, f"{K + stack - 1} tables of {N} x {N}, and their training")
        return TokenStack(N, stack)
    direct: Direct = getattr(config, "direct", "none")
    if direct == "tokens":
        check_memory(data_mesh(1), 6 * 4 * K * N**2, f"{K} tables of {N} x {N}, their gradient and the optimiser's state")
    flags = {
        name: getattr(config, name)
        for name in ("embedding", "hidden", "activation", "norm", "residual", "dropout", "output_scale")
    }
    return MLPLanguageModel(vocab_size=N, direct=direct, weights=config.initializer, **flags)


def measure_start(job: Job, text: TextData, network: MLPLanguageModel | TokenStack, solved: Solve, start: str) -> None:
    """Train the network from one start, and add its row; start_seconds is the time to solve the start."""
    stack, direct = job.config.stack, job.config.direct
    name = f"{'stack' if stack else 'mlp'}-{start}"
    kind = "MLP" + {"none": "", "embedding": " + direct", "tokens": " + direct from tokens"}[direct]
    kind = f"softmax stack, {stack} layers" if stack else kind
    plan = make_plan(job.config, text.data, network, name=name, model=kind, start=start)
    more: dict[str, Any] = {"direct": direct, "start_seconds": 0.0}
    if start != "cold" and not has_row(job, name):
        with stage(f"start {start}"):
            begin = time.perf_counter()
            if start == "output":
                found = output_start(network, plan.variables, *text.data.train)
                variables, more["priming_number"] = found.variables, found.K
            elif start == "layers":
                variables = stack_start(network, plan.variables, solved("explicit"), *text.data.train)
            else:
                variables = direct_start(plan.variables, solved(start))
            plan = plan._replace(variables=variables)
            more["start_seconds"] = time.perf_counter() - begin
    more |= {"method": name, "features": "none", "radius": job.config.context, "history": "none"}
    variables = measure(job, plan, text.data, **more)
    save_language_model(job, name, network_model(network, variables, context=job.config.context))


def solve(text: TextData, config: MLPConfig, method: str) -> LanguageModel:
    """A solved model of the training text that also predicts the ends of documents."""
    options = Options(features="cat", radius=config.context, seed=config.seed)
    return fit_model(method, text.training, options).model


def measure_solved(job: Job, text: TextData, solved: Solve, name: str) -> None:
    """Solve a model, save it, and add its row."""
    if has_row(job, name):
        return
    with stage(name):
        begin = time.perf_counter()
        model = solved(name)
        seconds = time.perf_counter() - begin
        train, (X, Y) = subset(text.data.train, _scored_positions), text.data.test
        train_loss = -float(log_probabilities(model, train.X[:, : model.radius], train.Y).mean(dtype=np.float64))
        losses = {"train": train_loss, "dev": evaluate(model, text.dev).loss, "test": evaluate(model, text.test).loss}
        accuracy = float(np.mean(map_contexts(_prediction, model, X[:, : model.radius]) == Y))
    features = "none" if name in ("unigram", "bigram") else "cat"
    saved = save_language_model(job, name, model, features)
    add_solved(job, name, losses, model=_kinds.get(name, name), test_accuracy=accuracy, seconds=seconds, **saved)


def save_language_model(job: Job, name: str, model: LanguageModel, features: str = "none") -> dict[str, Any]:
    """Save a model for launch.sample, score, explain and export; the fields of its row that they choose by."""
    fields = {"method": name, "features": features, "radius": model.radius, "history": "none"}
    save_run_model(job.folder.path, fields, model)
    return fields


def _prediction(model: LanguageModel, x: Array) -> Array:
    return jnp.argmax(model.logits(x))


def log_embedding(job: Job, text: TextData) -> None:
    """The embedding of the best network: nearest neighbours of tokens of all frequencies, and a map of the frequent ones."""
    if job.config.stack or job.folder.events("neighbours"):
        return
    C = np.asarray(load_variables(job, best_network(job)["name"])["params"]["embedding"]["embedding"])
    f = np.bincount(text.train, minlength=len(C))
    f[:2] = 0  # <pad> and <unk>
    frequent = np.argsort(-f, kind="stable")[: np.count_nonzero(f)]
    if len(frequent) < 4:
        return
    ranks = np.unique(np.geomspace(min(_first_rank, len(frequent)), len(frequent), _shown).astype(int)) - 1
    tokens, k = frequent[ranks], min(_neighbours, len(C) - 1)
    near, names = nearest_neighbours(C, tokens, k), text.tokenizer.pieces()
    with stage("a map of the embedding"):
        points = embedding_map(C[frequent[:_mapped]], job.config.seed)
    job.folder.log(event="embedding", names=[names[j] for j in frequent[:_mapped]], points=points.round(3).tolist())
    for rank, token, ids, cosines in zip(ranks + 1, tokens, *near, strict=True):
        others = [(names[j], round(float(cosine), 3)) for j, cosine in zip(ids, cosines, strict=True)]
        job.folder.log(event="neighbours", token=names[token], rank=int(rank), count=int(f[token]), neighbours=others)


def best_network(job: Job) -> dict[str, Any]:
    """The row of the trained network with the lowest dev loss."""
    return min((row for row in job.folder.rows() if row["start"]), key=lambda row: row["dev_loss"])


def samples(job: Job, text: TextData, network: MLPLanguageModel | TokenStack) -> list[str]:
    """Documents sampled from the trained network with the lowest dev loss."""
    config = job.config
    if not config.samples:
        return []
    model = network_model(network, load_variables(job, best_network(job)["name"]), context=config.context)
    return generate_text(jax.random.key(config.seed), model, text.tokenizer, [""] * config.samples, 40)
