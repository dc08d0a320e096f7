"""The explicit solution, against the paper's formula, its gradient, and naive Bayes; co-occurrences of numeric features.

Tolerances: a few logarithms of order 1..10 and sums of a few hundred counts; 1e-12 leaves a factor of 1000 over float64's
eps, 1e-5 a factor of 100 over float32's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import explicit_solution as explicit_solution_loop
from reference import features, generalized_cooccurrences, log_softmax, one_hot, random_documents, stream_of, windows
from sklearn.naive_bayes import CategoricalNB, MultinomialNB

from jexplicit.counts.dense import count
from jexplicit.solvers.explicit import (
    check_cooccurrences,
    column_sums,
    dense_cooccurrence,
    explicit_solution,
    priming_number,
)

V, OUTPUTS = 5, 4  # input tokens, outputs
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


def observations(K, seed=7, M=600):
    """Contexts and targets in which every input token meets every output at every offset, so that no count is zero."""
    rng = np.random.default_rng(seed)
    Y = rng.choice(OUTPUTS, M, p=[0.4, 0.3, 0.2, 0.1])
    X = np.stack([(Y * rng.integers(0, 2, M) + rng.integers(0, V, M)) % V for _ in range(K)], axis=1)
    for k in range(K):
        assert np.all(one_hot(X[:, k], V).T @ one_hot(Y, OUTPUTS) > 0)
    return X, Y


def counted(K, kind):
    """Features, targets and F of such observations."""
    X, Y = observations(K)
    H = features(X, np.eye(V), kind)
    return X, Y, H, H.T @ one_hot(Y, OUTPUTS)


def positive_table(D=6, N=4, seed=8):
    return np.random.default_rng(seed).gamma(1.0, 3.0, (D, N)) + 0.1


def log_predictions(H, U):
    return np.array([log_softmax(row) for row in np.asarray(H) @ np.asarray(U)])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("K", [1, 2, 4, 105.99])
def test_the_solution_equals_the_paper_s_formula(K, dtype):
    F = positive_table()
    U = explicit_solution(jnp.asarray(F, dtype), K)
    assert U.dtype == dtype
    np.testing.assert_allclose(U, explicit_solution_loop(F, K), rtol=0, atol=TOLERANCE[dtype] * 10)  # logarithms of order 10


def test_the_solution_of_a_table_of_four_is_that_worked_by_hand():
    # columns sum to 4 and 9: U = log F - 1/2 log (4, 9) = log (F / (2, 3))
    U = explicit_solution(jnp.array([[3.0, 8.0], [1.0, 1.0]]), K=2)
    np.testing.assert_allclose(jnp.exp(U), [[3 / 2, 8 / 3], [1 / 2, 1 / 3]], rtol=1e-14)


def test_at_k_1_the_gradient_of_the_cross_entropy_vanishes():
    _, Y, H, F = counted(1, "cat")

    def loss(U):
        log_p = jax.nn.log_softmax(jnp.asarray(H) @ U)
        return -jnp.sum(jnp.take_along_axis(log_p, jnp.asarray(Y)[:, None], axis=1))

    U = explicit_solution(jnp.asarray(F), 1)
    slope = jax.jit(jax.grad(loss))
    gradient = np.asarray(slope(U))
    assert np.max(np.abs(gradient) / F) < 1e-12  # relative to the counts, whose differences the gradient is
    assert np.max(np.abs(np.asarray(slope(U + 0.1 * jnp.sin(F)))) / F) > 1e-3  # elsewhere it does not


def test_at_k_1_predictions_are_the_conditional_relative_frequencies():
    _, _, _, F = counted(1, "cat")
    P = jax.nn.softmax(explicit_solution(jnp.asarray(F), 1), axis=1)
    np.testing.assert_allclose(P, F / F.sum(axis=1, keepdims=True), rtol=1e-13)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_cat_is_scikit_learn_s_categorical_naive_bayes(K):
    X, Y, H, F = counted(K, "cat")
    U = explicit_solution(jnp.asarray(F), K)
    oracle = CategoricalNB(alpha=0, force_alpha=True, min_categories=V).fit(X, Y)
    # 1e-9, the size of what scikit-learn's own order of sums could add over 600 positions, and far below any other model
    np.testing.assert_allclose(log_predictions(H, U), oracle.predict_log_proba(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_sum_is_scikit_learn_s_multinomial_naive_bayes(K):
    _, Y, H, F = counted(K, "sum")
    U = explicit_solution(jnp.asarray(F), K)
    oracle = MultinomialNB(alpha=0, force_alpha=True).fit(H, Y)
    np.testing.assert_allclose(log_predictions(H, U), oracle.predict_log_proba(H), rtol=0, atol=1e-9)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_blocks_of_rows_are_solved_as_the_whole_table(K):
    blocks = [positive_table(seed=seed) for seed in range(K)]
    whole = explicit_solution(jnp.asarray(np.concatenate(blocks)), K)
    parts = explicit_solution(tuple(jnp.asarray(block) for block in blocks), K)
    assert isinstance(parts, tuple)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-13)


def test_a_numpy_table_is_solved_as_a_jax_array():
    F = positive_table()
    np.testing.assert_array_equal(explicit_solution(F, 3), explicit_solution(jnp.asarray(F), 3))


def test_columns_of_blocks_sum_over_all_their_rows():
    X, Y, _, _ = counted(3, "cat")
    blocks = tuple(jnp.asarray(one_hot(X[:, k], V).T @ one_hot(Y, OUTPUTS)) for k in range(3))
    np.testing.assert_array_equal(column_sums(blocks), 3 * np.bincount(Y))  # K f, exactly: sums of integers


@pytest.mark.parametrize("kind", ["sum", "cat"])
@pytest.mark.parametrize("c", [1e-3, 7.0])
def test_scaling_all_cooccurrences_changes_no_prediction(kind, c):
    _, _, H, F = counted(3, kind)
    predictions = log_predictions(H, explicit_solution(jnp.asarray(F), 3))
    scaled = explicit_solution(jnp.asarray(c * F), 3)
    np.testing.assert_allclose(log_predictions(H, scaled), predictions, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scaled, explicit_solution(jnp.asarray(F), 3) + np.log(c) / 3, rtol=0, atol=1e-12)


def test_at_k_1_scaling_a_row_changes_no_prediction():
    F, scale = positive_table(), np.array([0.1, 1, 2, 3, 50, 1000])
    original = jax.nn.softmax(explicit_solution(jnp.asarray(F), 1), axis=1)
    scaled = jax.nn.softmax(explicit_solution(jnp.asarray(F * scale[:, None]), 1), axis=1)
    np.testing.assert_allclose(scaled, original, rtol=1e-12)


@pytest.mark.parametrize("K", [1, 3])
def test_renaming_outputs_renames_the_columns(K):
    F, order = positive_table(), np.array([2, 0, 3, 1])
    renamed = explicit_solution(jnp.asarray(F[:, order]), K)
    np.testing.assert_allclose(renamed, np.asarray(explicit_solution(jnp.asarray(F), K))[:, order], rtol=0, atol=1e-13)


def test_a_pair_that_never_occurred_has_no_chance_and_spoils_no_other():
    F = positive_table()
    F[2, 1] = 0
    U = np.asarray(explicit_solution(jnp.asarray(F), 2))
    assert U[2, 1] == -np.inf
    assert np.isfinite(np.delete(U.ravel(), 2 * F.shape[1] + 1)).all()


@pytest.mark.parametrize("K", [0.5, 0, -1, np.nan])
def test_a_priming_number_below_one_is_refused(K):
    with pytest.raises(ValueError, match=f"priming number K = {K}.*rescale the features"):
        explicit_solution(jnp.asarray(positive_table()), K)


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_negative_and_not_finite_cooccurrences_are_refused_in_any_block(wrong, block):
    blocks = [positive_table(seed=seed) for seed in range(2)]
    blocks[block][3, 2] = wrong
    with pytest.raises(ValueError, match=f"co-occurrences with the value {wrong}"):
        explicit_solution(tuple(jnp.asarray(F) for F in blocks), 2)


def test_an_output_never_seen_is_refused_by_its_number():
    F = positive_table()
    F[:, 2] = 0
    with pytest.raises(ValueError, match="output 2 never occurs.*with_unseen_outputs"):
        explicit_solution(jnp.asarray(F), 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_priming_number_is_the_mean_norm(dtype):
    H = np.random.default_rng(9).random((50, 7))
    expected = sum(sum(abs(h) for h in row) for row in H) / 50
    np.testing.assert_allclose(priming_number(jnp.asarray(H, dtype)), expected, rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["sum", "cat"])
@pytest.mark.parametrize("K", [1, 3])
def test_the_priming_number_of_token_features_is_the_number_of_tokens(K, kind):
    X, _ = observations(K)
    assert priming_number(jnp.asarray(features(X, np.eye(V), kind))).item() == K


def test_the_priming_number_scales_with_the_features():
    H = jnp.asarray(positive_table())
    np.testing.assert_allclose(priming_number(4.0 * H), 4 * priming_number(H), rtol=1e-14)


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_solution_is_the_same_under_jit_and_vmap(blocks):
    batch = jnp.stack([jnp.asarray(positive_table(seed=seed)) for seed in range(4)])
    F = batch if blocks == 1 else (batch,) * blocks
    loop = [explicit_solution(jax.tree.map(lambda block, m=m: block[m], F), 3.0) for m in range(4)]
    for transformed in (jax.vmap(explicit_solution, (0, None)), jax.jit(jax.vmap(explicit_solution, (0, None)))):
        for m, U in enumerate(loop):
            ours = jax.tree.map(lambda block, m=m: block[m], transformed(F, 3.0))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-14), ours, U)


def test_the_gradient_of_the_solution_is_the_difference_quotient():
    F, K, step = jnp.asarray(positive_table()), 3.0, 1e-6
    weights = jnp.asarray(positive_table(seed=9))

    def value(F, K):
        return jnp.vdot(weights, explicit_solution(F, K))

    slopes = jax.jit(jax.grad(value, (0, 1)))(F, K)
    along = [(value(F + step * weights, K) - value(F - step * weights, K)) / (2 * step)]
    along += [(value(F, K + step) - value(F, K - step)) / (2 * step)]
    # central differences err by step² times the third derivative, and by rounding, eps * value / step = 1e-7
    np.testing.assert_allclose([jnp.vdot(slopes[0], weights), slopes[1]], along, rtol=1e-6)


def test_under_jit_only_the_check_at_the_edge_refuses():
    F = jnp.asarray(positive_table()).at[:, 2].set(0.0)
    assert not np.isfinite(jax.jit(explicit_solution)(F, 2.0)).all()
    with pytest.raises(ValueError, match="output 2 never occurs"):
        check_cooccurrences(F, 2.0)


# dense_cooccurrence. M = 30 products of numbers in [0, 1] are added: rounding stays below 30 eps of the sum, which is
# 7e-15 in float64 and 4e-6 in float32.
DENSE_TOLERANCE = {np.float64: 1e-14, np.float32: 4e-6}


def dense_features(M=30, D=5, outputs=4, seed=2):
    rng = np.random.default_rng(seed)
    return rng.random((M, D)), rng.dirichlet(np.ones(outputs), M)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_dense_cooccurrences_equal_the_sum_of_outer_products(dtype):
    H, Y = dense_features()
    F = dense_cooccurrence(jnp.asarray(H, dtype), jnp.asarray(Y, dtype))
    assert F.dtype == dtype
    np.testing.assert_allclose(F, generalized_cooccurrences(H, Y), rtol=DENSE_TOLERANCE[dtype])


def test_dense_cooccurrences_of_one_hot_features_are_the_counts():
    N, documents = 7, random_documents(seed=1, number=50, vocab_size=7, longest=9)
    X, Y = windows(documents, 3, eos=True)
    for k, C in enumerate(count(stream_of(documents), radius=3, vocab_size=N)):
        F = dense_cooccurrence(jnp.asarray(one_hot(X[:, k], N)), jnp.asarray(one_hot(Y, N)))
        np.testing.assert_array_equal(F, C)  # sums of ones are exact


def test_dense_cooccurrences_of_two_halves_add_up():
    H, Y = dense_features()
    parts = [dense_cooccurrence(jnp.asarray(H[half]), jnp.asarray(Y[half])) for half in (slice(0, 11), slice(11, None))]
    np.testing.assert_allclose(parts[0] + parts[1], dense_cooccurrence(jnp.asarray(H), jnp.asarray(Y)), rtol=1e-14)


@pytest.mark.parametrize("wrong", [-0.5, np.nan, np.inf])
def test_features_below_zero_or_not_finite_are_refused(wrong):
    H, Y = dense_features()
    H[3, 2] = wrong
    with pytest.raises(ValueError, match=rf"features between.*{wrong}.*relu\(-x\)"):
        dense_cooccurrence(jnp.asarray(H), jnp.asarray(Y))


def test_dense_cooccurrences_are_the_same_under_jit_and_vmap_and_have_a_gradient():
    H, Y = (jnp.stack(parts) for parts in zip(*(map(jnp.asarray, dense_features(seed=seed)) for seed in (2, 3)), strict=True))
    loop = jnp.stack([dense_cooccurrence(*pair) for pair in zip(H, Y, strict=True)])
    np.testing.assert_allclose(jax.jit(jax.vmap(dense_cooccurrence))(H, Y), loop, rtol=1e-14)
    slope = jax.jit(jax.grad(lambda H, Y: dense_cooccurrence(H, Y).sum()))(H[0], Y[0])
    np.testing.assert_allclose(slope, np.ones(H[0].shape) * np.asarray(Y[0]).sum(axis=1, keepdims=True), rtol=1e-14)
