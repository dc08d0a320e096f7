"""The bench of the loss: one partition function per different context, or none at all, against one per position."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jexplicit.counts.dense import count
from jexplicit.data.cache import cached_streams
from jexplicit.data.contexts import PAD, contexts, distinct_contexts
from jexplicit.data.docstrings import docs_corpus
from jexplicit.data.text import text_corpus
from jexplicit.lm.explicit import TokenTables, explicit_language_model, with_targets
from jexplicit.lm.softmax import log_partition, negative_log_likelihood, negative_log_likelihood_from_counts, target_logits
from jexplicit.runs.command import Preset
from jexplicit.runs.folder import RunFolder
from launch.bench import counting
from launch.bench.harness import SECONDS, Bench, compare


@dataclass(frozen=True)
class Evaluation:
    """The loss of one model on the same positions: by its different contexts or counts, against every position by itself."""

    out: str | None = None
    """New run folder; default, the first free of runs/bench-evaluation, runs/bench-evaluation-2, ..."""
    corpus: Literal["docs", "zipf"] = "docs"
    """docs: the documentation that comes with Python. zipf: independent draws from Zipf's law, whose contexts repeat less
    than those of text, so that its ratios are lower at K > 1."""
    train: tuple[str, ...] = ()
    """Your own text instead, to fit and to evaluate: files, .gz files, globs or folders."""
    positions: int = 200_000
    """Positions to evaluate, from the start of the text that the model is fitted to. Ratios grow with their number."""
    vocab_size: int = 4098
    """Token ids, <pad> and <unk> included."""
    radius: tuple[int, ...] = (1, 2, 4)
    """Context lengths K, in tokens, of the Cat models. Each is a comparison of its own."""
    rounds: int = 5
    """How often each method is timed; the more, the steadier the medians."""
    seed: int = 0
    """Of the zipf stream, and of the order of the methods in each round."""


# A method prepares whatever is off the clock and returns the call to time.


def _brute_force(model: TokenTables, x: np.ndarray):
    """One partition function per position, by the kernel that the others use; contexts made off the clock."""
    X, Y = contexts(x, model.radius)
    return lambda: float(
        log_partition(model.tables, X).sum(dtype=np.float64) - target_logits(model.tables, X, Y).sum(dtype=np.float64)
    )


def _distinct(model: TokenTables, x: np.ndarray):
    """`jexplicit.lm.softmax.negative_log_likelihood`: contexts sorted, one partition function per different one; contexts made
    off the clock."""
    X, Y = contexts(x, model.radius)
    return lambda: negative_log_likelihood(model.tables, X, Y, ordered=model.ordered)


def _counts(model: TokenTables, x: np.ndarray):
    """`jexplicit.lm.softmax.negative_log_likelihood_from_counts`, K = 1, with the counts at hand as they are after a fit."""
    C = with_targets(count(x, radius=1, vocab_size=model.vocab_size)[0])
    return lambda: negative_log_likelihood_from_counts(model.tables[0], C)


def _counts_included(model: TokenTables, x: np.ndarray):
    """The same with the counting pass on the clock."""
    return lambda: _counts(model, x)()


BRUTE = "brute force"
METHODS: dict[str, Callable[[TokenTables, np.ndarray], Callable[[], float]]] = {
    BRUTE: _brute_force,
    "distinct contexts": _distinct,
    "counts": _counts,
    "counting + counts": _counts_included,
}
FROM_COUNTS = ("counts", "counting + counts")


def first_positions(stream: np.ndarray, limit: int) -> np.ndarray:
    """The start of a stream with at most `limit` tokens; the document that it cuts ends there.

    Example:
        >>> first_positions(np.array([0, 5, 6, 0, 7, 8, 0]), 3).tolist()
        [0, 5, 6, 0, 7, 0]
    """
    part = stream[: int(np.searchsorted(np.cumsum(stream != PAD), limit, side="right"))]
    return part if part[-1] == PAD else np.append(part, part[:1])


def measure(config: Evaluation, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """A comparison per radius: equal losses first, then the clock."""
    stream, N, source = _stream(config)
    counts = count(stream, radius=max(config.radius), vocab_size=N)
    x = first_positions(stream, config.positions)
    for K in config.radius:
        model = explicit_language_model(counts, features="cat", radius=K)
        calls = {name: make(model, x) for name, make in METHODS.items() if K == 1 or name not in FROM_COUNTS}
        nll = {name: call() for name, call in calls.items()}
        for name, value in nll.items():
            if not abs(value - nll[BRUTE]) <= 1e-6 * abs(nll[BRUTE]):
                raise ValueError(f"{name} gives the loss {value}, {BRUTE} {nll[BRUTE]}, at K = {K}: mend it before timing it")
        X, Y = contexts(x, K)
        distinct = len(distinct_contexts(X)[0])
        for name, seconds, ratio in compare(config, folder, calls, K):
            yield {
                "method": name,
                "radius": K,
                "vocab_size": N,
                "positions": len(Y),
                "distinct": distinct,
                "positions_per_second": len(Y) / seconds["cpu_seconds"],
                **seconds,
                "ratio_to_brute_force": ratio(BRUTE),
                "nll_per_token": nll[name] / len(Y),
                "corpus": source,
            }


def check(config: Evaluation) -> None:
    """Flags that make no sense."""
    if config.positions < 1:
        raise ValueError(f"--positions {config.positions}: evaluate at least one")
    if config.corpus == "zipf" and not config.train:
        counting.check(counting.Counting(tokens=config.positions, vocab_size=config.vocab_size))


def _stream(config: Evaluation) -> tuple[np.ndarray, int, str]:
    """Tokens, vocabulary and name of the text."""
    if config.corpus == "zipf" and not config.train:
        rng = np.random.default_rng(config.seed)
        return counting.zipf_stream(rng, config.positions, config.vocab_size), config.vocab_size, "zipf"
    corpus = text_corpus(config.train).in_memory() if config.train else docs_corpus()
    text = cached_streams(corpus, kind="bpe", vocab_size=config.vocab_size)
    return text.train[:], text.tokenizer.vocab_size, corpus.name


BENCH = Bench(
    config=Evaluation,
    check=check,
    measure=measure,
    methods=METHODS,
    ours=("distinct contexts", *FROM_COUNTS),
    ratio=("ratio_to_brute_force", "times brute force"),
    columns={
        "positions": ("positions", 1, ",d"),
        "distinct": ("distinct", 1, ",d"),
        "k pos. / CPU s": ("positions_per_second", 1e-3, ",.0f"),
        "vs. brute": ("ratio_to_brute_force", 1, ".2f"),
        **SECONDS,
    },
    presets={
        "tiny": Preset(Evaluation(positions=5_000, vocab_size=512, radius=(1, 2), rounds=2), "10 s on 2 CPU cores."),
        "full": Preset(Evaluation(rounds=9), "200,000 positions; 1 minute on 2 CPU cores."),
    },
)
