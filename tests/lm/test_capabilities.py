"""Every kind of language model through every function: the capability table, cell by cell.

The table that the documentation shows is generated from CLAIMS; `python tests/lm/test_capabilities.py` writes it.
"""

import contextlib
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import log_softmax
from tables import each_row

from jexplicit.counts import count_sparse
from jexplicit.data.streams import contexts
from jexplicit.data.tokenizers import PAD, encode_documents, train_tokenizer
from jexplicit.lm.attribution import explain
from jexplicit.lm.counted.model import CountedModel
from jexplicit.lm.evaluation import evaluate, init, log_distributions, read, score
from jexplicit.lm.fit import METHODS, fit_model
from jexplicit.lm.generation import generate, next_token
from jexplicit.lm.model import histories, network_model, read_text
from jexplicit.lm.text_model import TextModel, load_model, save_run_model
from jexplicit.lm.training_text import Options, TrainingText, Watch
from jexplicit.nn.networks import MLPLanguageModel, init_variables
from jexplicit.nn.sequences import Transformer
from jexplicit.runs.files import write_json

# what is a model fitted with: method, options
KINDS = {
    "unigram": ("unigram", {}),
    "bigram": ("bigram", {}),
    "ngram": ("ngram", {}),
    "explicit, Sum": ("explicit", {"features": "sum", "context": 2}),
    "explicit, Cat": ("explicit", {"features": "cat", "context": 2}),
    "delta": ("delta", {"context": 2}),
    "log-linear": ("log-linear", {"context": 2}),
    "iterative-scaling": ("iterative-scaling", {"context": 2, "sweeps": 2}),
    "cold": ("cold", {"context": 2}),
    "warm": ("warm", {"context": 2}),
    "optimum": ("optimum", {"context": 1}),
    "context mixing": ("context-mixing", {}),
    "context mixing, history all": ("context-mixing", {"history": "all"}),
    "context mixing, history online": ("context-mixing", {"history": "online"}),
    "explicit, sparse tables": ("explicit", {"context": 2}),
    "network (flax)": ("network", {}),
    "transformer": ("transformer", {}),
}
NETWORKS = ("network (flax)", "transformer")
LASTING = ("unigram", "ngram", "explicit, Cat", "log-linear", "explicit, sparse tables", "transformer")  # others repeat these
CAPABILITIES = ("evaluate", "score", "next_token", "generate", "explain", "save, load", "export, import", "jit, vmap")
REFUSED = {(kind, "explain"): "network" for kind in NETWORKS}
CLAIMS = {(kind, what): "raises" if (kind, what) in REFUSED else "yes" for kind in KINDS for what in CAPABILITIES}
CLAIMS |= {(kind, "jit, vmap"): "no" for kind in KINDS if kind.startswith("context mixing")}  # it is read on the host
PAGE = Path(__file__).parents[2] / "docs" / "capabilities.md"

# float32 sums of a few dozen logits of order 10, in another order: about 1e-6 each
CLOSE: Any = {"rtol": 2e-5, "atol": 2e-5}


def sentences(seed: int, number: int) -> list[str]:
    rng, words = np.random.default_rng(seed), "the a one cat dog bird sat ran sang on under by mat tree house".split()
    return [" ".join(rng.choice(words, rng.integers(5, 11))) for _ in range(number)]


@functools.cache
def text():
    tokenizer = train_tokenizer(sentences(0, 200), kind="word")
    return tokenizer, encode_documents(tokenizer, sentences(0, 200)), encode_documents(tokenizer, sentences(1, 12))


@functools.cache
def fitted(kind: str) -> Any:
    tokenizer, train, dev = text()
    N, (method, options) = tokenizer.vocab_size, KINDS[kind]
    if method == "network":
        network = MLPLanguageModel(vocab_size=N, embedding=3, hidden=(5,), direct="embedding")
        return network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
    if method == "transformer":
        sizes: Any = {"vocab_size": N, "width": 8, "layers": 2, "window": 32}
        network = Transformer(heads=2, **sizes)
        return network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 32), int)))
    sparse = count_sparse(train, context=2, vocab_size=N) if kind == "explicit, sparse tables" else ()
    data = TrainingText(train, N, eos=True, sparse_counts=sparse)
    short = Options(epochs=2, batch_size=256, learning_rate=0.1, calibration_positions=300)
    return fit_model(method, data, Options(**{**vars(short), **options}), Watch(dev=dev)).model


one_position = jax.jit(lambda model, x, history: model.logits(x, history if model.history else None))


def slow_scores(model: Any, stream: np.ndarray) -> np.ndarray:
    """log p of every prediction, one pure call of `logits` after the other, or one token read after the other."""
    if isinstance(model, CountedModel):
        state, found = init(model), []
        for token in stream[1:]:
            log_p, state = read(model, state, np.array([token]))
            found.append(log_p[0])
        return np.array(found)
    X, Y = contexts(stream, model.context, eos=model.eos)
    past = histories(read_text(stream, 1, eos=model.eos).past, max(model.history, 1))
    log_p = [log_softmax(np.asarray(one_position(model, x, h), np.float64)) for x, h in zip(X, past, strict=True)]
    return np.array([row[y] for row, y in zip(log_p, Y, strict=True)])


def dev(documents: int = 12) -> np.ndarray:
    _, _, stream = text()
    ends = np.flatnonzero(stream == PAD)
    return stream[: ends[documents] + 1]


def check_score(kind, tmp_path):
    np.testing.assert_allclose(score(fitted(kind), dev(3)), slow_scores(fitted(kind), dev(3)), **CLOSE)


