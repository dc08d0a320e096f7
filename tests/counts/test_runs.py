"""Contexts that devices count, beside those of the host: integers, so equal to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jexplicit.counts.contexts import count_contexts, starts_of
from jexplicit.counts.runs import NO_KEY, compiled_levels, compiled_parts, count_contexts_on_devices, count_runs, join_ranges
from jexplicit.runs.devices import data_mesh

DEVICES = pytest.mark.parametrize("devices", [1, 3, 8])


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


@DEVICES
@pytest.mark.parametrize("N, length, M", [(3, 1, 40), (3, 4, 500), (300, 3, 500), (70_000, 3, 200), (4098, 5, 200)])
def test_random_contexts(devices, N, length, M):
    rng = np.random.default_rng(N + length)
    columns = [np.minimum(rng.geometric(0.1, M), N - 1).astype(np.min_scalar_type(N)) for _ in range(length)]
    assert_same(columns, rng.integers(0, N, M).astype(np.int32), (N,) * length, N, devices)


@DEVICES
@pytest.mark.parametrize("M", [1, 2, 9, 64])
def test_repeated_contexts_and_fewer_positions_than_devices(devices, M):
    assert_same([np.zeros(M, int)] * 3, np.zeros(M, int), (2, 2, 2), 2, devices)
    assert_same([np.full(M, 4), np.arange(M) % 2], np.arange(M) % 3, (5, 2), 3, devices)  # all of one device's range


@DEVICES
def test_ids_that_fill_a_word_are_not_taken_for_no_key(devices):
    full, M = 2**16 - 1, 12
    first = np.where(np.arange(M) % 3, full, 0)
    assert_same([first, np.full(M, full)], np.zeros(M, int), (2**16, 2**16), 1, devices)  # every bit of the word is set


def test_sizes_of_columns_may_differ(devices=3):
    rng = np.random.default_rng(0)
    sizes = (3, 70_000, 2, 4)
    assert_same([rng.integers(0, size, 300) for size in sizes], rng.integers(0, 6, 300), sizes, 6, devices)


def test_runs_add_up_what_is_counted_several_times():
    words = [jnp.array([5, 1, 5, NO_KEY], jnp.uint32), jnp.array([2, 9, 2, NO_KEY], jnp.uint32)]
    runs = jax.jit(count_runs)(words, jnp.array([3, 1, 4, 0]))
    assert [word[:2].tolist() for word in runs.words] == [[1, 5], [9, 2]] and runs.counts.tolist() == [1, 7, 0, 0]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
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
