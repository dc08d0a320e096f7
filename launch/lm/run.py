"""The whole job of launch.lm: text -> tokens -> counts -> models -> perplexities, figures, report."""

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from rich.markup import escape

from jexplicit.counts.context_ranges import Disk
from jexplicit.counts.dense import count
from jexplicit.counts.merging import dense_counts
from jexplicit.counts.sharded import as_sparse, count_sharded
from jexplicit.counts.sparse import count_sparse
from jexplicit.counts.stream import Saving
from jexplicit.data import sources
from jexplicit.data.cache import TokenizedCorpus, cached_streams
from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import Corpus
from jexplicit.data.docstrings import about_corpus
from jexplicit.data.shards import count_tokens, read_shards
from jexplicit.data.sizes import TextSizes, read_sizes
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.checkpoints import (
    export_model,
    has_counts,
    has_sparse_counts,
    load_counts,
    load_model,
    load_sparse_counts,
    save_counts,
    save_sparse_counts,
    save_tokenizer,
)
from jexplicit.lm.fits.fit import ONE_DEVICE, choose_tables
from jexplicit.lm.fits.training_text import RADIUS, TrainingText
from jexplicit.lm.generation import generate_text
from jexplicit.lm.measures import unknown_share
from jexplicit.lm.rows.bitcipher import check_bits
from jexplicit.lm.rows.word_vectors import check_dimensions
from jexplicit.lm.rows.words import letters_of
from jexplicit.lm.text_model import TextModel
from jexplicit.runs.devices import data_mesh, request_devices
from jexplicit.runs.folder import RunFolder, present_run, write_json
from jexplicit.runs.host import host_bytes, parse_bytes, peak_bytes
from jexplicit.runs.memory import within_memory
from jexplicit.runs.processes import FolderLock, agree, hold_place, is_first, join, meet
from jexplicit.runs.program import as_typed
from jexplicit.runs.progress import console, stage, suggest
from launch.lm.beam import contexts_beside_shards, counts_beside_shards
from launch.lm.check import check
from launch.lm.config import GROWING, Config
from launch.lm.forecast import forecast
from launch.lm.measure import Job, measure, wanted_models
from launch.lm.report import repetition, results_table, write_report


