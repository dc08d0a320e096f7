"""Contexts of several tokens: their rows against Kneser-Ney from dictionaries, and how a context is found.

Tolerances: rows are float32, and so are the discounts; a row is a logarithm of at most 10, right to 1e-6, and five add up.
"""

import functools

import jax
import numpy as np
import pytest
from reference import Chain, random_documents, stream_of, windows

from jexplicit.lm import rows
from jexplicit.lm.core.model import LanguageModel, read_text
from jexplicit.lm.evaluation import evaluate, log_probabilities, score
from jexplicit.lm.rows import BackOffChain, context_numbers, smoothed_ngrams

N = 9
X, Y = windows(random_documents(seed=3, number=60, vocab_size=N - 1, longest=12), 4)
OTHERS, _ = windows(random_documents(seed=4, number=5, vocab_size=N, longest=12), 4)  # most long contexts are new, and a token
CONTEXTS = np.concatenate([X[:30], OTHERS])


def ngrams_of(order):
    return smoothed_ngrams(X[:, :order], Y, vocab_size=N)


numbers_in_jax = jax.jit(jax.vmap(context_numbers, in_axes=(None, 0)))


def numbers_of(ngrams: BackOffChain, contexts: np.ndarray) -> np.ndarray:
    """[M, levels] numbers of many contexts."""
    return np.asarray(numbers_in_jax(ngrams.children, jax.device_put(contexts)))


def rows_of(ngrams: BackOffChain, contexts: np.ndarray) -> np.ndarray:
    """[M, levels, N] the rows of many contexts."""
    of_levels = zip(ngrams.levels, numbers_of(ngrams, contexts).T, strict=True)
    return np.stack([jax.jit(jax.vmap(table.row))(jax.device_put(numbers)) for table, numbers in of_levels], axis=1)


def context_of(x, order):
    return tuple(map(int, x[:order]))


def test_contexts_are_numbered_and_rows_add_up_to_kneser_ney_probabilities_of_the_slow_chain():
    for order in (1, 4):
        ngrams, slow = ngrams_of(order), Chain(X, Y, tuple(range(1, order + 1)), N)
        found, numbers, unseen = rows_of(ngrams, CONTEXTS), numbers_of(ngrams, np.concatenate([X, OTHERS])), 0
        assert found.dtype == np.float32 and numbers.shape == (len(X) + len(OTHERS), order)
        for x, of_levels in zip(CONTEXTS, found, strict=True):
            shorter = [context_of(x, level + 1) for level in range(order)]
            np.testing.assert_allclose(of_levels, list(map(slow.row, shorter)), rtol=0, atol=1e-6)
            log_P = np.asarray(ngrams.base, float) + of_levels.sum(axis=0) + np.log([slow.gamma(h) for h in shorter]).sum()
            np.testing.assert_allclose(log_P, np.log([slow.P(shorter[-1], i) for i in range(N)]), rtol=0, atol=5e-6)
            unseen += not of_levels[-1].any()
        assert 0 < unseen < len(CONTEXTS)
        assert numbers[:, 0].tolist() == [int(x[0]) for x in (*X, *OTHERS)]  # of one token: its id, seen or not
        for level in range(1, order):
            known, named = {context for context, _ in slow.counts[level + 1]}, {}
            for x, number in zip((*X, *OTHERS), numbers[:, level], strict=True):
                context = context_of(x, level + 1)
                assert number == -1 or named.setdefault(int(number), context) == context
                assert (context in known) == (0 <= number < len(known))
            assert len(named) == len(ngrams.children[level - 1].tokens) == len(known)


def test_neither_the_order_of_positions_nor_blocks_nor_narrow_integers_change_anything(monkeypatch):
    m, whole = np.random.default_rng(0).permutation(len(Y)), ngrams_of(4)
    narrow = smoothed_ngrams(X.astype(np.uint8), Y.astype(np.uint8), vocab_size=N)
    assert len(whole.children[-1].tokens) * N > 255  # keys do not fit in a byte
    monkeypatch.setattr(rows, "_pairs_per_block", 7)
    for other in (narrow, smoothed_ngrams(X[m], Y[m], vocab_size=N), ngrams_of(4)):
        for mine, theirs in zip(jax.tree.leaves(other), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(mine, theirs)


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


by_softmax = jax.jit(jax.vmap(lambda model, x: jax.nn.log_softmax(model.logits(x)), in_axes=(None, 0)))


def test_look_ups_are_the_softmax_of_the_rows_which_is_kneser_ney_of_order_5():
    for eos in (True, False):
        model, (X, Y, past), slow = model_of(eos), text_of(2, eos), Chain(*text_of(1, eos)[:2], (1, 2, 3, 4), IDS)
        log_p = np.asarray(by_softmax(model, jax.device_put(X.astype(np.int32))))
        own = np.take_along_axis(log_p, Y[:, None].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(log_probabilities(model, X, Y), own, rtol=0, atol=ATOL)
        np.testing.assert_allclose(score(model, past.stream), own, rtol=0, atol=ATOL)
        assert evaluate(model, past.stream).loss == pytest.approx(-own.mean(), abs=ATOL)
        assert Y.max() == IDS - 1
        expected = [[slow.P(context_of(x, 4), i) for i in range(IDS)] for x in X[::160]]
        np.testing.assert_allclose(np.exp(log_p[::160]), expected, rtol=2e-5, atol=0)  # logits are right to 1e-5
