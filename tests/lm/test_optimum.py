"""The optimum of one token of context, against relative frequencies and the loss of its table. Sums in float64: 1e-13."""

import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.lm.core.softmax import negative_log_likelihood_from_counts
from jexplicit.lm.fits.optimum import bigram_optimum

pytestmark = pytest.mark.slow

N = 4


def test_the_optimum_is_the_conditional_relative_frequencies():
    C = np.random.default_rng(0).integers(1, 50, (N, N))
    best = bigram_optimum((C,), eos=True, dtype=jnp.float64)
    entropy = -sum(c * np.log(c / row.sum()) for row in C for c in row) / C.sum()
    np.testing.assert_allclose(best.loss, entropy, rtol=1e-13)
    np.testing.assert_allclose(jnp.exp(best.model.tables[0]), C / C.sum(axis=1, keepdims=True), rtol=1e-14)


def test_it_is_the_infimum_where_pairs_never_occur():
    C = np.array([[3, 0, 1, 0], [0, 5, 0, 0], [0, 0, 0, 0], [1, 0, 2, 3]])
    best = bigram_optimum((C,), eos=True, floor=1e-6, dtype=jnp.float64)
    assert np.isfinite(best.model.tables[0]).all()
    above = negative_log_likelihood_from_counts(best.model.tables[0], C) - best.loss * C.sum()
    assert 0 < above <= N**2 * 1e-6
    np.testing.assert_allclose(best.model.tables[0][2], -np.log(N), rtol=1e-14)  # a context that never occurs
    infimum = [best.loss * C.sum(), negative_log_likelihood_from_counts(jnp.log(jnp.asarray(C, float)), C)]
    np.testing.assert_allclose(*infimum, rtol=1e-14)


def test_ends_of_documents_are_predicted_on_request():
    counts = (np.array([[0, 2], [1, 1]]),)
    np.testing.assert_allclose(bigram_optimum(counts).loss, 0, atol=1e-15)  # token 1 is the only target
    np.testing.assert_allclose(bigram_optimum(counts, eos=True).loss, 2 * np.log(2) / 4, rtol=1e-14)
