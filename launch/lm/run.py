"""The experiment of launch.lm: text to counts, models, rows, tests; or a forecast."""

import functools
import hashlib
import itertools
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Integer, Real
from matplotlib.colors import LogNorm
from matplotlib.ticker import NullLocator
from rich.markup import escape

from jexplicit.counts import count, count_sparse, read_tables
from jexplicit.data import text as corpora
from jexplicit.data.streams import TokenizedCorpus, distinct_contexts, read_shards, read_sizes, tokenize_corpus
from jexplicit.data.text import Corpus, Documents, TextSizes, split_at_end
from jexplicit.data.tokenizers import PAD, Tokenizer, encode_documents, make_tokenizer
from jexplicit.lm import evaluation
from jexplicit.lm.counted.contexts import window_of
from jexplicit.lm.counted.model import CONTEXTS, WORDS, fit_bytes, furthest_token
from jexplicit.lm.evaluation import AnyModel
from jexplicit.lm.fit import METHODS, OPTIONS, ORDER, choose_tables, fit_model
from jexplicit.lm.layers import target_counts, with_targets
from jexplicit.lm.model import LanguageModel, is_token_model, sampled_positions
from jexplicit.lm.names import Features, FitOptions, label
from jexplicit.lm.text_model import FROM_COUNTS, load_counts, load_row, model_name, model_rows, save_counts, save_run_model
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.runs import devices
from jexplicit.runs.files import host_bytes, parse_bytes, peak_bytes, refuses, trim_heap, write_json
from jexplicit.runs.progress import console, print_hint, show, si_format, stage
from launch.kit.command import as_installed
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.text import check_text
from launch.kit.views import Column, Lines, Results, Row, Table, View, figure, groups, pivot, rich_table, section, texts, where
from launch.lm import PRESETS, Config

