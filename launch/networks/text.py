"""launch.networks mlp-lm: a neural language model from random parameters and from explicit solutions, beside solved models."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.counts.dense import Counts, count
from jexplicit.data.cache import cached_streams
from jexplicit.data.contexts import contexts
from jexplicit.data.corpora import Corpus, split_documents, split_in_three
from jexplicit.data.docstrings import docs_corpus
from jexplicit.data.held_out import hold_out
from jexplicit.data.text import read_documents, text_corpus
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.calibration import fit_exponents
from jexplicit.lm.checkpoints import save_tokenizer
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.explicit import TokenTables, bigram_model, explicit_language_model, unigram_model
from jexplicit.lm.log_linear import calibrated_language_model, first_exponents, offset_positions, offset_rows
from jexplicit.lm.network_sampling import sample_documents
from jexplicit.lm.network_starts import direct_start, output_start
from jexplicit.lm.softmax import logits, map_contexts, negative_log_likelihood
from jexplicit.nn.networks import Direct, MLPLanguageModel, init_variables
from jexplicit.runs.devices import check_memory, data_mesh
from jexplicit.runs.folder import RunFolder, write_json
from jexplicit.runs.progress import stage
from launch.networks.config import MLPConfig, Text
from launch.networks.training import Data, Job, Part, add_row, has_row, load_variables, measure, plan_from, sample

_docs_vocabulary = 1026
_calibration_positions = 15_000
_solved_sample = 100_000  # training positions that the train loss of a solved model is over, at most


class TextData(NamedTuple):
    """A text as streams of token ids, and as contexts and targets."""

    tokenizer: Tokenizer
    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray
    data: Data
    about: dict[str, Any]


def run_mlp_lm(config: MLPConfig, folder: RunFolder) -> None:
    """The whole job of the subcommand."""
    text = read_text(config)
    save_tokenizer(folder.path, text.tokenizer)
    job = Job(config, folder, {"command": "mlp-lm", **text.about})
    solved = functools.cache(functools.partial(solve, text, config))
    if config.baselines:
        for name in ("unigram", "bigram", "explicit", "calibrated"):
            measure_solved(job, text, solved, name)
    for start in config.starts:
        measure_start(job, text, solved, start)
    write_json(folder.path / "samples.json", samples(config, text, network(config, text), best_variables(job)))


def read_text(config: Text) -> TextData:
    """The documents that the config asks for, cut in three, tokenised, and as contexts with their targets."""
    with stage("reading"):
        train, dev, test = _documents(config)
        if config.limit:
            tenth = max(1, config.limit // 10)
            train, dev, test = train[: config.limit], dev[:tenth], test[:tenth]
    corpus = Corpus(", ".join(config.train) or "docs", train, dev)
    vocab_size = config.vocab_size or (_docs_vocabulary if not config.train and config.tokenizer != "char" else None)
    with stage("tokenising", "documents") as progress:
        made = cached_streams(corpus, kind=config.tokenizer, vocab_size=vocab_size, progress=progress)
    streams = np.asarray(made.train), np.asarray(made.dev), encode_documents(made.tokenizer, test)
    parts = [Part(*(x.astype(np.int32) for x in contexts(stream, config.context, eos=True))) for stream in streams]
    data = Data(*parts, labels=parts[0].Y, outputs=made.tokenizer.vocab_size)
    about = {
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
        "vocab_size": made.tokenizer.vocab_size,
        "context": config.context,
        "train_positions": len(parts[0].Y),
        "dev_positions": len(parts[1].Y),
        "test_positions": len(parts[2].Y),
    }
    return TextData(made.tokenizer, *streams, data, about)


def _documents(config: Text) -> tuple[list[str], list[str], list[str]]:
    if not config.train:  # neighbours are alike: dev is that of launch.lm, test every ninth block of the rest
        corpus = docs_corpus()
        train, test = split_documents(corpus.train, every=9)
        return train, corpus.dev, test
    if config.dev:
        dev, test = (text_corpus(config.train, files) for files in (config.dev, config.test))
        return list(dev.train), list(dev.dev), list(test.dev)
    return split_in_three(read_documents(config.train), seed=config.seed)


def network(config: Any, text: TextData) -> MLPLanguageModel:
    """The network of the flags."""
    N, K = text.tokenizer.vocab_size, config.context
    direct: Direct = getattr(config, "direct", "none")
    if direct == "tokens":
        check_memory(data_mesh(1), 6 * 4 * K * N**2, f"{K} tables of {N} x {N}, their gradient and the optimiser's state")
    return MLPLanguageModel(
        vocab_size=N,
        embedding=config.embedding,
        hidden=config.hidden,
        direct=direct,
        activation=config.activation,
        norm=config.norm,
        residual=config.residual,
        weights=config.initializer,
        output_scale=config.output_scale,
    )


def measure_start(job: Job, text: TextData, solved: Any, start: str) -> None:
    """Train the network from one start, and add its row; start_seconds are what a solution took."""
    config, model = job.config, network(job.config, text)
    name = f"mlp-{start}"
    more: dict[str, Any] = {"direct": config.direct, "start_seconds": 0.0}
    variables = init_variables(model, jax.random.key(config.seed), text.data.train.X[:2])
    if start != "cold" and not has_row(job, name):
        with stage(f"start {start}"):
            begin = time.perf_counter()
            if start == "output":
                found = output_start(model, variables, *text.data.train)
                variables, more["priming_number"] = found.variables, found.K
            else:
                variables = direct_start(variables, solved(start))
            more["start_seconds"] = time.perf_counter() - begin
    kind = "MLP" + {"none": "", "embedding": " + direct", "tokens": " + direct from tokens"}[config.direct]
    plan = plan_from(config, name=name, model=kind, network=model, variables=variables, start=start)
    measure(job, plan, text.data, **more)


def solve(text: TextData, config: MLPConfig, name: str) -> TokenTables:
    """A solved model of the training text, that predicts the ends of documents too."""
    N, K = text.tokenizer.vocab_size, config.context
    counts = _counts(text, K, N)
    if name == "unigram":
        return unigram_model(counts, eos=True)
    if name == "bigram":
        return bigram_model(counts, eos=True)
    if name == "explicit":
        return explicit_language_model(counts, features="cat", radius=K, eos=True)
    return _calibrated(text.train, counts, K, N, config.seed)


def _calibrated(train: np.ndarray, counts: Counts, K: int, N: int, seed: int) -> TokenTables:
    """Smoothed rows of the whole text, with exponents fitted on documents that were held out of it."""
    rest, held = hold_out(train, positions=max(2 * _calibration_positions, len(train) // 50))
    rows, kept = (offset_rows(C, features="cat", radius=K, eos=True) for C in (counts, count(rest, radius=K, vocab_size=N)))
    X, Y = contexts(held, K, eos=True)
    m = np.random.default_rng(seed).permutation(len(Y))[:_calibration_positions]
    fitted = fit_exponents(kept.log_tables, offset_positions(kept, X[m].astype(np.int64)), Y[m], first_exponents(kept))
    return calibrated_language_model(rows, fitted.exponents)


def _counts(text: TextData, K: int, N: int) -> Counts:
    return count(text.train, radius=K, vocab_size=N)


def measure_solved(job: Job, text: TextData, solved: Any, name: str) -> None:
    """Solve a model, and add its row."""
    if has_row(job, name):
        return
    with stage(name):
        start = time.perf_counter()
        model = jax.block_until_ready(solved(name))
        seconds = time.perf_counter() - start
        train_X, train_Y = sample(text.data.train, _solved_sample)
        X, Y = text.data.test
        losses = {part: evaluate(model, getattr(text, part)).loss for part in ("dev", "test")}
        row = {
            "name": name,
            "model": {"bigram": "Kneser-Ney bigram", "explicit": "explicit, Cat", "calibrated": "calibrated, Cat"}.get(
                name, name
            ),
            "start": None,
            "objective": "softmax_cross_entropy",
            "train_loss": _loss(model, train_X, train_Y),
            "dev_loss": losses["dev"],
            "test_loss": losses["test"],
            "dev_perplexity": float(np.exp(losses["dev"])),
            "test_accuracy": float(np.mean(map_contexts(_guess, model.tables, X[:, : model.radius]) == Y)),
            "steps": 0,
            "seconds": seconds,
        }
    add_row(job, row)


def _loss(model: TokenTables, X: np.ndarray, Y: np.ndarray) -> float:
    return negative_log_likelihood(model.tables, X[:, : model.radius], Y) / len(Y)


def _guess(tables: Any, x: Array) -> Array:
    return jnp.argmax(logits(tables, x))


def best_variables(job: Job) -> dict[str, Any]:
    """Those of the trained model with the lowest dev loss."""
    trained = [row for row in job.folder.rows() if row["start"]]
    return load_variables(job, min(trained, key=lambda row: row["dev_loss"])["name"])


def samples(config: MLPConfig, text: TextData, model: MLPLanguageModel, variables: dict[str, Any]) -> list[str]:
    """Documents that the best model writes."""
    if not config.samples:
        return []
    drawn = sample_documents(
        jax.random.key(config.seed),
        model,
        variables,
        context=config.context,
        documents=config.samples,
        length=40,
        banned=(text.tokenizer.unk_id,),
    )
    return [text.tokenizer.decode(ids) for ids in drawn]
