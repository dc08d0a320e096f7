"""The second stage of patches: slow loops over cells, filters that are known, and what should not change them.

Tolerances: filters are float32, and a response is a sum of some hundred products of order 1: 1e-4.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jexplicit.features.patch_pools import fit_patch_bank, patch_pools
from jexplicit.features.patches import Filters
from jexplicit.features.second_stage import SecondStage, fit_second_stage, second_responses

pytestmark = pytest.mark.slow


def some_maps(M=30, side=5, channels=7, seed=0):
    return np.random.default_rng(seed).random((M, side, side, channels)).astype(np.float32)


def slow_second_responses(maps, stage):
    """[rows, columns, n] of one image: `⟨patch, w⟩ - b` at every cell, one product at a time beyond borders of zeros."""
    mean, axes, (W, b) = np.asarray(stage.mean), np.asarray(stage.axes), stage.filters
    rows, columns, _ = maps.shape
    inputs = np.zeros((rows + 2, columns + 2, axes.shape[1]))
    for i in range(rows):
        for j in range(columns):
            inputs[i + 1, j + 1] = (maps[i, j] - mean) @ axes
    z = np.zeros((rows, columns, len(b)))
    for i in range(rows):
        for j in range(columns):
            z[i, j] = inputs[i : i + 3, j : j + 3].reshape(-1) @ np.asarray(W) - np.asarray(b)
    return z


@pytest.fixture(scope="module")
def maps():
    return some_maps()


@pytest.fixture(scope="module")
def stage(maps):
    return fit_second_stage(maps, number=6, channels=4)


def test_responses_are_the_loop_over_cells(maps, stage):
    assert stage.axes.shape == (7, 4) and stage.filters.size(4) == 3
    slow = [slow_second_responses(each, stage) for each in maps]
    np.testing.assert_allclose(jax.jit(second_responses)(jnp.asarray(maps), stage), slow, rtol=0, atol=1e-4)


def slow_map(responses, grid, threshold):
    """Square roots of positive parts summed over a grid: [grid, grid, 2 n], from [rows, columns, n]."""
    rows, columns, n = responses.shape
    cells = np.zeros((grid, grid, 2 * n))
    for i in range(rows):
        for j in range(columns):
            z = responses[i, j]
            parts = np.concatenate([np.maximum(z - threshold, 0), np.maximum(-z - threshold, 0)])
            cells[i * grid // rows, j * grid // columns] += parts
    return np.sqrt(cells)


def slow_two_stages(image, bank, grid, threshold):
    fine, pooled = [], []
    for W, b in bank.filters:
        size = int(np.sqrt(len(W)))
        padded = np.pad(image / 255, ((size - 1) // 2, size // 2), mode="edge")
        for cells, found in ((min(image.shape) // 2, fine), (grid, pooled)):
            found.append(np.sqrt(reference.patch_answers(padded, np.asarray(W), np.asarray(b), threshold, cells)))
    second = slow_map(slow_second_responses(np.concatenate(fine, axis=2), bank.second), grid, threshold)
    rows = [np.concatenate(pooled, axis=2).reshape(-1), second.reshape(-1)]
    return np.concatenate([row / np.linalg.norm(row) for row in rows]) / np.sqrt(2)


def test_pools_of_two_stages_are_the_loop():
    images = np.random.default_rng(0).integers(0, 256, (40, 9, 8), np.uint8)
    options = {"grid": 2, "threshold": 0.3}
    bank, X = fit_patch_bank(images, 256, sizes=(3, 4), number=3, second=5, threshold=0.3), jnp.asarray(images, jnp.float32)
    slow = np.array([slow_two_stages(image, bank, **options) for image in images[:6]])
    assert slow.shape == (6, 2 * 3 * 2 * 4 + 2 * 5 * 4)
    np.testing.assert_allclose(patch_pools(X[:6] / 255, bank, **options), slow, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="a 5 x 5 grid: use 1 to 4 cells"):
        patch_pools(X, bank, grid=5, threshold=0.3)


def test_a_filter_of_one_cell_and_channel_gives_that_cell():
    """An axis along a channel and a filter that is 1 at the middle of its patch copy the channel, less its mean."""
    maps = jnp.asarray(some_maps(M=2))
    middle = np.zeros((9, 1), np.float32)
    middle[4] = 1
    axes = np.eye(7, dtype=np.float32)[:, 2:3]
    stage = SecondStage(
        jnp.full(7, 0.5, jnp.float32), jnp.asarray(axes), Filters(jnp.asarray(middle), jnp.zeros(1, jnp.float32))
    )
    np.testing.assert_allclose(second_responses(maps, stage)[..., 0], maps[..., 2] - 0.5, rtol=0, atol=1e-6)
