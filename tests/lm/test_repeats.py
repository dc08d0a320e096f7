"""Rows of the context's own tokens, against a loop, special cases and the rows of a cache.

Tolerance: rows are float32, a logarithm of at most 10: 1e-5.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.data.contexts import PAD
from jexplicit.lm.evaluation import Past, read_text
from jexplicit.lm.rows.past.cache import Cache, RepeatRows, cache_rows, repeat_rows

pytestmark = pytest.mark.slow

N = 256  # ids up to the largest of uint8
RNG = np.random.default_rng(0)
STREAM = np.concatenate([[PAD], RNG.integers(240, N, 60), [PAD], RNG.integers(240, N, 3), [PAD]]).astype(np.uint8)
B = RNG.dirichlet(np.ones(N))
ROW = 1e-5


def loop(context, W):
    """log(1 + c / (n+ b)) of the tokens of one context, one after the other."""
    row, near = np.zeros(N), [int(i) for i in context[:W] if i != PAD]
    for i in set(near):
        row[i] = np.log(1 + near.count(i) / (len(set(near)) * B[i]))
    return row


@pytest.mark.parametrize("W", [1, 4, 16])
def test_rows_are_those_of_a_loop_read_one_by_one_and_all_at_once(W):
    X = read_text(STREAM, 16).X
    expected = np.array([loop(x, W) for x in X])
    kind = RepeatRows(jnp.log(jnp.asarray(B, jnp.float32)), (W,))
    one_by_one = jax.jit(jax.vmap(lambda x: kind.read(x)[0]))(jnp.asarray(X))
    np.testing.assert_allclose(one_by_one, expected, rtol=0, atol=ROW)
    start, outputs, values = repeat_rows(X[:, :W], B)
    rows = np.zeros_like(expected)
    rows[np.repeat(np.arange(len(X)), np.diff(start)), outputs] = values
    np.testing.assert_allclose(rows, expected, rtol=0, atol=ROW)
    assert np.count_nonzero(rows[0]) == 0  # the first token of a text has no token before it


def test_in_one_document_they_are_the_rows_of_a_cache():
    text = read_text(STREAM, 5)
    own = text.past.within_documents()
    for mine, theirs in zip(repeat_rows(text.X, B), cache_rows(Past(*own), np.log(B), Cache(5)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=ROW)
