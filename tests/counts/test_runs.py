"""Contexts that devices count, beside those of the host: integers, so equal to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.counts.contexts import count_contexts, starts_of
from jexplicit.counts.runs import NO_KEY, compiled_levels, compiled_parts, count_contexts_on_devices, count_runs, join_ranges
from jexplicit.runs.devices import data_mesh


def assert_same(columns, Y, sizes, N, devices):
    """Whole levels, and their numbers, which count from the first context of a device's range."""
    mesh = data_mesh(devices)
    levels = count_contexts_on_devices(columns, Y, sizes, N, mesh)
    wanted = [((level.totals,) if n == 0 else level[:3], level[3:]) for n, level in enumerate(levels)]
    joined = join_ranges(levels, wanted, mesh)
    assert all(x.sharding.is_fully_replicated and x.devices() == set(mesh.devices.flat) for x in jax.tree.leaves(joined))
    joined, before = jax.tree.map(lambda x: np.asarray(x, int), joined), np.zeros(devices, int)
    for n, (expected, level) in enumerate(zip(count_contexts(columns, Y, sizes, N), levels, strict=True)):
        (*context, totals), (numbers, outputs, counts) = joined[n]
        contexts, pairs = (np.count_nonzero(of, axis=1) for of in (level.totals, level.counts))
        first = (np.cumsum(contexts) - contexts) * (n > 0)
        keys = (context[0] + np.repeat(before, contexts)) * sizes[n] + context[1] if n else np.arange(sizes[0])
        start, before = starts_of(numbers + np.repeat(first, pairs), len(keys)), first
        for mine, other in zip((keys, totals, start, outputs, counts), expected, strict=True):
            np.testing.assert_array_equal(mine, other)


def random_text(sizes, N, M=64):
    """Ids of which the small ones are frequent, in the smallest types, and targets."""
    rng = np.random.default_rng(N)
    columns = [np.minimum(rng.geometric(0.1, M), size - 1).astype(np.min_scalar_type(size)) for size in sizes]
    return columns, rng.integers(0, N, M).astype(np.int32), sizes, N


FEW = [(8, (70_000,) * 3, 70_000), (3, (3, 70_000, 2, 4), 6), (1, (3,) * 4, 3)]  # words of one digit and of all digits
MANY = [(d, (n,) * k, n) for d in (1, 3, 8) for n, k in ((3, 1), (3, 4), (300, 3), (70_000, 3), (4098, 5))]
SLOW = pytest.mark.slow


@pytest.mark.parametrize("devices, sizes, N", [*FEW, *(pytest.param(*case, marks=SLOW) for case in MANY if case not in FEW)])
def test_random_contexts(devices, sizes, N):
    assert_same(*random_text(sizes, N), devices)


@pytest.mark.parametrize("devices, M", [(8, 2), *(pytest.param(d, M, marks=SLOW) for d in (1, 3, 8) for M in (1, 9, 64))])
def test_repeated_contexts_and_fewer_positions_than_devices(devices, M):
    assert_same([np.zeros(M, int)] * 3, np.zeros(M, int), (2, 2, 2), 2, devices)
    assert_same([np.full(M, 4), np.arange(M) % 2], np.arange(M) % 3, (5, 2), 3, devices)  # all of one device's range


@pytest.mark.parametrize("devices", [3, *(pytest.param(d, marks=SLOW) for d in (1, 8))])
def test_ids_that_fill_a_word_are_not_taken_for_no_key(devices):
    full, M = 2**16 - 1, 12
    first = np.where(np.arange(M) % 3, full, 0)
    assert_same([first, np.full(M, full)], np.zeros(M, int), (2**16, 2**16), 1, devices)  # every bit of the word is set


def test_runs_add_up_what_is_counted_several_times():
    words = [jax.device_put(np.array(word, np.uint32)) for word in ([5, 1, 5, NO_KEY], [2, 9, 2, NO_KEY])]
    runs = jax.jit(count_runs)(words, jax.device_put(np.array([3, 1, 4, 0])))
    assert [word.tolist()[:2] for word in runs.words] == [[1, 5], [9, 2]] and runs.counts.tolist() == [1, 7, 0, 0]


@pytest.mark.parametrize("platform", ["cuda", pytest.param("tpu", marks=SLOW)])
def test_it_is_one_sort_a_length_and_one_exchange_on_accelerators(platform):
    mesh, radices, M = data_mesh(2), (100, 100, 100, 100), 1 << 12
    columns = [jax.ShapeDtypeStruct((M,), jnp.int32)] * 4
    count = compiled_parts(mesh, radices)
    runs, *_ = jax.eval_shape(count, columns, jax.ShapeDtypeStruct((M,), jnp.bool_))

    def lowered(f, *shapes):
        return f.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()

    counting = lowered(count, columns, jax.ShapeDtypeStruct((M,), jnp.bool_))
    exchange = lowered(compiled_levels(mesh, radices, 1 << 11), runs, jax.ShapeDtypeStruct((2, 3), jnp.int32))
    alone = lowered(compiled_levels(data_mesh(1), radices, 1), runs, jax.ShapeDtypeStruct((1, 2), jnp.int32))
    assert counting.count("stablehlo.sort") == 1 and "all_to_all" not in counting
    assert exchange.count("stablehlo.sort") == 1 + 2  # of what is received, and of the pairs of both shorter lengths
    assert exchange.count("stablehlo.all_to_all") == 2  # a word holds all four digits; and the counts
    assert alone.count("stablehlo.sort") == 2 and "all_to_all" not in alone
    for text in (counting, exchange, alone):  # nothing is quadratic in the positions
        assert f"{M}x{M}" not in text and f"{M // 2}x{M // 2}" not in text
