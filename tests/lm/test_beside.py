"""A model's prediction beside counted rows, against the two models and a fit by hand.

Tolerances: float32 log-probabilities of some dozen rows, right to 5e-5; losses are means of a few thousand.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import WORDS
from scipy.optimize import minimize

import jexplicit
from jexplicit.data.tokenizers import encode_documents, train_tokenizer
from jexplicit.lm.core.past import read_text
from jexplicit.lm.evaluation import evaluate, log_distributions, score
from jexplicit.lm.fits.fit import fit_model
from jexplicit.lm.fits.mixtures.beside import beside, with_given
from jexplicit.lm.generation import generate, next_token
from jexplicit.lm.model_files import read_model_file, save_model
from jexplicit.lm.rows.network import network_model
from jexplicit.lm.training_text import Options, TrainingText
from jexplicit.nn.networks import init_variables
from jexplicit.nn.transformer import Transformer

pytestmark = pytest.mark.slow

ATOL = 5e-5


def sentences(seed: int, number: int) -> list[str]:
    """Words that depend on the two before and on a word far back, which counted contexts do not see."""
    rng, out = np.random.default_rng(seed), []
    for _ in range(number):
        words = list(rng.choice(len(WORDS), 2))
        for _ in range(rng.integers(4, 12)):
            follows = (3 * words[-1] + words[-2]) % len(WORDS) if rng.random() < 0.6 else words[0]
            words.append(int(follows) if rng.random() < 0.8 else int(rng.integers(len(WORDS))))
        out.append(" ".join(WORDS[w] for w in words))
    return out


@functools.cache
def texts():
    tokenizer = train_tokenizer(sentences(0, 300), kind="word")
    return tokenizer.vocab_size, *(encode_documents(tokenizer, sentences(seed, n)) for seed, n in ((0, 300), (1, 200), (2, 60)))


@functools.cache
def counted(rows=("contexts-4", "confidence"), history="none"):
    N, train, _, _ = texts()
    options = Options(rows=rows, history=history, calibration_positions=300)
    return fit_model("mixture", TrainingText(train, N), options).model


@functools.cache
def network():
    N = texts()[0]
    net = Transformer(vocab_size=N, width=8, layers=1, heads=2, window=16)
    return network_model(net, init_variables(net, jax.random.key(0), jnp.zeros((1, 16), int)), eos=False)


def first_word(stream: np.ndarray) -> np.ndarray:
    """[M, N] log p of a model from elsewhere, which expects the document's first word."""
    N, text = texts()[0], read_text(stream, 1)
    begins = np.maximum.accumulate(np.where(stream == 0, np.arange(len(stream)), 0))[text.past.places - 1] + 1
    p = np.full((len(text.Y), N), 0.7 / N)
    p[np.arange(len(text.Y)), stream[np.minimum(begins, text.past.places - 1)]] += 0.3
    return np.log(p / p.sum(axis=1, keepdims=True))


def loss_of(log_p: np.ndarray, stream: np.ndarray) -> float:
    Y = read_text(stream, 1).Y
    return -log_p[np.arange(len(Y)), Y].mean()


def test_both_are_better_than_either_where_they_know_different_things():
    _, _, held, new = texts()
    mixed = beside(counted(), first_word(held), held)
    alone = evaluate(counted(), held).loss, loss_of(first_word(held), held)
    assert evaluate(mixed, held).loss < min(alone) - 0.02
    on_new = with_given(mixed, first_word(new), new)
    assert evaluate(on_new, new).loss < min(evaluate(counted(), new).loss, loss_of(first_word(new), new)) - 0.02
    text = read_text(new, on_new.radius)
    whole = log_distributions(on_new, text.X, past=text.past)
    np.testing.assert_allclose(np.logaddexp.reduce(whole.astype(float), axis=1), 0, atol=ATOL)


def test_two_models_of_one_row_each_are_a_convex_fit_by_hand():
    """A unigram beside given log-probabilities: two exponents, found by scipy."""
    N, train, held, _ = texts()
    unigram, log_p = fit_model("unigram", TrainingText(train, N)).model, first_word(held)
    text = read_text(held, 1)
    rows = np.stack([log_distributions(unigram, text.X, past=text.past), log_p]).astype(float)

    def loss(a):
        z = np.einsum("g,gmn->mn", a, rows)
        return (np.logaddexp.reduce(z, axis=1) - z[np.arange(len(text.Y)), text.Y]).mean()

    best = minimize(loss, np.ones(2), tol=1e-12)
    mixed = beside(unigram, log_p, held)
    assert evaluate(mixed, held).loss == pytest.approx(best.fun, abs=2e-5)  # a fit ends where a step gains less
    np.testing.assert_allclose(np.asarray(mixed.exponents)[[0, -1]], best.x, atol=0.02)


