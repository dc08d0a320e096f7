"""The one type of all language models: a pytree whose logits pass jit, vmap and grad, whatever its rows are.

Tolerances: logits are float32 of order 10, sums of at most 22 rows: 2e-5; derivatives in an exponent are differences of rows.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import random_documents, stream_of

from jexplicit.counts.dense import count
from jexplicit.counts.sparse import count_sparse
from jexplicit.lm.attribution import explain
from jexplicit.lm.core.model import (
    NOTHING,
    Constant,
    LanguageModel,
    Rows,
    TokenTables,
    context_of,
    has_unit_exponents,
    is_token_model,
    token_model,
)
from jexplicit.lm.evaluation import Past, histories, log_probabilities, read_text
from jexplicit.lm.fits.log_linear import log_linear_model, offset_rows
from jexplicit.lm.fits.mixtures.mixture_rows import CHAIN, mixture_rows
from jexplicit.lm.fits.mixtures.ngram_mixture import ngram_model
from jexplicit.lm.rows.bitcipher import bit_cipher, coded_language_model
from jexplicit.lm.rows.cache import Cache, CacheRows
from jexplicit.lm.rows.explicit import explicit_language_model, unigram_model
from jexplicit.lm.rows.ngrams import smoothed_ngrams
from jexplicit.lm.rows.sparse import sparse_language_model
from jexplicit.lm.training_text import RADIUS, TrainingText
from jexplicit.runs.devices import data_mesh

N = 9
ATOL = 2e-5
STREAM, HELD = stream_of(random_documents(1, 60, N, 10)), stream_of(random_documents(2, 12, N, 10))
MODELS = ("token tables", "Sum", "log-linear", "n-gram", "mixture with caches", "sparse", "coded", "unigram")
SLOW = ("n-gram", "mixture with caches")  # eager calls compile every operation of their searches
ALL = pytest.mark.parametrize("name", MODELS)
EAGER = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS])


@functools.cache
def model_of(name):
    counts = count(STREAM, radius=3, vocab_size=N)
    if name in ("token tables", "Sum"):
        return explicit_language_model(counts, features="sum" if name == "Sum" else "cat", eos=True)
    if name == "log-linear":
        return log_linear_model(offset_rows(counts, features="cat", eos=True), np.array([0.9, 0.8, 0.3, 0.2]))
    if name == "sparse":
        return sparse_language_model(count_sparse(STREAM, radius=3, vocab_size=N), features="cat", eos=True)
    if name == "coded":
        return coded_language_model(STREAM, bit_cipher(np.bincount(STREAM[1:]), 5), features="cat", radius=2, eos=True)
    if name == "unigram":
        return unigram_model(counts, eos=True)
    text = read_text(STREAM, RADIUS, eos=True)
    ngrams = functools.partial(smoothed_ngrams, text.X, text.Y, vocab_size=N)
    if name == "n-gram":
        return ngram_model(ngrams(offsets=CHAIN), np.bincount(text.Y, minlength=N), eos=True)
    rows = mixture_rows(TrainingText(STREAM, N, eos=True))[:5]  # one of the gaps
    rows = (*rows, CacheRows(rows[0].row, (Cache(5), Cache(20, match=1))))
    exponents = np.random.default_rng(0).uniform(0.1, 0.6, sum(len(kind.names) for kind in rows))
    return LanguageModel(rows, exponents.astype(np.float32), "cat", True)


def positions_of(model, some=slice(0, None, 3)):
    """Contexts, histories and targets of some positions of a text; histories of models that read none are left empty."""
    text = read_text(HELD, model.radius, eos=True)
    past = Past(text.past.stream, text.past.places[some])
    return jnp.asarray(text.X[some]), jnp.asarray(histories(past, model.history)), text.Y[some], past


def logits(model, x, history):
    return model.logits(x, history if model.history else None)


@EAGER
def test_logits_are_the_same_one_by_one_compiled_and_together(name):
    model = model_of(name)
    X, read, Y, past = positions_of(model)
    one_by_one = [logits(model, x, h) for x, h in zip(X[:2], read[:2], strict=True)]
    compiled = jax.jit(logits)
    np.testing.assert_allclose([compiled(model, x, h) for x, h in zip(X[:2], read[:2], strict=True)], one_by_one, atol=ATOL)
    closed = jax.jit(lambda x, h: logits(model, x, h))
    np.testing.assert_allclose(closed(X[1], read[1]), one_by_one[1], atol=ATOL)
    together = jax.jit(jax.vmap(logits, in_axes=(None, 0, 0)))(model, X, read)
    assert together.shape == (len(Y), N) and together.dtype == jnp.float32
    np.testing.assert_allclose(together[:2], one_by_one, atol=ATOL)
    log_p = np.asarray(jax.nn.log_softmax(together))[np.arange(len(Y)), Y]
    np.testing.assert_allclose(log_probabilities(model, np.asarray(X), Y, past=past), log_p, rtol=0, atol=ATOL)


@EAGER
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_contexts_may_be_of_any_integer_type(name, dtype):
    model = model_of(name)
    X, read, _, _ = positions_of(model, slice(4, 8))
    together = jax.jit(jax.vmap(logits, in_axes=(None, 0, 0)))
    np.testing.assert_array_equal(together(model, X.astype(dtype), read), together(model, X, read))


@ALL
def test_logits_are_the_weighed_sum_of_named_rows(name):
    model = model_of(name)
    X, read, _, _ = positions_of(model, slice(6, 8))
    assert len(model.names) == len(model.tokens) == len(model.exponents)
    assert all(isinstance(kind, Rows) for kind in model.rows)
    read_all = jax.jit(lambda x, h: (model.read(x, h if model.history else None), logits(model, x, h)))
    for x, h in zip(X, read, strict=True):
        rows, found = read_all(x, h)
        assert len(rows) == len(model.names) and all(row.shape == (N,) for row in rows)
        expected = sum(float(a) * np.asarray(row, np.float64) for a, row in zip(model.exponents, rows, strict=True))
        np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)


@ALL
def test_the_derivative_in_the_exponents_is_expected_less_observed_rows(name):
    """`d(-log p(y))/da_g = E_p[r_g] - r_g[y]`: the evidence of a row with exponent a is minus a times it."""
    model = model_of(name)
    X, read, Y, past = positions_of(model, slice(0, None, 7))

    def loss(exponents, x, h, y):
        return -jax.nn.log_softmax(logits(dataclasses.replace(model, exponents=exponents), x, h))[y]

    a = jnp.asarray(model.exponents)
    gradient = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0)))(a, X, read, jnp.asarray(Y))
    assert gradient.shape == (len(Y), len(a)) and np.isfinite(gradient).all()
    why = explain(model, np.asarray(X), Y, past=past)
    np.testing.assert_allclose(-gradient * a[None], why.evidence, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", ["token tables", "Sum", "log-linear"])
def test_the_derivative_in_the_tables_is_a_softmax_less_the_target(name):
    model = model_of(name)
    x, y = jnp.array([2, 1, 2]), 3

    def loss(model):
        return -jax.nn.log_softmax(model.logits(x))[y]

    gradient = jax.jit(jax.grad(loss))(model)
    assert isinstance(gradient, LanguageModel) and gradient.features == model.features
    residual = np.asarray(jax.nn.softmax(model.logits(x))) - np.eye(N)[y]
    expected = [np.zeros((N, N)) for _ in model.rows[0].tables]
    for j, t in zip(x, model.rows[0].table_of_offset, strict=True):
        expected[t][int(j)] += residual
    np.testing.assert_allclose(np.stack(gradient.rows[0].tables), expected, rtol=0, atol=1e-6)


@ALL
def test_maps_and_placements_keep_the_type(name):
    model, compiled = model_of(name), jax.jit(logits)
    X, read, _, _ = positions_of(model, slice(0, 1))
    for other in (
        jax.tree.map(lambda leaf: leaf, model),
        jax.tree.map(jnp.asarray, model),
        jax.device_put(model, jax.devices()[3]),
        jax.device_put(model, jax.NamedSharding(data_mesh(8), jax.P())),
        jax.tree.unflatten(jax.tree.structure(model), jax.tree.leaves(model)),
        jax.jit(lambda model: model)(model),
    ):
        assert type(other) is LanguageModel and [type(kind) for kind in other.rows] == [type(kind) for kind in model.rows]
        assert (other.names, other.tokens, other.features, other.eos) == (model.names, model.tokens, model.features, model.eos)
        assert (other.radius, other.history, other.vocab_size) == (model.radius, model.history, model.vocab_size)
        assert jax.tree.structure(other) == jax.tree.structure(model)
        np.testing.assert_allclose(compiled(other, X[0], read[0]), compiled(model, X[0], read[0]), rtol=0, atol=ATOL)
    assert {device for leaf in jax.tree.leaves(jax.device_put(model, jax.devices()[3])) for device in leaf.devices()} == {
        jax.devices()[3]
    }
    assert model.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(model))


@ALL
def test_a_model_is_compiled_once_for_all_of_its_kind(name):
    model = model_of(name)
    X, read, _, _ = positions_of(model)
    compiled: Any = jax.jit(lambda model, x, h: logits(model, x, h))  # a function of its own has a cache of its own
    for other in (model, jax.tree.map(lambda leaf: leaf + 0, model)):
        compiled(jax.tree.map(jnp.asarray, other), X[0], read[0])
        compiled(jax.tree.map(jnp.asarray, other), X[3], read[3])
    assert compiled._cache_size() == 1


def test_a_model_cannot_be_changed():
    model = model_of("token tables")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(model, "eos", False)  # noqa: B010


def test_offsets_of_one_table_hold_it_once():
    table, other = jnp.zeros((N, N)), jnp.ones((N, N))
    shared, mixed = token_model([table] * 3, "sum", True), token_model([table, other, table], "cat", True)
    assert len(shared.rows[0].tables) == 1 and shared.nbytes == table.nbytes + shared.exponents.nbytes
    assert mixed.rows[0].table_of_offset == (0, 1, 0) and len(mixed.rows[0].tables) == 2
    assert all(a is b for a, b in zip(mixed.tables, (table, other, table), strict=True))
    assert (shared.ordered, mixed.ordered) == (False, True)


def test_a_sum_over_one_shared_table_does_not_see_the_order_whatever_holds_it():
    counts = count_sparse(STREAM, radius=3, vocab_size=N)
    codes = bit_cipher(np.bincount(STREAM[1:]), 5)
    cases: tuple[tuple[Features, bool], ...] = (("sum", False), ("cat", True))
    for features, ordered in cases:
        assert sparse_language_model(counts, features=features).ordered == ordered
        assert coded_language_model(STREAM, codes, features=features, radius=2).ordered == ordered
    assert model_of("n-gram").ordered and model_of("mixture with caches").ordered


@pytest.mark.parametrize("name", ["n-gram", "mixture with caches", "sparse", "coded", "unigram"])
def test_a_model_without_plain_tables_says_so(name):
    assert not is_token_model(model_of(name))
    with pytest.raises(ValueError, match="this needs plain tables"):
        _ = model_of(name).tables


def test_tables_with_exponents_are_no_plain_tables():
    model = model_of("token tables")
    weighed = dataclasses.replace(model, exponents=np.array([1.0, 0.5, 1.0], np.float32))
    assert has_unit_exponents(model) and not has_unit_exponents(weighed) and not is_token_model(weighed)
    with pytest.raises(ValueError, match="a model of TokenTables: this needs plain tables"):
        _ = weighed.tables
    text = read_text(HELD, 3, eos=True)
    tables = [table * a for table, a in zip(model.tables, weighed.exponents, strict=True)]
    expected = log_probabilities(token_model(tables, "cat", True), text.X, text.Y)
    np.testing.assert_allclose(log_probabilities(weighed, text.X, text.Y), expected, rtol=0, atol=ATOL)


def test_kinds_of_different_radius_are_one_model():
    rng = np.random.default_rng(0)
    row, near, far = (jnp.asarray(rng.normal(size=shape)) for shape in ((N,), (N, N), (N, N)))
    model = LanguageModel((Constant(row), TokenTables((near,), (0,), "near"), TokenTables((far,), (0, 0), "far")), np.ones(4))
    assert (model.radius, model.history, model.names) == (2, 0, ("unigram", "near 1", "far 1", "far 2"))
    expected = row + near[3] + far[3] + far[5]
    np.testing.assert_allclose(model.logits(jnp.array([3, 5])), expected, rtol=1e-14)


def test_the_context_of_a_history_ends_where_its_document_begins():
    assert context_of(jnp.array([5, 6, 7, 1]), 3).tolist() == [5, 6, 7]
    assert context_of(jnp.array([5, 0, 7, 1]), 3).tolist() == [5, 0, 0]
    assert context_of(jnp.array([0, 6, 7, 1]), 3).tolist() == [0, 0, 0]
    assert context_of(jnp.array([5, 6, NOTHING, NOTHING]), 4).tolist() == [5, 6, 0, 0]
