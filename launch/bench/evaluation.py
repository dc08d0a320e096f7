"""The bench of the loss: one partition function per distinct context, or none at all, against one per position.

And of scoring, with every kind of model, beside KenLM where it is installed.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.counts.dense import count
from jexplicit.counts.sparse import count_sparse
from jexplicit.data.contexts import PAD, contexts, distinct_contexts
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.experiments.tables import Column
from jexplicit.lm.arpa.words import arpa_words
from jexplicit.lm.arpa.writing import write_arpa
from jexplicit.lm.core.model import History, LanguageModel
from jexplicit.lm.core.names import ADAPTIVE
from jexplicit.lm.core.softmax import log_partition, negative_log_likelihood, negative_log_likelihood_from_counts, target_logits
from jexplicit.lm.evaluation import score
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.mixtures.adaptive_mixture import adaptive_model, adaptive_rows, history_of_base
from jexplicit.lm.fits.mixtures.mixture_rows import mixture_rows, with_history
from jexplicit.lm.fits.mixtures.ngram_mixture import starting_exponents
from jexplicit.lm.rows.explicit import explicit_language_model, with_targets
from jexplicit.lm.training_text import Options, TrainingText
from launch.bench.config import Evaluation
from launch.bench.shared.harness import Comparison, bench, losses_differ
from launch.bench.shared.streams import first_positions, text_streams, zipf_stream

# A method does what is off the clock and returns the call to time.


def _brute_force(model: LanguageModel, x: np.ndarray):
    X, Y = contexts(x, model.radius)
    return lambda: float(
        log_partition(model.tables, X).sum(dtype=np.float64) - target_logits(model.tables, X, Y).sum(dtype=np.float64)
    )


def _distinct(model: LanguageModel, x: np.ndarray):
    X, Y = contexts(x, model.radius)
    return lambda: negative_log_likelihood(model.tables, X, Y, ordered=model.ordered)


def _counts(model: LanguageModel, x: np.ndarray):
    C = with_targets(count(x, radius=1, vocab_size=model.vocab_size)[0])
    return lambda: negative_log_likelihood_from_counts(model.tables[0], C)


BRUTE, DISTINCT, NGRAM, SPARSE, KENLM = "brute force", "distinct contexts", "ngram", "explicit, sparse", "kenlm, ngram"
FROM_COUNTS = ("counts", "counting + counts")
METHODS: dict[str, Callable[[LanguageModel, np.ndarray], Callable[[], float]]] = {
    BRUTE: _brute_force,
    DISTINCT: _distinct,
    FROM_COUNTS[0]: _counts,
    FROM_COUNTS[1]: lambda model, x: lambda: _counts(model, x)(),
}
KINDS = ("unigram", "bigram", NGRAM, "explicit, dense", SPARSE)  # a method, and a variant of it
MIXTURES: dict[str, History] = {"mixture": "none", "mixture, history": "all", "mixture, adaptive": "adaptive"}


def comparisons(config: Evaluation, folder: Path) -> Iterator[Comparison]:
    """The loss of a Cat model, its contexts made off the clock:

    * **brute force**: one partition function per position, computed with the same kernel as the others.
    * **distinct contexts**: `jexplicit.lm.core.softmax.negative_log_likelihood`, sorted contexts, one partition function per
      distinct one.
    * **counts**: `negative_log_likelihood_from_counts`, K = 1, with the counts that a fit has made already.
    * **counting + counts**: the same with the counting pass on the clock.

    The log-probability of every token by `jexplicit.lm.evaluation.score`:

    * **unigram**, **bigram** (Kneser-Ney), **ngram** (interpolated modified Kneser-Ney, order 5).
    * **explicit, dense**: the explicit Cat solution of the largest K; **explicit, sparse**: the same with sparse tables.
    * **mixture**: its exponents are not fitted, on which no speed depends; with **history** it reads the last 20,000 tokens,
      and an **adaptive** one also counts all that it reads.
    * **kenlm, ngram**: `kenlm.Model.score` of every document, one number each, with the ARPA file of ngram in KenLM's default
      (probing) tables. Files, dense tables and words are made off the clock.
    """
    x, N, source = _stream(config)
    counts = count(x, radius=max(config.radius), vocab_size=N)
    x = first_positions(x, config.positions)
    about = {"vocab_size": N, "corpus": source}
    for K in config.radius:
        model = explicit_language_model(counts, features="cat", radius=K)
        cases = {name: make(model, x) for name, make in METHODS.items() if K == 1 or name not in FROM_COUNTS}
        checked: Any = {"reference": BRUTE, "difference": losses_differ(1e-6)}
        yield Comparison(cases, {"radius": K, **about}, **checked, **_per_position(x, dict.fromkeys(cases, K)))
    if config.scored:
        scored, models = first_positions(x, config.scored), _models(x, N, max(config.radius))
        cases = {name: _score(model, scored) for name, model in models.items()}
        if importlib.util.find_spec("kenlm"):
            models[KENLM], cases[KENLM] = models[NGRAM], _kenlm_score(models[NGRAM], scored, folder)
        checked = {"reference": NGRAM, "difference": losses_differ(1e-5), "unchecked": set(cases) - {NGRAM, KENLM}}
        read = _per_position(scored, {name: model.radius for name, model in models.items()})
        yield Comparison(cases, {"ratio_to_brute_force": None, **about}, **checked, **read)  # None: no row above has it


def _per_position(x: np.ndarray, radius: Mapping[str, int]) -> Any:
    """The fields of rows that depend on the text and the radius of each case."""
    positions = int(np.count_nonzero(x != PAD))
    distinct = {K: len(distinct_contexts(contexts(x, K)[0])[0]) for K in set(radius.values())}
    return {
        "row": lambda case, timings: {
            "radius": radius[case],
            "positions": positions,
            "distinct": distinct[radius[case]],
            "positions_per_second": positions / timings.median(case, "cpu_seconds"),
        },
        "inspect": lambda case, loss: {"nll_per_token": loss / positions},
    }


def _stream(config: Evaluation) -> tuple[np.ndarray, int, str]:
    """Tokens, vocabulary and name of the text."""
    if config.corpus == "zipf" and not config.train:
        rng = np.random.default_rng(config.seed)
        return zipf_stream(rng, config.positions, config.vocab_size), config.vocab_size, "zipf"
    x, _, N, source = text_streams(config.train, (), config.vocab_size)
    return x, N, source


def _models(x: np.ndarray, N: int, radius: int) -> dict[str, LanguageModel]:
    """A model of every kind, fitted on a text."""
    text, options = TrainingText(x, N), Options(radius=radius)
    sparse = TrainingText(x, N, sparse_counts=count_sparse(x, radius=radius, vocab_size=N))
    fitted = {name: fit_model(name.split(",")[0], sparse if name == SPARSE else text, options).model for name in KINDS}
    rows = mixture_rows(text) if MIXTURES else ()
    for name, history in MIXTURES.items():
        own = with_history(rows, history_of_base(history, characters=False))
        fitted[name] = model = LanguageModel(own, starting_exponents(own).astype(np.float32))
        if history in ADAPTIVE:
            kind = adaptive_rows(text)
            fitted[name] = adaptive_model(model, kind, np.append(1, np.full(sum(kind.exponents_per_row), 0.1)))
    return fitted


def _score(model: LanguageModel, x: np.ndarray) -> Callable[[], float]:
    return lambda: -float(score(model, x).sum(dtype=np.float64))


def _kenlm_score(model: LanguageModel, x: np.ndarray, folder: Path) -> Callable[[], float]:
    import kenlm  # pyright: ignore[reportMissingImports]

    tokenizer = Tokenizer("\n".join(f"w{i}" for i in range(2, model.vocab_size)).encode(), "words")
    words, file = np.array(arpa_words(tokenizer)), folder / "ngram.arpa"
    documents = [" ".join(words[part[1:]]) for part in np.split(x, np.flatnonzero(x == PAD)) if len(part) > 1]
    write_arpa(file, model, tokenizer)
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    theirs = kenlm.Model(str(file), config)
    file.unlink()
    return lambda: -float(np.log(10)) * sum(theirs.score(document, eos=False) for document in documents)


COLUMNS = [
    Column("positions", "positions", ",d"),
    Column("distinct", "distinct", ",d"),
    Column("k pos. / CPU s", "positions_per_second", ",.0f", 1e-3),
]
PEERS = {"ratio_to_brute_force": ("vs. brute force", [BRUTE]), "ratio_to_kenlm": ("vs. kenlm", [KENLM])}
run = bench("evaluation", comparisons, COLUMNS, ours=(DISTINCT, *FROM_COUNTS), peers=PEERS)
