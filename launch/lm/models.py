"""The text of a launch.lm run, its models and their tests."""

import functools
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, cast

import numpy as np
from jax.sharding import Mesh

from jexplicit.counts.pairs import Counts, count, count_sparse
from jexplicit.counts.tables import SparseCounts, read_tables
from jexplicit.data import corpora
from jexplicit.data.contexts import PAD, contexts
from jexplicit.data.corpora import Corpus, Documents, check_reading, files_documents, split_at_end
from jexplicit.data.inputs import list_files
from jexplicit.data.shards import TokenizedCorpus, read_shards, read_sizes, tokenize_corpus
from jexplicit.data.tokenizers import Tokenizer, encode_documents
from jexplicit.lm.checkpoints import (
    FROM_COUNTS,
    has_counts,
    load_counts,
    load_row,
    model_name,
    save_counts,
    save_run_model,
    save_tokenizer,
)
from jexplicit.lm.core.model import LanguageModel, is_token_model, sampled_positions
from jexplicit.lm.core.names import Features, FitOptions, label
from jexplicit.lm.counted.model import CONTEXTS, contexts_name, contexts_radius, fit_bytes
from jexplicit.lm.counted.reading import AnyModel
from jexplicit.lm.evaluation import (
    DocumentLosses,
    comparable_measures,
    document_losses,
    evaluate,
    loss_fields,
    positions_in_all,
    spelling,
)
from jexplicit.lm.fits.fit import ORDER, choose_tables, fit_model
from jexplicit.lm.fits.gradient import kkt_residual
from jexplicit.lm.rows import target_counts, with_targets
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs.devices import check_equal_across_processes, is_first, within_memory
from jexplicit.runs.files import host_bytes, parse_bytes, peak_bytes, trim_heap
from jexplicit.runs.progress import console, stage
from launch.kit.experiment import RunFolder
from launch.kit.views import Row, groups, where
from launch.lm.config import Config
from launch.lm.scaling import fit_scaling, log_mean_cooccurrences, partition_spread
from launch.lm.views import scaling_file

_of_sparse = ("unigram", "bigram", "explicit", "ngram", "context-mixing")  # methods that have models of sparse tables


def read_corpus(config: Config) -> Corpus[list[str]]:
    """The documents of the corpus, without the test text."""
    with stage("reading"):
        split = "end" if config.split == "dev-test" else config.split
        options: Any = {"field": config.field, "documents": config.documents, "split": split}
        corpus = corpora.read_corpus(config.corpus, config.train, config.dev, **options)
        if config.split == "dev-test":  # a ninth of what is left is a tenth of all
            train, dev = (Documents(split_at_end, corpus.train, dev=dev, share=1 / 9) for dev in (False, True))
            corpus = Corpus(corpus.name, train, dev, corpus.source)
        return (corpus.limit(config.limit) if config.limit else corpus).in_memory()


def read_text(config: Config, folder: RunFolder) -> tuple[TokenizedCorpus, dict[str, Any]]:
    """Streams of token ids, and their origin as fields of rows."""
    if config.shards:
        tokenizer = Tokenizer.load(config.shards / "tokenizer.model")
        train, dev = (read_shards(config.shards / part) for part in ("train", "dev"))
        if others := [shards.folder for shards in (train, dev) if shards.tokenizer != tokenizer.sha256]:
            raise ValueError(f"{others[0]} holds tokens of another tokenizer than its tokenizer.model: write both again")
        name, sha256, of_all = str(config.shards), train.sha256, train.sha256 + dev.sha256
        text = TokenizedCorpus(tokenizer, train, dev[:], dev_sizes=read_sizes(config.shards / "dev"))
    else:
        corpus = read_corpus(config)
        name, sha256, of_all = corpus.name, corpus.sha256, corpus.sha256
        with stage("tokenising", "documents") as progress:
            text = tokenize_corpus(corpus, config.tokenizer, config.vocab_size, progress=progress)
    check_equal_across_processes("text", of_all + text.tokenizer.sha256)
    folder.note_data("text", corpus_sha256=sha256, tokenizer_sha256=text.tokenizer.sha256)
    if is_first():
        save_tokenizer(folder.path, text.tokenizer)
    return text, {"corpus": name, "corpus_sha256": sha256}


def mixing_bytes(config: Config, tokenizer: Tokenizer, counts: np.ndarray) -> int:
    """About the memory that a fit of context mixing takes; without one, 0."""
    contexts = CONTEXTS[contexts_name(config.contexts, tokenizer.kind)]
    return fit_bytes(counts, len(contexts)) if "context-mixing" in config.methods else 0


