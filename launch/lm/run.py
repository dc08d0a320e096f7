"""The whole job of launch.lm, from text to report."""

import functools
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from filelock import FileLock
from rich.markup import escape

from jexplicit.counts.dense import count
from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import TextSizes
from jexplicit.data.corpus.docstrings import about_corpus
from jexplicit.data.corpus.shards import count_tokens
from jexplicit.lm.checkpoints import load_row, model_rows
from jexplicit.lm.fits.fit import ONE_DEVICE
from jexplicit.lm.generation import generate_text
from jexplicit.lm.measures import unknown_share
from jexplicit.lm.training_text import TrainingText
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import data_mesh, request_devices
from jexplicit.runs.files import write_json
from jexplicit.runs.processes import barrier, check_equal_across_processes, is_first, join, lock_run_folder
from jexplicit.runs.progress import console, print_hint
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.program import as_typed
from launch.lm.check import check
from launch.lm.config import GROWING, PRESETS, Config
from launch.lm.forecast import forecast
from launch.lm.models import ModelRun, measure_model, wanted_models
from launch.lm.testing import measure_tests, read_tests
from launch.lm.text import check_fit, count_or_load, kind_of_tables, read_text
from launch.lm.views import VIEWS, repetition


def run(config: Config) -> dict[str, Any]:
    """Measure every model in a run folder, or only a forecast."""
    check(config)
    config = replace(config, corpus="text") if config.train else config
    request_devices(config.devices)
    if config.dry_run:
        return forecast(config)
    place = join_others(config)
    presented = EXPERIMENT.run(config)
    if is_first():
        said, page = shlex.quote(config.out), shlex.quote(f"{config.out}/explain.html")
        print_hint(as_typed(f'next: python -m launch.sample --run {said} --history none --prompt "Return the"'))
        print_hint(as_typed(f'      python -m launch.explain --run {said} --text "the list is sorted" --html {page}'))
    del place
    return presented


def join_others(config: Config) -> FileLock | None:
    """Become one of several processes until the result is released."""
    if config.coordinator is None:
        return None
    place = lock_run_folder(config.out, config.process_id) if config.process_id is not None else None
    join(config.coordinator, config.num_processes, config.process_id, seconds=config.join_seconds)
    console.quiet = not is_first()
    return place or lock_run_folder(config.out, jax.process_index())


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """A part for each model: its row."""
    mesh = data_mesh(config.devices)
    processes = f"{jax.process_count()} processes of " if config.coordinator else ""
    console.print(f"[bold]language models[/] on {processes}{mesh.size} x {mesh.devices.flat[0].device_kind}")
    if mesh.size > 1 and (alone := [method for method in config.methods if method in ONE_DEVICE]):
        console.print(f"  {', '.join(alone)}: fitted on one device")
    if "optimum" in config.methods and max(config.radius) > 1:
        console.print("  optimum: at K = 1 only, where it has a closed form")
    text, source = read_text(config, folder)
    held = read_tests(config, folder, text.tokenizer)
    N = text.tokenizer.vocab_size
    tables = kind_of_tables(config, N)
    check_fit(config, text)
    check_equal_across_processes("choice of --tables, as they have other memory,", tables)
    training, seconds = count_or_load(config, folder, text, mesh, tables)
    sizes = text.dev_sizes._asdict() if text.dev_sizes else dict.fromkeys(TextSizes._fields)  # of shards they may be unknown
    about = {
        "train_tokens": counted_tokens(training),
        "dev_tokens": count_tokens(text.dev),
        "vocab_size": N,
        "count_seconds": seconds,
        **source,
        "corpus_about": about_corpus(config.corpus),
        **{f"dev_{name}": value for name, value in sizes.items()},
        "unknown_share": unknown_share(text.dev),
        "dev_in_train": text.dev_in_train and text.dev_in_train.documents,
        "dev_bytes_in_train": text.dev_in_train and text.dev_in_train.bytes,
    }
    if note := repetition(about):
        console.print(f"[bold yellow]warning:[/] {note}", soft_wrap=True)
    dev_counts = count(text.dev, radius=1, vocab_size=N, mesh=mesh) if tables == "dense" else None
    job = ModelRun(config, folder, text, training, mesh, tables, about, dev_counts)
    for name in wanted_models(config):
        yield name, functools.partial(measure_model, job, name)
    barrier("rows")
    training.forget()  # the best models are read again
    measure_tests(job, held)


def counted_tokens(training: TrainingText) -> int:
    """The number of tokens of a text but `<pad>`, from counts."""
    C = (training.sparse_counts(1) if training.sparse else training.counts(1))[0]
    return int(C.sum(axis=0, dtype=np.int64)[PAD + 1 :].sum())


def finish(config: Config, folder: RunFolder) -> None:
    """Sample from the model with the lowest dev perplexity.

    A model that counts what it reads counts its own samples, and repeats itself: where there is another one, that is sampled.
    """
    samples = []
    if config.samples:
        rows = model_rows(folder.path)
        calm = [row for row in rows if not row["history"].startswith("adaptive")] or rows
        best = load_row(folder.path, min(calm, key=lambda row: row["dev_perplexity"]))
        key, length = key_of_seed(config.seed), 400 if best.tokenizer.kind == "char" else 40
        samples = generate_text(key, best.model, best.tokenizer, [""] * config.samples, length, temperature=0.8, top_k=50)
    write_json(folder.path / "samples.json", samples)
    for sample in samples:
        console.print(f"[dim]>[/] {escape(sample[:300])}", soft_wrap=True)


EXPERIMENT = Experiment("lm", Config, measure, VIEWS, PRESETS, extend=GROWING, title="Language models", after=finish)
