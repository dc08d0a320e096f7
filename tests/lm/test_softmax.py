"""Logits and partition functions, against dense one-hot features.

Tolerances: logits are sums of K <= 3 numbers of order 1: 1e-12 relative leaves a factor of 1000 over eps in float64. In
float32 each position is off by at most a few eps of its logits, 1e-6.
"""

from typing import Any

import chex
import jax
import numpy as np
import pytest
from reference import features

from jexplicit.lm.core import model as contexts_module
from jexplicit.lm.core.model import logits, map_contexts, token_model
from jexplicit.runs.devices import data_mesh

N = 9
TOLERANCE = {np.float64: 1e-12, np.float32: 1e-6}
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
def test_the_number_of_devices_does_not_change_log_partition_functions(M):
    tables, _ = random_tables(3)
    X, _ = random_positions(M, 3)
    one, many = (log_partition(tables, X, mesh=data_mesh(devices)) for devices in (1, 8))
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


@pytest.mark.parametrize("kind, per_call", [("sum", 7), ("cat", 1 << 15)])
def test_target_logits_equal_those_of_the_dense_product(kind, per_call, monkeypatch):
    monkeypatch.setattr(contexts_module, "_contexts_per_call", per_call)
    tables, U = random_tables(3, kind)
    X, Y = random_positions(50, 3)
    expected = (identity_features(X, kind) @ U)[np.arange(50), Y]
    np.testing.assert_allclose(token_model(tables, kind, False).rows.target_logits(X, Y), expected, rtol=0, atol=1e-14)
