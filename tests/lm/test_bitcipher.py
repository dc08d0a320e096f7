"""Bit-cipher codes: what a code is, and the explicit solution on coded contexts against loops, one-hot and scikit-learn.

Tolerances: in float64, logits are sums of at most 20 logarithms of order 10, 1e-11; counts are sums of fractions, 1e-12.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import (
    column_for_unseen_outputs,
    features,
    generalized_cooccurrences,
    log_softmax,
    negative_log_likelihood,
    noisy_embedding,
    one_hot,
    random_documents,
    stream_of,
    windows,
)
from reference import explicit_solution as explicit_solution_loop
from sklearn.naive_bayes import MultinomialNB

from jexplicit import count, evaluate, explicit_language_model
from jexplicit.lm.core.model import token_model
from jexplicit.lm.rows import bitcipher
from jexplicit.lm.rows.bitcipher import (
    Codes,
    bit_cipher,
    coded_language_model,
)

pytestmark = pytest.mark.slow

N = 14  # with 4 bits: tokens of 1, 2 and 3 bits
DOCUMENTS = random_documents(6, 40, N, 16)
STREAM = stream_of(DOCUMENTS)
COUNTS = np.bincount(STREAM[1:], minlength=N)

KINDS = pytest.mark.parametrize("kind", ["sum", "cat"])
fit = functools.partial(coded_language_model, dtype=jnp.float64)


def dense_model(kind, K, b, *, eos=False, noise=True, documents=DOCUMENTS, f=COUNTS, N=N):
    """Features of the positions, decoder and targets, all dense and by loops."""
    E = noisy_embedding(f) if noise else np.eye(N)
    X, Y = windows(documents, K, eos=eos)
    H = features(X, E @ bit_cipher(f, b).matrix().toarray(), kind)
    targets = one_hot(Y, N)
    F = column_for_unseen_outputs(generalized_cooccurrences(H, targets), H, targets.sum(axis=0))
    return H, explicit_solution_loop(F, K), Y


def test_codes_of_three_bits_are_those_written_out_by_hand():
    f = np.array([3, 50, 40, 30, 20, 10, 5])
    codes = bit_cipher(f, 3)
    expected = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]]
    expected = [expected[rank] for rank in (6, 0, 1, 2, 3, 4, 5)]
    np.testing.assert_allclose(codes.matrix().toarray(), expected / np.sum(expected, axis=1, keepdims=True), rtol=1e-15)
    assert codes.size == 3


@pytest.mark.parametrize(("N", "b"), [(14, 4), (63, 6), (300, 12), (2000, 11), (1000, 40), (50, 50), (1, 1), (2, 2)])
def test_codes_are_distinct_normalised_and_longer_the_rarer_the_token(N, b):
    f = np.random.default_rng(N).permutation(N) + 1
    codes = bit_cipher(f, b)
    H = codes.matrix().toarray()
    assert H.shape == (N, b) and (H >= 0).all()
    np.testing.assert_allclose(H.sum(axis=1), 1, rtol=1e-14)
    assert len(np.unique(H > 0, axis=0)) == N
    w = (H > 0).sum(axis=1)[np.argsort(-f)]
    assert np.all(np.diff(w) >= 0) and np.all(w[:b] == 1)
    np.testing.assert_array_equal(
        np.bincount(w)[1:-1], [len(list(itertools.combinations(range(b), k))) for k in range(1, w[-1])]
    )


@pytest.mark.parametrize("b", [1, 2, 5, 6])
def test_all_codewords_come_once_each(b):
    words = list(bitcipher._codewords(b))
    assert len(set(words)) == len(words) == 2**b - 1
    assert words == sorted(words, key=len)


def test_bits_are_used_equally_often():
    b = 7  # a prime, so that no set of bits is its own rotation: every run of b codes uses every bit equally often
    used = bit_cipher(np.arange(9 * b, 0, -1), b).matrix().toarray() > 0
    for start in range(0, 9 * b, b):
        assert len(set(used[start : start + b].sum(axis=0))) == 1


def test_tokens_of_the_same_frequency_go_by_their_id():
    np.testing.assert_array_equal(bit_cipher(np.array([5, 5, 5, 9]), 4).bits[:, 0], [1, 2, 3, 0])


def all_logits(model, X):
    """Logits of many contexts."""
    return np.asarray(jax.jit(jax.vmap(model.logits))(jnp.asarray(X)))


@pytest.mark.parametrize("eos, noise", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("kind, K", [("sum", 1), ("cat", 3)])
def test_the_model_is_the_explicit_solution_on_dense_codes(kind, K, eos, noise):
    if not noise:  # with two bits, every bit meets every output that is in the text
        b, kept = 2, [[t for t in d if t < 3] for d in DOCUMENTS]
        documents = [d for d in kept if d] + [[1, 1, 1, 2], [2, 2, 1, 1]]
        stream, size = stream_of(documents), 3
    else:
        b, documents, stream, size = 4, DOCUMENTS, STREAM, N
    f = np.bincount(stream[1:], minlength=size)
    H, U, Y = dense_model(kind, K, b, eos=eos, noise=noise, documents=documents, f=f, N=size)
    model = fit(stream, bit_cipher(f, b), features=kind, radius=K, eos=eos, noise=noise)
    X, _ = windows(documents, K, eos=eos)
    np.testing.assert_allclose(all_logits(model, X), H @ U, rtol=0, atol=1e-11)
    np.testing.assert_allclose(evaluate(model, stream).nll, negative_log_likelihood(H, U, Y), rtol=1e-12)
    single = coded_language_model(stream, bit_cipher(f, b), features=kind, radius=K, eos=eos, noise=noise)
    np.testing.assert_allclose(evaluate(single, stream).nll, negative_log_likelihood(H, U, Y), rtol=1e-6)


def read_tables(model):
    """The same model with a row for every token, `codes @ tables`."""
    rows = model.rows[0]
    H = Codes(np.asarray(rows.bits), np.asarray(rows.weights), rows.tables[0].shape[0]).matrix().toarray()
    dense = [jnp.asarray(H @ np.asarray(U)) for U in rows.tables]
    return token_model([dense[t] for t in rows.table_of_offset], model.features, model.eos)


@pytest.mark.parametrize("kind, noise", [("sum", True), ("cat", True), ("cat", False)])
def test_with_as_many_bits_as_tokens_it_is_the_one_hot_model(kind, noise):
    model = fit(STREAM, bit_cipher(COUNTS, N), features=kind, radius=3, eos=True, noise=noise)
    counts = count(STREAM, radius=3, vocab_size=N)
    expected = explicit_language_model(counts, features=kind, eos=True, noise=noise, dtype=jnp.float64)
    if noise:
        np.testing.assert_allclose(read_tables(model).tables, expected.tables, rtol=0, atol=1e-11)
    np.testing.assert_allclose(evaluate(model, STREAM).nll, evaluate(expected, STREAM).nll, rtol=1e-12)


def test_sum_is_scikit_learn_s_multinomial_naive_bayes_on_the_codes():
    X, Y = windows(DOCUMENTS, 3)
    H = features(X, noisy_embedding(COUNTS) @ bit_cipher(COUNTS, 4).matrix().toarray(), "sum")
    seen = np.flatnonzero(np.bincount(Y, minlength=N))
    oracle = MultinomialNB(alpha=0, force_alpha=True).fit(H, Y)
    model = fit(STREAM, bit_cipher(COUNTS, 4), features="sum", radius=3)
    ours = np.array([log_softmax(row) for row in all_logits(model, X)[:, seen]])
    np.testing.assert_allclose(ours, oracle.predict_log_proba(H), rtol=0, atol=1e-9)


def test_any_codes_will_do():
    H = np.random.default_rng(0).random((N, 3))
    H /= H.sum(axis=1, keepdims=True)
    codes = Codes(np.tile(np.arange(3, dtype=np.int32), (N, 1)), H, 3)
    (C,) = count(STREAM, radius=1, vocab_size=N)
    rows = fit(STREAM, codes, features="cat", radius=1, eos=True, noise=False).rows[0]
    seen = C.sum(axis=0) > 0
    np.testing.assert_allclose(rows.tables[0][:, seen], np.log(H.T @ C)[:, seen], rtol=1e-12)  # K = 1: U = log F


@KINDS
def test_renaming_tokens_changes_no_loss(kind):
    assert len(set(COUNTS[COUNTS > 0])) < len(COUNTS)  # ties, which renaming would order differently
    names = np.concatenate([[0], np.random.default_rng(1).permutation(N - 1) + 1])
    rank = np.argsort(np.argsort(-COUNTS, kind="stable"))
    f = N - rank  # the same order without ties
    renamed = np.zeros(N, int)
    renamed[names] = f
    one = fit(STREAM, bit_cipher(f, 5), features=kind, radius=2)
    other = fit(names[STREAM], bit_cipher(renamed, 5), features=kind, radius=2)
    np.testing.assert_allclose(evaluate(other, names[STREAM]).nll, evaluate(one, STREAM).nll, rtol=1e-12)


@KINDS
def test_noise_keeps_every_logit_finite_and_without_it_some_are_not(kind):
    tiny = stream_of([[1, 2], [3, 1, 1]])
    codes = bit_cipher(np.bincount(tiny[1:], minlength=N), 5)
    model = coded_language_model(tiny, codes, features=kind, radius=2)
    assert all(np.isfinite(U).all() and U.dtype == jnp.float32 for U in model.rows[0].tables)
    assert np.isfinite(evaluate(model, STREAM).nll)  # most of its tokens and pairs are new
    without = coded_language_model(tiny, codes, features=kind, radius=2, noise=False)
    assert not np.isfinite(np.stack(without.rows[0].tables)).all()
    assert evaluate(without, tiny).nll < np.inf  # what occurred has a finite loss, unused slots notwithstanding


@KINDS
def test_bytes_grow_with_the_bits_and_not_with_the_square_of_the_vocabulary(kind):
    model = coded_language_model(STREAM, bit_cipher(COUNTS, 5), features=kind, radius=3)
    blocks = 1 if kind == "sum" else 3
    codes = N * 3 * (4 + 4)  # 2 + 1 slots per token
    assert model.nbytes == 4 * blocks * 6 * N + codes + 3 * 4  # 5 bits and the mean one; an exponent per offset
    assert (model.radius, model.vocab_size) == (3, N)


def test_a_vocabulary_of_fifty_thousand_is_affordable():
    size = 50_000
    rng = np.random.default_rng(0)
    stream = stream_of([np.minimum(rng.zipf(1.3, 4000), size - 1).tolist() for _ in range(3)], np.uint16)
    codes = bit_cipher(np.bincount(stream[1:], minlength=size), 32)
    assert len(np.unique(codes.bits * (codes.weights > 0) + 64 * (codes.weights > 0), axis=0)) == size
    model = coded_language_model(stream, codes, features="cat", radius=2)
    assert model.nbytes < 2e7  # two one-hot tables take 2e10
    assert 1 < evaluate(model, stream, sample=50).perplexity < size
