"""The bench of the loss: one partition function per distinct context, or none at all, against one per position.

And of scoring, with every kind of model, beside KenLM.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from jexplicit.counts.dense import count
from jexplicit.data.contexts import contexts, distinct_contexts
from jexplicit.lm.model import LanguageModel
from jexplicit.lm.rows.explicit import explicit_language_model, with_targets
from jexplicit.lm.softmax import log_partition, negative_log_likelihood, negative_log_likelihood_from_counts, target_logits
from jexplicit.runs.bounds import NonNegativeInt, PositiveInt
from jexplicit.runs.command import Preset
from jexplicit.runs.tables import Column
from launch.bench import model_kinds
from launch.bench.harness import METHOD, RADIUS, SECONDS, Bench, BenchConfig, Comparison, losses_differ, ratio_columns
from launch.bench.model_kinds import kinds_comparison
from launch.bench.streams import StreamTokens, VocabSize, first_positions, text_streams, zipf_stream


@dataclass(frozen=True)
class Evaluation(BenchConfig):
    """The loss of one model on the same positions: computed from its distinct contexts or from counts, against position by
    position. Also scores of every token by every kind of model, beside KenLM where it is installed."""

    corpus: Literal["docs", "zipf"] = "docs"
    """Text to fit and to evaluate. docs: the documentation that comes with Python. zipf: independent draws from Zipf's law; its
    contexts repeat less than those of text, so ratios are lower at K > 1."""
    train: tuple[str, ...] = ()
    """Your own text to fit and to evaluate instead: files, .gz files, globs or folders."""
    positions: StreamTokens = 200_000
    """Number of positions to evaluate, from the start of the text that the model is fitted to. Ratios grow with their
    number."""
    vocab_size: VocabSize = 4098
    """Vocabulary size, including <pad> and <unk>."""
    radius: tuple[PositiveInt, ...] = (1, 2, 4)
    """Context lengths K of the Cat models, in tokens, a comparison for each."""
    scored: NonNegativeInt = 20_000
    """Number of positions that every kind of model scores, from the start of the text that it was fitted to; 0: none."""


# A method does what is off the clock and returns the call to time.


def _brute_force(model: LanguageModel, x: np.ndarray):
    """One partition function per position, computed with the same kernel as the others; contexts are made off the clock."""
    X, Y = contexts(x, model.radius)
    return lambda: float(
        log_partition(model.tables, X).sum(dtype=np.float64) - target_logits(model.tables, X, Y).sum(dtype=np.float64)
    )


def _distinct(model: LanguageModel, x: np.ndarray):
    """`jexplicit.lm.softmax.negative_log_likelihood`: sorted contexts, one partition function per distinct one; contexts
    are made off the clock."""
    X, Y = contexts(x, model.radius)
    return lambda: negative_log_likelihood(model.tables, X, Y, ordered=model.ordered)


def _counts(model: LanguageModel, x: np.ndarray):
    """`jexplicit.lm.softmax.negative_log_likelihood_from_counts`, K = 1, with the counts that a fit has made already."""
    C = with_targets(count(x, radius=1, vocab_size=model.vocab_size)[0])
    return lambda: negative_log_likelihood_from_counts(model.tables[0], C)


def _counts_included(model: LanguageModel, x: np.ndarray):
    """The same with the counting pass on the clock."""
    return lambda: _counts(model, x)()


BRUTE = "brute force"
METHODS: dict[str, Callable[[LanguageModel, np.ndarray], Callable[[], float]]] = {
    BRUTE: _brute_force,
    "distinct contexts": _distinct,
    "counts": _counts,
    "counting + counts": _counts_included,
}
FROM_COUNTS = ("counts", "counting + counts")


def comparisons(config: Evaluation, folder: Path) -> Iterator[Comparison]:
    """One comparison per radius, and one of the kinds of models."""
    stream, N, source = _stream(config)
    counts = count(stream, radius=max(config.radius), vocab_size=N)
    x = first_positions(stream, config.positions)
    positions = len(contexts(x, 1)[1])
    for K in config.radius:
        model = explicit_language_model(counts, features="cat", radius=K)
        yield Comparison(
            cases={name: make(model, x) for name, make in METHODS.items() if K == 1 or name not in FROM_COUNTS},
            fields={
                "radius": K,
                "vocab_size": N,
                "positions": positions,
                "distinct": len(distinct_contexts(contexts(x, K)[0])[0]),
                "corpus": source,
            },
            row=lambda case, timings: {"positions_per_second": positions / timings.medians(case)["cpu_seconds"]},
            reference=BRUTE,
            difference=losses_differ(rtol=1e-6),
            inspect=lambda case, loss: {"nll_per_token": loss / positions},
        )
    if config.scored:
        yield kinds_comparison(x, first_positions(x, config.scored), N, max(config.radius), source, folder)


def _stream(config: Evaluation) -> tuple[np.ndarray, int, str]:
    """Tokens, vocabulary and name of the text."""
    if config.corpus == "zipf" and not config.train:
        rng = np.random.default_rng(config.seed)
        return zipf_stream(rng, config.positions, config.vocab_size), config.vocab_size, "zipf"
    x, _, N, source = text_streams(config.train, (), config.vocab_size)
    return x, N, source


BENCH = Bench(
    name="evaluation",
    config=Evaluation,
    comparisons=comparisons,
    methods={**METHODS, **model_kinds.METHODS},
    ours=("distinct contexts", *FROM_COUNTS),
    peers={"ratio_to_brute_force": (BRUTE,), "ratio_to_kenlm": (model_kinds.KENLM,)},
    columns=[
        METHOD,
        RADIUS,
        Column("positions", "positions", ",d"),
        Column("distinct", "distinct", ",d"),
        Column("k pos. / CPU s", "positions_per_second", ",.0f", 1e-3),
        *ratio_columns("vs. brute force", "ratio_to_brute_force"),
        Column("vs. kenlm", "ratio_to_kenlm", ".4f"),
        *SECONDS,
    ],
    presets={
        "tiny": Preset(
            Evaluation(positions=5_000, vocab_size=512, radius=(1, 2), scored=1_000, rounds=2), "40 s on 2 CPU cores."
        ),
        "full": Preset(Evaluation(rounds=9), "200,000 positions, 20,000 of them scored; about 5 minutes on 2 CPU cores."),
    },
)
