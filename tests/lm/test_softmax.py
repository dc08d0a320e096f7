"""Logits, partition functions and losses, against dense one-hot features.

Tolerances: logits are sums of K <= 3 numbers of order 1 and losses sums of some 300 of them: 1e-12 relative leaves a factor of
10 over 300 eps in float64. In float32 each position is off by at most a few eps of its logits, 1e-6.
"""

from itertools import product
from typing import Any

import chex
import jax
import numpy as np
import pytest
from reference import features
from reference import negative_log_likelihood as negative_log_likelihood_loop

from jexplicit.lm.core import tables as contexts_module
from jexplicit.lm.core.model import token_model
from jexplicit.lm.core.softmax import logits, negative_log_likelihood, negative_log_likelihood_from_counts
from jexplicit.lm.core.tables import map_contexts
from jexplicit.runs.devices import data_mesh

N = 9
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-6}
DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32])
SLOW = pytest.mark.slow


def random_tables(K, kind="cat", dtype=np.float64, seed=0):
    """K tables, one for all offsets where kind is sum, and the decoder U that they are the blocks of."""
    U = [np.random.default_rng(seed + k).normal(size=(N, N)) * 2 for k in range(1 if kind == "sum" else K)]
    tables = tuple(jax.device_put(np.asarray(block, dtype)) for block in U)
    return (tables * K, U[0]) if kind == "sum" else (tables, np.concatenate(U))