_of_processes = (*FROM_COUNTS, "ngram")  # methods of several processes
_of_sparse = (*_of_processes, "context-mixing")  # methods that have models of sparse tables
_not_by_dev = [method for method in METHODS if method not in ("cold", "warm")]  # methods that do not stop by the dev text
_unchanged = (Config(out=""), *(preset.config for preset in PRESETS.values()))  # flags that nobody gave
_given = ("methods", "features", "context", "history")  # each with a value at least
_growing = (*_given, "samples", "train_sample", "dev_sample", "test")  # with more of these a finished run may continue
_positions_one_by_one = 20_000  # of the train perplexity of models that are read position by position
_scaling_positions = 100_000  # at most, that the figure of the scaling assumption averages over at K > 1
_once_at_1 = ("delta", "cold", "warm", "optimum")  # at K = 1 Sum and Cat are one model


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that make no sense, with the remedy."""
    kind, _, name = config.corpus.partition(":")
    methods, corpus = set(config.methods), f"--corpus {config.corpus}"
    words = {name: " ".join(map(str, getattr(config, name))) for name in _given}
    yield not (kind == "shards" if name else kind in ("docs", "text")), f"{corpus}: choose docs, text or shards:DIR"
    if config.coordinator is not None:
        devices.check_process(config.coordinator, config.num_processes, config.process_id)
    else:
        alone = f"--num-processes {config.num_processes} --process-id {config.process_id}"
        yield (config.num_processes, config.process_id) != (None, None), f"{alone} without --coordinator HOST:PORT"
    _memory(config)  # which refuses what is no size
    by_one = "one process measures it; give it to the finished run, --resume --test FILES without --coordinator"
    tokenised, files = "shards are tokenised already; give these flags to launch.shards", "give --train, --dev and --test FILES"
    again = "--split dev-test, which fits models again on dev"
    for here, place, served, excluded, why in (
        (config.coordinator, "--coordinator", _of_processes, ("test",), by_one),
        (config.shards, "--corpus shards:DIR", _of_sparse, ("tokenizer", "vocab_size", "limit"), tokenised),
        (config.split == "dev-test", again, _not_by_dev, ("test", "limit", "memory", "coordinator"), files),
    ):
        given = " ".join(_flag(name) for name in excluded if getattr(config, name) != getattr(_unchanged[0], name))
        yield here and given, f"{given} with {place}: {why}"
        others = " ".join(method for method in config.methods if method not in served)
        yield here and others, f"--methods {others} with {place}: use --methods {' '.join(served)} there"
    check_text(config)
    _check_test_files(config)
    for name in _given:
        yield not getattr(config, name), f"--{name} without a value: give at least one"
    for history in config.history:
        window_of(history)
    past = set(config.history) != {"none"} and "context-mixing" not in methods
    yield past, f"--history {words['history']} with --methods {words['methods']}: only --methods context-mixing reads it"
    unsplit = config.split != "blocks" and (config.dev or not config.train)
    yield unsplit, f"--split {config.split}: it splits the files of --train, without --dev"
    far = "optimum" in methods and 1 not in config.context
    yield far, f"--methods optimum with --context {words['context']}: it has a closed form at K = 1 only; add --context 1"
    for name in ("features", "context", *(field.name for field in fields(FitOptions))):
        users, value = [method for method in OPTIONS if name in OPTIONS[method]], getattr(config, name)
        unused = not config.resume and methods.isdisjoint(users) and all(value != getattr(own, name) for own in _unchanged)
        given = f"{_flag(name)} {words.get(name, value)} with --methods {words['methods']}"
        yield unused, f"{given}, which do not use it; methods that do: {', '.join(users)}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(config: Config) -> dict[str, Any]:
    """Measure every model in a run folder, or make only a forecast."""
    check(config)
    config = replace(config, corpus="text") if config.train else config
    devices.request_devices(config.devices)
    if config.dry_run:
        return _forecast(config)
    place = None  # of one of several processes, held until the result is there
    if config.coordinator is not None:
        place = devices.lock_run_folder(config.out, config.process_id) if config.process_id is not None else None
        devices.join(config.coordinator, config.num_processes, config.process_id, seconds=config.join_seconds)
        console.quiet = not devices.is_first()
        place = place or devices.lock_run_folder(config.out, jax.process_index())
    presented = EXPERIMENT.run(config)
    if devices.is_first():
        said, page = shlex.quote(config.out), shlex.quote(f"{config.out}/explain.html")
        print_hint(as_installed(f'next: launch.sample --run {said} --history none --prompt "Return the"'))
        print_hint(as_installed(f'      launch.explain --run {said} --text "the list is sorted" --html {page}'))
    del place
    return presented


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """A part for each model: its row."""
    mesh = devices.data_mesh(config.devices)
    processes = f"{jax.process_count()} processes of " if config.coordinator else ""
    console.print(f"[bold]language models[/] on {processes}{mesh.size} x {mesh.devices.flat[0].device_kind}")
    text, source = read_text(config, folder)
    tests = _read_tests(config, folder, text.tokenizer)
    tables = _kind_of_tables(config, text.tokenizer.vocab_size)
    _check_fit(config, text)
    devices.check_equal_across_processes("choice of --tables, as they have other memory,", tables)
    training, seconds = _count_or_load(config, folder, text, mesh, tables)
    sizes = text.dev_sizes._asdict() if text.dev_sizes else dict.fromkeys(TextSizes._fields)  # of shards they may be unknown
    seen = text.dev_in_train and text.dev_in_train._asdict()
    about = {
        "train_tokens": int(training.known_counts(1)[0].sum(axis=0, dtype=np.int64)[PAD + 1 :].sum()),  # all but <pad>
        "dev_tokens": int(np.count_nonzero(text.dev)), "vocab_size": training.vocab_size, "count_seconds": seconds,
        **source, "corpus_about": corpora.about_corpus(config.corpus), "unknown_share": evaluation.unknown_share(text.dev),
        **{f"dev_{name}": value for name, value in sizes.items()},
        "dev_in_train": seen and seen["documents"], "dev_bytes_in_train": seen and seen["bytes"],
    }  # fmt: skip
    if note := _repetition(about):
        console.print(f"[bold yellow]warning:[/] {note}", soft_wrap=True)
    job = _ModelRun(config, folder, text, training, mesh, tables, about)
    for name in _wanted_models(config):
        yield name, functools.partial(_measure_model, job, name)
    devices.barrier("rows")
    training.forget()  # the best models are read again
    _measure_tests(job, *tests)
    if devices.is_first():
        _write_samples(config, folder)


def _write_samples(config: Config, folder: RunFolder) -> None:
    """Sample from the best model on dev, an online one only without others."""
    samples = []
    if config.samples:
        rows = model_rows(folder.path)
        calm = [row for row in rows if not row["history"].startswith("online")] or rows  # these count their own samples
        best = load_row(folder.path, min(calm, key=lambda row: row["dev_perplexity"]))
        options: Any = {"length": 400 if best.tokenizer.kind == "char" else 40, "temperature": 0.8, "top_k": 50}
        samples = best.generate([""] * config.samples, seed=config.seed, **options)
    write_json(folder.path / "samples.json", samples)
    for sample in samples:
        console.print(f"[dim]>[/] {escape(sample[:300])}", soft_wrap=True)


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
    devices.check_equal_across_processes("text", of_all + text.tokenizer.sha256)
    folder.note_data("text", corpus_sha256=sha256, tokenizer_sha256=text.tokenizer.sha256)
    if devices.is_first():
        text.tokenizer.save(folder.path / "tokenizer.model")
    return text, {"corpus": name, "corpus_sha256": sha256}


def _memory(config: Config) -> float:
    """The bytes that a run may take."""
    return parse_bytes(config.memory) if config.memory else host_bytes()


def _mixing_bytes(config: Config, tokenizer: Tokenizer, counts: np.ndarray) -> int:
    """About the memory that a fit of context mixing takes; without one, 0."""
    return fit_bytes(counts, len(CONTEXTS.get(tokenizer.kind, WORDS))) if "context-mixing" in config.methods else 0


def _kind_of_tables(config: Config, vocab_size: int) -> str:
    """dense or sparse tables, as the methods, --tables and the memory allow."""
    auto = choose_tables(config.methods, vocab_size, max(config.context), _memory(config))
    tables = auto if config.tables == "auto" else config.tables
    if tables == "sparse" and (others := set(config.methods) - set(_of_sparse)):
        remedy = f"these work only with {', '.join(_of_sparse)}; use --tables dense or a smaller --vocab-size"
        raise ValueError(f"--methods {' '.join(sorted(others))} with sparse tables: {remedy}")
    return tables


def _check_fit(config: Config, text: TokenizedCorpus) -> None:
    """Refuse text that is too small, or too long for the memory."""
    if not isinstance(text.train, np.ndarray):  # shards are too many to look through
        return
    lengths, counts = np.diff(np.flatnonzero(text.train == PAD)) - 1, np.bincount(text.train[text.train != PAD])
    if len(np.unique(counts)) <= 2:  # 0, and one number
        raise ValueError(f"a training text of {lengths.sum()} tokens that all occur equally often: give more text")
    _check_context(config, int(lengths.max()))
    if (needed := _mixing_bytes(config, text.tokenizer, counts)) > (budget := _memory(config)):
        what = f"{lengths.sum():,} tokens takes about {needed / 1e9:.1f} GB and may have {budget / 1e9:.1f} GB"
        raise ValueError(f"context mixing of {what}: allow more with --memory, or read less with --limit")


def _check_context(config: Config, longest: int) -> None:
    """Refuse contexts longer than every document."""
    if (K := max(config.context)) > longest:
        raise ValueError(f"--context {K}: the longest document has {longest} tokens; use at most that")


def _count_or_load(
    config: Config, folder: RunFolder, text: TokenizedCorpus, mesh: Mesh, kind: str
) -> tuple[TrainingText, float]:
    """The text with its counts, new or resumed, and their seconds."""
    K, N, path, sparse = max(config.context), text.tokenizer.vocab_size, folder.path, kind == "sparse"
    counts: Any = load_counts(path, sparse=sparse)
    if len(counts) >= K:
        seconds = folder.events("count")[-1]["seconds"]
    else:
        start = time.perf_counter()
        place = config.shards / "counts" if config.shards else None  # which launch.beam leaves
        beside = read_tables(place, tokenizer=text.tokenizer.sha256)[:K] if place and place.is_dir() else ()
        with stage(f"counting, {kind} tables", "positions") as progress:
            options: Any = {"context": K, "vocab_size": N, "progress": progress}
            if len(beside) >= K:
                counts = beside if sparse else tuple(C.toarray() for C in beside)
            elif sparse:
                counts = count_sparse(text.train, **options)
            else:
                within = devices.within_memory(mesh, int(_memory(config)), 4 * K * N**2, K) if config.memory else mesh
                counts = count(text.train, mesh=within, **options)
        seconds = time.perf_counter() - start
        about = {"positions": len(text.train) - 1, "context": K, "peak_bytes": peak_bytes(), "tables": kind}
        folder.log(event="count", seconds=seconds, **about)
        save_counts(path, counts)
    known: Any = {"sparse_counts" if sparse else "counts": counts}
    return TrainingText(text.train, N, eos=config.eos, mesh=mesh, tokenizer=text.tokenizer, **known), seconds


class _ModelRun(NamedTuple):
    """The shared input of all measurements."""

    config: Config
    folder: RunFolder
    text: TokenizedCorpus
    training: TrainingText
    mesh: Mesh
    tables: str  # dense or sparse
    about: Row  # fields that all rows share


def _wanted_models(config: Config) -> Iterator[dict[str, Any]]:
    """The fields of all rows of a run, in order."""
    for method in dict.fromkeys(("unigram", "bigram", *config.methods)):
        name = {"method": method, "features": "none", "context": 1, "history": "none"}
        if method in ("unigram", "bigram"):
            yield name
        elif method == "ngram":
            yield {**name, "context": ORDER}
        elif method == "context-mixing":
            context = furthest_token(config.tokenizer)
            yield from ({**name, "context": context, "history": history} for history in config.history)
        else:
            lengths = [K for K in config.context if K == 1 or method != "optimum"]  # which has a closed form there alone
            for features, context in itertools.product(config.features, lengths):
                yield {**name, "features": features, "context": context}


def _measure_model(job: _ModelRun, name: dict[str, Any]) -> list[Row]:
    """Fit, save and evaluate one model."""
    config, method = job.config, name["method"]
    if method in _once_at_1 and name["context"] == 1 and (twins := where(job.folder.rows(), method=method, context=1)):
        return [{**twins[0], "peak_bytes": peak_bytes()}]

    def log(**event: Any) -> None:
        job.folder.log(**event)
        if event["event"] in ("epoch", "sweep") and (number := event[event["event"]]):
            parts = ", ".join(f"{part} {event[f'{part}_perplexity']:.1f}" for part in ("train", "dev"))
            console.print(f"    {label(name)}: {event['event']} {number}, perplexity {parts}, {event['seconds']:.0f} s")

    place = job.folder.path / "checkpoints" / "fits" / model_name(name)
    watch = Watch(stage=stage, log=log, dev=job.text.dev, checkpoints=place, events=job.folder.events)
    trim_heap()  # of what was evaluated before
    fitted = fit_model(method, job.training, _options_of(config, name), watch)
    model, more = fitted.model, fitted.info
    if method not in FROM_COUNTS and devices.is_first():
        save_run_model(job.folder.path, name, model)
    if method == "explicit" and is_token_model(model):
        more = more | _measure_scaling(job, model)
    measured = _evaluate_model(job, name, model)
    shutil.rmtree(place, ignore_errors=True)  # the model is saved; what it resumed from is needed no longer
    shared = {"seconds": more["solve_seconds"], "bytes": model.nbytes, "tables": job.tables, **job.about}
    return [{**measured, **shared, **more, "peak_bytes": peak_bytes()}]


def _options_of(config: Config, name: Row) -> Options:
    """The options of a fit, from the flags and the row."""
    flags: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(FitOptions)}
    own = {key: value for key, value in name.items() if key != "method" and value != "none"}
    return Options(train_sample=config.train_sample or None, seed=config.seed, **(flags | own))


def _evaluate_model(job: _ModelRun, name: Row, model: AnyModel) -> Row:
    """The perplexities of a model on train and dev, and what compares across tokenizers."""
    config, start = job.config, time.perf_counter()
    one_by_one = not isinstance(model, LanguageModel)
    with stage(f"perplexity of {label(name)}", "positions" if one_by_one else "contexts") as progress:
        shared: Any = {"seed": config.seed, "mesh": job.mesh, "progress": progress}
        drawn = _positions_one_by_one if one_by_one else config.train_sample
        train = evaluation.evaluate(model, job.text.train, sample=drawn or None, **shared)
        drawn = None if job.tables == "dense" else config.dev_sample or None
        dev = evaluation.evaluate(model, job.text.dev, sample=drawn, **shared)
    in_all = evaluation.positions_in_all(job.text.dev, eos=config.eos)  # a sample stands for all of them
    spelled = evaluation.spelling(job.text.tokenizer, job.text.dev, job.text.dev_sizes)
    return {
        "train_perplexity": train.perplexity, "dev_loss": dev.loss, "dev_perplexity": dev.perplexity,
        "train_positions": train.positions, "dev_positions": dev.positions, "eval_seconds": time.perf_counter() - start,
        **evaluation.comparable_measures(dev.loss * in_all + spelled, job.text.dev_sizes),
    }  # fmt: skip


def _measure_scaling(job: _ModelRun, model: LanguageModel) -> dict[str, Any]:
    """The line of the scaling assumption; the first process saves its points."""
    config, context, features = job.config, model.context, cast(Features, model.features)
    C = job.training.counts(1)
    if context == 1:  # all contexts, and how often each counts
        n = with_targets(C[0], eos=config.eos).sum(axis=1, dtype=np.int64)
        X, times = np.flatnonzero(n)[:, None], n[n > 0]
    else:
        sample = min(_scaling_positions, config.train_sample or _scaling_positions)
        shape: Any = {"eos": config.eos, "sample": sample, "seed": config.seed}
        X, times = sampled_positions(job.text.train, context, job.training.vocab_size, **shape)[0], None
    f = target_counts(C, eos=config.eos)
    log_means = log_mean_cooccurrences(model, f, X, times)
    if devices.is_first():
        path = job.folder.path / _scaling_file(features, context)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, f=f, log_means=log_means)
    slope, intercept = fit_scaling(f, log_means)
    return {"scaling_slope": slope, "scaling_intercept": intercept}


# The paper's assumption on real text that mean co-occurrences grow as counts (Eq. 12-14, Fig. 1 left).


def log_mean_cooccurrences(
    model: LanguageModel, f: Real[np.ndarray, " N"], X: Integer[np.ndarray, "M K"], n: Int[np.ndarray, " M"] | None = None
) -> Float[np.ndarray, " N"]:
    """`log <E_G[F_i]>`, `<E_G[F_i]> = ((1/M) sum_m prod_d F[d, i]^H[m, d])^(1/K)` (Eq. 11-14).

    The logits are `log prod_d F[d, i]^H[m, d]` less `(K - 1) log(sum_d F[d, i])`, and `sum_d F[d, i] = K f_i`.
    f: counts of the targets; n: how often each context counts, default once.
    """
    K, block = model.context, 512
    distinct, n = distinct_contexts(X, ordered=model.ordered) if n is None else (X, n)
    padding = -len(distinct) % block
    blocks = np.pad(distinct.astype(np.int32), ((0, padding), (0, 0))).reshape(-1, block, K)
    log_weights = np.pad(np.log(n / n.sum()), (0, padding), constant_values=-np.inf).reshape(-1, block)
    log_power_mean = _log_mean_exp_logits(model, blocks, log_weights)
    column = K * np.maximum(f, 1)  # sum_d F[d, i]
    return np.asarray((log_power_mean + (K - 1) * np.log(column).astype(log_power_mean.dtype)) / K)


def fit_scaling(f: Int[np.ndarray, " N"], log_means: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """Slope and intercept of the line through `(log f_i, log <E_G[F_i]>)` of outputs seen.

    Example:
        >>> fit_scaling(np.array([1, 10, 100, 0]), np.log(np.array([2.0, 20.0, 200.0, 7.0])))[0].__round__(6)
        1.0
    """
    seen = f > 0
    x, y = np.log(f[seen]), log_means[seen].astype(np.float64)
    if len(np.unique(x)) < 2 or not np.isfinite(y).all():
        raise ValueError(f"{len(np.unique(x))} different counts of outputs: a line needs two, and finite means; use more text")
    slope, intercept = np.polyfit(x, y, 1).tolist()
    return slope, intercept


@jax.jit
def _log_mean_exp_logits(model: LanguageModel, X: Array, log_weights: Array) -> Array:
    """`log sum_m w_m exp(logits_m)` per output, over blocks of contexts."""

    def add_block(total, block):
        x, log_w = block
        terms = jax.vmap(model.logits)(x) + log_w[:, None].astype(total.dtype)
        return jnp.logaddexp(total, jax.nn.logsumexp(terms, axis=0)), None

    start = jnp.full(model.vocab_size, -jnp.inf, model.tables[0].dtype)
    return jax.lax.scan(add_block, start, (X, log_weights))[0]


def _read_tests(config: Config, folder: RunFolder, tokenizer: Tokenizer) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Test streams by file, and the text to fit the chosen models on again."""
    reading: Any = {"field": config.field, "documents": config.documents}
    if config.split == "dev-test":
        corpus = corpora.read_corpus(config.corpus, config.train, split="end", **reading)
        counted, test = (encode_documents(tokenizer, list(part)) for part in (corpus.train, corpus.dev))
        streams = {"the last tenth": test}
    else:
        counted, files = None, _check_test_files(config)
        inside = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
        texts = {os.path.relpath(file, inside): list(corpora.files_documents([file], **reading)) for file in files}
        streams = {name: encode_documents(tokenizer, documents) for name, documents in texts.items()}
    if empty := [name for name, stream in streams.items() if not (stream != PAD).any()]:
        raise ValueError(f"{empty[0]} has no token to predict: take it out of --test")
    if streams or folder.events("test text"):
        parts = (part for name, stream in streams.items() for part in (name.encode(), stream.astype(np.int64).tobytes()))
        folder.note_data("test text", sha256=hashlib.sha256(b"".join(parts)).hexdigest())
    return streams, counted


