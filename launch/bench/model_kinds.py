"""The rows of the bench of evaluation that score a text with every kind of model, beside KenLM where it is installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.data.contexts import PAD, contexts, distinct_contexts
from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.arpa.words import arpa_words
from jexplicit.lm.arpa.writing import write_arpa
from jexplicit.lm.evaluation import score
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.mixture_rows import mixture_rows, with_history
from jexplicit.lm.fits.ngram_mixture import starting_exponents
from jexplicit.lm.fits.training_text import Options, TrainingText
from jexplicit.lm.model import History, LanguageModel
from launch.bench.harness import Comparison, losses_differ

KENLM = "kenlm, ngram"
NGRAM = "ngram"
SPARSE = "explicit, sparse"

# case -> method, options
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "unigram": ("unigram", {}),
    "bigram": ("bigram", {}),
    NGRAM: ("ngram", {}),
    "explicit, dense": ("explicit", {}),
    SPARSE: ("explicit", {}),
    "bitcipher": ("bitcipher", {"bits": 64}),
}
MIXTURES: dict[str, History] = {"mixture": "none", "mixture, history": "all"}
METHODS: dict[str, str] = {
    "unigram": "`jexplicit.lm.evaluation.score`, which gives the log-probability of every token: one row for all contexts.",
    "bigram": "The same, of the Kneser-Ney bigram: one dense table.",
    NGRAM: "The same, of the interpolated modified Kneser-Ney model of order 5.",
    "explicit, dense": "The same, of the explicit Cat solution of the largest K.",
    SPARSE: "The same solution from sparse counts; its tables stay sparse.",
    "bitcipher": "The same, of coded tables of the largest K, 64 bits.",
    "mixture": "The same, of the mixture without history, its exponents not fitted, on which no speed depends.",
    "mixture, history": "The same, of the mixture that reads the last 2,000 tokens.",
    KENLM: "`kenlm.Model.score` of every document, one number each, with the ARPA file of ngram in KenLM's default (probing) "
    "tables. Files, dense tables and words are made off the clock.",
}


def kinds_comparison(x: np.ndarray, scored: np.ndarray, N: int, radius: int, source: str, folder: Path) -> Comparison:
    """Score a text with models of every kind, fitted on another.

    Args:
        x: [L] the text to fit on, `<pad> d_1 <pad> ... d_n <pad>`.
        scored: [L'] the text to score.
        N: vocabulary size.
        radius: K of the explicit and coded models.
        source: what the text is called.
        folder: where KenLM's file is written, and removed.
    """
    models = _models(x, N, radius)
    cases = {name: _score(model, scored) for name, model in models.items()}
    if importlib.util.find_spec("kenlm"):
        cases[KENLM] = _kenlm_score(models[NGRAM], scored, folder)
    positions = int(np.count_nonzero(scored != PAD))
    context = {name: model.radius for name, model in models.items()} | {KENLM: models[NGRAM].radius}
    distinct = {K: len(distinct_contexts(contexts(scored, K)[0])[0]) for K in set(context.values())}
    return Comparison(
        cases=cases,
        fields={"vocab_size": N, "positions": positions, "corpus": source},
        row=lambda case, timings: {
            "radius": context[case],
            "distinct": distinct[context[case]],
            "positions_per_second": positions / timings.medians(case)["cpu_seconds"],
        },
        reference=NGRAM,
        difference=losses_differ(rtol=1e-5),
        unchecked=[name for name in models if name != NGRAM],  # other models
        inspect=lambda case, loss: {"nll_per_token": loss / positions},
    )


def _models(x: np.ndarray, N: int, radius: int) -> dict[str, LanguageModel]:
    text = TrainingText(x, N)
    sparse = TrainingText(x, N, sparse_counts=text.sparse_counts(radius))
    fitted = {}
    for name, (method, options) in KINDS.items():
        fitted[name] = fit_model(method, sparse if name == SPARSE else text, Options(radius=radius, **options)).model
    rows = mixture_rows(text) if MIXTURES else ()
    for name, history in MIXTURES.items():
        own = with_history(rows, history)
        fitted[name] = LanguageModel(own, starting_exponents(own).astype(np.float32))
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
