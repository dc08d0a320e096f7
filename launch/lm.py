"""Fit single-layer language models in closed form, in one counting pass, and measure them.

python -m launch.lm --out runs/demo
python -m launch.lm --out runs/mine --train train/*.txt --dev dev.txt
"""

import functools
import itertools
import sys
import time
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh
from rich.markup import escape

from jexplicit.bitcipher import check_bits
from jexplicit.cooccurrence import Counts, count
from jexplicit.data.cache import TokenizedCorpus, cached_streams
from jexplicit.data.text import Corpus, docs_corpus, installed_corpus, make_corpus, text_corpus
from jexplicit.generation import generate_text
from jexplicit.joint_model import RADIUS
from jexplicit.runs.command import run_command
from jexplicit.runs.folder import RunFolder, write_json
from jexplicit.runs.mesh import use_devices
from jexplicit.runs.progress import console, stage
from jexplicit.runs.reports import language_model_table, write_language_model_report
from jexplicit.saving import export_model, has_counts, has_model, load_counts, load_model, save_counts, save_tokenizer
from launch.lm_bitcipher import measure_coded
from launch.lm_calibrated import measure_calibrated, split
from launch.lm_config import PRESETS, Config, check
from launch.lm_joint import measure_joint
from launch.lm_models import Job, measure
from launch.lm_scaling import measure_swept
from launch.lm_training import measure_optimum, measure_trained


def run(config: Config) -> None:
    """The whole job: text -> tokens -> counts -> tables -> perplexities, figures, report."""
    start = time.perf_counter()
    config = replace(config, corpus="text") if config.train else config
    check(config)
    mesh = use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    console.print(f"[bold]explicit language model[/] on {mesh.size} x {mesh.devices.flat[0].device_kind}")

    corpus = read_corpus(config)
    text = tokenize(config, corpus)
    for bits in config.bits if "bitcipher" in config.methods else ():
        check_bits(bits, text.tokenizer.vocab_size)  # before anything is counted
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
    if counts:
        measure(job, "unigram", "none", 0)
        measure(job, "bigram", "none", 1)
    measure_methods(job)

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


def measure_methods(job: Job) -> None:
    """The models of --methods, each of every --features and --radius where it has them."""
    config = job.config
    held_out = functools.cache(functools.partial(split, job))
    for method in config.methods:
        if method in ("joint", "joint+cache"):
            measure_joint(job, held_out, method)
            continue
        for features, radius in itertools.product(config.features, config.radius):
            if method == "explicit":
                measure(job, method, features, radius)
            elif method in ("cold", "warm"):
                measure_trained(job, method, features, radius)
            elif method == "optimum":
                measure_optimum(job, features, radius)
            elif method == "calibrated":
                measure_calibrated(job, held_out, features, radius)
            elif method == "scaling":
                measure_swept(job, held_out, features, radius)
            else:
                for bits in config.bits:
                    measure_coded(job, features, radius, bits)


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
    if set(config.methods) == {"bitcipher"}:
        return (), 0.0  # nothing of the size of the vocabulary squared
    if has_counts(folder.path):
        return load_counts(folder.path), folder.events("count")[-1]["seconds"]
    joint = {"joint", "joint+cache"} & set(config.methods)
    N, K = text.tokenizer.vocab_size, max(*config.radius, RADIUS if joint else 1)
    with stage("counting", "positions") as progress:
        start = time.perf_counter()
        counts = count(text.train, radius=K, vocab_size=N, mesh=mesh, progress=progress)
        seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K)
    save_counts(folder.path, counts)
    return counts, seconds


def write_samples(config: Config, folder: RunFolder) -> list[str]:
    """Text generated by the model with the lowest dev perplexity, kept in samples.json."""
    samples = []
    if config.samples and has_model(folder.path):
        model, tokenizer = load_model(folder.path)
        for key in jax.random.split(jax.random.key(config.seed), config.samples):
            samples.append(generate_text(key, model, tokenizer, "", 40, temperature=0.8, top_k=50))
    write_json(folder.path / "samples.json", samples)
    return samples


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
