"""Compare the speed of counts, fits and scores with named peers.

    python -m launch.bench --cases ngram-fit ngram-scoring --train FILES --sizes 100_000 1_000_000 --out runs/ngrams

Peers: `numpy.bincount` for counts, KenLM's `lmplz -o 5` for fits of tokens, its Python module for scores of text after them.
"""

import contextlib
import functools
import importlib
import itertools
import os
import shutil
import subprocess
import tempfile
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from jexplicit.data.streams import context_columns
from jexplicit.data.text import read_documents
from jexplicit.data.tokenizers import PAD, Tokenizer, encode_documents, train_tokenizer
from jexplicit.runs.files import Bounds, PositiveInt
from launch.kit.command import Preset, Run, entry_point
from launch.kit.views import Column, Row, Table

if TYPE_CHECKING:  # each case imports what it measures, so that --help is quick
    from jexplicit.lm.evaluation import AnyModel

Text = Literal["ngram-fit", "context-mixing-fit", "ngram-scoring", "context-mixing-scoring"]
Case = Literal["counting", Text]
CONTEXT = 4


@dataclass(frozen=True)
class Config(Run):
    """Compare the speed of counts, fits and scores with named peers."""

    cases: tuple[Case, ...] = get_args(Case)
    """Cases to measure."""
    sizes: tuple[PositiveInt, ...] = (50_000,)
    """Numbers of tokens. Each is a row."""
    repeats: PositiveInt = 5
    """Times that both sides are measured, in turn."""
    train: tuple[str, ...] = ()
    """Text to fit and then to score: files, globs or folders, a document a line. Default: Python's help."""
    vocab_size: Annotated[int, Bounds(at_least=2, at_most=46_340)] = 4098
    """Vocabulary size, such that a pair of ids fits 31 bits."""


PRESETS = {"tiny": Preset(Config("runs/bench", sizes=(500,), repeats=2, vocab_size=300), "500 tokens; 20 s on a CPU core.")}


class Pair(NamedTuple):
    """Two ways to do one piece of work, as calls that block."""

    ours: Callable[[], object]
    peer: str
    theirs: Callable[[], object] | None = None
    skipped: str | None = None  # why there are no `theirs`
    tolerance: float | None = None  # of results that agree, as a share of the largest
    about: Callable[..., Row] = lambda own, other: {}  # more fields


