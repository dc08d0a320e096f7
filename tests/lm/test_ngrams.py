"""Contexts of several tokens: their rows against Kneser-Ney from dictionaries, and how a context is found.

Tolerances: rows are float32, and so are the discounts; a row is a logarithm of at most 10, right to 1e-6, and five add up.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from reference import Chain, random_documents, stream_of, windows

from jexplicit.lm import rows
from jexplicit.lm.core.model import LanguageModel, Sparse, SparseRows, find_entry
from jexplicit.lm.evaluation import evaluate, log_probabilities, read_text, score
from jexplicit.lm.rows import BackOffChain, context_numbers, smoothed_ngrams

N = 9
ROW, SUM = 1e-6, 5e-6  # of a row; of a sum of them

DOCUMENTS = random_documents(seed=3, number=60, vocab_size=N - 1, longest=12)
X, Y = windows(DOCUMENTS, 4)
OTHERS, _ = windows(random_documents(seed=4, number=5, vocab_size=N, longest=12), 4)  # most long contexts are new, and a token
SLOW = pytest.mark.slow
EVERY_LEVEL = pytest.mark.parametrize("order", [4, pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW)])


def ngrams_of(order=4, **more):
    return smoothed_ngrams(X[:, :order], Y, vocab_size=N, **more)


numbers_in_jax = jax.jit(jax.vmap(context_numbers, in_axes=(None, 0)))


def numbers_of(ngrams: BackOffChain, contexts: np.ndarray) -> np.ndarray:
    """[M, levels] numbers of many contexts."""
    return np.asarray(numbers_in_jax(ngrams.children, jax.device_put(contexts)))


def rows_of(ngrams: BackOffChain, contexts: np.ndarray) -> np.ndarray:
    """[M, levels, N] the rows of many contexts."""
    tables = [Sparse(rows, ngrams.vocab_size, rows.longest) for rows in ngrams.levels]
    of_levels = zip(tables, numbers_of(ngrams, contexts).T, strict=True)
    return np.stack([jax.jit(jax.vmap(table.row))(jax.device_put(numbers)) for table, numbers in of_levels], axis=1)


def context_of(x, order):
    return tuple(map(int, x[:order]))


def assert_same_ngrams(one: BackOffChain, other: BackOffChain):
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# The chain


@EVERY_LEVEL
def test_contexts_are_numbered_each_its_own_and_new_ones_are_not(order):
    ngrams, counts = ngrams_of(order), Chain(X, Y, tuple(range(1, order + 1)), N).counts
    contexts = np.concatenate([X, OTHERS])
    numbers = numbers_of(ngrams, contexts)
    assert numbers.shape == (len(contexts), order)
    for level in range(order):
        known = {context for context, _ in counts[level + 1]}
        named = {}
        for x, number in zip(contexts, numbers[:, level], strict=True):
            context = context_of(x, level + 1)
            if level == 0:
                assert number == context[0]  # of one token: its id, seen or not
            elif context in known:
                assert 0 <= number < len(known) and named.setdefault(int(number), context) == context
            else:
                assert number == -1
        assert level == 0 or len(named) == len(ngrams.children[level - 1].tokens) == len(known)


def test_shorter_contexts_have_continuation_counts_and_the_longest_plain_ones():
    # after token 1 came 2 four times, always behind 4; and 3 twice, behind 4 and 5
    X = np.array([[1, 4], [1, 4], [1, 4], [1, 4], [1, 4], [1, 5]])
    Y = np.array([2, 2, 2, 2, 3, 3])
    pair, single = smoothed_ngrams(X, Y, vocab_size=6), smoothed_ngrams(X[:, :1], Y, vocab_size=6)
    np.testing.assert_allclose(
        np.exp([pair.base, single.base]), 1 / 6, rtol=1e-6
    )  # all in one context, or in none and counted so
    # plain counts 4 and 2: D = 3/2 and 1 without a count of 1, and 1 + (4 - 3/2) / (5/2 * 1/6)
    np.testing.assert_allclose(np.exp(single.levels[0].values), [7, 3.4], rtol=1e-6)
    # continuations 1 and 2: D = 1 / (1 + 2), and 1 + (1 - 1/3) / (2/3 * 1/6)
    np.testing.assert_allclose(np.exp(pair.levels[0].values), [7, 16], rtol=1e-6)


@EVERY_LEVEL
def test_the_order_of_positions_changes_nothing(order):
    m = np.random.default_rng(0).permutation(len(Y))
    assert_same_ngrams(smoothed_ngrams(X[m, :order], Y[m], vocab_size=N), ngrams_of(order))


def test_narrow_integers_do_not_overflow():
    narrow = smoothed_ngrams(X.astype(np.uint8), Y.astype(np.uint8), vocab_size=N)
    wide = ngrams_of()
    assert len(wide.children[-1].tokens) * N > 255  # keys do not fit in a byte
    assert_same_ngrams(narrow, wide)
    np.testing.assert_array_equal(numbers_of(narrow, OTHERS.astype(np.uint8)), numbers_of(wide, OTHERS))


@EVERY_LEVEL
def test_rows_are_those_of_the_slow_chain_and_add_up_to_kneser_ney_probabilities(order):
    ngrams, slow = ngrams_of(order), Chain(X, Y, tuple(range(1, order + 1)), N)
    contexts, unseen = np.concatenate([X[:30], OTHERS]), 0
    rows = rows_of(ngrams, contexts)
    assert rows.dtype == np.float32
    for x, of_levels in zip(contexts, rows, strict=True):
        shorter = [context_of(x, level + 1) for level in range(order)]
        np.testing.assert_allclose(of_levels, list(map(slow.row, shorter)), rtol=0, atol=ROW)
        log_P = np.asarray(ngrams.base, float) + of_levels.sum(axis=0) + np.log([slow.gamma(h) for h in shorter]).sum()
        np.testing.assert_allclose(log_P, np.log([slow.P(shorter[-1], i) for i in range(N)]), rtol=0, atol=SUM)
        unseen += not of_levels[-1].any()
    assert 0 < unseen < len(contexts)


@pytest.mark.parametrize("dtype, size", [(np.uint8, 256), pytest.param(np.uint16, 65_536, marks=SLOW)])
def test_the_largest_id_of_a_small_type_is_found(dtype, size):
    last = size - 1
    x = np.array([[last, last], [last, 1], [1, last], [1, 1], [last, last]], dtype)
    ngrams = smoothed_ngrams(x, np.array([last, 1, last, 2, last], dtype), vocab_size=size)
    assert numbers_of(ngrams, x).tolist() == [[last, 3], [last, 2], [1, 1], [1, 0], [last, 3]]
    assert numbers_of(ngrams, np.array([[last, 2], [2, last]], dtype)).tolist() == [[last, -1], [2, -1]]
    assert np.flatnonzero(rows_of(ngrams, x[:1])[0, -1]).tolist() == [last]


@EVERY_LEVEL
def test_blocks_of_a_few_pairs_are_smoothed_as_all_of_them(order, monkeypatch):
    whole = ngrams_of(order)
    monkeypatch.setattr(rows, "_pairs_per_block", 7)
    assert_same_ngrams(ngrams_of(order), whole)


# Log-probabilities by look-ups alone, against the softmax of the same rows and a dictionary

IDS = 256  # up to the largest of uint8
ATOL = 1e-5  # five float32 rows that add up to at most some 20 nats


def text_of(seed, eos=True):
    """Of frequent ids at the end of the vocabulary."""
    documents = [[IDS - i for i in document] for document in random_documents(seed, 30, IDS, 25)]
    return read_text(stream_of(documents, np.uint8), 4, eos=eos)


@functools.cache
def model_of(eos=True):
    X, Y, _ = text_of(1, eos)
    return LanguageModel(smoothed_ngrams(X, Y, vocab_size=IDS), "none", eos)


def by_softmax(model, X):
    return jax.jit(jax.vmap(lambda x: jax.nn.log_softmax(model.logits(x))))(jax.device_put(np.asarray(X, np.int32)))


@pytest.mark.parametrize("dtype", [np.uint8, *(pytest.param(d, marks=SLOW) for d in (np.uint16, np.int32))])
def test_an_entry_is_found_where_a_dictionary_has_it(dtype):
    rng, sizes = np.random.default_rng(0), [0, 1, 7, 200, 0, 3, IDS]
    ids = [np.sort(rng.choice(IDS, n, replace=False)) for n in sizes]
    rows = SparseRows(
        np.cumsum([0, *sizes]).astype(np.int32),
        np.concatenate(ids).astype(dtype),
        rng.normal(size=sum(sizes)).astype(np.float32),
    )
    known = {(r, int(i)): e for e, (r, i) in enumerate((r, i) for r, row in enumerate(ids) for i in row)}
    r, i = (grid.ravel().astype(np.int32) for grid in np.meshgrid(np.arange(-1, len(sizes)), np.arange(IDS), indexing="ij"))
    expected = np.array([known.get(pair, -1) for pair in zip(r.tolist(), i.tolist(), strict=True)])
    for most in (IDS, 100_000):
        find = jax.jit(jax.vmap(functools.partial(find_entry, rows.start, rows.outputs, most=most)))
        found = find(jax.device_put(r), jax.device_put(i))
        np.testing.assert_array_equal(found, expected)
    values = jax.jit(jax.vmap(Sparse(rows, IDS, IDS).entry))(jax.device_put(r), jax.device_put(i))
    np.testing.assert_array_equal(values, np.where(expected >= 0, rows.values[expected], 0))


@pytest.mark.parametrize("eos", [True, pytest.param(False, marks=SLOW)])
def test_look_ups_are_the_softmax_of_the_rows(eos):
    model, (X, Y, past) = model_of(eos), text_of(2, eos)
    log_p = by_softmax(model, X)
    expected = np.take_along_axis(np.asarray(log_p), Y[:, None].astype(int), axis=1)[:, 0]
    np.testing.assert_allclose(log_probabilities(model, X, Y), expected, rtol=0, atol=ATOL)
    np.testing.assert_allclose(score(model, past.stream), expected, rtol=0, atol=ATOL)
    assert evaluate(model, past.stream).loss == pytest.approx(-expected.mean(), abs=ATOL)
    some = np.random.default_rng(3).choice(len(Y), 20, replace=False)
    assert evaluate(model, past.stream, sample=20, seed=3).loss == pytest.approx(-expected[some].mean(), abs=ATOL)
    assert len(np.unique(expected)) > 20 and Y.max() == IDS - 1


def test_without_back_off_weights_the_softmax_normalises_the_same_rows():
    X, Y, past = text_of(2)
    plain = dataclasses.replace(model_of(), rows=dataclasses.replace(model_of().rows, log_gamma=()))
    assert model_of().rows.normalised and not plain.rows.normalised
    np.testing.assert_allclose(log_probabilities(plain, X, Y), log_probabilities(model_of(), X, Y), rtol=0, atol=ATOL)
    assert evaluate(plain, past.stream).loss == pytest.approx(evaluate(model_of(), past.stream).loss, abs=ATOL)


@pytest.mark.parametrize("eos", [True, pytest.param(False, marks=SLOW)])
def test_probabilities_are_kneser_ney_of_order_5(eos):
    (X, Y, _), (new, _, _) = text_of(1, eos), text_of(2, eos)
    slow, some = Chain(X, Y, (1, 2, 3, 4), IDS), new[::40]
    log_p = np.asarray(by_softmax(model_of(eos), some))
    expected = [[slow.P(tuple(int(token) for token in x), i) for i in range(IDS)] for x in some]
    np.testing.assert_allclose(np.exp(log_p), expected, rtol=2e-5, atol=0)  # logits are right to 1e-5
