"""Measure the speed of counts, fits, scores and steps beside named peers, in turn and on one core.

    python -m launch.bench --preset tiny --out runs/bench
    python -m launch.bench --cases counting --sizes 1_000_000 10_000_000 --out runs/bench-counting
    python -m launch.bench --cases ngram-fit ngram-scoring --train FILES --sizes 1_000_000 --out runs/bench-ngram

* counting: tables of pairs of tokens at four distances, beside `numpy.bincount`.
* ngram-fit, context-mixing-fit: from tokens to a model, beside KenLM's `lmplz` of order 5 where it is on PATH, whose seconds
  include its files. Perplexities are those of the text after it, with the ends of documents.
* ngram-scoring, context-mixing-scoring: log-probabilities of the text after it, beside KenLM's Python module with the n-gram
  model where it is installed.
* adagrad: a step of a softmax table, beside `torch.optim.Adagrad` where PyTorch is installed, otherwise optax's.
* attention: the update of ten tokens of each task by linear self-attention, beside three einsums.

Where both sides have to agree, this is checked before they are timed. A peer that is missing is named, and there is no ratio.
"""

import contextlib
import functools
import importlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from jexplicit.data.contexts import PAD, context_columns, contexts, with_leading_pads
from jexplicit.experiments.bounds import Bounds, NonNegativeInt, PositiveInt
from jexplicit.experiments.command import Preset, run_command
from jexplicit.experiments.rows import Results, Row
from jexplicit.experiments.tables import Column
from launch.accelerator.texts import draw_stream

if TYPE_CHECKING:  # each case imports what it measures, so that --help is quick
    import jax

    from jexplicit.data.tokenizers import Tokenizer
    from jexplicit.experiments.folder import RunFolder
    from jexplicit.lm.core.model import LanguageModel
    from jexplicit.lm.counted.use import AnyModel

Case = Literal["counting", "ngram-fit", "context-mixing-fit", "ngram-scoring", "context-mixing-scoring", "adagrad", "attention"]
Call = Callable[[], object]
Batch = tuple[np.ndarray, np.ndarray]  # contexts and targets
RADIUS, WIDTH, TOKENS, RATE, BATCHES = 4, 11, 10, 0.01, 3
SHORTEST = 0.05  # seconds of a measurement: shorter calls are repeated


@dataclass(frozen=True)
class Config:
    """The speed of counts, fits, scores and steps beside named peers, in turn and on one core."""

    out: str
    """Run folder to write: results, figure and report.md."""
    cases: tuple[Case, ...] = get_args(Case)
    """What is measured."""
    sizes: tuple[PositiveInt, ...] = (50_000,)
    """Work of a case, a row for each: tokens that are counted, fitted or scored, positions of a batch, or tasks."""
    repeats: PositiveInt = 5
    """Times that both sides are measured, in turn."""
    train: tuple[str, ...] = ()
    """Text that is fitted and, after it, scored: files, globs or folders, a document in each line. Default: Python's help."""
    vocab_size: Annotated[int, Bounds(at_least=2, at_most=math.isqrt(2**31 - 1))] = 4098
    """Token ids of the texts and of the softmax table."""
    seed: NonNegativeInt = 0
    """Seed of what is drawn: texts that are counted, tables, tokens, and choices of a fit."""
    resume: bool = False
    """Continue the interrupted run in --out, or add cases and sizes to a finished one."""


PRESETS = {"tiny": Preset(Config("runs/bench", sizes=(1000,), repeats=2, vocab_size=300), "1,000 tokens; 25 s on a CPU core.")}


class Pair(NamedTuple):
    """Two ways to do one piece of work: calls that end when their result is there, and what the row says of them."""

    ours: Call
    peer: str
    theirs: Call | None = None  # without the peer
    skipped: str | None = None  # why there is no peer
    tolerance: float | None = None  # of results that have to agree, as a share of the largest number
    fields: Row = {}


