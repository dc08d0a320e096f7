"""Selectors: the exponent of a row as a sum of its own and one for each class of the context.

Tolerances: sums of float32 numbers below 10 are right to 2e-5. Slopes are means of float32 sums, against central differences of
the same loss with steps of 1e-2: 1e-3.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.data.tokenizers import train_tokenizer
from jexplicit.lm.core.model import LanguageModel, exponents_per_row, unit_exponents
from jexplicit.lm.evaluation import log_probabilities, read_text
from jexplicit.lm.fits.estimator import fit
from jexplicit.lm.fits.mixtures.mixture_rows import mixture_rows
from jexplicit.lm.fits.mixtures.ngram_mixture import fit_rows, held_out_rows
from jexplicit.lm.rows.selectors import LongestContext, PlaceInWord, selectors_of
from jexplicit.lm.rows.words import letters_of
from jexplicit.lm.tables.moments import moments_of
from jexplicit.lm.training_text import TrainingText

pytestmark = pytest.mark.slow

WORDS = ["to be", "or not", "that is\nthe", "question", "whether 'tis", "nobler in", "the mind", "to suffer"]
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 12)) for _ in range(30)]
ROWS = ("contexts-8", "skips", "words", "confidence")


@functools.cache
def tokenizer():
    return train_tokenizer(TEXTS, kind="char")


def stream_of(texts):
    return np.array([0, *(i for text in texts for i in (*tokenizer().encode(text), 0))])


@functools.cache
def parts():
    """Rows of most texts, their selectors, and the rest of the texts."""
    letters = letters_of(tokenizer())
    text = TrainingText(stream_of(TEXTS[:24]), tokenizer().vocab_size, letters=letters, tokenizer=tokenizer())
    rows = mixture_rows(text, ROWS)
    return rows, selectors_of(rows, letters, tokenizer()), read_text(stream_of([*TEXTS[24:], "tender ruins, sand"]), 48)


@functools.cache
def read():
    rows, selectors, held = parts()
    return held_out_rows(rows, held, np.arange(len(held.Y)), selectors).with_selectors()


@functools.cache
def fitted():
    rows, selectors, _ = parts()
    return LanguageModel(rows, fit_rows(read()).exponents.astype(np.float32), selectors=selectors)


def place_by_hand(text: str) -> int:
    letters = 0
    while letters < len(text) and (text[-1 - letters].isalpha() or text[-1 - letters] == "'"):
        letters += 1
    if letters:
        return 3 + sum(letters >= n for n in (2, 3, 4, 6))
    if not text or text[-1] == "\n":
        return 0
    return 1 if len(text) > 1 and (text[-2].isalpha() or text[-2] == "'") else 2


def test_the_place_in_a_word_is_that_of_a_loop_over_characters():
    selector = parts()[1][1]
    assert isinstance(selector, PlaceInWord) and selector.size == 8
    for text in ("", "t", "to", "not", "that", "whethe", "question", "to ", "that is\n", "so, ", "that\n ", "'t"):
        context = np.array([*tokenizer().encode(text)[::-1], *[0] * 48][:48])
        assert int(selector(parts()[0], jnp.asarray(context))) == place_by_hand(text), repr(text)


def test_the_longest_context_is_the_longest_one_that_the_counted_text_has():
    rows, (selector, _), held = parts()
    assert isinstance(selector, LongestContext) and selector.size == 8  # of 2 to 8 tokens, or none
    counted = read_text(stream_of(TEXTS[:24]), 8).X
    seen = {n: {tuple(x[:n]) for x in counted} for n in range(2, 9)}
    some = np.concatenate([held.X[::7], held.X[-18:]])
    known = [sum(tuple(x[:n]) in seen[n] for n in range(2, 9)) for x in some.tolist()]
    assert jax.vmap(lambda x: selector(rows, x))(some.astype(np.int32)).tolist() == known and len(set(known)) > 2


def test_the_weight_of_a_row_is_its_own_exponent_and_those_of_the_classes():
    rows, selectors, held = parts()
    model = fitted()
    x = jnp.asarray(held.X[5], jnp.int32)
    a, G, own = np.asarray(model.exponents), len(model.names), len(unit_exponents(rows))
    assert len(a) == own + G * sum(selector.size for selector in selectors) == len(read().names)
    begin, wanted = 0, []
    buckets = np.concatenate([np.asarray(kind.buckets(x)) for kind in rows])
    per_row = [n for kind in rows for n in exponents_per_row(kind)]
    classes = [int(selector(rows, x)) for selector in selectors]
    for g in range(G):
        weight, first = a[begin + buckets[g]], own
        for selector, of_context in zip(selectors, classes, strict=True):
            weight += a[first + g * selector.size + of_context]
            first += G * selector.size
        wanted.append(weight)
        begin += per_row[g]
    np.testing.assert_allclose(model.weights(x), wanted, atol=1e-6)


def test_added_exponents_of_0_give_the_model_without_selectors():
    rows, selectors, held = parts()
    own = np.full(len(unit_exponents(rows)), 0.3, np.float32)
    whole = np.concatenate([own, np.zeros(len(read().names) - len(own), np.float32)])
    plain, same = LanguageModel(rows, own), LanguageModel(rows, whole, selectors=selectors)
    one, other = (log_probabilities(model, held.X[:50], held.Y[:50]) for model in (plain, same))
    np.testing.assert_allclose(one, other, atol=2e-5)


def test_positions_read_in_blocks_have_the_loss_of_the_pure_function():
    held, model = parts()[2], fitted()
    pure = jax.jit(jax.vmap(lambda x, y: jax.nn.log_softmax(model.logits(x))[y]))
    m = slice(0, 60)
    wanted = pure(jnp.asarray(held.X[m], jnp.int32), jnp.asarray(held.Y[m], jnp.int32))
    np.testing.assert_allclose(log_probabilities(model, held.X[m], held.Y[m]), wanted, atol=2e-5)


def test_gradient_and_hessian_are_those_of_finite_differences():
    some = read().take(slice(0, 80))
    S = len(some.names)
    moments = moments_of(some.tables, some.positions, some.Y, S)
    a = np.random.default_rng(1).uniform(0, 0.4, S)
    here = moments(a)
    drawn = np.random.default_rng(2).choice(S, 12, replace=False)
    drawn = np.concatenate([drawn, np.argsort(-np.abs(here.gradient))[:12]])  # those that matter most among them
    for s in drawn:
        step = np.eye(S)[s] * 1e-2
        more, less = moments(a + step), moments(a - step)
        np.testing.assert_allclose(here.gradient[s], (more.loss - less.loss) / 2e-2, atol=1e-3)
        np.testing.assert_allclose(here.hessian[s], (more.gradient - less.gradient) / 2e-2, atol=1e-3)
    np.testing.assert_allclose(here.hessian, here.hessian.T, atol=1e-6)


def test_selectors_lower_the_held_out_loss_and_can_be_left_out():
    with_them, without = read(), read().of_kinds([kind for kind in read().kinds if kind != "selectors"])
    assert read().kinds[-1] == "selectors" and without.positions.exponents.ndim == 2
    plain = held_out_rows(parts()[0], parts()[2], np.arange(len(parts()[2].Y)))
    assert fit_rows(with_them, ridge=1e-4).loss < fit_rows(plain, ridge=1e-4).loss


def test_a_fitted_model_with_selectors_is_saved_and_writes(tmp_path):
    import jexplicit

    model = fit(TEXTS, rows=(*ROWS, "selectors"), tokenizer="char", history="window:64")
    assert len(model.model.selectors) == 2
    model.save(tmp_path / "m.safetensors")
    again = jexplicit.load_model(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.score(TEXTS[:2])[0], model.score(TEXTS[:2])[0])
    assert model.generate("to ", 8, seed=0) == again.generate("to ", 8, seed=0)
    assert model.explain("to be").logits.shape[1] == len(model.model.names)


def test_selectors_alone_are_no_rows():
    with pytest.raises(ValueError, match="no rows"):
        fit(TEXTS, rows=("selectors",))