def _check_test_files(config: Config) -> list[str]:
    """The files of --test, each once, and new to train and dev."""
    if not config.test:
        return []
    files = corpora.list_files(config.test)
    others = {flag: corpora.list_files(getattr(config, flag)) for flag in ("train", "dev") if getattr(config, flag)}
    for flag, read in others.items():
        if shared := sorted(set(map(os.path.realpath, files)) & set(map(os.path.realpath, read))):
            raise ValueError(f"{shared[0]} is in {flag} and in test: remove it from one; a test text is new to every choice")
    every = [file for read in (*others.values(), files) for file in read]
    corpora.check_reading(every, field=config.field, documents=config.documents)
    return files


def _measure_tests(job: _ModelRun, streams: dict[str, np.ndarray], counted: np.ndarray | None) -> None:
    """Evaluate the chosen models on every test file not yet measured."""
    for own in groups(job.folder.rows(), ["method", "history"]).values() if streams else ():
        row = min(own, key=lambda row: row["dev_perplexity"])
        if "test_loss" in row:
            continue
        name = {field: row[field] for field in ("method", "features", "context", "history") if field in row}
        if counted is None:
            model = load_row(job.folder.path, row).model
        else:  # fitted again, on all text before the test
            shape: Any = {"context": max(job.config.context), "vocab_size": job.training.vocab_size}
            known = {"sparse_counts": count_sparse(counted, **shape)} if job.tables == "sparse" else {}
            text = job.training.like(counted, **known)
            model = fit_model(name["method"], text, _options_of(job.config, name), Watch(stage=stage)).model
        losses = []
        for file, stream in streams.items():
            with stage(f"test of {label(row)}, {file}", "positions") as progress:
                losses.append(
                    evaluation.document_losses(model, stream, block=evaluation.BLOCK, mesh=job.mesh, progress=progress)
                )
            job.folder.log(event="test", **name, file=file, **_test_fields(losses[-1:], stream))
        job.folder.extend_row(dict(row), **_test_fields(losses, *streams.values()))