def optional(name: str) -> ModuleType | None:
    """A module, if it is installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def bincount_tables(x: np.ndarray, N: int) -> np.ndarray:
    """Counts of pairs by `numpy.bincount`, [radius, N, N]."""
    stream, tables = with_leading_pads(x, RADIUS), np.empty((RADIUS, N, N), np.int64)
    ids = np.empty(len(x) - 1, np.int64)
    for k, context in enumerate(context_columns(stream, RADIUS)):
        np.multiply(context, N, out=ids, dtype=np.int64)
        ids += stream[RADIUS:]
        tables[k] = np.bincount(ids, minlength=N * N).reshape(N, N)
    return tables


def counting(config: Config, size: int, folder: Path) -> Pair:
    """Tables of pairs, from token ids to tables in host memory."""
    from jexplicit.counts.dense import count

    x, N = draw_stream(size, config.vocab_size, config.seed), config.vocab_size
    ours = functools.partial(count, x, radius=RADIUS, vocab_size=N)
    return Pair(ours, "numpy.bincount", functools.partial(bincount_tables, x, N), tolerance=0.0)


@functools.lru_cache(maxsize=1)
def encoded(train: tuple[str, ...], vocab_size: int) -> "tuple[np.ndarray, Tokenizer]":
    """A whole text in subwords, and its tokenizer."""
    from pydoc_data.topics import topics

    from jexplicit.data.text import read_documents
    from jexplicit.data.tokenizers import encode_documents, train_tokenizer

    lines = [line for name in sorted(topics) for line in topics[name].splitlines() if line.strip()]
    documents = read_documents(train) if train else lines
    tokenizer = train_tokenizer(documents, vocab_size=vocab_size)
    return encode_documents(tokenizer, documents), tokenizer


def read_text(config: Config, size: int) -> "tuple[np.ndarray, np.ndarray, Tokenizer]":
    """At most so many tokens to fit, and as many after them, in whole documents; the tokenizer."""
    stream, tokenizer = encoded(config.train, config.vocab_size)
    ends = np.flatnonzero(stream == PAD)
    first, last = ends[np.searchsorted(ends, [size, 2 * size], side="right") - 1].tolist()
    if not (0 < first < last and 2 * size < len(stream)):
        about = f"a text of {len(stream) - 1} tokens in {len(ends) - 1} documents"
        raise ValueError(f"--sizes {size}: {about} has no two parts of this size; use another size, or more text (--train)")
    return stream[: first + 1], stream[first : last + 1], tokenizer


def sentences(stream: np.ndarray, tokenizer: "Tokenizer") -> list[str]:
    """The documents of a stream in the words that KenLM reads."""
    from jexplicit.lm.arpa.words import arpa_words

    words = np.array(arpa_words(tokenizer))
    return [" ".join(words[part[1:]]) for part in np.split(stream, np.flatnonzero(stream == PAD)) if len(part) > 1]


def fit_tokens(method: str, train: np.ndarray, tokenizer: "Tokenizer", seed: int) -> "AnyModel":
    """A language model of token ids."""
    from jexplicit.lm.fits.fit import fit_model
    from jexplicit.lm.training_text import Options, TrainingText

    text = TrainingText(train, tokenizer.vocab_size, eos=True, tokenizer=tokenizer)
    return fit_model(method, text, Options(history="document", seed=seed)).model


def run_lmplz(program: str, folder: Path) -> None:
    """KenLM's estimation of order 5; where a text is too small for a discount, with its usual one."""
    files = ["--text", str(folder / "train.txt"), "--arpa", str(folder / "model.arpa"), "-T", str(folder)]
    ended = subprocess.run([program, "-o", "5", *files, "--discount_fallback"], capture_output=True, text=True)
    if ended.returncode:
        raise ValueError(f"lmplz ended with status {ended.returncode}: {ended.stderr.strip()[-200:]}")


def fitting(method: str, config: Config, size: int, folder: Path) -> Pair:
    """From tokens to a model, and the perplexities of both."""
    from jexplicit.lm.arpa.reading import read_arpa
    from jexplicit.lm.evaluation import evaluate

    (train, dev, tokenizer), peer, program = read_text(config, size), "KenLM's lmplz", shutil.which("lmplz")
    ours = functools.partial(fit_tokens, method, train, tokenizer, config.seed)
    fields = {"perplexity": evaluate(ours(), dev).perplexity}
    if program is None:
        return Pair(ours, peer, skipped="lmplz is not on PATH", fields=fields)
    (folder / "train.txt").write_text("\n".join(sentences(train, tokenizer)) + "\n")
    run_lmplz(program, folder)
    fields["peer_perplexity"] = evaluate(read_arpa(folder / "model.arpa", tokenizer)[0], dev).perplexity
    return Pair(ours, peer, functools.partial(run_lmplz, program, folder), fields=fields)


def scoring(method: str, config: Config, size: int, folder: Path) -> Pair:
    """Log-probabilities of a text; their sum is equal where both have the n-gram model."""
    from jexplicit.lm.arpa.writing import write_arpa
    from jexplicit.lm.evaluation import score

    (train, dev, tokenizer), peer, kenlm = read_text(config, size), "KenLM's Python module", optional("kenlm")
    model = fit_tokens(method, train, tokenizer, config.seed)

    def ours() -> float:
        return score(model, dev).sum(dtype=np.float64)

    if kenlm is None:
        ours()  # compiled here
        return Pair(ours, peer, skipped="kenlm is not installed")
    ngrams = cast("LanguageModel", fit_tokens("ngram", train, tokenizer, config.seed))
    write_arpa(folder / "model.arpa", ngrams, tokenizer)
    settings = kenlm.Config()
    settings.show_progress, settings.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    other, documents = kenlm.Model(str(folder / "model.arpa"), settings), sentences(dev, tokenizer)
    theirs = functools.partial(lambda: math.log(10) * sum(map(other.score, documents)))
    return Pair(ours, peer, theirs, tolerance=1e-4 if method == "ngram" else math.inf)


