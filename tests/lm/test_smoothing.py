"""Noise, unseen outputs, rows of every smoothing.

Tolerances: every formula is a few sums of at most N = 9 terms of one sign (or, for `E U`, of logarithms of order 10), so
rounding stays below some 30 eps: 1e-13 leaves room in float64, 1e-5 in float32.
"""

import jax
import numpy as np
import pytest
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
TOLERANCE = {np.float64: 1e-13, np.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])


compiled_kneser_ney = jax.jit(kneser_ney)


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


def test_renaming_tokens_renames_the_noise():
    order = np.random.default_rng(0).permutation(N)
    for renamed, original in zip(noise_model(F_TOKENS[order]), noise_model(F_TOKENS), strict=True):
        np.testing.assert_allclose(renamed, original[order], rtol=1e-14)


def test_the_error_of_a_very_frequent_token_is_not_lost_in_float32():
    noise = noise_model(np.array([10**9, 1]))
    assert 1 - np.float32(noise.q[0]) == 0
    assert noise.one_minus_q[0] == pytest.approx(1 / (10**9 + 1), rel=1e-15)  # 1 - q in float64 is off by 1e-7
    U = noisy_rows(jax.device_put(np.asarray([[0.0], [1.0]], np.float32)), noise)
    assert U[0, 0] == pytest.approx(1e-9 * noise.p[1], rel=1e-6)


@DTYPES
def test_noisy_counts_equal_the_dense_product_and_the_cooccurrences_of_noisy_embeddings(dtype):
    F = noisy_counts(jax.device_put(np.asarray(COUNTS, dtype)), noise_model(F_TOKENS))
    assert F.dtype == dtype
    np.testing.assert_allclose(F, noisy_embedding(F_TOKENS).T @ COUNTS, rtol=TOLERANCE[dtype])
    X, Y = windows(DOCUMENTS, 1, eos=True)
    H = features(X, noisy_embedding(F_TOKENS), "cat")
    # a loop over 160 positions
    np.testing.assert_allclose(F, generalized_cooccurrences(H, one_hot(Y, N)), rtol=max(TOLERANCE[dtype], 1e-12))
    np.testing.assert_allclose(F.sum(axis=0), COUNTS.sum(axis=0), rtol=TOLERANCE[dtype])  # they move between rows
    assert np.any(COUNTS == 0) and np.all(np.asarray(F) > 0)


@DTYPES
def test_noisy_rows_equal_the_dense_product_with_the_embedding(dtype):
    U = random_rows()
    rows = noisy_rows(jax.device_put(np.asarray(U, dtype)), noise_model(F_TOKENS))
    assert rows.dtype == dtype
    # relative to the size of U: sums of both signs may cancel
    np.testing.assert_allclose(rows, noisy_embedding(F_TOKENS) @ U, rtol=0, atol=TOLERANCE[dtype] * np.abs(U).max())


def test_noisy_rows_keep_constants_are_undone_by_sherman_morrison_and_are_a_mean_for_a_token_never_seen():
    U, constant, (q, one_minus_q, p) = random_rows(), np.arange(6.0), noise_model(F_TOKENS)
    assert np.all(F_TOKENS > 0)  # E has no inverse where two tokens were never seen
    rows, scale = np.asarray(noisy_rows(jax.device_put(U), noise_model(F_TOKENS))), np.abs(U).max()
    shifted = noisy_rows(jax.device_put(U + constant), noise_model(F_TOKENS))
    np.testing.assert_allclose(shifted, rows + constant, rtol=0, atol=1e-13 * scale)
    undone = rows / q[:, None] - np.outer(one_minus_q / q, p @ (rows / q[:, None])) / (1 + p @ (one_minus_q / q))
    np.testing.assert_allclose(undone, U, rtol=0, atol=1e-12 * scale)  # 1/q <= 2 amplifies rounding a little
    unseen = noise_model(np.array([4, 0, 3, 2, 1, 1, 1, 1, 1]))
    np.testing.assert_allclose(noisy_rows(jax.device_put(U), unseen)[1], unseen.p @ U, rtol=0, atol=1e-13 * scale)


def test_noisy_rows_are_the_adjoint_of_noisy_counts():
    C, U = random_rows(5), random_rows(6)  # <EᵀC, U> = <C, E U>
    noise = noise_model(F_TOKENS)
    left = np.vdot(noisy_counts(jax.device_put(C), noise), U)
    right = np.vdot(C, noisy_rows(jax.device_put(U), noise))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-12 * np.abs(C).sum())


# Outputs that were never seen


@DTYPES
def test_the_column_of_an_unseen_output_equals_the_mean_feature(dtype):
    X, Y = windows(DOCUMENTS, 2, eos=False)  # <pad> is never a target
    H = features(X, np.eye(N), "sum")
    C = generalized_cooccurrences(H, one_hot(Y, N))
    f = one_hot(Y, N).sum(axis=0)
    filled = with_unseen_outputs(jax.device_put(np.asarray(C, dtype)), jax.device_put(np.asarray(f, dtype)))
    assert filled.dtype == dtype
    np.testing.assert_allclose(filled, column_for_unseen_outputs(C, H, f), rtol=TOLERANCE[dtype])


def test_the_column_of_an_unseen_output_is_that_worked_by_hand():
    C, f = (jax.device_put(np.array(counts)) for counts in ([[3.0, 0.0, 1.0], [2.0, 0.0, 2.0]], [5.0, 0.0, 3.0]))
    assert jax.jit(with_unseen_outputs)(C, f).tolist() == [[3.0, 0.5, 1.0], [2.0, 0.5, 2.0]]


