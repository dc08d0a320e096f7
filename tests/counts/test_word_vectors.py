"""Word vectors of counts against a whole SVD."""

import numpy as np
import pytest

from jexplicit.counts.pairs import count
from jexplicit.counts.word_vectors import word_vectors

N = 8
RNG = np.random.default_rng(0)
STREAM = np.concatenate([[0], *([*RNG.integers(1, N - 1, 7), 0] for _ in range(40))]).astype(np.uint8)  # N - 1 never occurs


def test_vectors_are_the_svd_of_positive_information():
    counts = count(STREAM, radius=2, vocab_size=N)
    C = counts[0].astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.log(C * C.sum() / np.outer(C.sum(axis=1), C.sum(axis=0)))
    ppmi = np.where(C > 0, np.maximum(information, 0), 0)
    S, sigma, T = np.linalg.svd(ppmi)
    V = word_vectors(counts[0], 3)
    np.testing.assert_allclose(V @ V.T, (S[:, :3] * sigma[:3]) @ S[:, :3].T, atol=1e-9)
    assert (V[np.abs(V).argmax(axis=0), range(3)] > 0).all()
    np.testing.assert_array_equal(V, word_vectors(counts[0], 3))


@pytest.mark.parametrize("d", [0, N])
def test_dimensions_are_those_that_the_tokens_span(d):
    with pytest.raises(ValueError, match=f"word vectors of {d} dimensions"):
        word_vectors(np.ones((N, N), int), d)
    with pytest.raises(ValueError, match="no counts"):
        word_vectors(np.zeros((3, 3), int), 1)
