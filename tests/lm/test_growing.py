"""Counts that grow as a text is read, against loops over the text. All numbers are integers, or sums of them: equal."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array

from jexplicit.counts.runs import Runs
from jexplicit.lm.rows.past import balance, growing, on_devices
from jexplicit.lm.rows.past.balance import empty_balance
from jexplicit.lm.rows.past.growing import add_run, cells_of, count_run, followers
from jexplicit.lm.rows.past.latest import latest, merge_latest

pytestmark = pytest.mark.slow

N = 7
BLOCKS = pytest.mark.parametrize("blocks", [(60,), (1,) * 60, (13, 1, 20, 26)])


def text(seed: int, length: int = 60, contexts: int = 5):
    rng = np.random.default_rng(seed)
    return rng.integers(0, contexts, length).astype(np.uint64) << np.uint64(20), rng.integers(-1, N, length)


def seen_before(keys, tokens, m, begun=((), ())):
    """What followed the context of position m, in order: of another text, and of the positions before it."""
    first = [t for k, t in zip(*begun, strict=True) if k == keys[m] and t >= 0]
    return first + [int(tokens[j]) for j in range(m) if keys[j] == keys[m] and tokens[j] >= 0]


@BLOCKS
@pytest.mark.parametrize("seed, begin", [(0, False), (1, True)])
def test_followers_are_those_of_a_loop(blocks, seed, begin):
    keys, tokens = text(seed)
    begun = text(seed + 10, 40 if begin else 0)
    first = (count_run(cells_of(begun[0], begun[1], N)[begun[1] >= 0]),)
    runs, done = (), 0
    for B in blocks:
        k, t = keys[done : done + B], tokens[done : done + B]
        found = followers(k, t, N, runs, first)
        for m in range(B):
            wanted = np.bincount(seen_before(keys, tokens, done + m, begun) or [0], minlength=N) * 1
            wanted = wanted if seen_before(keys, tokens, done + m, begun) else np.zeros(N, int)
            row = slice(found.start[m], found.start[m + 1])
            assert found.tokens[row].tolist() == np.flatnonzero(wanted).tolist()
            assert found.counts[row].tolist() == wanted[wanted > 0].tolist()
            assert found.totals[m] == wanted.sum()
        runs, done = add_run(runs, count_run(cells_of(k, t, N)[t >= 0])), done + B
    sizes = [len(run.cells) for run in runs]
    assert all(2 * small <= large for large, small in zip(sizes, sizes[1:], strict=False))


@pytest.mark.parametrize("seed, begin", [(0, False), (1, True)])
def test_a_device_counts_the_same(seed, begin):
    """Contexts whose keys differ in their low or high bits alone, blocks of several sizes, some of their positions."""
    keys, tokens = text(seed, 90)
    keys |= keys << np.uint64(34) | keys % np.uint64(2) << np.uint64(63)
    begun = text(seed + 10, 40 if begin else 0)
    first = (count_run(cells_of(begun[0], begun[1], N)[begun[1] >= 0]),)
    runs, on_it, done = (), (), 0
    for B in (1, 30, 17, 42):
        k, t, m = keys[done : done + B], tokens[done : done + B], np.arange(0, B, 2)
        own = np.roll(begun[0], 1)[:1].repeat(B) if begin else k
        found = followers(k, t, N, runs, first, own, m)
        dense = csr_array((found.counts, found.tokens, found.start), (len(m), N)).toarray()
        np.testing.assert_array_equal(on_devices.dense_counts(k, t, N, on_it, first, own, m)[: len(m)], dense)
        base = np.full((len(m), N), 1 / N, np.float32)
        mine, other = (
            at.counted_row(k, t, N, so_far, first, own, m, base=b, D=0.7)[0]
            for at, so_far, b in ((growing, runs, base), (on_devices, on_it, on_devices.probabilities(np.log(base))))
        )
        rows = csr_array((mine.table.values, mine.table.outputs, mine.table.start), (len(m), N)).toarray()
        np.testing.assert_allclose(other.table[: len(m)], rows, rtol=1e-6)  # float32 logarithms of two libraries
        assert mine.bucket.tolist() == other.bucket.tolist()
        runs, on_it, done = growing.add_block(runs, k, t, N), on_devices.add_block(on_it, k, t, N), done + B
    (one,), (other,) = (on_devices.on_host(on_devices.on_device(part)) for part in (runs, on_it))
    for mine, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, same)


def test_a_block_of_which_no_position_is_asked_for_has_no_rows():
    keys, tokens = text(5)
    none, many = np.zeros(0, np.int64), 300
    for counting in (growing, on_devices):
        of_text = keys, tokens, many, (), (), keys, none
        base = np.zeros((0, many), np.float32)
        base = on_devices.probabilities(base) if counting is on_devices else base
        row, _ = counting.counted_row(*of_text, base=base, D=0.7)
        assert not len(row.bucket)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_device_reads_a_block_in_one_call_without_sorting(platform):
    shape: Any = jax.ShapeDtypeStruct
    B, C = 64, 1 << 13
    table = Runs((shape((C,), jnp.uint32),) * 2, shape((C,), jnp.int32))
    words, ids = [shape((B,), jnp.uint32)] * 2, shape((B,), jnp.int32)
    counting = on_devices._counts_before.trace(table, table, words, words, ids, ids, ids, N=N)
    lowered = counting.lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.sort" not in lowered and lowered.count("stablehlo.dot_general") == 1
    assert f"{C}x" not in lowered.replace(f"{C}xui32", "").replace(f"{C}xi32", "")  # nothing is made of the table and the block


def test_counts_begun_in_another_text_are_found_by_its_own_keys():
    keys, tokens = text(2)
    salted = keys + np.uint64(1 << 40)
    first = (count_run(cells_of(keys, np.abs(tokens), N)),)
    with_own = followers(salted, tokens, N, (), first, keys)
    for one, other in zip(with_own, followers(keys, tokens, N, (), first), strict=True):
        np.testing.assert_array_equal(one, other)


@BLOCKS
def test_the_latest_tokens_are_those_of_a_loop(blocks):
    keys, tokens = text(3)
    tokens = np.minimum(tokens, 1)  # which often come again
    runs, done = (), 0
    for B in blocks:
        k, t = keys[done : done + B], tokens[done : done + B]
        found, new = latest(runs, k, t)
        for m in range(B):
            seen = seen_before(keys, tokens, done + m)
            repeats = 0
            while repeats < len(seen) and seen[-1 - repeats] == seen[-1]:
                repeats += 1
            wanted = (len(seen), seen[-1] if seen else -1, seen[-2] if len(seen) > 1 else -1, repeats)
            assert tuple(int(column[m]) for column in found) == wanted
        runs, done = add_run(runs, new, merge_latest), done + B


@BLOCKS
@pytest.mark.parametrize("where", [balance, on_devices])
def test_observed_over_expected_is_that_of_a_loop(blocks, where):
    """Sums of float32 numbers below 60: 1e-5. Contexts come in any order, and some tokens are not counted."""
    keys, tokens = text(4)
    p = np.random.default_rng(5).dirichlet(np.ones(N), len(keys)).astype(np.float32)
    before, done = empty_balance(N), 0
    for B in blocks:
        m = slice(done, done + B)
        own = on_devices.probabilities(np.log(p[m])) if where is on_devices else p[m]
        rows, before = where.balance_rows(before, keys[m], tokens[m], own, 2.0)
        for n in range(B):
            same = [j for j in range(done + n) if keys[j] == keys[done + n]]
            observed = np.bincount([tokens[j] for j in same if tokens[j] >= 0] or [0], minlength=N)
            observed = observed if any(tokens[j] >= 0 for j in same) else 0 * observed
            wanted = np.log((observed + 2) / (p[same].sum(axis=0) + 2))
            np.testing.assert_allclose(rows[n], wanted, atol=1e-5)
        done += B
    if where is on_devices:  # what is saved is what the host has
        host = balance.balance_rows(empty_balance(N), keys, tokens, p, 2.0)[1]
        found = on_devices.balance_on_host(before)
        np.testing.assert_array_equal(found.keys, host.keys)
        np.testing.assert_allclose(found.sums, host.sums, atol=1e-5)
        assert on_devices.balance_on_host(host) is host


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_device_corrects_a_block_in_one_call_and_two_scatters(platform):
    shape: Any = jax.ShapeDtypeStruct
    B, sums, p, ids = 64, shape((128, 2, N), jnp.float32), shape((64, N), jnp.float32), shape((64,), jnp.int32)
    traced = on_devices.balance_block.trace(sums, ids, ids, p, np.float32(2), room=128)
    lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.sort" not in lowered and "stablehlo.while" not in lowered and "HIGHEST" in lowered
    assert lowered.count("stablehlo.dot_general") == 1 and f"{B}x{B}x" in lowered  # contexts within the block
