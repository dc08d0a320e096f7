"""Vectors and classes of tokens from counts, against a loop and on a text whose classes are known."""

import numpy as np
import pytest
from reference import PAD, random_documents, stream_of

from jexplicit.counts.sparse import count_sparse
from jexplicit.lm.fits.mixtures.word_classes import cluster, neighbour_ppmi, neighbour_vectors

pytestmark = pytest.mark.slow

N = 8
STREAM = stream_of(random_documents(seed=3, number=40, vocab_size=N, longest=12))


def test_mutual_information_is_that_of_a_loop_over_the_text():
    n = np.bincount(STREAM, minlength=N).astype(float)
    n[PAD] = 0
    q = n**0.75 / np.sum(n**0.75)
    found = neighbour_ppmi(count_sparse(STREAM, radius=2, vocab_size=N)).toarray()
    for block, d in enumerate((-2, -1, 1, 2)):
        counts = np.zeros((N, N))
        for t, i in enumerate(STREAM):
            between = STREAM[min(t, t + d) : max(t, t + d) + 1] if 0 <= t + d < len(STREAM) else [PAD]
            if PAD not in between:
                counts[i, STREAM[t + d]] += 1
        total = counts.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.maximum(np.nan_to_num(np.log(counts / (total * q)), neginf=0), 0)
        # sums of at most a few hundred counts in double precision
        np.testing.assert_allclose(found[:, block * N : (block + 1) * N], expected, rtol=0, atol=1e-12)
    assert np.count_nonzero(found) > N


def two_classes(seed: int, sentences: int) -> np.ndarray:
    """Tokens 1-4 are always followed by 5-8, and these by 1-4: nothing else tells them apart."""
    rng = np.random.default_rng(seed)
    documents = [np.ravel([[rng.integers(1, 5), rng.integers(5, 9)] for _ in range(6)]) for _ in range(sentences)]
    return stream_of([list(map(int, document)) for document in documents])


def test_tokens_of_the_same_neighbours_are_one_class():
    stream = two_classes(0, 100)
    counts = np.bincount(stream, minlength=10)
    counts[PAD] = 0
    vectors = neighbour_vectors(count_sparse(stream, radius=2, vocab_size=10), dimensions=3)
    np.testing.assert_allclose(np.linalg.norm(vectors[1:9], axis=1), 1, rtol=0, atol=1e-9)
    assert not vectors[9].any()  # never occurs
    found = cluster(vectors, counts, 2)
    assert found[PAD] == found[9] == 0
    assert len(set(found[1:5])) == len(set(found[5:9])) == 1 and found[1] != found[5]


@pytest.mark.parametrize("classes", [1, 3, 100])
def test_there_are_no_more_classes_than_asked_for_or_than_tokens(classes):
    counts = np.bincount(STREAM, minlength=N)
    counts[PAD] = 0
    vectors = neighbour_vectors(count_sparse(STREAM, radius=2, vocab_size=N), dimensions=4)
    found = cluster(vectors, counts, classes)
    assert set(found[counts > 0]) <= set(range(1, min(classes, N - 1) + 1)) and not found[counts == 0].any()
    np.testing.assert_array_equal(found, cluster(vectors, counts, classes))