def test_an_unseen_output_gets_the_probability_of_one_observation_in_every_context():
    C = COUNTS.astype(np.float64)
    C[:, [2, 5]] = 0
    M = C.sum()
    filled = np.asarray(with_unseen_outputs(jax.device_put(C), jax.device_put(C.sum(axis=0))))
    np.testing.assert_allclose((filled / filled.sum(axis=1, keepdims=True))[:, [2, 5]], 1 / (M + 2), rtol=1e-13)


def test_unigram_frequencies_count_unseen_outputs_once():
    f = np.array([6.0, 0.0, 3.0, 0.0])
    np.testing.assert_allclose(unigram(jax.device_put(f)), np.array([6, 1, 3, 1]) / 11, rtol=1e-15)


# Kneser-Ney


def test_kneser_ney_of_a_table_of_four_is_that_worked_by_hand():
    # n1 = 2, n2 = 1: D = 1/2. Output 0 was seen in two contexts, output 1 in one: P_cont = (2/3, 1/3).
    # Row 0: (2 - 1/2 + 1/2 * 2 * 2/3) / 3 = 13/18. Row 1: (1 - 1/2 + 1/2 * 1 * 2/3) / 1 = 5/6.
    P = compiled_kneser_ney(jax.device_put(np.array([[2.0, 1.0], [1.0, 0.0]])))
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


@DTYPES
def test_kneser_ney_equals_its_loop_for_any_counts(dtype):
    for name, C in sparse_tables().items():
        P = np.asarray(compiled_kneser_ney(jax.device_put(C.astype(dtype))))
        assert P.dtype == dtype
        np.testing.assert_allclose(P, kneser_ney_loop(C), rtol=TOLERANCE[dtype], err_msg=name)
        np.testing.assert_allclose(P.sum(axis=1), 1, rtol=TOLERANCE[dtype])
        assert np.all(P > 0)


def test_without_a_pair_seen_once_half_a_count_is_discounted():
    # D = 1/2, P_cont = (1/2, 1/2): row 0 is (3 - 1/2 + 1/4, 0 + 1/4) / 3
    np.testing.assert_allclose(
        compiled_kneser_ney(jax.device_put(np.diag([3.0, 3.0]))).tolist()[0], [11 / 12, 1 / 12], rtol=1e-15
    )


# The discounts of contexts of several tokens


def table_with(pairs):
    """A table of N x N counts in which `pairs[c]` pairs have count c."""
    counts = np.concatenate([np.full(number, c) for c, number in pairs.items()])
    C = np.zeros(N * N, np.int64)
    C[np.random.default_rng(7).choice(N * N, len(counts), replace=False)] = counts
    return C.reshape(N, N)


@pytest.mark.parametrize(
    ("counts", "D"),
    [
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
    ],
)
def test_modified_discounts_are_those_worked_by_hand(counts, D):
    C = table_with(counts)
    n = counts_of_counts(C)
    np.testing.assert_allclose(discounts_of(n, modified=True), D, rtol=1e-14)
    compiled = jax.jit(discounts_of, static_argnames="modified")(jax.device_put(np.asarray(n, float)), modified=True)
    np.testing.assert_allclose(compiled, D, rtol=1e-14)
    np.testing.assert_allclose(modified_discounts(C.reshape(-1).tolist())[1:], D, rtol=1e-14)


# Rows of any smoothing

EVERY = pytest.mark.parametrize("name", ["kneser-ney", "add-alpha"])


def rows_of(name, C):
    """[N, I] the rows of a smoothing of sparse counts, with their zeros."""
    C = csr_array(C)
    lower, excess = smoothed_excess(C, name)
    P = lower[None, :] * (1 + csr_array((excess, C.indices, C.indptr), shape=C.shape).toarray())
    return P / P.sum(axis=1, keepdims=True)


@EVERY
def test_every_smoothing_equals_its_loop(name):
    square = [*sparse_tables().values(), np.diag([1, 1, 1, 2, 3, 4, 4, 4, 4])]
    for C in (*square, square[0][:, :4]):
        P = rows_of(name, C)
        np.testing.assert_allclose(P, rows_of_smoothing(C, name), rtol=1e-13)
        assert np.all(P > 0)


def test_add_alpha_is_scikit_learn_s_smoothing_of_a_class_per_row():
    C = sparse_tables()["unseen"]
    oracle = MultinomialNB(alpha=1).fit(C, np.arange(N)).feature_log_prob_
    np.testing.assert_allclose(np.log(rows_of("add-alpha", C)), oracle, rtol=0, atol=1e-13)


def test_rows_of_a_small_table_are_those_worked_by_hand():
    C = np.array([[2, 1, 0], [1, 0, 0]])
    np.testing.assert_allclose(rows_of("add-alpha", C), [[3 / 6, 2 / 6, 1 / 6], [2 / 4, 1 / 4, 1 / 4]], rtol=1e-14)
    # n1 = 2, n2 = 1, D = 1/2; the outputs have 2, 1 and 1 contexts: (3/2, 1/2, 0) + (2, 1, 1)/4 over 3; (1/2, 0, 0) + .../2
    expected = [[2 / 3, 1 / 4, 1 / 12], [3 / 4, 1 / 8, 1 / 8]]
    np.testing.assert_allclose(rows_of("kneser-ney", C), expected, rtol=1e-14)
