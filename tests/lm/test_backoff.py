"""Log-probabilities by look-ups alone, against the softmax of the same rows and a dictionary.

Tolerances: rows are float32 and add up to at most some 20 nats, so a sum of five errs by 1e-5; look-ups are exact.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from reference import Chain, random_documents, stream_of

from jexplicit.lm.evaluation import evaluate, log_probabilities, read_text, score
from jexplicit.lm.rows.backoff import ngram_model
from jexplicit.lm.rows.ngrams import smoothed_ngrams
from jexplicit.lm.tables.storage import Sparse, SparseRows, find_entry

N = 256  # ids up to the largest of uint8
ATOL = 1e-5
RNG = np.random.default_rng(0)


def text(seed, eos=True):
    """Of frequent ids at the end of the vocabulary."""
    documents = [[N - i for i in document] for document in random_documents(seed, 30, N, 25)]
    return read_text(stream_of(documents, np.uint8), 4, eos=eos)


@functools.cache
def model_of(eos=True):
    X, Y, _ = text(1, eos)
    chain = smoothed_ngrams(X, Y, offsets=(1, 2, 3, 4), vocab_size=N)
    return ngram_model(chain, eos=eos)


def by_softmax(model, X):
    return jax.jit(jax.vmap(lambda x: jax.nn.log_softmax(model.logits(x))))(jax.device_put(np.asarray(X, np.int32)))


@pytest.mark.parametrize("dtype", [np.uint8, *(pytest.param(d, marks=pytest.mark.slow) for d in (np.uint16, np.int32))])
def test_an_entry_is_found_where_a_dictionary_has_it(dtype):
    sizes = [0, 1, 7, 200, 0, 3, N]
    ids = [np.sort(RNG.choice(N, n, replace=False)) for n in sizes]
    rows = SparseRows(
        np.cumsum([0, *sizes]).astype(np.int32),
        np.concatenate(ids).astype(dtype),
        RNG.normal(size=sum(sizes)).astype(np.float32),
    )
    known = {(r, int(i)): e for e, (r, i) in enumerate((r, i) for r, row in enumerate(ids) for i in row)}
    r, i = (grid.ravel().astype(np.int32) for grid in np.meshgrid(np.arange(-1, len(sizes)), np.arange(N), indexing="ij"))
    expected = np.array([known.get(pair, -1) for pair in zip(r.tolist(), i.tolist(), strict=True)])
    for most in (N, 100_000):
        find = jax.jit(jax.vmap(functools.partial(find_entry, rows.start, rows.outputs, most=most)))
        found = find(jax.device_put(r), jax.device_put(i))
        np.testing.assert_array_equal(found, expected)
    values = jax.jit(jax.vmap(Sparse(rows, N, N).entry))(jax.device_put(r), jax.device_put(i))
    np.testing.assert_array_equal(values, np.where(expected >= 0, rows.values[expected], 0))


@pytest.mark.parametrize("eos", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_look_ups_are_the_softmax_of_the_rows(eos):
    model, (X, Y, past) = model_of(eos), text(2, eos)
    log_p = by_softmax(model, X)
    expected = np.take_along_axis(np.asarray(log_p), Y[:, None].astype(int), axis=1)[:, 0]
    np.testing.assert_allclose(log_probabilities(model, X, Y), expected, rtol=0, atol=ATOL)
    np.testing.assert_allclose(score(model, past.stream), expected, rtol=0, atol=ATOL)
    assert evaluate(model, past.stream).loss == pytest.approx(-expected.mean(), abs=ATOL)
    some = np.random.default_rng(3).choice(len(Y), 20, replace=False)
    assert evaluate(model, past.stream, sample=20, seed=3).loss == pytest.approx(-expected[some].mean(), abs=ATOL)
    assert len(np.unique(expected)) > 20 and Y.max() == N - 1


def test_without_back_off_weights_the_softmax_normalises_the_same_rows():
    X, Y, past = text(2)
    plain = dataclasses.replace(model_of(), rows=dataclasses.replace(model_of().rows, log_gamma=()))
    assert model_of().rows.normalised and not plain.rows.normalised
    np.testing.assert_allclose(log_probabilities(plain, X, Y), log_probabilities(model_of(), X, Y), rtol=0, atol=ATOL)
    assert evaluate(plain, past.stream).loss == pytest.approx(evaluate(model_of(), past.stream).loss, abs=ATOL)


@pytest.mark.parametrize("eos", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_probabilities_are_kneser_ney_of_order_5(eos):
    (X, Y, _), (new, _, _) = text(1, eos), text(2, eos)
    slow, some = Chain(X, Y, (1, 2, 3, 4), N), new[::40]
    log_p = np.asarray(by_softmax(model_of(eos), some))
    expected = [[slow.P(tuple(int(token) for token in x), i) for i in range(N)] for x in some]
    np.testing.assert_allclose(np.exp(log_p), expected, rtol=2e-5, atol=0)  # logits are right to 1e-5