def kind_of_tables(config: Config, vocab_size: int) -> str:
    """dense or sparse tables, as the methods, --tables and the memory allow."""
    memory = parse_bytes(config.memory) if config.memory else host_bytes()
    auto = choose_tables(config.methods, vocab_size, max(config.radius), memory)
    tables = auto if config.tables == "auto" else config.tables
    if tables == "sparse" and (others := set(config.methods) - set(_of_sparse)):
        raise ValueError(
            f"--methods {' '.join(sorted(others))} with sparse tables: these work only with {', '.join(_of_sparse)}; "
            "use --tables dense or a smaller --vocab-size"
        )
    return tables


def check_fit(config: Config, text: TokenizedCorpus) -> None:
    """Refuse text that is too small, or too long for the memory."""
    if not isinstance(text.train, np.ndarray):
        return  # shards are too many to look through
    lengths = np.diff(np.flatnonzero(text.train == PAD)) - 1
    counts = np.bincount(text.train[text.train != PAD])
    if len(np.unique(counts)) <= 2:  # 0, and one number
        raise ValueError(f"a training text of {lengths.sum()} tokens that all occur equally often: give more text")
    if max(config.radius) > lengths.max():
        raise ValueError(f"--radius {max(config.radius)}: the longest document has {lengths.max()} tokens; use at most that")
    needed = mixing_bytes(config, text.tokenizer, counts)
    if needed > (budget := parse_bytes(config.memory) if config.memory else host_bytes()):
        raise ValueError(
            f"context mixing of {lengths.sum():,} tokens takes about {needed / 1e9:.1f} GB and may have "
            f"{budget / 1e9:.1f} GB: allow more with --memory, or read less with --limit"
        )


def count_or_load(
    config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh, kind: str
) -> tuple[TrainingText, float]:
    """The text with its counts, new or saved, and their seconds."""
    K, N, path = max(config.radius), text.tokenizer.vocab_size, folder.path
    memory = parse_bytes(config.memory) if config.memory else None
    shape: Any = {"eos": config.eos, "mesh": mesh, "tokenizer": text.tokenizer}

    def training(counts: Any) -> TrainingText:
        name = {"dense": "counts", "sparse": "sparse_counts"}[kind]
        return TrainingText(text.train, N, **{name: counts}, **shape)

    sparse = kind == "sparse"
    if has_counts(path, sparse=sparse) and len(counts := load_counts(path, sparse=sparse)) >= K:
        return training(counts), folder.events("count")[-1]["seconds"]
    start = time.perf_counter()
    with stage(f"counting, {kind} tables", "positions") as progress:
        options: Any = {"radius": K, "vocab_size": N, "progress": progress}
        counts: Any
        if beside := counts_beside_shards(config, text.tokenizer, K):
            counts = beside if kind == "sparse" else tuple(C.toarray() for C in beside)
        elif kind == "sparse":
            counts = count_sparse(text.train, **options)
        else:
            devices = within_memory(mesh, memory, 4 * K * N**2, K) if memory else mesh
            counts = count(text.train, mesh=devices, **options)
        counted = training(counts)
    seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K, peak_bytes=peak_bytes(), tables=kind)
    save_counts(path, counts)
    return counted, seconds


def counts_beside_shards(config: Config, tokenizer: Tokenizer, radius: int) -> SparseCounts:
    """C_1 .. C_K that launch.beam left with its shards, if any."""
    folder = config.shards / "counts" if config.shards else None
    if not folder or not folder.is_dir():
        return ()
    tables = read_tables(folder, tokenizer=tokenizer.sha256)[:radius]
    if len(tables) < radius:
        console.print(f"  {folder} holds offsets 1 to {len(tables)} of the {radius} needed: counting again")
        return ()
    return tables


_positions_one_by_one = 20_000  # of the train perplexity of models that are read position by position
_once_at_1 = ("delta", "cold", "warm", "optimum")  # at K = 1 Sum and Cat are one model


class ModelRun(NamedTuple):
    """What every measured model needs."""

    config: Config
    folder: RunFolder
    text: TokenizedCorpus
    training: TrainingText
    mesh: Mesh
    tables: str  # dense or sparse
    about: Row  # fields that all rows share
    dev_counts: Counts | None  # of dense tables, at K = 1


def wanted_models(config: Config) -> Iterator[dict[str, Any]]:
    """The fields of all rows of a run, in order."""
    for method in ("unigram", "bigram", *(method for method in config.methods if method not in ("unigram", "bigram"))):
        name = {"method": method, "features": "none", "radius": 1, "history": "none"}
        if method in ("unigram", "bigram"):
            yield name
        elif method == "ngram":
            yield {**name, "radius": ORDER}
        elif method == "context-mixing":
            radius = contexts_radius(config.contexts, config.tokenizer)
            yield from ({**name, "radius": radius, "history": history} for history in config.history)
        else:
            radii = [K for K in config.radius if K == 1 or method != "optimum"]  # which has a closed form there alone
            for features, radius in itertools.product(config.features, radii):
                yield {**name, "features": features, "radius": radius}


