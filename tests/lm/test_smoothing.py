"""Noise, unseen outputs, rows of every smoothing.

Tolerances: every formula is a few sums of at most N = 9 terms of one sign (or, for `E U`, of logarithms of order 10), so
rounding stays below some 30 eps: 1e-13 leaves room in float64, 1e-5 in float32.
"""

import jax
import numpy as np
from reference import (
    column_for_unseen_outputs,
    cooccurrences,
    features,
    generalized_cooccurrences,
    modified_discounts,
    noise_parameters,
    noisy_embedding,
    one_hot,
    random_documents,
    rows_of_smoothing,
    windows,
)
from reference import kneser_ney as kneser_ney_loop
from scipy.sparse import csr_array
from sklearn.naive_bayes import MultinomialNB

from jexplicit.lm.core.smoothing import (
    counts_of_counts,
    discounts_of,
    kneser_ney,
    noise_model,
    noisy_counts,
    noisy_rows,
    smoothed_excess,
    unigram,
    with_unseen_outputs,
)

N = 9
DOCUMENTS = random_documents(seed=3, number=30, vocab_size=N, longest=8)
(COUNTS,) = cooccurrences(DOCUMENTS, 1, N)
F_TOKENS = COUNTS.sum(axis=0)
NOISE = noise_model(F_TOKENS)
TOLERANCE = ((np.float64, 1e-13), (np.float32, 1e-5))

compiled_kneser_ney = jax.jit(kneser_ney)


def random_rows(seed=4):
    return np.random.default_rng(seed).normal(size=(N, 6)) * 5


# The noise model


def test_the_noise_model_equals_its_definition_and_a_table_worked_by_hand_and_follows_renamed_tokens():
    f, order = np.array([5, 0, 12, 1, 100]), np.random.default_rng(0).permutation(N)
    noise, (q, p) = noise_model(f), noise_parameters(f)
    for found, expected in ((noise.q, q), (noise.one_minus_q, 1 / (f + 1)), (noise.p, p)):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    noise = noise_model(np.array([2, 1, 1]))
    assert noise.q.tolist() == [2 / 3, 1 / 2, 1 / 2]
    assert noise.p.tolist() == [1 / 4, 3 / 8, 3 / 8]  # (1/2, 3/4, 3/4) / 2
    for renamed, original in zip(noise_model(F_TOKENS[order]), NOISE, strict=True):
        np.testing.assert_allclose(renamed, original[order], rtol=1e-14)


def test_the_error_of_a_very_frequent_token_is_not_lost_in_float32():
    noise = noise_model(np.array([10**9, 1]))
    assert 1 - np.float32(noise.q[0]) == 0
    np.testing.assert_allclose(noise.one_minus_q[0], 1 / (10**9 + 1), rtol=1e-15)  # 1 - q in float64 is off by 1e-7
    U = noisy_rows(jax.device_put(np.asarray([[0.0], [1.0]], np.float32)), noise)
    np.testing.assert_allclose(U[0, 0], 1e-9 * noise.p[1], rtol=1e-6)


def test_noisy_counts_and_rows_equal_dense_products_with_the_embedding_and_are_adjoint():
    assert np.any(COUNTS == 0) and np.all(F_TOKENS > 0)  # E has no inverse where two tokens were never seen
    (X, Y), E, U = windows(DOCUMENTS, 1, eos=True), noisy_embedding(F_TOKENS), random_rows()
    scale = np.abs(U).max()
    for dtype, tolerance in TOLERANCE:
        F = noisy_counts(jax.device_put(np.asarray(COUNTS, dtype)), NOISE)
        np.testing.assert_allclose(F, E.T @ COUNTS, rtol=tolerance)
        slow = generalized_cooccurrences(features(X, E, "cat"), one_hot(Y, N))  # a loop over 160 positions
        np.testing.assert_allclose(F, slow, rtol=max(tolerance, 1e-12))
        np.testing.assert_allclose(F.sum(axis=0), COUNTS.sum(axis=0), rtol=tolerance)  # they move between rows
        rows = noisy_rows(jax.device_put(np.asarray(U, dtype)), NOISE)
        assert F.dtype == rows.dtype == dtype and np.all(np.asarray(F) > 0)
        np.testing.assert_allclose(rows, E @ U, rtol=0, atol=tolerance * scale)  # sums of both signs may cancel
    left, right = np.vdot(noisy_counts(jax.device_put(U), NOISE), random_rows(6)), np.vdot(U, noisy_rows(random_rows(6), NOISE))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12 * np.abs(U).sum())  # <EᵀC, U> = <C, E U>
    unseen = noise_model(np.array([4, 0, 3, 2, 1, 1, 1, 1, 1]))  # the mean for a token never seen
    np.testing.assert_allclose(noisy_rows(jax.device_put(U), unseen)[1], unseen.p @ U, rtol=0, atol=1e-13 * scale)


# Outputs that were never seen