def random_positions(M, K, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(0, N, (M, K)).astype(np.uint16), rng.integers(0, N, M).astype(np.uint16)


def log_partition(tables, X, **options):
    return token_model(tables, "cat", False).rows.log_partition(X, **options)


def identity_features(X, kind):
    return features(X, np.eye(N), kind)


def test_logits_equal_the_dense_product_of_features_and_decoder():
    for kind in ("sum", "cat"):
        tables, U = random_tables(3, kind)
        X, _ = random_positions(20, 3)
        fast = [logits(tables, jax.device_put(x)) for x in X]
        np.testing.assert_allclose(fast, identity_features(X, kind) @ U, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "M, dtype", [(65, np.float64), (300, np.float32), *(pytest.param(M, np.float64, marks=SLOW) for M in (1, 64))]
)  # 64
def test_log_partition_functions_equal_the_loop_for_any_number_of_contexts(M, dtype):
    tables, U = random_tables(2, dtype=dtype)
    X, _ = random_positions(M, 2)
    rows = identity_features(X, "cat") @ U
    log_Z = log_partition(tables, X)
    assert log_Z.dtype == dtype
    np.testing.assert_allclose(log_Z, [np.log(sum(np.exp(row))) for row in rows], rtol=0, atol=10 * TOLERANCE[dtype])


@pytest.mark.parametrize("M", [5, pytest.param(1100, marks=SLOW)])
def test_the_number_of_devices_does_not_change_log_partition_functions_and_the_loss(M):
    tables, _ = random_tables(3)
    X, Y = random_positions(M, 3)
    for function, more in ((log_partition, ()), (negative_log_likelihood, (Y,))):
        one, many = (function(tables, X, *more, mesh=data_mesh(devices)) for devices in (1, 8))
        np.testing.assert_allclose(many, one, rtol=1e-14)


def test_contexts_come_back_in_their_order_over_many_calls_that_compile_once(monkeypatch):
    def both_tokens(tables, x):
        return x[0] * 10 + x[1]

    traced_once: Any = chex.assert_max_traces(both_tokens, n=1)
    monkeypatch.setattr(contexts_module, "_contexts_per_call", 64)
    tables, _ = random_tables(2)
    X, _ = random_positions(200, 2)
    reports = []
    mapped = map_contexts(traced_once, tables, X, progress=lambda done, total: reports.append((done, total)))
    np.testing.assert_array_equal(mapped, X[:, 0].astype(int) * 10 + X[:, 1])
    assert reports == [(64, 200), (128, 200), (192, 200), (200, 200)]


@pytest.mark.parametrize("kind, per_call", [("sum", 7), ("cat", 1 << 18)])
def test_target_logits_equal_those_of_the_dense_product(kind, per_call, monkeypatch):
    monkeypatch.setattr(contexts_module, "_columns_per_call", per_call)
    tables, U = random_tables(3, kind)
    X, Y = random_positions(50, 3)
    expected = (identity_features(X, kind) @ U)[np.arange(50), Y]
    np.testing.assert_allclose(token_model(tables, kind, False).rows.target_logits(X, Y), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    "kind, K, dtype",
    [
        *(("sum", 3, np.float64), ("cat", 3, np.float64), ("cat", 2, np.float32)),
        *(pytest.param(kind, K, np.float64, marks=SLOW) for kind, K in product(["sum", "cat"], [1, 2])),
        pytest.param("sum", 3, np.float32, marks=SLOW),
    ],
)
def test_the_loss_by_distinct_contexts_equals_the_sum_over_positions(K, kind, dtype):
    tables, U = random_tables(K, kind, dtype)
    X, Y = random_positions(300, K)  # at K = 1, 2 every context occurs many times
    fast = negative_log_likelihood(tables, X, Y, ordered=kind == "cat")
    slow = negative_log_likelihood_loop(identity_features(X, kind), U, Y)
    np.testing.assert_allclose(fast, slow, rtol=TOLERANCE[dtype])


def test_neither_the_order_of_a_context_nor_of_positions_changes_the_loss_of_sum():
    tables, _ = random_tables(3, "sum")
    X, Y = random_positions(300, 3)
    ordered = negative_log_likelihood(tables, X, Y, ordered=True)
    np.testing.assert_allclose(negative_log_likelihood(tables, X, Y, ordered=False), ordered, rtol=1e-13)
    np.testing.assert_allclose(negative_log_likelihood(tables, X[:, ::-1], Y, ordered=False), ordered, rtol=1e-13)
    np.testing.assert_allclose(negative_log_likelihood(tables, X[::-1], Y[::-1], ordered=True), ordered, rtol=1e-13)


def test_equal_logits_lose_log_n_at_every_position():
    X, Y = random_positions(300, 2)
    loss = negative_log_likelihood((jax.device_put(np.ones((N, N))),) * 2, X, Y)
    np.testing.assert_allclose(loss, 300 * np.log(N), rtol=1e-13)


def test_adding_a_constant_to_a_row_of_a_table_does_not_change_the_loss():
    tables, _ = random_tables(3)
    X, Y = random_positions(300, 3)
    shifted = (jax.device_put(np.asarray(tables[0]) + 3.0 * (np.arange(N) == 2)[:, None]), *tables[1:])
    np.testing.assert_allclose(negative_log_likelihood(shifted, X, Y), negative_log_likelihood(tables, X, Y), rtol=1e-12)


def counts_of(X, Y):
    return np.bincount(X[:, 0].astype(int) * N + Y, minlength=N * N).reshape(N, N)


@DTYPES
def test_the_loss_from_counts_equals_the_sum_over_positions(dtype):
    (table,), U = random_tables(1, dtype=dtype)
    X, Y = random_positions(300, 1)
    fast = negative_log_likelihood_from_counts(table, counts_of(X, Y))
    np.testing.assert_allclose(fast, negative_log_likelihood_loop(identity_features(X, "cat"), U, Y), rtol=TOLERANCE[dtype])


def test_the_loss_from_counts_is_linear_in_the_counts():
    (table,), _ = random_tables(1)
    C = counts_of(*random_positions(300, 1))
    loss = negative_log_likelihood_from_counts(table, C)
    np.testing.assert_allclose(negative_log_likelihood_from_counts(table, 10**9 * C), 10**9 * loss, rtol=1e-12)


def test_the_loss_of_relative_frequencies_is_the_conditional_entropy():
    C = np.array([[3, 1, 0], [0, 4, 4], [0, 0, 0]])  # pairs and a context that never occur: log 0 costs nothing
    entropy = 3 * np.log(4 / 3) + np.log(4) + 8 * np.log(2)
    with np.errstate(divide="ignore"):
        table = jax.device_put(np.log(C))
    np.testing.assert_allclose(negative_log_likelihood_from_counts(table, C), entropy, rtol=1e-14)


def test_a_pair_that_occurs_although_it_has_no_chance_costs_infinitely_much():
    table = jax.device_put(np.array([[0, -np.inf], [0, 0]]))
    assert negative_log_likelihood_from_counts(table, np.array([[1, 1], [0, 0]])) == np.inf
    assert negative_log_likelihood((table,), np.array([[0], [0]]), np.array([0, 1])) == np.inf