def measure_model(job: ModelRun, name: dict[str, Any]) -> list[Row]:
    """Fit, save and evaluate one model."""
    config, method = job.config, name["method"]
    if method in _once_at_1 and name["radius"] == 1 and (twins := where(job.folder.rows(), method=method, radius=1)):
        return [{**twins[0], "peak_bytes": peak_bytes()}]
    watch = watch_of(job, name)
    trim_heap()  # of what was evaluated before
    fitted = fit_model(method, job.training, options_of(config, name), watch)
    model, more = fitted.model, fitted.info
    if method not in FROM_COUNTS and is_first():
        save_run_model(job.folder.path, name, model)
    if method == "explicit" and is_token_model(model):
        more = more | measure_scaling(job, model)
        if {"cold", "warm", "optimum"} & set(config.methods):
            X, Y = contexts(job.training.in_memory, model.radius, eos=model.eos)  # a sample would measure the sample
            with stage("KKT residual"):
                more["kkt_residual"] = kkt_residual(model, X, Y, mesh=job.mesh)
    measured = evaluate_model(job, name, model)
    if watch.checkpoints:
        shutil.rmtree(watch.checkpoints, ignore_errors=True)  # the model is saved; what it resumed from is needed no longer
    shared = {"seconds": more["solve_seconds"], "bytes": model.nbytes, "tables": job.tables, **job.about}
    return [{**measured, **shared, **more, "peak_bytes": peak_bytes()}]


def options_of(config: Config, name: Row) -> Options:
    """The options of a fit, from the flags and the row."""
    flags: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(FitOptions)}
    own = {key: value for key, value in name.items() if key != "method" and value != "none"}
    return Options(train_sample=config.train_sample or None, seed=config.seed, **(flags | own))


def evaluate_model(job: ModelRun, name: Row, model: AnyModel) -> Row:
    """The perplexities of a model on train and dev, and what compares across tokenizers."""
    config, start = job.config, time.perf_counter()
    one_by_one, dense = not isinstance(model, LanguageModel), job.tables == "dense"
    with stage(f"perplexity of {label(name)}", "positions" if one_by_one else "contexts") as progress:
        shared: Any = {"seed": config.seed, "mesh": job.mesh, "progress": progress}
        drawn, counts = _positions_one_by_one if one_by_one else config.train_sample, job.training.counts(1) if dense else None
        train = evaluate(model, job.text.train, counts=counts, sample=drawn or None, **shared)
        drawn = None if dense else config.dev_sample or None
        dev = evaluate(model, job.text.dev, counts=job.dev_counts, sample=drawn, **shared)
    in_all = positions_in_all(job.text.dev, eos=config.eos)  # a sample stands for all of them
    spelled = spelling(job.text.tokenizer, job.text.dev, job.text.dev_sizes)
    return {
        "train_perplexity": train.perplexity,
        "dev_loss": dev.loss,
        "dev_perplexity": dev.perplexity,
        "train_positions": train.positions,
        "dev_positions": dev.positions,
        **comparable_measures(dev.loss * in_all + spelled, job.text.dev_sizes),
        "eval_seconds": time.perf_counter() - start,
    }


def watch_of(job: ModelRun, name: Row) -> Watch:
    """Progress on the terminal, events, and a folder to resume from."""

    def log(**event: Any) -> None:
        job.folder.log(**event)
        if event["event"] in ("epoch", "sweep") and (number := event[event["event"]]):
            parts = ", ".join(f"{part} {event[f'{part}_perplexity']:.1f}" for part in ("train", "dev"))
            console.print(f"    {label(name)}: {event['event']} {number}, perplexity {parts}, {event['seconds']:.0f} s")

    checkpoints = job.folder.path / "checkpoints" / "fits" / model_name(name)
    return Watch(stage=stage, log=log, dev=job.text.dev, checkpoints=checkpoints, events=job.folder.events)


