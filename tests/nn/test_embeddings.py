"""Neighbours of embeddings against loops and scikit-learn; the map keeps groups together."""

import numpy as np
from sklearn.neighbors import NearestNeighbors

from jexplicit.nn.studies.embeddings import embedding_map, nearest_neighbours

C = np.random.default_rng(0).normal(size=(40, 5))


def test_neighbours_are_those_of_scikit_learn():
    tokens = np.array([3, 0, 39])
    found = nearest_neighbours(C, tokens, 4)
    distances, ids = NearestNeighbors(n_neighbors=5, metric="cosine").fit(C).kneighbors(C[tokens])
    np.testing.assert_array_equal(found.ids, ids[:, 1:])  # the first is the token itself
    np.testing.assert_allclose(found.cosines, 1 - distances[:, 1:], rtol=1e-9)


def test_lengths_do_not_matter_and_a_row_of_zeros_is_near_to_nothing():
    scaled = C * np.linspace(0.1, 9, 40)[:, None]
    np.testing.assert_array_equal(nearest_neighbours(scaled, np.arange(40), 3).ids, nearest_neighbours(C, np.arange(40), 3).ids)
    with_zeros = np.concatenate([C, np.zeros((1, 5))])
    assert not nearest_neighbours(with_zeros, np.array([40]), 3).cosines.any()


def test_a_map_keeps_groups_together():
    rng = np.random.default_rng(1)
    groups = np.repeat(np.eye(5)[:3], 12, axis=0) + 0.05 * rng.normal(size=(36, 5))
    points = embedding_map(groups, seed=0)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    same = np.equal.outer(np.arange(36) // 12, np.arange(36) // 12)
    assert distance[same].mean() < 0.5 * distance[~same].mean()
    np.testing.assert_array_equal(points, embedding_map(groups, seed=0))