def _test_fields(losses: Sequence[evaluation.DocumentLosses], *streams: np.ndarray) -> dict[str, Any]:
    """The fields of a row that its test files give together."""
    found = {f"test_{name}": value for name, value in evaluation.loss_fields(losses).items()}
    return {**found, "test_documents": sum(int(np.count_nonzero(stream == PAD)) - 1 for stream in streams)}


# The forecast of --dry-run

_documents = 1_000  # of the part that is tokenised
_positions = 20_000  # of the part that is counted
_pair_bytes = 12  # of a pair in sparse counts: two ids and a number
_stored_bytes = 3  # of a pair that occurs, in a checkpoint of dense counts, which is compressed


def _forecast(config: Config) -> dict[str, Any]:
    """Estimate tokens, memory and disk space, and show them as a table."""
    if config.shards:
        shards, share = read_shards(config.shards / "train"), 0.0
        tokenizer, stream = Tokenizer.load(config.shards / "tokenizer.model"), shards[: min(len(shards), 50 * _positions)]
        documents, tokens = shards.documents, len(shards)
    else:
        texts = read_corpus(config).train
        documents, part = len(texts), texts[:: max(1, len(texts) // _documents)]
        try:
            tokenizer = make_tokenizer(config.tokenizer, part, config.vocab_size)
        except ValueError:  # a vocabulary that this part is too small for
            part = texts
            tokenizer = make_tokenizer(config.tokenizer, part, config.vocab_size)
        stream = encode_documents(tokenizer, part)
        share = sum(map(len, texts)) / max(sum(map(len, part)), 1)
        tokens = int(len(stream) * share)
    N, K = tokenizer.vocab_size, max(config.context)
    kind, ends = _kind_of_tables(config, N), np.flatnonzero(stream == PAD)[1:]
    if share == 1:  # all documents are read
        _check_context(config, int(np.diff(ends, prepend=0).max()) - 1)
    end = int(ends[min(np.searchsorted(ends, _positions), len(ends) - 1)])  # whole documents, if they are not long
    stream = np.append(stream[: min(end, 2 * _positions)], stream[:1])
    grows, tables = tokens / len(stream), count_sparse(stream, context=K, vocab_size=N)
    pairs = sum(table.nnz for table in tables) * grows**0.7  # Heaps' law: distinct pairs grow more slowly than text
    table_bytes = _pair_bytes * pairs if kind == "sparse" else 4 * K * N**2
    saved = sum(name["method"] not in FROM_COUNTS for name in _wanted_models(config))
    memory = devices.RUNTIME_BYTES + (6 if kind == "dense" else 3) * table_bytes + 4 * tokens
    found = {
        "documents": documents, "tokens": tokens - documents - 1, "vocab_size": N, "tables": kind,  # tokens but <pad>
        "memory_bytes": max(memory, _mixing_bytes(config, tokenizer, (grows * np.bincount(stream)).astype(int))),
        "disk_bytes": saved * table_bytes + (_pair_bytes if kind == "sparse" else _stored_bytes) * pairs,
    }  # fmt: skip
    columns = Column("", lambda row: row[0].replace("_", " ")), Column("estimate", lambda row: row[1])
    rows: Any = [(name, value if isinstance(value, str) else si_format(value)) for name, value in found.items()]
    show(rich_table(columns, rows, title="a forecast; nothing is written"))
    return found


# Tables and figures, also of the docs

_much = 0.01  # of the dev documents in train: worth a warning
_parts = {"train_perplexity": "train", "dev_perplexity": "dev"}
_log: Any = {"xscale": "log", "yscale": "log", "ylabel": "perplexity"}


def _scaling_file(features: str, context: int) -> str:
    """The file of a model's scaling points: f and log_means [N]."""
    return f"scaling/{features}_{context}.npz"


def _repetition(row: Row) -> str:
    """A warning if 1 % of the dev documents occur in train."""
    if (row.get("dev_in_train") or 0) < _much:
        return ""
    shares = f"{row['dev_in_train']:.1%} of the dev documents, {row['dev_bytes_in_train']:.1%} of the dev bytes,"
    return f"{shares} stand in train word for word: the dev numbers are better than those of new text"


def _about(results: Results) -> list[str]:
    """The text of a run, with unknown tokens and repeated documents."""
    row, warning, unknown = results.rows[0], _repetition(results.rows[0]), results.rows[0]["unknown_share"]
    about = f"{row['corpus_about']}; " if row.get("corpus_about") else ""
    sizes = f"{row['train_tokens']:,} train and {row['dev_tokens']:,} dev tokens, sha256 `{row['corpus_sha256'][:16]}`"
    counting = f"{results.config['tokenizer']} vocabulary of {row['vocab_size']:,}, counted in {row['count_seconds']:.2f} s"
    lines = [f"Corpus `{row['corpus']}` ({about}{sizes}); {counting}.", f"{unknown:.2%} of the dev tokens are `<unk>`."]
    return [*lines, *([f"**Warning:** {warning}."] if warning else []), ""]


def _model(row: Row) -> str:
    return "Sum = Cat, K = 1" if row["context"] == 1 else f"{row['features'].capitalize()}, K = {row['context']}"


_test = (Column("test nats", "test_loss", ".4f"), Column("±", "test_loss_se", ".4f"))
RESULTS = Table(
    [
        Column("model", label), Column("train", "train_perplexity", ".1f"), Column("dev", "dev_perplexity", ".1f"),
        Column("nats", lambda row: np.log(row["dev_perplexity"]), ".4f"),
        Column("bits per byte", "bits_per_byte", ".3f"), Column("word perplexity", "word_perplexity", ",.1f"),
        Column("test", "test_perplexity", ".1f"), *_test, Column("fitted numbers", "scalars", "d"),
        Column("MB", "bytes", ",.1f", 1e-6), Column("solve s", "solve_seconds", ".2f"),
        Column("eval s", "eval_seconds", ".2f"), Column("slope", "scaling_slope", ".3f"),
    ],
    note="""\
Perplexity per token. *Nats*, *bits per byte* and *word perplexity* are of dev; the last two compare with other tokenizers and
with lm-evaluation-harness. *Test* is measured once, of the models that dev chose; ± is the standard error of its nats over
documents. The solution assumes a *slope* of 1 of mean co-occurrences by counts (Eq. 12-14).""",
)  # fmt: skip
TESTS = Table(
    [
        Column("model", label), Column("file", "file"), Column("documents", "test_documents", ","),
        Column("positions", "test_positions", ","), Column("perplexity", "test_perplexity", ".1f"), *_test,
    ],
    lambda results: results.events("test", "method", "features", "context", "history", "file"),
    note="The test text by file, each of which is a text of its own.",
)  # fmt: skip


def _of_methods(lines: list[Row]) -> Sequence[Column]:
    methods = dict.fromkeys(name.removesuffix(" pair") for line in lines for name in line if name.endswith(" pair"))
    epochs, delta = Column("epochs", "cold epochs", "d"), Column("δ", "delta delta", ".3f")
    return [Column("model", "model"), epochs, *(Column(method, f"{method} pair") for method in methods), delta]


def _pairs(results: Results) -> list[Row]:
    """Train / dev perplexity by model and method."""
    pair = "{train_perplexity:.1f} / {dev_perplexity:.1f}"
    rows = [{**row, "model": _model(row), "pair": pair.format(**row)} for row in where(results.rows, **_compared)]
    return pivot(rows, "model", "method")


_compared = {"method": ("explicit", "delta", "cold", "warm", "optimum", "log-linear", "iterative-scaling")}
BY_METHOD = Table(_of_methods, _pairs)


def _line(row: Row) -> str:
    return label(row) if row["features"] == "none" else f"{row['method']}, {row['features']}"


def _loss_curves(results: Results) -> list[Row]:
    """The epochs by features and part; both features share K = 1."""
    epochs = results.events("epoch", "method", "features", "context", "epoch")
    return [
        {**row, "model": f"{row['method']}, K = {row['context']}", "y": row[name], "panel": f"{features.capitalize()}, {part}"}
        for features, (name, part) in itertools.product(("sum", "cat"), _parts.items())
        for row in epochs
        if row["features"] == features or row["context"] == 1
    ]


def _scaling(results: Results) -> list[str]:
    """The scaling assumption (paper, Fig. 1 left), with the fitted line."""
    rows = [row for row in results.rows if "scaling_slope" in row]
    if not rows:
        return []
    columns, lines = min(len(rows), 3), -(-len(rows) // 3)
    with figure(results.path / "figures" / "scaling.png", lines, columns, size=(3.6 * columns, 3.3 * lines)) as axes:
        for ax, row in zip(axes.flat, rows, strict=False):
            points, slope = np.load(results.path / _scaling_file(row["features"], row["context"])), row["scaling_slope"]
            f = points["f"][points["f"] > 0].astype(float)
            means = np.exp(points["log_means"][points["f"] > 0].astype(float))
            ax.hexbin(f, means, xscale="log", yscale="log", gridsize=45, mincnt=1, cmap="viridis", norm=LogNorm())
            ends = np.array([f.min(), f.max()])
            ax.plot(ends, np.exp(row["scaling_intercept"]) * ends**slope, color="#d55e00", label=f"fitted slope {slope:.3f}")
            level = np.exp(np.log(means).mean() - np.log(f).mean())
            ax.plot(ends, level * ends, "--", color="black", linewidth=1, label="slope 1 (assumed)")
            ax.set(title=_model(row), xlabel="token count $f_i$", ylabel=r"$\langle E_G[F_i] \rangle$")
            for axis in (ax.xaxis, ax.yaxis):  # of six panels they take seconds to lay out
                axis.set_minor_locator(NullLocator())
            ax.legend(fontsize=8, loc="lower right")
    return ["![scaling assumption](figures/scaling.png)", ""]


_by_context = lambda row: None if row["features"] == "none" else row["context"]  # noqa: E731  (other models are levels)
PERPLEXITY = Lines("perplexity", _by_context, _parts, _line, "measure", axes={**_log, "xlabel": "context length"}, sharey=True)
LOSS_CURVES = Lines("loss_curves", "epoch", "y", "model", "panel", _loss_curves, axes={**_log, "xscale": "linear"})
_views: Sequence[View] = (
    _about,
    RESULTS,
    TESTS,
    PERPLEXITY,
    section("Methods", BY_METHOD, LOSS_CURVES, **_compared),
    _scaling,
    texts("Sampled text", "samples.json"),
)
EXPERIMENT = Experiment("lm", Config, measure, _views, PRESETS, extend=_growing, title="Language models")
