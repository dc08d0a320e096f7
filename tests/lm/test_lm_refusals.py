"""Calls that are refused, each with what is wrong and what to do instead."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from reference import random_documents, stream_of
from scipy.sparse import csr_array
from tables import refuse

from jexplicit import fit
from jexplicit.counts.pairs import count, count_sparse
from jexplicit.data import train_tokenizer
from jexplicit.data.contexts import contexts
from jexplicit.lm.attribution import explain
from jexplicit.lm.core.model import token_model
from jexplicit.lm.core.smoothing import noise_model, smoothed_excess
from jexplicit.lm.evaluation import evaluate, log_probabilities, score, score_documents
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.iterative_scaling import sweep_tables
from jexplicit.lm.fits.log_linear import log_linear_model, offset_rows
from jexplicit.lm.generation import generate, next_token
from jexplicit.lm.rows import (
    bigram_optimum,
    explicit_blocks,
    explicit_language_model,
    network_model,
    smoothed_ngrams,
    smoothed_offset_rows,
    sparse_language_model,
    unigram_model,
)
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.nn.networks import init_variables
from jexplicit.nn.sequences import LSTM

N = 8
SMALL = [[5, 1, 2], [3, 1, 1, 4]]
PADS, FOREIGN = np.zeros(4, np.uint16), np.array([0, 1, N, 0])
WORDS = ["he often walks here", "we never talk there"] * 5


@functools.cache
def given() -> SimpleNamespace:
    """A text, its counts, and models of any tables."""
    g: Any = SimpleNamespace()
    g.key = jax.random.key(0)
    g.stream = stream_of(random_documents(6, 60, N, 7))
    g.counts = count(g.stream, radius=3, vocab_size=N)
    g.larger = count(g.stream, radius=1, vocab_size=N + 1)
    g.of_pads = count(PADS, radius=2, vocab_size=N)
    g.sparse = count_sparse(g.stream, radius=3, vocab_size=N)
    g.text = TrainingText(g.stream, N)
    g.X, g.Y = contexts(g.stream, 2)
    table = jax.device_put(np.zeros((N, N)))
    g.one, g.two = (token_model([table] * K, "cat", True) for K in (1, 2))
    g.tied, g.even = token_model([table] * 2, "sum", True), token_model([table] * 2, "cat", False)
    g.infinite = token_model([jax.device_put(np.full((N, N), -np.inf))] * 2, "cat", True)
    g.spread, g.unigram = sparse_language_model(g.sparse, features="cat"), unigram_model(g.counts)
    g.tokenizer = train_tokenizer(WORDS, kind="word")
    return g


@functools.cache
def given_more() -> SimpleNamespace:
    """A network that reads a window."""
    g = given()
    network = LSTM(vocab_size=N, width=4, layers=1, window=16)
    g.network = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 16), int)))
    return g


def swept(model, text=None, sweeps=1, **options: Any):
    return sweep_tables(model, text or given().text, sweeps=sweeps, **options)


FITS = {
    "explicit": lambda g, **options: explicit_language_model(g.counts, **options),
    "sparse": lambda g, **options: sparse_language_model(g.sparse, **options),
    "blocks": lambda g, **options: explicit_blocks(g.counts, **options),
}
NO_HISTORIES = ("window", "window:", "window:31", "window:x", "past", "")

NO_POSITION = "no position to predict"
HAS_N = f"the model has {N} tokens"
NOT_THIS_TOKEN = f"token id {N} and a model of {N}: use the model's own tokenizer"
OTHER_COUNTS = "pass the counts of this stream, or none"
OF_TWO = r"contexts of shape .* and a model of radius 2: pass \[.*, 2\]"
OF_THREE = "with counts of offsets 1..3"
A_PAST = "reads the last 16 tokens"


def each(values, call, message: str) -> list[tuple[Any, str]]:
    """A case for each value, which the message may show."""
    return [(lambda g, value=value: call(g, value), message.format(value)) for value in values]


def with_options(call, *cases: tuple[dict[str, Any], str]) -> list[tuple[Any, str]]:
    """A case for each set of options, with its message."""
    return [(lambda g, options=options: call(g, **options), message) for options, message in cases]


CASES: list[tuple[Any, str]] = [
    # a text and a model
    *each(("one", "two", "spread"), lambda g, n: evaluate(getattr(g, n), FOREIGN), f"token id {N} .* {N}"),
    *each(("unigram", "even", "spread"), lambda g, n: evaluate(getattr(g, n), PADS), NO_POSITION),
    (lambda g: evaluate(g.two, np.array([0, 1, -1, 0])), f"token id -1 .* {N}"),
    (lambda g: score(g.two, FOREIGN), NOT_THIS_TOKEN),
    (lambda g: score(g.two, np.array([1, 2, 3])), "encode_documents"),
    (lambda g: evaluate(g.one, stream_of(SMALL), counts=g.counts), OTHER_COUNTS),
    (lambda g: evaluate(g.one, g.stream, counts=g.larger), OTHER_COUNTS),
    (lambda g: log_probabilities(g.two, contexts(g.stream, 3)[0], g.Y), OF_TWO),
    (lambda g: log_probabilities(g.two, g.X[:-1], g.Y), OF_TWO),
    (lambda g: log_probabilities(g.two, g.X[:, 0], g.Y), OF_TWO),
    (lambda g: log_probabilities(g.two, g.X[:1], np.array([N])), NOT_THIS_TOKEN),
    (lambda g: log_probabilities(g.two, np.array([[1, -1]]), g.Y[:1]), f"token id -1 and a model of {N}"),
    (lambda g: log_probabilities(g.spread, g.X[:1], g.Y[:1]), r"contexts of shape \(1, 2\) for 1 targets and a .* radius 3"),
    (lambda g: next_token(g.spread, np.array([N])), f"token ids {N} .. {N}: {HAS_N}"),
    (lambda g: next_token(g.two, np.array([-1])), f"token ids -1 .. -1: {HAS_N}"),
    (lambda g: score_documents(g.two, g.tokenizer, ["we talk", "  "]), r"document 1, '  ', has no token"),
    *with_options(
        lambda g, prompt=(1,), length=5, **options: generate(g.key, g.two, prompt, length, **options),
        ({"length": 0}, "length 0: generate at least one token"),
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": 0}, "top-k 0"),
        ({"top_p": 0.0}, "top-p 0.0"),
        ({"top_p": 1.5}, "top-p 1.5"),
        ({"prompt": np.array([1, N])}, f"ids 1 .. {N}: {HAS_N}"),
        ({"prompt": np.array([-1, 2])}, f"ids -1 .. 2: {HAS_N}"),
        ({"prompt": [np.array([1]), np.array([2, N])]}, f"ids 2 .. {N}: {HAS_N}"),
        ({"prompt": []}, r"no prompts: give at least one, \[\[\]\] for the start of a document"),
        ({"banned": (1, N)}, f"banned.*{N}.*{HAS_N}"),
        ({"banned": (-1,)}, f"banned.*-1.*{HAS_N}"),
        ({"banned": tuple(range(N))}, "every token is banned"),
    ),
    # explicit solutions
    *each((0, -1, 4), lambda g, R: explicit_language_model(g.counts, features="cat", radius=R), f"radius {{}} {OF_THREE}"),
    *each((0, -1, 4), lambda g, R: sparse_language_model(g.sparse, features="cat", radius=R), f"radius {{}} {OF_THREE}"),
    *each(FITS.values(), lambda g, f: f(g, features="mean"), "features 'mean': choose sum .* or cat"),
    *each(([3], [2, -1], [0, 0, 0]), lambda g, f: noise_model(np.array(f)), "at least two tokens and non-negative counts"),
    *each(
        ("noise", "good-turing"), lambda g, n: smoothed_excess(csr_array(g.counts[0]), n), "smoothing '{}': choose kneser-ney "
    ),
    (lambda g: smoothed_offset_rows(g.sparse, smoothing="good-turing"), "smoothing 'good-turing': choose kneser-ney"),
    # rows of contexts and of the past
    (lambda g: smoothed_ngrams(g.X[:0], g.Y[:0], vocab_size=N), "0 positions with contexts of 2 tokens"),
    (lambda g: smoothed_ngrams(g.X[:, :0], g.Y, vocab_size=N), "contexts of 0 tokens"),
    (lambda g: fit([], history="past"), "choose none, document, window:W"),  # before text is read
    # exponents
    *each((0, 4, -1), lambda g, R: offset_rows(g.counts, features="cat", radius=R), OF_THREE),
    # sweeps
    (lambda g: swept(g.two, sweeps=-1), "-1 sweeps"),
    (lambda g: swept(g.two, TrainingText(g.stream, N + 1)), f"vocabulary {N + 1} and a model of {N}: use the model's own"),
    (lambda g: swept(g.even, TrainingText(PADS, N)), NO_POSITION),
    *each((-1.0, np.inf), lambda g, d: swept(g.two, noise=False, discount=d), "a discount of"),
    (lambda g: swept(g.two, discount=0.5), "a discount of"),
    *each((np.ones((1, N)), -np.ones((2, N))), lambda g, w: swept(g.tied, noise=False, weights=w), "use finite weights"),
    (lambda g: swept(g.two, noise=False, weights=np.ones((2, N))), "use finite weights"),
    (lambda g: swept(g.tied, weights=np.ones((2, N))), "noise=True"),
]
OF_VALUES: list[tuple[Any, str]] = [
    *each(
        (3, 5), lambda g, n: log_linear_model(offset_rows(g.counts, features="cat"), np.ones(n)), "give mu and one per table"
    ),
    (lambda g: swept(g.infinite, noise=False, discount=0.5), "infinite logits"),
]
# of networks, histories and the optimum
OTHER_CASES: list[tuple[Any, str]] = [
    (lambda g: explain(g.two, contexts(g.stream, 3)[0], g.Y), OF_TWO),
    (lambda g: explain(g.two, g.X[:-1], g.Y), OF_TWO),
    (lambda g: explain(g.two, g.X[:, 0], g.Y), OF_TWO),
    (lambda g: explain(g.two, g.X[:1], np.array([N])), NOT_THIS_TOKEN),
    (lambda g: explain(g.two, np.array([[1, -1]]), g.Y[:1]), f"token id -1 and a model of {N}"),
    (lambda g: log_probabilities(g.network, np.zeros((3, 1), int), g.Y[:3]), "a window of the text: say where the positions"),
    (lambda g: g.network.logits(jnp.zeros(1, int)), f"a model that {A_PAST}, and no history"),
    *each(
        NO_HISTORIES, lambda g, h: fit_model("context-mixing", g.text, Options(history=h)), "choose none, document, window:W"
    ),
    (lambda g: bigram_optimum(np.zeros((N, N), int)), NO_POSITION),
]


@pytest.mark.parametrize(
    "make, rows, of_values",
    [
        pytest.param(given, CASES, False, id="at once"),
        pytest.param(given, OF_VALUES, True, id="of values"),
        pytest.param(given_more, OTHER_CASES, True, id="others", marks=pytest.mark.slow),
    ],
)
def test_a_call_is_refused_with_what_to_do_instead(make, rows, of_values, monkeypatch):
    g = make()
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the type hook of the tests comes first
    refuse(((message, call) for call, message in rows), g, of_values=of_values)


def test_tables_of_another_stream_have_no_finite_loss():
    with pytest.raises(FloatingPointError, match="tables of the same stream"):
        swept(given().infinite)
