"""Fit single-layer language models in closed form, in one counting pass, and measure them.

python -m launch.lm --out runs/demo
python -m launch.lm --out runs/mine --train train/*.txt --dev dev.txt
"""

import sys
import time
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh
from rich.markup import escape

from jexplicit.contexts import contexts
from jexplicit.cooccurrence import Counts, count
from jexplicit.data.cache import TokenizedCorpus, cached_streams
from jexplicit.data.text import Corpus, docs_corpus, installed_corpus, make_corpus, text_corpus
from jexplicit.evaluation import evaluate, fit_scaling, log_mean_cooccurrences
from jexplicit.generation import generate_text
from jexplicit.language_model import (
    Features,
    TokenTables,
    bigram_model,
    cooccurrence_blocks,
    explicit_language_model,
    target_counts,
    unigram_model,
)
from jexplicit.runs.command import Preset, run_command
from jexplicit.runs.folder import RunFolder, write_json
from jexplicit.runs.mesh import use_devices
from jexplicit.runs.progress import console, stage
from jexplicit.runs.reports import language_model_table, scaling_path, write_language_model_report
from jexplicit.saving import export_model, has_counts, load_counts, load_model, save_counts, save_tokenizer


@dataclass(frozen=True)
class Config:
    """Fit single-layer language models in closed form, in one counting pass, and measure them."""

    out: str
    """Run folder to write: config, results, figures, report.md and the saved models."""
    corpus: Literal["docs", "installed", "text"] = "docs"
    """docs: the documentation that comes with Python. installed: the docstrings of every installed package too, for millions
    of words without a download. text: the files of --train (implied by it)."""
    train: tuple[str, ...] = ()
    """Training text: files, .gz files, globs or folders. Every line that is not blank is a document."""
    dev: tuple[str, ...] = ()
    """Held-out text; default, every tenth block of ten training documents."""
    limit: int | None = None
    """Use at most this many training documents, and a tenth as many dev documents."""
    tokenizer: Literal["bpe", "word", "char"] = "bpe"
    """Subwords, words between white space, or characters."""
    vocab_size: int | None = None
    """Token ids, <pad> and <unk> included; default 4098 = 2^12 + 2, or every character."""
    features: tuple[Features, ...] = ("sum", "cat")
    """How the K context tokens are combined: sum shares one table, cat has a table per offset."""
    radius: tuple[int, ...] = (1, 2, 4)
    """Context lengths K, in tokens."""
    eos: bool = False
    """Predict the end of a document too."""
    train_sample: int = 1_000_000
    """Positions of the train perplexity at K > 1, drawn with --seed; 0 takes them all. Dev is always exact."""
    scaling_sample: int = 100_000
    """Training positions that the figure of the scaling assumption averages over at K > 1, drawn with --seed."""
    samples: int = 4
    """Lines of generated text."""
    export: str | None = None
    """Also write the model with the lowest dev perplexity to this .safetensors file."""
    devices: int | None = None
    """Devices to split the work over; default, every accelerator, or one virtual CPU device per core. Results do not change."""
    seed: int = 0
    """Of every random choice: evaluation sample and generated text."""
    resume: bool = False
    """Continue an interrupted run in --out, with its own configuration."""


_tiny = Config(out="runs/tiny", limit=500, vocab_size=512, radius=(1, 2), train_sample=20_000, scaling_sample=2_000, samples=1)
PRESETS = {
    "tiny": Preset(_tiny, "500 documents of docs, vocabulary 512; 10 s on 2 CPU cores. Cat K = 2: dev perplexity 32."),
    "demo": Preset(Config(out="runs/demo"), "docs, the defaults; 25 s on 2 CPU cores. Cat K = 1, 2, 4: dev 185, 490, 8500."),
    "babylm": Preset(
        Config(out="runs/babylm", corpus="text", samples=8),
        "the paper's experiment on text of yours, with --train and --dev; 10 M words in 1 minute and 2 GB on 2 CPU cores. "
        "Cat K = 1, 2, 4: dev 134, 204, 1320.",
    ),
}


class Job(NamedTuple):
    """What every measured model needs."""

    config: Config
    folder: RunFolder
    text: TokenizedCorpus
    counts: Counts
    mesh: Mesh
    about: dict[str, Any]  # fields that all rows share


def run(config: Config) -> None:
    """The whole job: text -> tokens -> counts -> tables -> perplexities, figures, report."""
    start = time.perf_counter()
    config = replace(config, corpus="text") if config.train else config
    _check(config)
    mesh = use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    console.print(f"[bold]explicit language model[/] on {mesh.size} x {mesh.devices.flat[0].device_kind}")

    corpus = read_corpus(config)
    text = tokenize(config, corpus)
    save_tokenizer(folder.path, text.tokenizer)
    counts, count_seconds = count_or_load(config, folder, text, mesh)
    about = {
        "train_tokens": int(np.count_nonzero(text.train)),
        "dev_tokens": int(np.count_nonzero(text.dev)),
        "vocab_size": text.tokenizer.vocab_size,
        "count_seconds": count_seconds,
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
    }
    job = Job(config, folder, text, counts, mesh, about)
    measure(job, "unigram", "none", 0)
    measure(job, "bigram", "none", 1)
    for features in config.features:
        for radius in config.radius:
            measure(job, "explicit", features, radius)

    samples = write_samples(config, folder)
    report = write_language_model_report(folder.path)
    console.print(language_model_table(folder.rows()))
    for sample in samples:
        console.print(f"[dim]>[/] {escape(sample[:300])}", soft_wrap=True)
    if config.export:
        export_model(config.export, load_model(config.out))
        console.print(f"exported {config.export}", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)