def optional(name: str) -> Any:
    """A module, if it is installed."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)


def bincount_tables(x: np.ndarray, N: int) -> list[np.ndarray]:
    """Tables of pairs [N, N] by `numpy.bincount`."""
    stream, tables = np.pad(x, (CONTEXT - 1, 0), constant_values=PAD), []
    for context in context_columns(stream, CONTEXT):
        ids = np.multiply(context, N, dtype=np.int64)
        ids += stream[CONTEXT:]
        tables.append(np.bincount(ids, minlength=N * N).reshape(N, N))
    return tables


def counting(config: Config, size: int, *_: object) -> Pair:
    """Tables of pairs, from token ids to tables in host memory."""
    from jexplicit.counts import count
    from launch.accelerator import draw_stream

    x, N = draw_stream(size, config.vocab_size, config.seed), config.vocab_size
    ours = functools.partial(count, x, context=CONTEXT, vocab_size=N)
    return Pair(ours, "numpy.bincount", functools.partial(bincount_tables, x, N), tolerance=0.0)


@functools.cache
def read_text(train: tuple[str, ...], vocab_size: int, size: int) -> tuple[np.ndarray, np.ndarray, Tokenizer]:
    """Whole documents to fit and to score, up to some tokens; the tokenizer."""
    from pydoc_data.topics import topics

    documents = read_documents(train) if train else "\n".join(topics.values()).splitlines()
    stream = encode_documents(tokenizer := train_tokenizer(documents, vocab_size=vocab_size), documents)
    ends = np.flatnonzero(stream == PAD)
    first, last = ends[np.searchsorted(ends, [size, 2 * size], side="right") - 1].tolist()
    if not (0 < first < last and 2 * size < len(stream)):
        raise ValueError(f"--sizes {size}: {len(stream) - 1} tokens have no two parts of this size; name more text (--train)")
    return stream[: first + 1], stream[first : last + 1], tokenizer


def _sentences(stream: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """The documents of a stream in the words that KenLM reads."""
    from jexplicit.lm.ngram import arpa_words

    words = np.array(arpa_words(tokenizer))
    return [" ".join(words[part[1:]]) for part in np.split(stream, np.flatnonzero(stream == PAD)) if len(part) > 1]


def _fit_tokens(method: str, train: np.ndarray, tokenizer: Tokenizer, seed: int) -> "AnyModel":
    """A language model of token ids."""
    from jexplicit.lm.fit import fit_model
    from jexplicit.lm.training_text import Options, TrainingText

    text = TrainingText(train, tokenizer.vocab_size, eos=True, tokenizer=tokenizer)
    return fit_model(method, text, Options(history="document", seed=seed)).model


def fitting(config: Config, size: int, folder: Path, method: str) -> Pair:
    """From tokens to a model, and the perplexities of both."""
    from jexplicit.lm.evaluation import evaluate
    from jexplicit.lm.ngram import read_arpa

    (train, dev, tokenizer), program = read_text(config.train, config.vocab_size, size), shutil.which("lmplz")
    (folder / "train.txt").write_text("\n".join(_sentences(train, tokenizer)) + "\n")

    def lmplz() -> Path:  # of order 5, with default discounts for small texts
        arpa, flags = folder / "model.arpa", ["-o", "5", "--text", folder / "train.txt", "-T", folder, "--discount_fallback"]
        ended = subprocess.run([str(program), *map(str, flags), "--arpa", str(arpa)], capture_output=True, text=True)
        if ended.returncode:
            raise ValueError(f"lmplz ended with status {ended.returncode}: {ended.stderr.strip()[-200:]}")
        return arpa

    def about(own: "AnyModel", arpa: Path | None) -> Row:
        models = {"perplexity": own} | ({"peer_perplexity": read_arpa(arpa, tokenizer)[0]} if arpa else {})
        return {name: evaluate(model, dev).perplexity for name, model in models.items()}

    theirs, skipped = (lmplz, None) if program else (None, "lmplz is not on PATH")
    ours = functools.partial(_fit_tokens, method, train, tokenizer, config.seed)
    return Pair(ours, "KenLM's lmplz", theirs, skipped, about=about)


def scoring(config: Config, size: int, folder: Path, method: str) -> Pair:
    """Log-probabilities of a text; their sum is equal where both have the n-gram model."""
    from jexplicit.lm.evaluation import score
    from jexplicit.lm.ngram import write_arpa

    (train, dev, tokenizer), peer = read_text(config.train, config.vocab_size, size), "KenLM's Python module"
    models = {name: _fit_tokens(name, train, tokenizer, config.seed) for name in {method, "ngram"}}
    ours = lambda: score(models[method], dev).sum(dtype=np.float64)  # noqa: E731
    if (kenlm := optional("kenlm")) is None:
        return Pair(ours, peer, skipped="kenlm is not installed")
    write_arpa(arpa := folder / "model.arpa", cast(Any, models["ngram"]), tokenizer)
    settings, documents = kenlm.Config(), _sentences(dev, tokenizer)
    settings.show_progress, settings.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    model, tolerance = kenlm.Model(str(arpa), settings), 1e-4 if method == "ngram" else None  # else they are other models
    return Pair(ours, peer, lambda: np.log(10) * sum(map(model.score, documents)), tolerance=tolerance)


def compare(case: Case, config: Config, size: int) -> Sequence[Row]:
    """The row of a case: medians of seconds, and of paired ratios."""
    method, _, kind = case.rpartition("-")
    with tempfile.TemporaryDirectory() as scratch:
        pair = {"counting": counting, "fit": fitting, "scoring": scoring}[kind](config, size, Path(scratch), method)
        sides = [side for side in (pair.ours, pair.theirs) if side]
        own, other = [*(side() for side in sides), None][:2]  # which compiles both
        if pair.tolerance is not None and other is not None:
            difference, largest = np.abs(np.asarray(own) - np.asarray(other)).max(), np.abs(np.asarray(other)).max()
            if not difference <= pair.tolerance * largest:
                raise ValueError(f"{case}: results of up to {largest:.3g} differ by {difference:.3g} from {pair.peer}")
        row = pair.about(own, other)
        turns = [[timeit.Timer(side).autorange() for side in sides] for _ in range(config.repeats)]
    seconds = np.array([[spent / calls for calls, spent in turn] for turn in turns])
    ratio = float(np.median(seconds[:, 0] / seconds[:, 1])) if pair.theirs else None
    told = dict(zip(("seconds", "peer_seconds"), [*np.median(seconds, axis=0).tolist(), None], strict=False))
    return [{**told, "peer": pair.peer, "ratio": ratio, "repeats": config.repeats, "skipped": pair.skipped, **row}]


def measure(config: Config, folder: object) -> Iterator[tuple[Row, Callable[[], Sequence[Row]]]]:
    """A part for every case and size."""
    for case, size in itertools.product(config.cases, config.sizes):
        yield {"case": case, "size": size}, functools.partial(compare, case, config, size)


COLUMNS = (
    Column("case", "case"), Column("size", "size", ","), Column("s", "seconds", ".3g"),
    Column("size / s", lambda row: row["size"] / row["seconds"], ",.0f"), Column("perplexity", "perplexity", ".2f"),
    Column("peer", "peer"), Column("its s", "peer_seconds", ".3g"), Column("its perplexity", "peer_perplexity", ".2f"),
    Column("ratio", "ratio", ".2f", bold=True), Column("no ratio because", "skipped"),
)  # fmt: skip


def run(config: Config) -> dict[str, Any]:
    """Measure on one core of the CPU, and write the report."""
    import jax

    from launch.kit.experiment import Experiment

    note = "A ratio is the median of own seconds / the peer's, measured in turn on one core; below 1 is faster than the peer."
    jax.config.update("jax_platforms", "cpu")
    with contextlib.ExitStack() as stack:
        if hasattr(os, "sched_setaffinity"):
            stack.callback(os.sched_setaffinity, 0, cores := os.sched_getaffinity(0))
            os.sched_setaffinity(0, {max(cores)})
        views, grows = [Table(COLUMNS, note=note)], ("cases", "sizes")
        return Experiment("bench", Config, measure, views, extend=grows, title="Bench").run(config)


main = entry_point(run, Config, __doc__, PRESETS, module=__name__, experiment="bench")