def torch_step(torch: ModuleType, table: np.ndarray, batches: Sequence[Batch]) -> Call:
    """PyTorch's step on the next batch; where it has few rows, of these alone, as ours."""
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; PyTorch warns unless it is set
    few = max(len(np.unique(X)) for X, _ in batches) <= len(table) // 4
    layer = torch.nn.Embedding.from_pretrained(torch.from_numpy(table.copy()), freeze=False, sparse=few)
    optimizer = torch.optim.Adagrad([layer.weight], lr=RATE, eps=1e-10, fused=None if few else True)
    following = itertools.cycle(batches)

    def step() -> np.ndarray:
        x, y = (torch.from_numpy(part.astype(np.int64)) for part in next(following))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(x[:, 0]), y, reduction="sum").backward()
        optimizer.step()
        return layer.weight.detach().numpy()

    return step


def optax_step(table: np.ndarray, batches: Sequence[Batch]) -> Call:
    """The step of optax on the next batch, with the gradient of the whole table."""
    import jax
    import optax

    optimizer = optax.adagrad(RATE, initial_accumulator_value=0.0, eps=1e-30)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(U: "jax.Array", moments: Any, x: "jax.Array", y: "jax.Array") -> "tuple[jax.Array, Any]":
        gradient = jax.grad(lambda U: optax.softmax_cross_entropy_with_integer_labels(U[x], y).sum())(U)
        change, moments = optimizer.update(gradient, moments)
        return cast("jax.Array", optax.apply_updates(U, change)), moments

    U, following = jax.device_put(table.copy()), itertools.cycle(batches)
    moments = optimizer.init(U)

    def step() -> "jax.Array":
        nonlocal U, moments
        X, Y = next(following)
        U, moments = update(U, moments, X[:, 0].astype(np.int32), Y.astype(np.int32))
        return U.block_until_ready()

    return step


def adagrad(config: Config, size: int, folder: Path) -> Pair:
    """A step on a batch from token ids in host memory; each call has the next of three batches."""
    import jax

    from jexplicit.lm.fits import gradient
    from jexplicit.nn import optimizers
    from jexplicit.runs.devices import data_mesh

    N, mesh, optimizer, torch = config.vocab_size, data_mesh(1), optimizers.adagrad(RATE), optional("torch")
    X, Y = contexts(draw_stream((BATCHES + 1) * size, N, config.seed), 1)
    batches = [(X[part], Y[part]) for part in np.arange(BATCHES * size).reshape(BATCHES, size)]
    tables = gradient.cold_start(jax.random.key(config.seed), features="cat", radius=1, vocab_size=N, dtype=np.float32)
    step = gradient.training_step(optimizer, features="cat", noise=None, mesh=mesh)
    state, following = gradient.initial_state(tables, optimizer, mesh), itertools.cycle(batches)

    def ours() -> "jax.Array":
        nonlocal state
        x, y = next(following)
        state, _ = step(state, gradient.make_batch(x, y, features="cat", vocab_size=N, size=size, sparse=True))
        return state.params[0].block_until_ready()

    table = np.asarray(tables[0])
    theirs = torch_step(torch, table, batches) if torch else optax_step(table, batches)
    for call in [ours, theirs] * (BATCHES - 1):  # the first step is that of the gradient's sign
        call()
    return Pair(ours, "torch.optim.Adagrad" if torch else "optax.adagrad", theirs, tolerance=1e-4)


def attention(config: Config, size: int, folder: Path) -> Pair:
    """The update of the tokens of many tasks: batch last as `icl` has it, and first for the einsums."""
    import jax
    import jax.numpy as jnp

    from icl.models.attention import head_maps, init_layers
    from icl.models.batched import attention_update

    layers = init_layers(jax.random.key(config.seed), WIDTH, scale=1.0, dtype=np.float32)
    M, R = (maps[0] for maps in head_maps(layers))
    E = np.random.default_rng(config.seed).normal(size=(WIDTH, TOKENS, size)).astype(np.float32)
    last, first, update = jax.device_put(E), jax.device_put(np.ascontiguousarray(E.T)), jax.jit(attention_update)

    @jax.jit
    def plain(E: "jax.Array", M: "jax.Array", R: "jax.Array") -> "jax.Array":
        scores = jnp.einsum("bie,ef,bjf->bij", E, M, E)
        values = jnp.einsum("de,bie->bid", R, E)
        return jnp.einsum("bij,bid->bjd", scores, values)

    ours = functools.partial(lambda: np.asarray(update(last, last, M, R)))
    return Pair(ours, "three einsums", lambda: np.asarray(plain(first, M[0], R[0])).T, tolerance=1e-4)