def check_evaluate(kind, tmp_path):
    model, log_p = fitted(kind), score(fitted(kind), dev())
    found = evaluate(model, dev())
    np.testing.assert_allclose([found.positions, found.loss], [len(log_p), -log_p.mean()], **CLOSE)
    assert model.context == 1 or evaluate(model, dev(), sample=20).positions == 20


def check_next_token(kind, tmp_path):
    model, stream = fitted(kind), dev(1)
    log_p = next_token(model, stream[1:4])
    np.testing.assert_allclose(np.exp(log_p).sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(log_p[stream[4]], score(model, stream)[3], **CLOSE)


def check_generate(kind, tmp_path):
    prompts = [dev(1)[1:3], np.zeros(0, int)]
    drawn = generate(jax.random.key(0), fitted(kind), prompts, 6, temperature=0)
    assert drawn.shape == (2, 6)
    for prompt, ids in zip(prompts, drawn, strict=True):
        for n in range(np.argmax(np.append(ids, PAD) == PAD)):  # greedy: every token is the likeliest one, up to rounding
            log_p = next_token(fitted(kind), np.concatenate([prompt, ids[:n]]).astype(int))
            assert log_p[ids[n]] >= log_p.max() - 1e-4


def check_explain(kind, tmp_path):
    model, read, m = fitted(kind), read_text(dev(3), fitted(kind).context, eos=True), slice(16)  # read at once
    X, past = read.X[m], read.past.take(m)
    why, log_P = explain(model, X, read.Y[m], past=past), log_distributions(model, X, past=past)
    np.testing.assert_allclose(why.log_probability, score(model, dev(3))[m], **CLOSE)
    likeliest = np.argsort(-log_P, axis=1)[:, :3]
    several = explain(model, X, likeliest, past=past)
    np.testing.assert_allclose(several.log_probability, np.take_along_axis(log_P, likeliest, axis=1), **CLOSE)
    if isinstance(model, CountedModel):
        np.testing.assert_allclose(several.evidence.sum(axis=2), several.log_probability, rtol=0, atol=1e-4)
    else:
        log_Z = (why.logits.sum(axis=1) - why.log_probability)[:, None]
        np.testing.assert_allclose(several.logits.sum(axis=2) - log_Z, several.log_probability, **CLOSE)
    by = why.by_token(model.context)
    for own, by_token in ((why.logits, by.logits), (why.evidence, by.evidence)):
        np.testing.assert_allclose(by_token.sum(axis=1), own.sum(axis=1), **CLOSE)


def check_save(kind, tmp_path):
    row = {"method": "some", "features": "cat", "context": fitted(kind).context, "history": "none", "dev_perplexity": 2.0}
    text()[0].save(tmp_path / "tokenizer.model")
    save_run_model(tmp_path, row, fitted(kind))
    write_json(tmp_path / "config.json", {"eos": True})
    write_json(tmp_path / "results.json", {"rows": [row]})
    np.testing.assert_allclose(score(load_model(tmp_path).model, dev(4)), score(fitted(kind), dev(4)), **CLOSE)


def check_export(kind, tmp_path):
    saved = TextModel(fitted(kind), text()[0], {"method": kind, "context": fitted(kind).context})
    saved.save(tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors")
    assert again.about == saved.about and again.tokenizer == saved.tokenizer
    np.testing.assert_allclose(score(again.model, dev(4)), score(saved.model, dev(4)), **CLOSE)


def check_jit(kind, tmp_path):
    model, stream = fitted(kind), dev(2)
    X, _ = contexts(stream, model.context, eos=True)
    past = histories(read_text(stream, 1, eos=True).past, max(model.history, 1))
    batch: Any = jax.jit(jax.vmap(one_position, in_axes=(None, 0, 0)))
    logits = np.asarray(batch(model, X, past))
    for m in (0, len(X) - 1):
        np.testing.assert_allclose(log_softmax(logits[m]), log_softmax(np.asarray(one_position(model, X[m], past[m]))), **CLOSE)


_checks = (check_evaluate, check_score, check_next_token, check_generate, check_explain, check_save, check_export, check_jit)
CHECKS = dict(zip(CAPABILITIES, _checks, strict=True))


@pytest.mark.parametrize(
    "kind, asked",
    [
        *((kind, [what for what in CAPABILITIES if what != "explain"]) for kind in LASTING),
        *(pytest.param(kind, ["explain"] if kind in LASTING else CAPABILITIES, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_every_cell_is_as_claimed(kind, asked, tmp_path):
    def check(what: Any) -> None:
        raises = CLAIMS[kind, what] == "raises"
        with pytest.raises(ValueError, match=REFUSED[kind, what]) if raises else contextlib.nullcontext():
            CHECKS[what](kind, tmp_path)

    each_row(check, ((what,) for what in asked if CLAIMS[kind, what] != "no"))


def page() -> str:
    """The capability table as the documentation shows it."""
    lines = [
        "# What models and functions can do",
        "",
        "Each cell is a test of `tests/lm/test_capabilities.py`, which writes this table; *raises* is a clear `ValueError`.",
        "",
        f"| model | {' | '.join(CAPABILITIES)} |",
        "|---" * (1 + len(CAPABILITIES)) + "|",
        *(f"| {kind} | {' | '.join(CLAIMS[kind, what] for what in CAPABILITIES)} |" for kind in KINDS),
    ]
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table():
    assert PAGE.read_text().startswith(page())
    assert {method for method, _ in KINDS.values()} == {*METHODS, "network", "transformer"}


if __name__ == "__main__":
    PAGE.write_text(page() + "".join(PAGE.read_text().partition("\n## How functions")[1:]))
