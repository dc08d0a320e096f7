"""Spherical k-means: a loop, clusters that are known, and a sum that never falls."""

import numpy as np

from jexplicit.features.clusters import spherical_kmeans


def around(directions, M=200, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(1, 3, (M, 1)) * directions[rng.integers(0, len(directions), M)] + noise * rng.normal(
        size=(M, directions.shape[1])
    )


def test_clusters_that_lie_apart_are_found():
    axes = np.eye(3)
    C = spherical_kmeans(around(axes, M=300), 3, iterations=20, seed=2)
    nearest = (C @ axes.T).max(axis=1)
    assert sorted((C @ axes.T).argmax(axis=1)) == [0, 1, 2] and nearest.min() > 0.99


def test_a_round_is_the_loop_over_vectors():
    X = around(np.random.default_rng(1).normal(size=(4, 5)))
    before, after = (spherical_kmeans(X, 4, iterations=n) for n in (3, 4))
    sums = np.zeros_like(before)
    for x in X:
        sums[max(range(4), key=lambda n: x @ before[n])] += x
    np.testing.assert_allclose(after, [s / np.sqrt(s @ s) for s in sums], rtol=0, atol=1e-12)


def test_no_round_lowers_the_sum_of_largest_products_and_directions_have_norm_1():
    X = np.random.default_rng(3).normal(size=(300, 6))
    rounds = [spherical_kmeans(X, 9, iterations=n) for n in range(8)]
    sums = [(X @ C.T).max(axis=1).sum() for C in rounds]
    assert np.all(np.diff(sums) >= -1e-9) and sums[-1] > sums[0] + 1
    np.testing.assert_allclose([np.linalg.norm(C, axis=1) for C in rounds], 1, rtol=1e-12)
