"""The whole job of launch.lm, from flags to report, and its forecast.

The forecast of tokens, memory, disk and time takes sizes from the tables that would be made, and times from a small part of the
text on which everything is done: every model is fitted and evaluated there twice, the first time with compilation.
"""

import functools
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from filelock import FileLock
from rich.markup import escape

from jexplicit.counts.pairs import count, count_sparse
from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import TextSizes, about_corpus
from jexplicit.data.shards import count_tokens, read_shards
from jexplicit.data.tokenizers import Tokenizer, encode_documents, make_tokenizer
from jexplicit.lm.checkpoints import FROM_COUNTS, load_row, model_rows
from jexplicit.lm.core.names import FitOptions
from jexplicit.lm.counted.contexts import window_of
from jexplicit.lm.evaluation import evaluate, unknown_share
from jexplicit.lm.fits.fit import ONE_DEVICE, OPTIONS, fit_model
from jexplicit.lm.generation import generate_text
from jexplicit.lm.training_text import TrainingText, Watch
from jexplicit.nn.training import optax_optimizer
from jexplicit.runs.bounds import refuses
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.devices import (
    RUNTIME_BYTES,
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
from jexplicit.runs.progress import console, print_hint, show, si_format
from launch.kit.command import as_typed
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Row, rich_table
from launch.lm.config import GROWING, PRESETS, Config
from launch.lm.models import (
    ModelRun,
    check_fit,
    check_test_files,
    count_or_load,
    kind_of_tables,
    measure_model,
    measure_tests,
    mixing_bytes,
    options_of,
    read_corpus,
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


_documents = 1_000  # of the part that is tokenised
_positions = 20_000  # of the part that is fitted on
_pair_bytes = 12  # of a pair in sparse counts: two ids and a number
_stored_bytes = 3  # of a pair that occurs, in a checkpoint of dense counts, which is compressed
_passes = {  # the option with the number of passes that a fit makes
    "iterative-scaling": "sweeps",
    **dict.fromkeys(("cold", "warm"), "epochs"),
}
_fixed = ("unigram", "bigram", "explicit", "log-linear")  # solved from counts: not longer for more text


def forecast(config: Config) -> dict[str, Any]:
    """Estimate, show the estimate as a table, and return it."""
    if config.shards:
        shards, seconds = read_shards(config.shards / "train"), 0.0
        tokenizer, stream = Tokenizer.load(config.shards / "tokenizer.model"), shards[: min(len(shards), 50 * _positions)]
        documents, tokens = shards.documents, len(shards)
    else:
        texts = read_corpus(config).train
        documents, step = len(texts), max(1, len(texts) // _documents)
        while True:
            part, start = texts[::step], time.perf_counter()
            try:
                tokenizer = make_tokenizer(config.tokenizer, part, config.vocab_size)
                break
            except ValueError:  # a vocabulary that this part is too small for
                if (step := step // 2) == 0:
                    raise
        stream = encode_documents(tokenizer, part)
        share = sum(map(len, texts)) / max(sum(map(len, part)), 1)
        tokens, seconds = int(len(stream) * share), (time.perf_counter() - start) * share
    N = tokenizer.vocab_size
    kind, K = kind_of_tables(config, N), max(config.radius)
    ends = np.flatnonzero(stream == PAD)[1:]
    end = int(ends[min(np.searchsorted(ends, _positions), len(ends) - 1)])  # whole documents, if they are not long
    stream = np.append(stream[: min(end, 2 * _positions)], stream[:1])
    grows, start = tokens / len(stream), time.perf_counter()
    tables = count_sparse(stream, radius=K, vocab_size=N)
    counting = (time.perf_counter() - start) * grows
    pairs = sum(table.nnz for table in tables) * grows**0.7  # Heaps' law: distinct pairs grow more slowly than text
    table_bytes = _pair_bytes * pairs if kind == "sparse" else 4 * K * N**2
    counted = mixing_bytes(config, tokenizer, (grows * np.bincount(stream)).astype(int))
    models = list(wanted_models(config))
    shape: Any = {"eos": config.eos, "tokenizer": tokenizer, "sparse_counts": tables if kind == "sparse" else ()}
    fitting = sum(_model_seconds(config, name, TrainingText(stream, N, **shape), tokens) for name in models)
    saved = sum(name["method"] not in FROM_COUNTS for name in models)
    found = {
        "documents": documents,
        "tokens": tokens - documents - 1,  # without <pad>
        "vocab_size": N,
        "tables": kind,
        "memory_bytes": max(counted, RUNTIME_BYTES + (6 if kind == "dense" else 3) * table_bytes + 4 * tokens),
        "disk_bytes": saved * table_bytes + (_pair_bytes if kind == "sparse" else _stored_bytes) * pairs,
        "tokenising_seconds": seconds,
        "counting_seconds": counting,
        "models_seconds": fitting,
        "seconds": seconds + counting + fitting,
    }
    rows = [
        {"what": name.replace("_", " "), "estimate": value if isinstance(value, str) else si_format(value)}
        for name, value in found.items()
    ]
    show(rich_table([Column("", "what"), Column("estimate", "estimate")], rows, title="a forecast; nothing is written"))
    return found


def _model_seconds(config: Config, name: Row, text: TrainingText, tokens: int) -> float:
    """Seconds to fit and evaluate the whole text, from a part."""
    method, stream, seconds = name["method"], text.in_memory, []
    options, passes = options_of(config, name), _passes.get(method)
    if passes:
        options = replace(options, **{passes: 1})
    for _ in range(2):  # the second time without compilation
        start = time.perf_counter()
        text.forget()
        model = fit_model(method, text, options, Watch(dev=stream)).model
        middle = time.perf_counter()
        evaluate(model, stream)
        seconds.append((middle - start, time.perf_counter() - middle))
    (first_fit, first_reading), (fitted, read) = seconds
    compiling = max(0.0, first_fit - fitted) + max(0.0, first_reading - read)
    longer = (getattr(config, passes) if passes else 1) * (1.0 if method in _fixed else tokens / len(stream))
    drawn = tokens if name["radius"] == 1 else min(tokens, config.train_sample or tokens) + tokens / 10
    return compiling + fitted * longer + read * drawn / len(stream)


def run(config: Config) -> dict[str, Any]:
    """Measure every model in a run folder, or only a forecast."""
    check(config)
    config = replace(config, corpus="text") if config.train else config
    request_devices(config.devices)
    if config.dry_run:
        return forecast(config)
    place = _join_others(config)
    presented = EXPERIMENT.run(config)
    if is_first():
        said, page = shlex.quote(config.out), shlex.quote(f"{config.out}/explain.html")
        print_hint(as_typed(f'next: python -m launch.sample --run {said} --history none --prompt "Return the"'))
        print_hint(as_typed(f'      python -m launch.explain --run {said} --text "the list is sorted" --html {page}'))
    del place
    return presented


def _join_others(config: Config) -> FileLock | None:
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
        "train_tokens": _counted_tokens(training),
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


def _counted_tokens(training: TrainingText) -> int:
    """The number of tokens of a text but `<pad>`, from counts."""
    C = training.known_counts(1)[0]
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