@pytest.mark.parametrize("kind", ["worse", "the same"])
def test_it_is_never_worse_than_the_model_alone(kind):
    N, _, held, _ = texts()
    text = read_text(held, counted().radius)
    other = np.random.default_rng(0).normal(size=(len(text.Y), N))
    other = other - np.logaddexp.reduce(other, axis=1, keepdims=True)
    if kind == "the same":
        other = log_distributions(counted(), text.X, past=text.past)
    assert evaluate(beside(counted(), other, held), held).loss <= evaluate(counted(), held).loss + 1e-5


@pytest.mark.parametrize(
    "rows, history",
    [(("contexts-4", "confidence", "selectors"), "none"), (("contexts-4",), "all"), (("contexts-4", "adaptive"), "adaptive")],
)
def test_every_mixture_takes_a_network_and_serves_as_before(rows, history, tmp_path):
    """Of a network that is not trained the prediction is worth nothing; but it is a part of all that the model does."""
    _, _, held, new = texts()
    model = counted(rows, history)
    mixed = beside(model, network(), held)
    assert evaluate(mixed, held).loss <= evaluate(model, held).loss + 1e-5
    log_p = score(mixed, new)
    save_model(tmp_path / "m.safetensors", mixed)
    np.testing.assert_allclose(score(read_model_file(tmp_path / "m.safetensors")[0], new), log_p, atol=ATOL)
    np.testing.assert_allclose(next_token(mixed, new[1:4])[new[4]], log_p[3], atol=ATOL)
    assert generate(jax.random.key(0), mixed, new[1:3], 5).shape == (5,)


def test_two_models_of_counts_become_one():
    N, train, held, _ = texts()
    half = np.flatnonzero(train == 0)[150]
    one, other = (fit_model("ngram", TrainingText(part, N)).model for part in (train[: half + 1], train[half:]))
    both = beside(one, other, held)
    assert evaluate(both, held).loss < min(evaluate(one, held).loss, evaluate(other, held).loss)
    assert len(both.exponents) == len(one.exponents) + 1


def test_an_adaptive_model_comes_first():
    _, _, held, _ = texts()
    adaptive, static = counted(("contexts-4", "adaptive"), "adaptive"), counted()
    with pytest.raises(ValueError, match="give it first"):
        beside(static, adaptive, held)
    assert np.isfinite(evaluate(beside(adaptive, static, held), held).loss)


def test_a_part_of_the_text_is_fitted_on():
    _, _, held, _ = texts()
    log_p, half = first_word(held), len(read_text(held, 1).Y) // 2
    ends = np.flatnonzero(held == 0)
    cut = ends[np.searchsorted(ends, read_text(held, 1).past.places[half])]
    whole = beside(counted(), log_p, held, part=slice(0, int(np.count_nonzero(held[:cut]))))
    short = beside(counted(), log_p[: int(np.count_nonzero(held[:cut]))], held[: cut + 1])
    np.testing.assert_allclose(whole.exponents, short.exponents, atol=1e-4)


def test_wrong_log_probabilities_are_refused():
    N, train, held, new = texts()
    log_p = first_word(held)
    with pytest.raises(ValueError, match=r"shape \(3, 4\) for .*: give \["):
        beside(counted(), np.zeros((3, 4)), held)
    with pytest.raises(ValueError, match="give log p in nats"):
        beside(counted(), log_p + 1, held)
    with pytest.raises(ValueError, match="both need the same tokenizer"):
        beside(counted(), fit_model("unigram", TrainingText(train, N + 1)).model, held)
    mixed = beside(counted(), log_p, held)
    with pytest.raises(ValueError, match="give those of this text"):
        score(mixed, new)
    assert np.isfinite(evaluate(with_given(mixed, first_word(new), new), new).loss)
    with pytest.raises(ValueError, match="no row of given log-probabilities"):
        with_given(counted(), log_p, held)
    assert jexplicit.beside is beside
    none = log_p.copy()
    none[:, 1] = -np.inf  # <unk> is never given
    none -= np.logaddexp.reduce(none, axis=1, keepdims=True)
    assert np.isfinite(evaluate(beside(counted(), none, held), held).loss)