def read_corpus(config: Config) -> Corpus:
    """The documents that the config asks for."""
    with stage("reading", "source files" if config.corpus == "installed" else "") as progress:
        if config.corpus == "text":
            corpus = text_corpus(config.train, config.dev)
        else:
            corpus = installed_corpus(progress) if config.corpus == "installed" else docs_corpus()
        if config.limit:
            corpus = make_corpus(corpus.name, corpus.train[: config.limit], corpus.dev[: max(1, config.limit // 10)])
    return corpus


def tokenize(config: Config, corpus: Corpus) -> TokenizedCorpus:
    """Streams of token ids, from the cache where the same text was tokenised before."""
    with stage("tokenising", "documents") as progress:
        return cached_streams(corpus, kind=config.tokenizer, vocab_size=config.vocab_size, progress=progress)


def count_or_load(config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh) -> tuple[Counts, float]:
    """The counts, of this run or of the run that it resumes, and the seconds that they took."""
    if has_counts(folder.path):
        return load_counts(folder.path), folder.events("count")[-1]["seconds"]
    N, K = text.tokenizer.vocab_size, max(config.radius)
    with stage("counting", "positions") as progress:
        start = time.perf_counter()
        counts = count(text.train, radius=K, vocab_size=N, mesh=mesh, progress=progress)
        seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K)
    save_counts(folder.path, counts)
    return counts, seconds


def measure(job: Job, method: str, features: str, radius: int) -> None:
    """Solve and evaluate one model, and add its row; a row that is there already stays."""
    if any((row["method"], row["features"], row["radius"]) == (method, features, radius) for row in job.folder.rows()):
        return
    start = time.perf_counter()
    model = jax.block_until_ready(solve(job, method, features, radius))
    solve_seconds = time.perf_counter() - start
    scaling = measure_scaling(job, model) if method == "explicit" else {}
    name = f"{method}, {features}, K = {radius}" if method == "explicit" else method
    sample = job.config.train_sample or None
    with stage(name, "contexts") as progress:
        start = time.perf_counter()
        on_train = {"counts": job.counts, "sample": sample, "seed": job.config.seed}
        train = evaluate(model, job.text.train, **on_train, mesh=job.mesh, progress=progress)
        dev = evaluate(model, job.text.dev, mesh=job.mesh, progress=progress)
        eval_seconds = time.perf_counter() - start
    row = {
        "method": method,
        "features": features,
        "radius": radius,
        "train_perplexity": train.perplexity,
        "dev_perplexity": dev.perplexity,
        "train_positions": train.positions,
        **job.about,
        "solve_seconds": solve_seconds,
        "eval_seconds": eval_seconds,
        **scaling,
    }
    job.folder.log(event="row", **row)
    job.folder.add_row(row)


def solve(job: Job, method: str, features: str, radius: int) -> TokenTables:
    """The tables of one model."""
    if method == "unigram":
        return unigram_model(job.counts, eos=job.config.eos)
    if method == "bigram":
        return bigram_model(job.counts, eos=job.config.eos)
    return explicit_language_model(job.counts, features=cast(Features, features), radius=radius, eos=job.config.eos)


def measure_scaling(job: Job, model: TokenTables) -> dict[str, float]:
    """The line of the scaling assumption; its points go into the run folder, for the figure."""
    config, radius = job.config, model.radius
    F = cooccurrence_blocks(job.counts, features=model.features, radius=radius, eos=config.eos)
    X, _ = contexts(job.text.train, radius, eos=config.eos)
    if radius > 1:  # at K = 1 there are only N different contexts
        X = np.random.default_rng(config.seed).choice(X, min(config.scaling_sample, len(X)), replace=False)
    f, log_means = target_counts(job.counts, eos=config.eos), log_mean_cooccurrences(model, F, X)
    path = scaling_path(job.folder.path, model.features, radius)
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, f=f, log_means=log_means)
    return {f"scaling_{name}": value for name, value in fit_scaling(f, log_means)._asdict().items()}


def write_samples(config: Config, folder: RunFolder) -> list[str]:
    """Text generated by the model with the lowest dev perplexity, kept in samples.json."""
    samples = []
    if config.samples:
        model, tokenizer = load_model(folder.path)
        for key in jax.random.split(jax.random.key(config.seed), config.samples):
            samples.append(generate_text(key, model, tokenizer, "", 40, temperature=0.8, top_k=50))
    write_json(folder.path / "samples.json", samples)
    return samples


def _check(config: Config) -> None:
    if config.corpus == "text" and not config.train:
        raise ValueError("--corpus text without --train: name the training files, --train FILES")
    if config.dev and config.corpus != "text":
        raise ValueError(f"--dev with --corpus {config.corpus}: dev files go with --train FILES")
    if not config.radius or min(config.radius) < 1:
        raise ValueError(f"--radius {config.radius}: give context lengths of at least 1 token")
    if not config.features:
        raise ValueError("--features without a value: give sum, cat or both")
    if config.limit is not None and config.limit < 10:
        raise ValueError(f"--limit {config.limit}: use at least 10 documents")
    if min(config.train_sample, config.samples) < 0 or config.scaling_sample < 1:
        raise ValueError("--train-sample, --samples >= 0 and --scaling-sample >= 1 are numbers of positions and of texts")


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
