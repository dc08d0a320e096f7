"""Rows of the recent past, one history at a time and many places at once, against their loop.

Tolerances: rows are float32, a logarithm of at most 10, right to 1e-6; read in float32 throughout, to some eps more.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import PAD, random_documents, recent_counts, stream_of

from jexplicit.lm.core.model import HISTORY
from jexplicit.lm.evaluation import Past, histories
from jexplicit.lm.rows.past import cache as cache_module
from jexplicit.lm.rows.past.cache import Cache, CacheRows, cache_rows

pytestmark = pytest.mark.slow

N = 9
ROW = 1e-6
STREAM = stream_of(random_documents(seed=6, number=12, vocab_size=N, longest=9))
PLACES = np.arange(1, len(STREAM))  # ends of documents too
P = np.random.default_rng(1).dirichlet(np.ones(N))
CACHES = pytest.mark.parametrize("successors", [False, True])


def cache_of(places=PLACES, length=15, successors=False):
    return cache_rows(Past(STREAM, places), np.log(P), Cache(length, int(successors)))


@CACHES
@pytest.mark.parametrize("length", [1, 2, 15, 1000])
def test_cache_rows_equal_their_loop(length, successors):
    rows, full = cache_of(length=length, successors=successors), 0
    for m, place in enumerate(PLACES):
        c = np.array(recent_counts(STREAM, int(place), length, N, successors=successors))
        seen = np.flatnonzero(c)
        entries = slice(rows.start[m], rows.start[m + 1])
        assert rows.outputs[entries].tolist() == seen.tolist()
        np.testing.assert_allclose(rows.values[entries], np.log(1 + c[seen] / (len(seen) * P[seen])), rtol=0, atol=ROW)
        full += len(seen) > 0
    assert full > 0 and PAD not in rows.outputs


def test_a_cache_row_is_a_dirichlet_smoothed_unigram_of_the_past_over_p():
    place = len(STREAM) - 1
    c = np.array(recent_counts(STREAM, place, 40, N, successors=False))
    rows = cache_of(np.array([place]), length=40)
    values = np.zeros(N)
    values[rows.outputs] = rows.values
    strength = np.sum(c > 0)
    smoothed = (c + strength * P) / (sum(c) + strength)  # Witten and Bell's
    np.testing.assert_allclose(P * np.exp(values) / np.sum(P * np.exp(values)), smoothed, rtol=0, atol=ROW)


@CACHES
@pytest.mark.parametrize("targets", [3])
def test_positions_in_several_blocks_are_those_in_one(monkeypatch, targets, successors):
    whole = cache_of(successors=successors)
    monkeypatch.setattr(cache_module, "_targets_at_once", targets)
    for mine, theirs in zip(cache_of(successors=successors), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_cache_rows_follow_the_order_of_the_positions():
    some = np.array([40, 7, 40, 1, 23])
    rows, whole = cache_of(some), cache_of()
    for m, place in enumerate(some):
        mine, all_of_it = slice(*rows.start[m : m + 2]), slice(*whole.start[place - 1 : place + 1])
        np.testing.assert_array_equal(rows.outputs[mine], whole.outputs[all_of_it])
        np.testing.assert_array_equal(rows.values[mine], whole.values[all_of_it])


# One history at a time


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, ROW), (np.float32, 5 * ROW)])
@pytest.mark.parametrize("caches", [(Cache(1), Cache(1, 1)), (Cache(3), Cache(6, 1), Cache(7)), (Cache(1000, 1), Cache(2))])
def test_rows_of_histories_are_those_of_places(caches, dtype, tolerance):
    """At the first places there is no history yet; every document's end is in some history."""
    kind = CacheRows(jnp.log(jnp.asarray(P, dtype)), caches)
    assert kind.history == max(cache.length + cache.match for cache in caches)
    assert kind.tokens == (HISTORY,) * len(caches) and kind.vocab_size == N
    past = Past(STREAM, PLACES)
    read = histories(past, kind.history)
    rows = np.stack(jax.jit(jax.vmap(functools.partial(kind.read, None)))(jnp.asarray(read)))
    assert rows.dtype == dtype and rows.shape == (len(caches), len(PLACES), N)
    together = kind.log_tables(np.zeros((len(PLACES), 1), int), past)
    for mine, (table, numbers, base) in zip(rows, together, strict=True):
        assert numbers.tolist() == list(range(len(PLACES))) and base is None
        dense = np.zeros((len(PLACES), N))
        dense[np.repeat(numbers, np.diff(table.start)), table.outputs] = table.values
        np.testing.assert_allclose(mine, dense, rtol=0, atol=tolerance)
        assert not mine[0].any() and mine.any()


@CACHES
def test_the_row_of_a_history_is_its_loop(successors):
    kind = CacheRows(jnp.log(P), (Cache(5, int(successors)),))
    read = jax.jit(jax.vmap(lambda history: kind.read(None, history)[0]))
    rows = read(jnp.asarray(histories(Past(STREAM, PLACES), kind.history)))
    c = np.array([recent_counts(STREAM, int(place), 5, N, successors=successors) for place in PLACES])
    expected = np.log(1 + c / (np.maximum(np.sum(c > 0, axis=1, keepdims=True), 1) * P[None]))
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-14)


def test_a_longer_history_than_a_cache_reads_changes_nothing():
    history = jnp.asarray(histories(Past(STREAM, PLACES[-1:]), 40)[0])
    for cache in (Cache(6), Cache(6, 1)):
        kind = CacheRows(jnp.log(P), (cache,))
        np.testing.assert_array_equal(kind.read(None, history)[0], kind.read(None, history[: kind.history])[0])


def test_names_say_what_a_cache_looks_at():
    assert CacheRows(jnp.log(P), (Cache(50), Cache(7, 1))).names == ("cache 50", "cache 7 after 1")
