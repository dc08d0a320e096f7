"""The explicit solution, against the paper's formula, its gradient, and naive Bayes; co-occurrences of numeric features.

Tolerances: a few logarithms of order 1..10 and sums of a few hundred counts; 1e-12 leaves a factor of 1000 over float64's
eps, 1e-5 a factor of 100 over float32's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import explicit_solution as explicit_solution_loop
from reference import features, generalized_cooccurrences, log_softmax, one_hot
from sklearn.naive_bayes import CategoricalNB, MultinomialNB

from jexplicit.solvers.explicit import column_sums, dense_cooccurrence, explicit_solution, priming_number

V, OUTPUTS = 6, 3  # input tokens, outputs
SLOW = pytest.mark.slow
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-5}


def observations(K, seed=7, M=600):
    """Contexts and targets in which every input token meets every output at every offset, so that no count is zero."""
    rng = np.random.default_rng(seed)
    Y = rng.choice(OUTPUTS, M, p=[0.5, 0.3, 0.2])
    X = np.stack([(Y * rng.integers(0, 2, M) + rng.integers(0, V, M)) % V for _ in range(K)], axis=1)
    for k in range(K):
        assert np.all(one_hot(X[:, k], V).T @ one_hot(Y, OUTPUTS) > 0)
    return X, Y


def counted(K, kind):
    """Features, targets and F of such observations."""
    X, Y = observations(K)
    H = features(X, np.eye(V), kind)
    return X, Y, H, H.T @ one_hot(Y, OUTPUTS)


def positive_table(D=6, N=3, seed=8):
    return np.random.default_rng(seed).gamma(1.0, 3.0, (D, N)) + 0.1


def log_predictions(H, U):
    return np.array([log_softmax(row) for row in np.asarray(H) @ np.asarray(U)])


@pytest.mark.parametrize(
    "K, dtype", [(2, np.float64), (105.99, np.float32), *(pytest.param(K, np.float64, marks=SLOW) for K in (1, 4, 105.99))]
)
def test_the_solution_equals_the_paper_s_formula(K, dtype):
    F = positive_table()
    U = explicit_solution(jax.device_put(np.asarray(F, dtype)), K)
    assert U.dtype == dtype
    expected, atol = explicit_solution_loop(F, K), TOLERANCE[dtype] * 10  # logarithms of order 10
    np.testing.assert_allclose(U, expected, rtol=0, atol=atol)
    blocks = explicit_solution(
        (jax.device_put(np.asarray(F[:2], dtype)), F[2:].astype(dtype)), K
    )  # of rows, of JAX and of NumPy
    assert isinstance(blocks, tuple)
    np.testing.assert_allclose(np.concatenate(blocks), expected, rtol=0, atol=atol)
    F[2, 1] = 0  # a pair that never occurred has no chance, and spoils no other
    U = np.asarray(explicit_solution(jax.device_put(np.asarray(F, dtype)), K))
    assert U[2, 1] == -np.inf and np.isfinite(U).sum() == U.size - 1


def test_at_k_1_the_gradient_of_the_cross_entropy_vanishes():
    _, Y, H, F = counted(1, "cat")

    def loss(U):
        return optax.softmax_cross_entropy_with_integer_labels(jax.device_put(H) @ U, jax.device_put(Y)).sum()

    U = np.asarray(explicit_solution(jax.device_put(F), 1))
    np.testing.assert_allclose(np.exp(log_predictions(np.eye(V), U)), F / F.sum(axis=1, keepdims=True), rtol=1e-13)
    slope = jax.jit(jax.grad(loss))
    assert np.max(np.abs(np.asarray(slope(U))) / F) < 1e-12  # relative to the counts, whose differences the gradient is
    assert np.max(np.abs(np.asarray(slope(U + 0.1 * np.sin(F)))) / F) > 1e-3  # elsewhere it does not


@pytest.mark.parametrize(
    "kind, oracle, K",
    [
        *(("cat", CategoricalNB, 3), ("sum", MultinomialNB, 2)),
        *(pytest.param("cat", CategoricalNB, K, marks=SLOW) for K in (1, 2)),
        *(pytest.param("sum", MultinomialNB, K, marks=SLOW) for K in (1, 3)),
    ],
)
def test_predictions_are_scikit_learn_s_naive_bayes(K, kind, oracle):
    X, Y, H, F = counted(K, kind)
    U = explicit_solution(jax.device_put(F), K)
    inputs = X if kind == "cat" else H
    more = {"min_categories": V} if kind == "cat" else {}
    expected = oracle(alpha=0, force_alpha=True, **more).fit(inputs, Y).predict_log_proba(inputs)
    # 1e-9, the size of what scikit-learn's own order of sums could add over 600 positions, and far below any other model
    np.testing.assert_allclose(log_predictions(H, U), expected, rtol=0, atol=1e-9)
    assert priming_number(jax.device_put(H)).item() == K
    np.testing.assert_array_equal(column_sums((jax.device_put(F[:2]), jax.device_put(F[2:]))), K * np.bincount(Y))  # exactly


# dense_cooccurrence. M = 30 products of numbers in [0, 1] are added: rounding stays below 30 eps of the sum, which is
# 7e-15 in float64 and 4e-6 in float32.
DENSE_TOLERANCE = {np.float64: 1e-14, np.float32: 4e-6}


def dense_features(M=30, D=5, outputs=4, seed=2):
    rng = np.random.default_rng(seed)
    return rng.random((M, D)), rng.dirichlet(np.ones(outputs), M)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_dense_cooccurrences_equal_the_sum_of_outer_products(dtype):
    H, Y = dense_features()
    F = dense_cooccurrence(jax.device_put(np.asarray(H, dtype)), jax.device_put(np.asarray(Y, dtype)))
    assert F.dtype == dtype
    np.testing.assert_allclose(F, generalized_cooccurrences(H, Y), rtol=DENSE_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_labels_give_the_cooccurrences_of_one_hot_targets(dtype):
    H, labels = dense_features()[0], np.random.default_rng(3).integers(0, 4, 30)
    F = dense_cooccurrence(jax.device_put(np.asarray(H, dtype)), labels, 5)
    assert F.dtype == dtype and F.shape == (5, 5)
    np.testing.assert_allclose(F, generalized_cooccurrences(H, np.eye(5)[labels]), rtol=DENSE_TOLERANCE[dtype])
    traced = jax.jit(dense_cooccurrence, static_argnames="outputs")(
        jax.device_put(np.asarray(H, dtype)), jax.device_put(labels), outputs=5
    )
    np.testing.assert_array_equal(traced, F)
    np.testing.assert_array_equal(
        dense_cooccurrence(jax.device_put(np.asarray(H, dtype)), labels), np.asarray(F)[:, : labels.max() + 1]
    )
    of_one = jax.jit(jax.vmap(lambda h, y: dense_cooccurrence(h[None], y[None], 5)))(
        jax.device_put(np.asarray(H, dtype)), jax.device_put(labels)
    )
    np.testing.assert_allclose(np.asarray(of_one).sum(axis=0), F, rtol=DENSE_TOLERANCE[dtype])


def test_sums_go_on_above_the_integers_of_float32_and_of_narrow_floats():
    M = 2**24 + 5  # float32 has 2^24 + 4 and 2^24 + 6; one by one it would stay at 2^24
    found = dense_cooccurrence(jnp.ones((M, 1), jnp.float32), np.zeros(M, np.int32), outputs=1)
    assert found.dtype == np.float32 and abs(float(found[0, 0]) - M) <= 1
    ones = jnp.ones((3001, 1), jnp.bfloat16)
    for targets in (np.zeros(3001, np.int32), jnp.ones((3001, 1), jnp.float32)):
        assert float(dense_cooccurrence(ones, targets, outputs=1)[0, 0]) == 3001
    assert float(priming_number(jnp.full((3, 257), 1.0, jnp.bfloat16))) == 257
