"""Counts of contexts against dictionaries; integers, so nothing is approximate."""

from collections import Counter

import numpy as np
import pytest

from jexplicit.counts import pairs
from jexplicit.counts.pairs import count_contexts

N = 6


def text(seed: int = 0, length: int = 300):
    rng = np.random.default_rng(seed)
    X = np.stack([rng.integers(0, size, length) for size in (3, 5, 4, 2)], axis=1).astype(np.uint8)
    return X, rng.integers(0, N, length).astype(np.uint8)


def keys_of(level, N=N):
    """`context * N + target` of every pair."""
    assert level.start[0] == 0 and level.start[-1] == len(level.outputs) == len(level.counts)
    return level.keys(np.arange(len(level.contexts)), N)


@pytest.fixture(params=[2**63 - 1, 100, 40], ids=["one number", "numbered once", "numbered often"])
def largest(request, monkeypatch):
    """Keys are numbered again where they would grow too large; how large that is changes nothing."""
    monkeypatch.setattr(pairs, "_largest", request.param)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_level_is_that_of_dictionaries(length, largest):
    X, Y = text()
    found = count_contexts(X[:, :length], Y, N)
    positions = [(tuple(x[:length]), y) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    numbers: dict[tuple[int, ...], int] = {(i,): i for i in range(N)}
    pairs = Counter(positions)
    counts = {length: pairs}  # of the longest how often; then in how many longer ones
    for n in range(length - 1, 0, -1):
        counts[n] = Counter((context[:n], y) for context, y in counts[n + 1])
    for n, level in enumerate(found, 1):
        assert len(level.contexts) == (N if n == 1 else len({x[:n] for x, _ in positions}))
        if n > 1:
            known = sorted({x[:n] for x, _ in positions})
            keys = [numbers[x[:-1]] * N + x[-1] for x in known]
            assert level.contexts.tolist() == keys
            numbers = {x: number for number, x in enumerate(known)}
        expected = sorted((numbers[x] * N + y, n) for (x, y), n in counts[n].items())
        assert list(zip(keys_of(level).tolist(), level.counts.tolist(), strict=True)) == expected


def test_ids_at_the_largest_value_of_their_type_do_not_wrap():
    one, two = count_contexts(np.array([[255, 255], [255, 0]], np.uint8), np.array([255, 0], np.uint8), 256)
    assert keys_of(one, 256).tolist() == [255 * 256, 255 * 256 + 255]
    assert two.contexts.tolist() == [255 * 256, 255 * 256 + 255]
    assert keys_of(two, 256).tolist() == [0, 256 + 255]


def test_the_order_of_positions_changes_nothing():
    X, Y = text()
    order = np.random.default_rng(1).permutation(len(Y))
    for one, other in zip(count_contexts(X, Y, N), count_contexts(X[order], Y[order], N), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