def run(config: Config) -> dict[str, Any]:
    """The whole job: text -> tokens -> counts -> models -> perplexities, figures, report."""
    start = time.perf_counter()
    check(config)
    config = replace(config, corpus="text") if config.train else config
    request_devices(config.devices)
    if config.dry_run:
        return forecast(config, kind_of_tables, None if config.corpus.startswith("shards:") else read_corpus(config).train)
    place = join_others(config)
    mesh = data_mesh(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume, extend=GROWING)
    processes = f"{jax.process_count()} processes of " if place else ""
    console.print(f"[bold]language models[/] on {processes}{mesh.size} x {mesh.devices.flat[0].device_kind}")
    if mesh.size > 1 and (alone := [method for method in config.methods if method in ONE_DEVICE]):
        console.print(f"  {', '.join(alone)}: fitted on one device")

    text, source = read_text(config)
    N = text.tokenizer.vocab_size
    for bits in config.bits:  # before anything is counted
        if "bitcipher" in config.methods:
            check_bits(bits, N)
        if "word-vectors" in config.methods:
            check_dimensions(bits // 2, N)
    tables = kind_of_tables(config, N)
    check_methods(config, tables)
    agree("choice of --tables, as they have other memory,", tables)
    check_text(config, text)
    keep_text(folder, text, source)
    training, count_seconds = count_or_load(config, folder, text, mesh, tables)
    about = {
        "train_tokens": counted_tokens(training),
        "dev_tokens": count_tokens(text.dev),
        "vocab_size": N,
        "count_seconds": count_seconds,
        "corpus": source.name,
        "corpus_about": about_corpus(config.corpus),
        "corpus_sha256": source.sha256,
        **about_dev(text),
    }
    if note := repetition(about):
        console.print(f"[bold yellow]warning:[/] {note}", soft_wrap=True)
    dev_counts = count(text.dev, radius=1, vocab_size=N, mesh=mesh) if tables == "dense" else None
    job = Job(config, folder, text, training, mesh, tables, about, dev_counts)
    for name in wanted_models(config):
        if tables != "sharded" or name["method"] == "explicit":
            with report_of_what_is_there(folder):
                measure(job, name)
    meet("rows")
    training.forget()  # the best model is read again
    if is_first():
        shutil.rmtree(contexts_folder(folder.path), ignore_errors=True)
    return finish(config, folder, start) if is_first() else {}


def about_dev(text: TokenizedCorpus) -> dict[str, Any]:
    """What all rows say of the dev text; None for what is not known of shards."""
    sizes = text.dev_sizes._asdict() if text.dev_sizes else dict.fromkeys(TextSizes._fields)
    return {
        **{f"dev_{name}": value for name, value in sizes.items()},
        "unknown_share": unknown_share(text.dev),
        "dev_in_train": text.dev_in_train and text.dev_in_train.documents,
        "dev_bytes_in_train": text.dev_in_train and text.dev_in_train.bytes,
    }


def counted_tokens(training: TrainingText) -> int:
    """How many tokens a text has beside its `<pad>`s, from its counts: text in shards is not read again."""
    if training.sharded_counts:
        f = training.sharded_counts.f
    else:
        C = (training.sparse_counts(1) if training.sparse else training.counts(1))[0]
        f = C.sum(axis=0, dtype=np.int64)
    return int(f[PAD + 1 :].sum())


def finish(config: Config, folder: RunFolder, start: float) -> dict[str, Any]:
    """Samples and export of the best model, tables and figures of the finished run."""
    best = load_model(folder.path) if config.samples or config.export else None
    samples = write_samples(config, folder, best)
    report = write_report(folder.path)
    for sample in samples:
        console.print(f"[dim]>[/] {escape(sample[:300])}", soft_wrap=True)
    if config.export and best:
        export_model(Path(config.export).expanduser(), best)
        console.print(f"exported {config.export}", soft_wrap=True)
    presented = present_run(folder, results_table(folder.rows(), paper=config.paper), report, start)
    suggest(next_steps(config.out))
    return presented


def next_steps(out: str) -> str:
    """Two commands that use the best model of a run."""
    run = f"--run {shlex.quote(out)}"
    sample, explain = f'launch.sample {run} --prompt "Return the"', f'launch.explain {run} --text "the list is sorted"'
    return as_typed(f"next: python -m {sample}\n      python -m {explain}")


def join_others(config: Config) -> FolderLock | None:
    """Become one of several processes where --coordinator says so; what is returned holds this one's place until it ends."""
    if config.coordinator is None:
        return None
    place = hold_place(config.out, config.process_id) if config.process_id is not None else None
    join(config.coordinator, config.num_processes, config.process_id, seconds=config.join_seconds)
    console.quiet = not is_first()
    return place or hold_place(config.out, jax.process_index())


class Source(NamedTuple):
    """Where the text of a run comes from."""

    name: str
    sha256: str


def read_text(config: Config) -> tuple[TokenizedCorpus, Source]:
    """Streams of token ids, and where they come from.

    Of several processes the first one tokenises, and the others then find its tokens in the cache.
    """
    if config.corpus.startswith("shards:"):
        return read_sharded(Path(config.corpus.removeprefix("shards:")))
    if not is_first():
        meet("tokens")
    corpus = read_corpus(config)
    text = tokenize(config, corpus)
    if is_first():
        meet("tokens")
    agree("text", corpus.sha256)
    return text, Source(corpus.name, corpus.sha256)


def read_sharded(folder: Path) -> tuple[TokenizedCorpus, Source]:
    """What launch.shards wrote: the training text stays on the disk.

    Raises:
        ValueError: no shards there, or shards of another tokenizer than the one beside them.
    """
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    train, dev = (read_shards(folder / part) for part in ("train", "dev"))
    for shards in (train, dev):
        if shards.tokenizer != tokenizer.sha256:
            raise ValueError(
                f"{shards.folder} holds tokens of another tokenizer than tokenizer.model beside it: write both again"
            )
    agree("shards", train.sha256 + dev.sha256)
    return TokenizedCorpus(tokenizer, train, dev[:], cached=True, dev_sizes=read_sizes(folder / "dev")), Source(
        str(folder), train.sha256
    )


def read_corpus(config: Config) -> Corpus[list[str]]:
    """The documents that the config asks for, in memory."""
    with stage("reading", "source files" if config.corpus == "installed" else "") as progress:
        reading: Any = {name: getattr(config, name) for name in ("field", "documents", "split")}
        reading |= {"keep": True, "progress": progress}
        corpus = sources.read_corpus(config.corpus, config.train, config.dev, **reading)
        return (corpus.limit(config.limit) if config.limit else corpus).in_memory()


def tokenize(config: Config, corpus: Corpus[list[str]]) -> TokenizedCorpus:
    """Streams of token ids, from the cache where the same text was tokenised before."""
    with stage("tokenising", "documents") as progress:
        return cached_streams(corpus, kind=config.tokenizer, vocab_size=config.vocab_size, progress=progress)


def keep_text(folder: RunFolder, text: TokenizedCorpus, source: Source) -> None:
    """Save the tokenizer and note whose text a run counts, before anything is counted.

    Raises:
        ValueError: a run that is resumed counted another text, or with another tokenizer.
    """
    now = {"corpus_sha256": source.sha256, "tokenizer_sha256": text.tokenizer.sha256}
    for before in folder.events("text"):
        if other := {name: before[name] for name in now if before[name] != now[name]}:
            was = ", ".join(f"{name} {value[:12]} (now {now[name][:12]})" for name, value in other.items())
            raise ValueError(f"{folder.path} was started on another text, {was}: restore the text, or choose another --out")
    if not folder.events("text"):
        folder.log(event="text", corpus=source.name, **now)
    if is_first():
        save_tokenizer(folder.path, text.tokenizer)


def kind_of_tables(config: Config, vocab_size: int) -> str:
    """dense, sparse or sharded: what --tables says, or, of auto, dense where a method needs such tables and they fit."""
    if config.tables != "auto":
        return config.tables
    budget = parse_bytes(config.memory) if config.memory else host_bytes()
    return choose_tables(config.methods, vocab_size, max(config.radius), budget)


def check_methods(config: Config, tables: str) -> None:
    """Refuse methods that have no model of such tables.

    Raises:
        ValueError: with the methods and the tables.
    """
    served = {"sparse": ("unigram", "bigram", "explicit", "ngram", "mixture", "bitcipher"), "sharded": ("explicit",)}
    if tables in served and (others := set(config.methods) - set(served[tables])):
        raise ValueError(
            f"--methods {' '.join(sorted(others))} with {tables} tables: these work only with {', '.join(served[tables])}; use "
            "--tables dense or a smaller --vocab-size"
        )


def check_text(config: Config, text: TokenizedCorpus) -> None:
    """Refuse a text that is too small to measure anything on, and contexts longer than every document.

    Raises:
        ValueError: with what the text has.
    """
    if not isinstance(text.train, np.ndarray):  # shards are too many to look through
        return
    lengths = np.diff(np.flatnonzero(text.train == PAD)) - 1
    if len(np.unique(np.bincount(text.train[text.train != PAD]))) <= 2:  # 0, and one number
        raise ValueError(f"a training text of {lengths.sum()} tokens that all occur equally often: give more text")
    if max(config.radius) > lengths.max():
        raise ValueError(f"--radius {max(config.radius)}: the longest document has {lengths.max()} tokens; use at most that")


@contextlib.contextmanager
def report_of_what_is_there(folder: RunFolder) -> Iterator[None]:
    """Where a training diverges, write the report on the models before it."""
    try:
        yield
    except FloatingPointError:
        if is_first():
            console.print(f"report {write_report(folder.path)}, on the models before", soft_wrap=True)
        raise


def count_or_load(
    config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh, kind: str
) -> tuple[TrainingText, float]:
    """The text with its counts, of this run or of the run that it resumes, and the seconds that they took."""
    K = max(*config.radius, RADIUS if "mixture" in config.methods else 1)
    N, path = text.tokenizer.vocab_size, folder.path

    def training(**counts: Any) -> TrainingText:
        shape: Any = {"eos": config.eos, "mesh": mesh, "letters": letters_of(text.tokenizer), "tokenizer": text.tokenizer}
        beside = contexts_beside_shards(config)
        memory = parse_bytes(config.memory) if config.memory else int(host_bytes() / 4) if beside else None
        disk = memory and Disk(contexts_folder(path), memory)
        return TrainingText(text.train, N, disk=disk or None, contexts=beside, **shape, **counts)

    if kind == "dense" and has_counts(path) and len(counts := load_counts(path)) >= K:
        return training(counts=counts), folder.events("count")[-1]["seconds"]
    if kind == "sparse" and has_sparse_counts(path) and len(counts := load_sparse_counts(path)) >= K:
        return training(sparse_counts=counts), folder.events("count")[-1]["seconds"]
    saving = Saving(path / "checkpoints" / "counting", config.checkpoint_seconds)
    start = time.perf_counter()
    with stage(f"counting, {kind} tables", "positions") as progress:
        counted = training(**_counted(config, text, mesh, kind, K, saving, progress))
    seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K, peak_bytes=peak_bytes(), tables=kind)
    if kind == "dense":
        save_counts(path, counted.counts(K))
    else:
        save_sparse_counts(path, as_sparse(counted.sharded_counts) if counted.sharded_counts else counted.sparse_counts(K))
    if is_first():
        shutil.rmtree(saving.folder, ignore_errors=True)  # what was counted is saved as a whole
    return counted, seconds


