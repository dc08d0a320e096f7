"""Fit single-layer language models in closed form, in one counting pass, and measure them.

python -m launch.lm --out runs/demo
python -m launch.lm --out runs/mine --train train/*.txt --dev dev.txt
"""

import functools
import itertools
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import jax
from jax.sharding import Mesh
from rich.markup import escape

from jexplicit.counts.dense import Counts, count
from jexplicit.counts.merging import dense_counts
from jexplicit.counts.stream import Saving
from jexplicit.data import sources
from jexplicit.data.cache import TokenizedCorpus, cached_streams
from jexplicit.data.corpora import Corpus
from jexplicit.data.shards import count_tokens, read_shards
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.bitcipher import check_bits
from jexplicit.lm.checkpoints import (
    LanguageModel,
    export_model,
    has_counts,
    has_model,
    load_counts,
    load_model,
    save_counts,
    save_tokenizer,
)
from jexplicit.lm.generation import generate_text
from jexplicit.lm.ngram_mixture import RADIUS
from jexplicit.runs.command import run_command
from jexplicit.runs.devices import data_mesh, parse_bytes, peak_bytes, request_devices, within_memory
from jexplicit.runs.folder import RunFolder, write_json
from jexplicit.runs.processes import agree, hold_place, is_first, join, meet
from jexplicit.runs.progress import console, stage
from launch.lm.beam import counts_beside_shards
from launch.lm.bitcipher import measure_coded
from launch.lm.calibrated import measure_calibrated, split
from launch.lm.config import PRESETS, Config, check
from launch.lm.joint import measure_joint
from launch.lm.large import count_large, for_large, kind_of_tables, measure_large
from launch.lm.models import Job, measure
from launch.lm.report import language_model_table, write_language_model_report
from launch.lm.scaling import measure_swept
from launch.lm.training import measure_optimum, measure_trained


def run(config: Config) -> None:
    """The whole job: text -> tokens -> counts -> tables -> perplexities, figures, report."""
    start = time.perf_counter()
    config = replace(config, corpus="text") if config.train else config
    check(config)
    request_devices(config.devices)
    place = join_others(config)
    mesh = data_mesh(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    processes = f"{jax.process_count()} processes of " if place else ""
    console.print(f"[bold]explicit language model[/] on {processes}{mesh.size} x {mesh.devices.flat[0].device_kind}")

    text, source = read_text(config)
    for bits in config.bits if "bitcipher" in config.methods else ():
        check_bits(bits, text.tokenizer.vocab_size)  # before anything is counted
    if is_first():
        save_tokenizer(folder.path, text.tokenizer)
    kind = "dense" if set(config.methods) == {"bitcipher"} else kind_of_tables(config, text.tokenizer.vocab_size)
    saving = Saving(folder.path / "checkpoints" / "counting", config.checkpoint_seconds)
    counts, large = (), None
    if kind == "dense":
        counts, count_seconds = count_or_load(config, folder, text, mesh, saving)
    else:
        config = for_large(config, kind)
        large = count_large(config, folder, text, mesh, kind, saving)
        count_seconds = large.seconds
    if is_first():
        shutil.rmtree(saving.folder, ignore_errors=True)  # what was counted is saved as a whole
    about = {
        "train_tokens": count_tokens(text.train),
        "dev_tokens": count_tokens(text.dev),
        "vocab_size": text.tokenizer.vocab_size,
        "count_seconds": count_seconds,
        "corpus": source.name,
        "corpus_sha256": source.sha256,
    }
    job = Job(config, folder, text, counts, mesh, about)
    if counts:
        measure(job, "unigram", "none", 0)
        measure(job, "bigram", "none", 1)
    if large:
        measure_large(job, large, kind)
    else:
        measure_methods(job)
    meet("rows")
    model = load_model(folder.path) if has_model(folder.path) else None
    if is_first():
        finish(config, folder, model, start)


def finish(config: Config, folder: RunFolder, model: LanguageModel | None, start: float) -> None:
    """Samples of the best model, tables and figures of the finished run."""
    samples = write_samples(config, folder, model)
    report = write_language_model_report(folder.path)
    console.print(language_model_table(folder.rows()))
    for sample in samples:
        console.print(f"[dim]>[/] {escape(sample[:300])}", soft_wrap=True)
    if config.export and model:
        export_model(config.export, model)
        console.print(f"exported {config.export}", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)


def join_others(config: Config) -> BinaryIO | None:
    """Become one of several processes where --coordinator says so; what is returned holds this one's place until it ends."""
    if config.coordinator is None:
        return None
    place = hold_place(config.out, config.process_id) if config.process_id is not None else None
    join(config.coordinator, config.num_processes, config.process_id, seconds=config.join_seconds)
    console.quiet = not is_first()
    return place or hold_place(config.out, jax.process_index())


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
    return TokenizedCorpus(tokenizer, train, dev[:], cached=True), Source(str(folder), train.sha256)


def read_corpus(config: Config) -> Corpus[list[str]]:
    """The documents that the config asks for, in memory."""
    with stage("reading", "source files" if config.corpus == "installed" else "") as progress:
        corpus = sources.read_corpus(config.corpus, config.train, config.dev, progress=progress)
        return (corpus.limit(config.limit) if config.limit else corpus).in_memory()


def tokenize(config: Config, corpus: Corpus[list[str]]) -> TokenizedCorpus:
    """Streams of token ids, from the cache where the same text was tokenised before."""
    with stage("tokenising", "documents") as progress:
        return cached_streams(corpus, kind=config.tokenizer, vocab_size=config.vocab_size, progress=progress)


def count_or_load(config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh, saving: Saving) -> tuple[Counts, float]:
    """The counts, of this run or of the run that it resumes, and the seconds that they took."""
    if set(config.methods) == {"bitcipher"}:
        return (), 0.0  # nothing of the size of the vocabulary squared
    if has_counts(folder.path):
        return load_counts(folder.path), folder.events("count")[-1]["seconds"]
    joint = {"joint", "joint+cache"} & set(config.methods)
    N, K = text.tokenizer.vocab_size, max(*config.radius, RADIUS if joint else 1)
    if config.memory is not None:
        mesh = within_memory(mesh, parse_bytes(config.memory), 4 * K * N * N, K)
    with stage("counting", "positions") as progress:
        start = time.perf_counter()
        if found := counts_beside_shards(config, text, K):
            counts = dense_counts(found)
        else:
            counts = count(text.train, radius=K, vocab_size=N, mesh=mesh, saving=saving, progress=progress)
        seconds = time.perf_counter() - start
    folder.log(event="count", seconds=seconds, positions=len(text.train) - 1, radius=K, peak_bytes=peak_bytes())
    save_counts(folder.path, counts)
    return counts, seconds


def write_samples(config: Config, folder: RunFolder, best: LanguageModel | None) -> list[str]:
    """Text generated by the model with the lowest dev perplexity, kept in samples.json."""
    samples = []
    if config.samples and best:
        model, tokenizer = best
        for key in jax.random.split(jax.random.key(config.seed), config.samples):
            samples.append(generate_text(key, model, tokenizer, "", 40, temperature=0.8, top_k=50))
    write_json(folder.path / "samples.json", samples)
    return samples


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
