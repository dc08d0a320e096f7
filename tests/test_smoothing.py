"""Noise, unseen outputs, Kneser-Ney rows.

Tolerances: every formula is a few sums of at most N = 9 terms of one sign (or, for `E U`, of logarithms of order 10), so
rounding stays below some 30 eps: 1e-13 leaves room in float64, 1e-5 in float32.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from reference import (
    column_for_unseen_outputs,
    cooccurrences,
    features,
    generalized_cooccurrences,
    noise_parameters,
    noisy_embedding,
    one_hot,
    random_documents,
    windows,
)
from reference import (
    kneser_ney as kneser_ney_loop,
)

from jexplicit.smoothing import kneser_ney, noise_model, noisy_counts, noisy_rows, unigram, with_unseen_outputs

N = 9
DOCUMENTS = random_documents(seed=3, number=30, vocab_size=N, longest=8)
(COUNTS,) = cooccurrences(DOCUMENTS, 1, N)
F_TOKENS = COUNTS.sum(axis=0)
TOLERANCE = {np.float64: 1e-13, np.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def random_rows(seed=4, columns=6):
    return np.random.default_rng(seed).normal(size=(N, columns)) * 5


# The noise model


def test_the_noise_model_equals_its_definition():
    f = np.array([5, 0, 12, 1, 100])
    noise = noise_model(f)
    q, p = noise_parameters(f)
    np.testing.assert_allclose(noise.q, q, rtol=1e-15)
    np.testing.assert_allclose(noise.one_minus_q, 1 / (f + 1), rtol=1e-15)
    np.testing.assert_allclose(noise.p, p, rtol=1e-14)  # one more sum and division


def test_the_noise_model_of_three_tokens_is_that_worked_by_hand():
    noise = noise_model(np.array([2, 1, 1]))
    assert noise.q.tolist() == [2 / 3, 1 / 2, 1 / 2]
    assert noise.p.tolist() == [1 / 4, 3 / 8, 3 / 8]  # (1/2, 3/4, 3/4) / 2


def test_rows_of_the_noisy_embedding_sum_to_one():
    q, one_minus_q, p = noise_model(F_TOKENS)
    E = np.diag(q) + np.outer(one_minus_q, p)
    np.testing.assert_allclose(E, noisy_embedding(F_TOKENS), rtol=0, atol=1e-15)
    np.testing.assert_allclose(E.sum(axis=1), 1, rtol=1e-14)
    assert np.all(E > 0)


def test_renaming_tokens_renames_the_noise():
    order = np.random.default_rng(0).permutation(N)
    for renamed, original in zip(noise_model(F_TOKENS[order]), noise_model(F_TOKENS), strict=True):
        np.testing.assert_allclose(renamed, original[order], rtol=1e-14)


def test_the_error_of_a_very_frequent_token_is_not_lost_in_float32():
    noise = noise_model(np.array([10**9, 1]))
    assert 1 - np.float32(noise.q[0]) == 0
    assert noise.one_minus_q[0] == pytest.approx(1 / (10**9 + 1), rel=1e-15)  # 1 - q in float64 is off by 1e-7
    U = noisy_rows(jnp.array([[0.0], [1.0]], jnp.float32), noise)
    assert U[0, 0] == pytest.approx(1e-9 * noise.p[1], rel=1e-6)


@pytest.mark.parametrize("f", [[3], [2, -1], [0, 0, 0]])
def test_counts_without_a_noise_model_are_refused(f):
    with pytest.raises(ValueError, match="at least two tokens and non-negative counts, not all zero"):
        noise_model(np.array(f))


@DTYPES
def test_noisy_counts_equal_the_dense_product_with_the_embedding(dtype):
    F = noisy_counts(jnp.asarray(COUNTS, dtype), noise_model(F_TOKENS))
    assert F.dtype == dtype
    np.testing.assert_allclose(F, noisy_embedding(F_TOKENS).T @ COUNTS, rtol=TOLERANCE[dtype])


def test_noisy_counts_are_the_cooccurrences_of_noisy_embeddings():
    X, Y = windows(DOCUMENTS, 1, eos=True)
    H = features(X, noisy_embedding(F_TOKENS), "cat")
    F = noisy_counts(jnp.asarray(COUNTS, jnp.float64), noise_model(F_TOKENS))
    np.testing.assert_allclose(F, generalized_cooccurrences(H, one_hot(Y, N)), rtol=1e-12)  # a loop over 160 positions


def test_noise_moves_cooccurrences_between_rows_and_adds_none():
    F = noisy_counts(jnp.asarray(COUNTS, jnp.float64), noise_model(F_TOKENS))
    np.testing.assert_allclose(F.sum(axis=0), COUNTS.sum(axis=0), rtol=1e-13)


def test_noise_leaves_no_zero_in_a_column_that_was_seen():
    assert np.any(COUNTS == 0)
    F = noisy_counts(jnp.asarray(COUNTS, jnp.float64), noise_model(F_TOKENS))
    assert np.all(np.asarray(F) > 0)


@DTYPES
def test_noisy_rows_equal_the_dense_product_with_the_embedding(dtype):
    U = random_rows()
    rows = noisy_rows(jnp.asarray(U, dtype), noise_model(F_TOKENS))
    assert rows.dtype == dtype
    # relative to the size of U: sums of both signs may cancel
    np.testing.assert_allclose(rows, noisy_embedding(F_TOKENS) @ U, rtol=0, atol=TOLERANCE[dtype] * np.abs(U).max())


def test_the_row_of_a_token_never_seen_is_the_mean_row():
    f = np.array([4, 0, 3, 2, 1, 1, 1, 1, 1])
    U = random_rows()
    noise = noise_model(f)
    np.testing.assert_allclose(noisy_rows(jnp.asarray(U), noise)[1], noise.p @ U, rtol=0, atol=1e-13 * np.abs(U).max())


def test_adding_a_constant_to_a_column_adds_it_to_the_noisy_column():
    U, constant = random_rows(), np.arange(6.0)
    noise = noise_model(F_TOKENS)
    shifted = noisy_rows(jnp.asarray(U + constant), noise)
    np.testing.assert_allclose(
        shifted, np.asarray(noisy_rows(jnp.asarray(U), noise)) + constant, rtol=0, atol=1e-13 * np.abs(U).max()
    )


def test_noisy_rows_are_the_adjoint_of_noisy_counts():
    C, U = random_rows(5), random_rows(6)  # <EᵀC, U> = <C, E U>
    noise = noise_model(F_TOKENS)
    left = np.vdot(noisy_counts(jnp.asarray(C), noise), U)
    right = np.vdot(C, noisy_rows(jnp.asarray(U), noise))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12 * np.abs(C).sum())


def test_the_inverse_of_the_embedding_by_sherman_morrison_undoes_the_noise():
    assert np.all(F_TOKENS > 0)  # E has no inverse where two tokens were never seen
    U = random_rows()
    q, one_minus_q, p = noise_model(F_TOKENS)
    rows = np.asarray(noisy_rows(jnp.asarray(U), noise_model(F_TOKENS)))
    undone = rows / q[:, None] - np.outer(one_minus_q / q, p @ (rows / q[:, None])) / (1 + p @ (one_minus_q / q))
    np.testing.assert_allclose(undone, U, rtol=0, atol=1e-12 * np.abs(U).max())  # 1/q <= 2 amplifies rounding a little


# Outputs that were never seen


@DTYPES
def test_the_column_of_an_unseen_output_equals_the_mean_feature(dtype):
    X, Y = windows(DOCUMENTS, 2, eos=False)  # <pad> is never a target
    H = features(X, np.eye(N), "sum")
    C = generalized_cooccurrences(H, one_hot(Y, N))
    f = one_hot(Y, N).sum(axis=0)
    filled = with_unseen_outputs(jnp.asarray(C, dtype), jnp.asarray(f, dtype))
    assert filled.dtype == dtype
    np.testing.assert_allclose(filled, column_for_unseen_outputs(C, H, f), rtol=TOLERANCE[dtype])


def test_the_column_of_an_unseen_output_is_that_worked_by_hand():
    C = jnp.array([[3.0, 0.0, 1.0], [2.0, 0.0, 2.0]])
    assert with_unseen_outputs(C, jnp.array([5.0, 0.0, 3.0])).tolist() == [[3.0, 0.5, 1.0], [2.0, 0.5, 2.0]]


def test_outputs_that_were_all_seen_keep_their_counts():
    C = jnp.asarray(COUNTS, jnp.float64)
    np.testing.assert_array_equal(with_unseen_outputs(C, C.sum(axis=0)), COUNTS)


def test_an_unseen_output_gets_the_probability_of_one_observation_in_every_context():
    C = COUNTS.astype(np.float64)
    C[:, [2, 5]] = 0
    M = C.sum()
    filled = np.asarray(with_unseen_outputs(jnp.asarray(C), jnp.asarray(C.sum(axis=0))))
    np.testing.assert_allclose((filled / filled.sum(axis=1, keepdims=True))[:, [2, 5]], 1 / (M + 2), rtol=1e-13)


def test_unigram_frequencies_count_unseen_outputs_once():
    f = np.array([6.0, 0.0, 3.0, 0.0])
    np.testing.assert_allclose(unigram(jnp.asarray(f)), np.array([6, 1, 3, 1]) / 11, rtol=1e-15)


def test_unigram_frequencies_of_seen_outputs_are_relative_frequencies():
    np.testing.assert_allclose(unigram(jnp.asarray(F_TOKENS, jnp.float64)), F_TOKENS / F_TOKENS.sum(), rtol=1e-15)


# Kneser-Ney


@DTYPES
def test_kneser_ney_equals_its_loop(dtype):
    P = kneser_ney(jnp.asarray(COUNTS, dtype))
    assert P.dtype == dtype
    np.testing.assert_allclose(P, kneser_ney_loop(COUNTS), rtol=TOLERANCE[dtype])


def test_kneser_ney_of_a_table_of_four_is_that_worked_by_hand():
    # n1 = 2, n2 = 1: D = 1/2. Output 0 was seen in two contexts, output 1 in one: P_cont = (2/3, 1/3).
    # Row 0: (2 - 1/2 + 1/2 * 2 * 2/3) / 3 = 13/18. Row 1: (1 - 1/2 + 1/2 * 1 * 2/3) / 1 = 5/6.
    P = kneser_ney(jnp.array([[2.0, 1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(P, [[13 / 18, 5 / 18], [5 / 6, 1 / 6]], rtol=1e-15)


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


@pytest.mark.parametrize("name", sparse_tables())
def test_kneser_ney_rows_are_positive_and_sum_to_one_for_any_counts(name):
    C = sparse_tables()[name]
    P = np.asarray(kneser_ney(jnp.asarray(C, jnp.float64)))
    np.testing.assert_allclose(P, kneser_ney_loop(C), rtol=1e-13)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-13)
    assert np.all(P > 0)
    assert np.all(np.isfinite(P))


def test_a_context_never_seen_is_followed_by_the_continuation_distribution():
    C = COUNTS.copy()
    C[3, :] = 0
    contexts_of = np.sum(C > 0, axis=0)
    np.testing.assert_allclose(kneser_ney(jnp.asarray(C, jnp.float64))[3], contexts_of / contexts_of.sum(), rtol=1e-13)


def test_without_a_pair_seen_once_half_a_count_is_discounted():
    # D = 1/2, P_cont = (1/2, 1/2): row 0 is (3 - 1/2 + 1/4, 0 + 1/4) / 3
    np.testing.assert_allclose(kneser_ney(jnp.array([[3.0, 0.0], [0.0, 3.0]]))[0], [11 / 12, 1 / 12], rtol=1e-15)


def test_renaming_tokens_renames_kneser_ney_rows_and_columns():
    order = np.random.default_rng(1).permutation(N)
    P = np.asarray(kneser_ney(jnp.asarray(COUNTS, jnp.float64)))
    renamed = kneser_ney(jnp.asarray(COUNTS[np.ix_(order, order)], jnp.float64))
    np.testing.assert_allclose(renamed, P[np.ix_(order, order)], rtol=1e-13)