def test_the_column_of_an_unseen_output_equals_the_mean_feature():
    X, Y = windows(DOCUMENTS, 2, eos=False)  # <pad> is never a target
    H, targets = features(X, np.eye(N), "sum"), one_hot(Y, N)
    C, f = generalized_cooccurrences(H, targets), targets.sum(axis=0)
    for dtype, tolerance in TOLERANCE:
        filled = with_unseen_outputs(jax.device_put(np.asarray(C, dtype)), jax.device_put(np.asarray(f, dtype)))
        assert filled.dtype == dtype
        np.testing.assert_allclose(filled, column_for_unseen_outputs(C, H, f), rtol=tolerance)
    C, f = (jax.device_put(np.array(counts)) for counts in ([[3.0, 0.0, 1.0], [2.0, 0.0, 2.0]], [5.0, 0.0, 3.0]))
    assert jax.jit(with_unseen_outputs)(C, f).tolist() == [[3.0, 0.5, 1.0], [2.0, 0.5, 2.0]]  # by hand
    unigrams = unigram(jax.device_put(np.array([6.0, 0.0, 3.0, 0.0])))
    np.testing.assert_allclose(unigrams, np.array([6, 1, 3, 1]) / 11, rtol=1e-15)  # unseen outputs count once


# Kneser-Ney, and rows of any smoothing


def sparse_tables():
    never = COUNTS.copy()
    never[3, :] = 0  # a context never seen
    never[:, 4] = 0  # an output never seen
    return {
        "text": COUNTS,
        "unseen": never,
        "no pair seen once": 3 * COUNTS,
        "no pair seen twice": np.where(COUNTS == 2, 3, COUNTS),  # D = 1
        "nothing seen": np.zeros((N, N), np.int64),
    }


def rows_of(name, C):
    """[N, I] the rows of a smoothing of sparse counts, with their zeros."""
    C = csr_array(C)
    lower, excess = smoothed_excess(C, name)
    P = lower[None, :] * (1 + csr_array((excess, C.indices, C.indptr), shape=C.shape).toarray())
    return P / P.sum(axis=1, keepdims=True)


def test_rows_of_every_smoothing_equal_their_loops_for_any_counts():
    for name, C in sparse_tables().items():
        for dtype, tolerance in TOLERANCE:
            P = np.asarray(compiled_kneser_ney(jax.device_put(C.astype(dtype))))
            assert P.dtype == dtype and np.all(P > 0)
            np.testing.assert_allclose(P, kneser_ney_loop(C), rtol=tolerance, err_msg=name)
            np.testing.assert_allclose(P.sum(axis=1), 1, rtol=tolerance)
    for C in (*sparse_tables().values(), np.diag([1, 1, 1, 2, 3, 4, 4, 4, 4]), COUNTS[:, :4]):
        for name in ("kneser-ney", "add-alpha"):
            P = rows_of(name, C)
            np.testing.assert_allclose(P, rows_of_smoothing(C, name), rtol=1e-13)
            assert np.all(P > 0)
    C = sparse_tables()["unseen"]
    oracle = MultinomialNB(alpha=1).fit(C, np.arange(N)).feature_log_prob_  # a class per row
    np.testing.assert_allclose(np.log(rows_of("add-alpha", C)), oracle, rtol=0, atol=1e-13)


def test_modified_discounts_are_those_worked_by_hand():
    for counts, D in [
        # D = 8 / (8 + 2 * 4) = 1/2; 1 - 2 D 4/8, 2 - 3 D 2/4, 3 - 4 D 1/2
        ({1: 8, 2: 4, 3: 2, 4: 1, 9: 3}, [1 / 2, 5 / 4, 2]),
        # D = 6 / (6 + 2 * 3) = 1/2; 1 - 2 D 3/6, 2 - 3 D 3/3, 3 - 4 D 2/3
        ({1: 6, 2: 3, 3: 3, 4: 2}, [1 / 2, 1 / 2, 5 / 3]),
        # none counted four times: D = 2 / (2 + 2 * 1) for all
        ({1: 2, 2: 1, 3: 5, 7: 1}, [1 / 2, 1 / 2, 1 / 2]),
        # none counted twice, or once: KenLM's fallback
        ({1: 2, 3: 5, 4: 1}, [1 / 2, 1, 3 / 2]),
        ({2: 2, 3: 5, 4: 1}, [1 / 2, 1, 3 / 2]),
        # D = 4 / (4 + 2 * 2) = 1/2; 3 - 4 D 3/1 < 0 is no discount, and D stands in; 1 - 2 D 2/4, 2 - 3 D 1/2
        ({1: 4, 2: 2, 3: 1, 4: 3}, [1 / 2, 5 / 4, 1 / 2]),
    ]:
        C = np.concatenate([[c] * n for c, n in counts.items()] + [[0] * (N * N - sum(counts.values()))]).reshape(N, N)
        n = counts_of_counts(C)
        compiled = jax.jit(discounts_of, static_argnames="modified")(jax.device_put(np.asarray(n, float)), modified=True)
        for found in (discounts_of(n, modified=True), compiled, modified_discounts(C.reshape(-1).tolist())[1:]):
            np.testing.assert_allclose(found, D, rtol=1e-14)
