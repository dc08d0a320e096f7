"""The one type of all language models: a pytree whose logits pass jit, vmap and grad, whatever its rows are.

Tolerances: logits are float32 of order 10.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from reference import cooccurrences, log_softmax, random_documents, stream_of

from jexplicit.counts.pairs import count_sparse
from jexplicit.lm.core.model import NO_TOKEN, LanguageModel, context_of, is_token_model, token_model
from jexplicit.lm.core.names import Features
from jexplicit.lm.fits.log_linear import log_linear_model, offset_rows
from jexplicit.lm.rows import explicit_language_model, sparse_language_model, unigram_model
from jexplicit.lm.training_text import TrainingText

N = 9
STREAM = stream_of(random_documents(1, 60, N, 10))
COUNTS = tuple(C.astype(np.int32) for C in cooccurrences(random_documents(1, 60, N, 10), 3, N))


@functools.cache
def model_of(name):
    if name == "log-linear":
        return log_linear_model(offset_rows(COUNTS, features="cat", eos=True), np.array([0.9, 0.8, 0.3, 0.2]))
    if name == "n-gram":
        text = TrainingText(STREAM, N, eos=True)
        return LanguageModel(text.ngrams(4), "none", True)
    return explicit_language_model(COUNTS, features="sum" if name == "Sum" else "cat", eos=True)


@pytest.mark.parametrize("name", ["token tables", "Sum", pytest.param("log-linear", marks=pytest.mark.slow)])
def test_the_derivative_in_the_tables_is_a_softmax_less_the_target(name):
    model = model_of(name)
    x, y = jax.device_put(np.array([2, 1, 2])), 3

    def loss(model):
        return -jax.nn.log_softmax(model.logits(x))[y]

    gradient = jax.jit(jax.grad(loss))(model)
    assert isinstance(gradient, LanguageModel) and gradient.features == model.features
    residual = np.exp(log_softmax(np.asarray(model.logits(x)))) - np.eye(N)[y]
    expected = [np.zeros((N, N)) for _ in model.rows.tables]
    for j, t in zip(x, model.rows.table_of_offset, strict=True):
        expected[t][int(j)] += residual
    np.testing.assert_allclose(np.stack(gradient.rows.tables), expected, rtol=0, atol=1e-6)


def test_a_model_cannot_be_changed():
    model = model_of("token tables")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(model, "eos", False)  # noqa: B010


def test_offsets_of_one_table_hold_it_once():
    table, other = (jax.device_put(np.full((N, N), value, np.float64)) for value in (0, 1))
    shared, mixed = token_model([table] * 3, "sum", True), token_model([table, other, table], "cat", True)
    assert len(shared.rows.tables) == 1 and shared.nbytes == table.nbytes
    assert mixed.rows.table_of_offset == (0, 1, 0) and len(mixed.rows.tables) == 2
    assert all(a is b for a, b in zip(mixed.tables, (table, other, table), strict=True))
    assert (shared.ordered, mixed.ordered) == (False, True)


def test_a_sum_over_one_shared_table_does_not_see_the_order_whatever_holds_it():
    counts = count_sparse(STREAM, radius=3, vocab_size=N)
    cases: tuple[tuple[Features, bool], ...] = (("sum", False), ("cat", True))
    for features, ordered in cases:
        assert sparse_language_model(counts, features=features).ordered == ordered
    assert model_of("n-gram").ordered


def test_a_model_without_plain_tables_says_so():
    sparse = sparse_language_model(count_sparse(STREAM, radius=3, vocab_size=N), features="cat", eos=True)
    for model in (model_of("n-gram"), sparse, unigram_model(COUNTS)):
        assert not is_token_model(model)
        with pytest.raises(ValueError, match="this needs plain tables"):
            _ = model.tables


def test_the_context_of_a_history_ends_where_its_document_begins():
    compiled = jax.jit(context_of, static_argnums=1)
    for history, radius, context in [
        ([5, 6, 7, 1], 3, [5, 6, 7]),
        ([5, 0, 7, 1], 3, [5, 0, 0]),
        ([0, 6, 7, 1], 3, [0, 0, 0]),
        ([5, 6, NO_TOKEN, NO_TOKEN], 4, [5, 6, 0, 0]),
    ]:
        assert compiled(jax.device_put(np.array(history)), radius).tolist() == context