CASES: dict[Case, Callable[[Config, int, Path], Pair]] = {
    "counting": counting,
    "ngram-fit": functools.partial(fitting, "ngram"),
    "context-mixing-fit": functools.partial(fitting, "context-mixing"),
    "ngram-scoring": functools.partial(scoring, "ngram"),
    "context-mixing-scoring": functools.partial(scoring, "context-mixing"),
    "adagrad": adagrad,
    "attention": attention,
}


def check_equal(ours: object, theirs: object, tolerance: float) -> None:
    """Refuse results that differ by more than a share of the largest number."""
    own, other = np.asarray(ours), np.asarray(theirs)
    difference, largest = float(np.abs(own - other).max()), float(np.abs(other).max())
    if not difference <= tolerance * largest:
        raise ValueError(f"results differ by {difference:.3g}, the largest number is {largest:.3g}: fix this before timing it")


def seconds_of(call: Call) -> float:
    """Seconds of a call, the mean over as many as take long enough."""
    start, calls, spent = time.perf_counter(), 0, 0.0
    while spent < SHORTEST:
        call()
        calls, spent = calls + 1, time.perf_counter() - start
    return spent / calls


def compare(case: Case, config: Config, size: int) -> list[Row]:
    """The row of a case: medians of seconds, and of the ratios of both sides in the same turn."""
    with tempfile.TemporaryDirectory() as scratch:
        pair = CASES[case](config, size, Path(scratch))
        if pair.theirs and pair.tolerance is not None:  # which compiles both
            check_equal(pair.ours(), pair.theirs(), pair.tolerance)
        sides = [side for side in (pair.ours, pair.theirs) if side]
        turns = np.array([[seconds_of(side) for side in sides] for _ in range(config.repeats)])
    seconds, peer_seconds, ratio = float(np.median(turns[:, 0])), None, None
    if pair.theirs:
        peer_seconds, ratio = float(np.median(turns[:, 1])), float(np.median(turns[:, 0] / turns[:, 1]))
    about = {"peer": pair.peer, "peer_seconds": peer_seconds, "ratio": ratio, "repeats": config.repeats}
    return [{"seconds": seconds, **about, "skipped": pair.skipped, **pair.fields}]


def measure(config: Config, folder: "RunFolder") -> Iterator[tuple[Row, Callable[[], list[Row]]]]:
    """A part for every case and size."""
    for case, size in itertools.product(config.cases, config.sizes):
        yield {"case": case, "size": size}, functools.partial(compare, case, config, size)


def check(config: Config) -> None:
    """Refuse a text that is too small, before anything is measured."""
    for size in config.sizes if any("-" in case for case in config.cases) else ():
        read_text(config, size)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """JAX on the CPU, and this process and those that it starts on one core, where the system has such a choice."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


COLUMNS = [
    Column("case", "case"),
    Column("size", "size", ","),
    Column("s", "seconds", ".3g"),
    Column("size / s", lambda row: row["size"] / row["seconds"], ",.0f"),
    Column("perplexity", "perplexity", ".2f"),
    Column("peer", "peer"),
    Column("its s", "peer_seconds", ".3g"),
    Column("its perplexity", "peer_perplexity", ".2f"),
    Column("ratio", "ratio", ".2f", bold=True),
    Column("no ratio because", "skipped"),
]
NOTE = "A ratio is the median of own seconds / the peer's, measured in turn on one core; below 1 is faster than the peer."


def with_ratio(results: Results) -> list[Row]:
    """The rows that have a peer."""
    return [row for row in results.rows if row["ratio"] is not None]


def run(config: Config) -> dict[str, Any]:
    """Measure, and write the report."""
    from jexplicit.experiments.experiment import Experiment
    from jexplicit.experiments.views import Bars, Table

    bars = Bars(
        "ratios", "case", "ratio", "size", rows=with_ratio, axes={"ylabel": "own s / the peer's", "xlabel": ""}, size=(8, 3)
    )
    views, extend = [Table(COLUMNS, note=NOTE), bars], ("cases", "sizes")
    with one_core():
        return Experiment("bench", Config, measure, views, check=check, extend=extend, title="Bench").run(config)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv, experiment="bench")


if __name__ == "__main__":
    sys.exit(main())