def contexts_folder(run: Path) -> Path:
    """Where contexts of several tokens are counted on disk, within --memory."""
    return run / "checkpoints" / "contexts"


def _counted(
    config: Config, text: TokenizedCorpus, mesh: Mesh, kind: str, K: int, saving: Saving, progress: Any
) -> dict[str, Any]:
    """The counts of one kind, or those that launch.beam left beside its shards, as arguments of `TrainingText`."""
    shape: Any = {"radius": K, "vocab_size": text.tokenizer.vocab_size, "progress": progress}
    memory = parse_bytes(config.memory) if config.memory else None
    if kind == "sharded":
        return {"sharded_counts": count_sharded(text.train, mesh=mesh, **shape)}
    beside = counts_beside_shards(config, text, K)
    if kind == "sparse":
        return {"sparse_counts": beside or count_sparse(text.train, memory=memory, saving=saving, **shape)}
    if beside:
        return {"counts": dense_counts(beside)}
    table_bytes = 4 * K * text.tokenizer.vocab_size**2
    counting = within_memory(mesh, memory, table_bytes, K) if memory else mesh
    return {"counts": count(text.train, mesh=counting, saving=saving, **shape)}


def write_samples(config: Config, folder: RunFolder, best: TextModel | None) -> list[str]:
    """Text generated by the model with the lowest dev perplexity, kept in samples.json."""
    samples = []
    if config.samples and best:
        key, length = jax.random.key(config.seed), 400 if best.tokenizer.kind == "char" else 40
        samples = generate_text(key, best.model, best.tokenizer, [""] * config.samples, length, temperature=0.8, top_k=50)
    write_json(folder.path / "samples.json", samples)
    return samples