def measure_scaling(job: ModelRun, model: LanguageModel) -> dict[str, Any]:
    """The line of the scaling assumption; the first process saves its points."""
    config, radius, features = job.config, model.radius, cast(Features, model.features)
    C = job.training.counts(1)
    if radius == 1:  # all contexts, and how often each counts
        n = with_targets(C[0], eos=config.eos).sum(axis=1, dtype=np.int64)
        X, times = np.flatnonzero(n)[:, None], n[n > 0]
    else:
        options: Any = {"eos": config.eos, "sample": config.scaling_sample, "seed": config.seed}
        draw = functools.partial(sampled_positions, job.text.train, radius, job.training.vocab_size, **options)
        # Sum and Cat have the same
        X, times = job.training.once(("contexts of the scaling assumption", radius), lambda: draw()[0]), None
    f = target_counts(C, eos=config.eos)
    log_means = log_mean_cooccurrences(model, f, X, times)
    if is_first():
        path = job.folder.path / scaling_file(features, radius)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, f=f, log_means=log_means)
    found = {f"scaling_{name}": value for name, value in fit_scaling(f, log_means)._asdict().items()}
    return found | {"log_partition_sd": partition_spread(model, X, times)}


_block = 1000  # predictions of a single document, which is resampled in blocks


class HeldBack(NamedTuple):
    """Test streams by file, and the text to fit the chosen models on again."""

    files: dict[str, np.ndarray]
    counted: np.ndarray | None = None


def read_tests(config: Config, folder: RunFolder, tokenizer: Tokenizer) -> HeldBack:
    """The test text as streams; a resumed run has the same."""
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.split == "dev-test":
        corpus = corpora.read_corpus(config.corpus, config.train, split="end", **reading)
        counted, test = (encode_documents(tokenizer, list(part)) for part in (corpus.train, corpus.dev))
        held = HeldBack({"the last tenth": test}, counted)
    else:
        files = check_test_files(config)
        inside = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
        texts = {os.path.relpath(file, inside): list(files_documents([file], **reading)) for file in files}
        held = HeldBack({name: encode_documents(tokenizer, documents) for name, documents in texts.items()})
    if empty := [name for name, stream in held.files.items() if not (stream != PAD).any()]:
        raise ValueError(f"{empty[0]} has no token to predict: take it out of --test")
    now = {name: hashlib.sha256(stream.astype(np.int64).tobytes()).hexdigest() for name, stream in held.files.items()}
    for before in folder.events("test_text"):
        if before["sha256"] != now:
            was = f"{', '.join(before['sha256'])} (now {', '.join(now) or 'no file'})"
            raise ValueError(f"{folder.path} was tested on another text, {was}: restore it, or choose another --out")
    if now and not folder.events("test_text"):
        folder.log(event="test_text", sha256=now)
    return held


def check_test_files(config: Config) -> list[str]:
    """The files of --test, each once, and new to train and dev."""
    if not config.test:
        return []
    files = list_files(config.test)
    others = {flag: list_files(getattr(config, flag)) for flag in ("train", "dev") if getattr(config, flag)}
    for flag, read in others.items():
        if shared := sorted(set(map(os.path.realpath, files)) & set(map(os.path.realpath, read))):
            raise ValueError(f"{shared[0]} is in {flag} and in test: remove it from one; a test text is new to every choice")
    check_reading(
        [*(file for read in others.values() for file in read), *files], field=config.field, documents=config.documents
    )
    return files


def measure_tests(job: ModelRun, held: HeldBack) -> None:
    """Evaluate the chosen models on every test file not yet measured."""

    def fields_of(losses: Sequence[DocumentLosses], documents: int) -> dict[str, Any]:
        return {**{f"test_{name}": value for name, value in loss_fields(losses).items()}, "test_documents": documents}

    for own in groups(job.folder.rows(), ["method", "history"]).values() if held.files else ():
        row = min(own, key=lambda row: row["dev_perplexity"])
        if "test_loss" in row:
            continue
        name = {field: row[field] for field in ("method", "features", "radius", "history") if field in row}
        model = load_row(job.folder.path, row).model if held.counted is None else _fit_again(job, held.counted, name)
        losses = []
        for file, stream in held.files.items():
            with stage(f"test of {label(row)}, {file}", "positions") as progress:
                losses.append(document_losses(model, stream, block=_block, mesh=job.mesh, progress=progress))
            documents = int(np.count_nonzero(stream == PAD)) - 1
            job.folder.log(event="test", **name, file=file, **fields_of(losses[-1:], documents))
        documents = sum(int(np.count_nonzero(stream == PAD)) - 1 for stream in held.files.values())
        job.folder.extend_row(dict(row), **fields_of(losses, documents))


def _fit_again(job: ModelRun, stream: np.ndarray, name: dict[str, Any]) -> AnyModel:
    """The model of a name, of all text before the test."""
    text, known = job.training, {}
    if job.tables == "sparse":
        known["sparse_counts"] = count_sparse(stream, radius=max(job.config.radius), vocab_size=text.vocab_size)
    return fit_model(name["method"], text.like(stream, **known), options_of(job.config, name), Watch(stage=stage)).model
