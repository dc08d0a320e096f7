"""The one type of all language models: a pytree whose logits and partition functions are those of dense features.

Tolerances: logits are sums of K <= 3 numbers of order 1, 1e-12 in float64 and 1e-6 in float32; other models are float32.
"""

from typing import Any

import chex
import jax
import numpy as np
import pytest
from reference import cooccurrences, features, log_softmax, random_documents, stream_of

from jexplicit.counts.pairs import count_sparse
from jexplicit.lm.core import model as module
from jexplicit.lm.core.model import NO_TOKEN, LanguageModel, context_of, is_token_model, logits, map_contexts, token_model
from jexplicit.lm.rows import explicit_language_model, sparse_language_model, unigram_model
from jexplicit.lm.training_text import TrainingText
from jexplicit.runs.devices import data_mesh

N = 9
DOCUMENTS = random_documents(1, 60, N, 10)
STREAM = stream_of(DOCUMENTS)
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(DOCUMENTS, 3, N))


def random_tables(K, kind="cat", dtype: Any = np.float64):
    """K tables, one for all offsets where kind is sum, and the decoder U that they are the blocks of."""
    U = [np.random.default_rng(k).normal(size=(N, N)) * 2 for k in range(1 if kind == "sum" else K)]
    tables = tuple(jax.device_put(np.asarray(block, dtype)) for block in U)
    return (tables * K, U[0]) if kind == "sum" else (tables, np.concatenate(U))


def random_positions(M, K):
    rng = np.random.default_rng(1)
    return rng.integers(0, N, (M, K)).astype(np.uint16), rng.integers(0, N, M).astype(np.uint16)


def test_logits_and_partition_functions_are_those_of_dense_features_on_any_devices_and_in_calls_of_any_size(monkeypatch):
    for kind, M, dtype, atol in (("sum", 65, np.float64, 1e-11), ("cat", 300, np.float32, 1e-5), ("cat", 5, np.float64, 1e-11)):
        (tables, U), (X, Y) = random_tables(3, kind, dtype), random_positions(M, 3)
        rows, model = features(X, np.eye(N), kind) @ U, token_model(tables, kind, False)
        np.testing.assert_allclose([logits(tables, jax.device_put(x)) for x in X[:20]], rows[:20], rtol=0, atol=atol / 10)
        one, eight = (model.rows.log_partition(X, mesh=data_mesh(devices)) for devices in (1, 8))
        assert one.dtype == dtype
        np.testing.assert_allclose(one, [np.log(np.exp(row).sum()) for row in rows], rtol=0, atol=atol)
        np.testing.assert_allclose(eight, one, rtol=1e-14 if dtype == np.float64 else 1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_contexts_per_call", 7)
            np.testing.assert_allclose(model.rows.target_logits(X, Y), rows[np.arange(M), Y], rtol=0, atol=atol)


def test_contexts_come_back_in_their_order_over_many_calls_that_compile_once(monkeypatch):
    traced_once: Any = chex.assert_max_traces(lambda tables, x: x[0] * 10 + x[1], n=1)
    monkeypatch.setattr(module, "_contexts_per_call", 64)
    X, _ = random_positions(200, 2)
    reports = []
    mapped = map_contexts(traced_once, random_tables(2)[0], X, progress=lambda done, total: reports.append((done, total)))
    np.testing.assert_array_equal(mapped, X[:, 0].astype(int) * 10 + X[:, 1])
    assert reports == [(64, 200), (128, 200), (192, 200), (200, 200)]


def test_the_derivative_in_the_tables_is_a_softmax_less_the_target():
    x, y = jax.device_put(np.array([2, 1, 2])), 3
    for kind in ("sum", "cat"):
        model = explicit_language_model(COUNTS, features=kind, eos=True)
        gradient = jax.jit(jax.grad(lambda model: -jax.nn.log_softmax(model.logits(x))[y]))(model)
        assert isinstance(gradient, LanguageModel) and gradient.features == model.features
        residual = np.exp(log_softmax(np.asarray(model.logits(x)))) - np.eye(N)[y]
        expected = [np.zeros((N, N)) for _ in model.rows.tables]
        for j, t in zip(x, model.rows.table_of_offset, strict=True):
            expected[t][int(j)] += residual
        np.testing.assert_allclose(np.stack(gradient.rows.tables), expected, rtol=0, atol=1e-6)


def test_offsets_of_one_table_hold_it_once_and_only_plain_tables_are_given_out():
    table, other = (jax.device_put(np.full((N, N), value, np.float64)) for value in (0, 1))
    shared, mixed = token_model([table] * 3, "sum", True), token_model([table, other, table], "cat", True)
    assert len(shared.rows.tables) == 1 and shared.nbytes == table.nbytes
    assert mixed.rows.table_of_offset == (0, 1, 0) and len(mixed.rows.tables) == 2
    assert all(a is b for a, b in zip(mixed.tables, (table, other, table), strict=True))
    counts = count_sparse(STREAM, radius=3, vocab_size=N)
    sparse, ngram = (
        sparse_language_model(counts, features="cat"),
        LanguageModel(TrainingText(STREAM, N).ngrams(4), "none", True),
    )
    one_sparse = sparse_language_model(counts, features="sum")
    assert [model.ordered for model in (shared, mixed, sparse, ngram, one_sparse)] == [False, True, True, True, False]
    for model in (sparse, ngram, unigram_model(COUNTS)):
        assert not is_token_model(model)
        with pytest.raises(ValueError, match="this needs plain tables"):
            _ = model.tables


def test_the_context_of_a_history_ends_where_its_document_begins():
    compiled = jax.jit(context_of, static_argnums=1)
    for history, context in [
        ([5, 6, 7, 1], [5, 6, 7, 1]),
        ([5, 0, 7, 1], [5, 0, 0, 0]),
        ([0, 6, 7, 1], [0, 0, 0, 0]),
        ([5, 6, NO_TOKEN, NO_TOKEN], [5, 6, 0, 0]),
    ]:
        assert compiled(jax.device_put(np.array(history)), 4).tolist() == context
