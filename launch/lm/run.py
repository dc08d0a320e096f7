"""The whole job of launch.lm, from flags to report."""

import functools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from rich.markup import escape

from jexplicit.counts.pairs import count
from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import TextSizes, about_corpus
from jexplicit.data.shards import count_tokens
from jexplicit.lm.checkpoints import FROM_COUNTS, load_row, model_rows
from jexplicit.lm.core.names import FitOptions
from jexplicit.lm.counted.contexts import window_of
from jexplicit.lm.evaluation import unknown_share
from jexplicit.lm.fits.fit import ONE_DEVICE, OPTIONS
from jexplicit.lm.generation import generate_text
from jexplicit.nn.training import optax_optimizer
from jexplicit.runs.bounds import refuses
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import (
    barrier,
    check_equal_across_processes,
    check_process,
    data_mesh,
    is_first,
    join,
    lock_run_folder,
    request_devices,
)
from jexplicit.runs.files import parse_bytes, write_json
from jexplicit.runs.progress import console, print_hint
from launch.kit.command import as_typed
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.lm.config import GROWING, PRESETS, Config
from launch.lm.forecast import forecast
from launch.lm.models import (
    ModelRun,
    check_fit,
    check_test_files,
    count_or_load,
    kind_of_tables,
    measure_model,
    measure_tests,
    read_tests,
    read_text,
    wanted_models,
)
from launch.lm.views import VIEWS, repetition
from launch.shared.flags import check_text

_served = (*FROM_COUNTS, "ngram")  # by several processes
_unchanged = (Config(out=""), *(preset.config for preset in PRESETS.values()))  # flags that nobody gave
_given = ("methods", "features", "radius", "history")  # each with a value at least


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that make no sense, with the remedy."""
    kind, _, name = config.corpus.partition(":")
    methods, corpus = set(config.methods), f"--corpus {config.corpus}"
    words = {name: " ".join(map(str, getattr(config, name))) for name in _given}
    known = kind in (("shards", "tfds") if name else ("docs", "text"))
    yield not known, f"{corpus}: choose docs, text, shards:DIR or tfds:NAME"
    if config.coordinator is not None:
        check_process(config.coordinator, config.num_processes, config.process_id)
        yield _beyond("--methods", config.methods, _served, "--coordinator")
        alone = "one process measures it; give it to the finished run, --resume --test FILES without --coordinator"
        yield config.test, f"--test {' '.join(config.test)} with --coordinator: {alone}"
    else:
        alone = f"--num-processes {config.num_processes} --process-id {config.process_id}"
        yield (config.num_processes, config.process_id) != (None, None), f"{alone} without --coordinator HOST:PORT"
    if config.memory is not None:
        parse_bytes(config.memory)
    if config.shards:
        made = {"--tokenizer": config.tokenizer != "bpe", "--vocab-size": config.vocab_size, "--limit": config.limit}
        flags = " ".join(flag for flag, given in made.items() if given)
        yield flags, f"{flags} with {corpus}: shards are tokenised already; give these flags to launch.shards"
        yield _beyond("--methods", config.methods, (*_served, "context-mixing"), "--corpus shards:DIR")
    check_text(config)
    check_test_files(config)
    for name in _given:
        yield not getattr(config, name), f"--{name} without a value: give at least one"
    for history in config.history:
        window_of(history)
    past = set(config.history) != {"none"} and "context-mixing" not in methods
    reads = "only --methods context-mixing reads preceding text"
    yield past, f"--history {words['history']} with --methods {words['methods']}: {reads}"
    unsplit = config.split != "blocks" and (config.dev or not config.train)
    yield unsplit, f"--split {config.split}: it splits the files of --train, without --dev"
    if config.split == "dev-test":
        refused = {"--test": config.test, "--limit": config.limit, "--memory": config.memory}
        refused |= {"--coordinator": config.coordinator}
        refused |= {f"--methods {method}": method in methods for method in ("cold", "warm")}  # which stop on the dev text
        flags = " ".join(flag for flag, given in refused.items() if given)
        yield flags, f"{flags} with --split dev-test, which fits models again on dev: give --train, --dev and --test FILES"
    far = "optimum" in methods and 1 not in config.radius
    yield far, f"--methods optimum with --radius {words['radius']}: it has a closed form at K = 1 only; add --radius 1"
    for name in ("features", "radius", *(field.name for field in fields(FitOptions))):
        users, value = [method for method in OPTIONS if name in OPTIONS[method]], getattr(config, name)
        unused = not config.resume and methods.isdisjoint(users) and all(value != getattr(own, name) for own in _unchanged)
        flag = f"--{name.replace('_', '-')} {words.get(name, value)} with --methods {words['methods']}"
        yield unused, f"{flag}, which do not use it; methods that do: {', '.join(users)}"
    if config.optimizer != "adagrad":
        optax_optimizer(config.optimizer, config.learning_rate)


def _beyond(flag: str, given: Sequence[str], served: Sequence[str], where: str) -> tuple[Any, str]:
    """Values of a flag that are not served there."""
    others = sorted(set(given) - set(served))
    return others, f"{flag} {' '.join(others)} with {where}: use {flag} {' '.join(served)} there"


def run(config: Config) -> dict[str, Any]:
    """Measure every model in a run folder, or only a forecast."""
    check(config)
    config = replace(config, corpus="text") if config.train else config
    request_devices(config.devices)
    if config.dry_run:
        return forecast(config)
    place = None  # of one of several processes, held until the result is there
    if config.coordinator is not None:
        place = lock_run_folder(config.out, config.process_id) if config.process_id is not None else None
        join(config.coordinator, config.num_processes, config.process_id, seconds=config.join_seconds)
        console.quiet = not is_first()
        place = place or lock_run_folder(config.out, jax.process_index())
    presented = EXPERIMENT.run(config)
    if is_first():
        said, page = shlex.quote(config.out), shlex.quote(f"{config.out}/explain.html")
        print_hint(as_typed(f'next: python -m launch.sample --run {said} --history none --prompt "Return the"'))
        print_hint(as_typed(f'      python -m launch.explain --run {said} --text "the list is sorted" --html {page}'))
    del place
    return presented


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
    C = training.known_counts(1)[0]
    about = {
        "train_tokens": int(C.sum(axis=0, dtype=np.int64)[PAD + 1 :].sum()),  # all but <pad>
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
