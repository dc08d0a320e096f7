"""The counts of `growing` on a device, a block of positions at a time, and dense rows of them, which stay there.

    c[b, i] = count of (context of b, i) in the sorted cells + sum_{b' < b} [context of b' = context of b] [token of b' = i]

Both are exact: the first by binary search, the second as a causal comparison of contexts times one-hot tokens, of whole numbers
below 2^24. A cell has two words of 32 bits; the cells of a text are sorted again with those of a block. Observed and expected
counts are the same comparison, times the model's probabilities too. Keys, their groups and what came last follow from the text
alone: the host makes them, and of a block's counts only the confidences come back to it.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32, UInt64

from jexplicit.counts.runs import NO_KEY, Runs, count_runs
from jexplicit.lm.rows.ngrams import confidence_of
from jexplicit.lm.rows.past.balance import Balance
from jexplicit.lm.rows.past.growing import Row, Run, cells_of, merge_runs, token_bits
from jexplicit.lm.tables.contexts import few_sizes
from jexplicit.runs.devices import full_precision

_least = 1 << 12  # cells of a table at first


def add_block(runs: Sequence[Any], keys: UInt64[np.ndarray, " B"], tokens: Int[np.ndarray, " B"], N: int) -> tuple[Runs]:
    """The cells of a text with those of its next block."""
    (known,) = on_device(runs)
    cells = cells_of(keys, tokens, N)[tokens >= 0]
    size = few_sizes(len(cells), 1)
    room = few_sizes(int(jax.device_get((known.counts > 0).sum())) + len(cells), _least)
    words = [_padded(word, size, NO_KEY) for word in _words(cells)]
    return (_merged(known, words, np.arange(size) < len(cells), room=room),)


def dense_counts(
    keys: UInt64[np.ndarray, " B"],
    tokens: Int[np.ndarray, " B"],
    N: int,
    runs: Sequence[Any],
    begun: Sequence[Any],
    own_keys: UInt64[np.ndarray, " B"],
    m: Int[np.ndarray, " n"],
) -> Int[Array, "n_padded N"]:
    """What `growing.followers` finds, as dense counts; rows past those of m are of no position."""
    bits = token_bits(N)
    distinct, some, group = np.unique(keys >> bits, return_index=True, return_inverse=True)
    B = few_sizes(len(keys), 1)
    of_text, of_begun = (
        [_padded(word, B, NO_KEY) for word in _words(contexts << bits)] for contexts in (distinct, own_keys[some] >> bits)
    )
    padded = (_padded(ids.astype(np.int32), B, -1) for ids in (group, tokens))
    wanted = _padded(m.astype(np.int32), few_sizes(len(m), 1), 0)
    return _counts_before(on_device(runs)[0], on_device(begun)[0], of_text, of_begun, *padded, wanted, N=N)


def counted_row(
    keys: UInt64[np.ndarray, " B"], tokens: Int[np.ndarray, " B"], N: int, *known: Any, base: Any, D: float
) -> tuple[Row, Float[Array, "n_padded N"]]:
    """`growing.counted_row` with dense rows on the device, over `probabilities` or the q of a shorter context."""
    c, n = dense_counts(keys, tokens, N, *known), len(known[-1])
    row, q, times, different = _adaptive_row(c, base, D)
    return Row(row, jax.device_get(confidence_of(times, different))[:n]), q


@functools.partial(jax.jit, static_argnames="D")
def _adaptive_row(c: Int[Array, "n N"], b: Float[Array, "n N"], D: float) -> tuple[Array, Array, Array, Array]:
    """The row over a base, its own q, how often the context occurred, and how many tokens followed it; of each position."""

    def of_position(c, b):
        n, d = c.sum(dtype=jnp.int32), (c > 0).sum(dtype=jnp.int32)
        freed = D * d.astype(b.dtype) * b
        kept = jnp.maximum(c.astype(b.dtype) - D, 0)
        return jnp.where(c > 0, jnp.log1p(kept / freed), 0), (kept + freed) / jnp.maximum(n, 1).astype(b.dtype), n, d

    return jax.vmap(of_position)(c, b)


def probabilities(log_p: Float[np.ndarray, "n N"]) -> Float[Array, "n_padded N"]:
    """A model's own, on the device once for all rows; 1 past the last position."""
    return jnp.exp(_padded(log_p, few_sizes(len(log_p), 1), 0))


class DeviceBalance(NamedTuple):
    """`Balance` with the sums on a device: sorted contexts, the place of each among the sums, and these, with room for more."""

    keys: UInt64[np.ndarray, " R"]
    places: Int[np.ndarray, " R"]
    sums: Float[Array, "room 2 N"]


def balance_rows(
    before: Any, keys: UInt64[np.ndarray, " n"], tokens: Int[np.ndarray, " n"], p: Float[Array, "n_padded N"], prior: float
) -> tuple[Float[Array, "n_padded N"], DeviceBalance]:
    """`balance.balance_rows` on the device, over `probabilities`."""
    known = (
        before if isinstance(before, DeviceBalance) else DeviceBalance(before.keys, np.arange(len(before.keys)), before.sums)
    )
    every, first = np.unique(np.concatenate([known.keys, keys]), return_index=True)
    R = len(known.keys)
    new = first >= R
    places = np.where(new, R + np.cumsum(new) - 1, known.places[np.minimum(first, R - 1)])
    own, after = (_padded(ids.astype(np.int32), len(p), -1) for ids in (places[np.searchsorted(every, keys)], tokens))
    rows, sums = balance_block(known.sums, own, after, p, np.float32(prior), room=few_sizes(len(every), 64))
    return rows, DeviceBalance(every, places, sums)


@functools.partial(jax.jit, static_argnames="room")
@full_precision
def balance_block(sums: Array, place: Array, tokens: Array, p: Array, prior: Array, *, room: int) -> tuple[Array, Array]:
    """The rows of a block, and the sums after it: both counts of a context so far, in the text and in the block."""
    sums = jnp.zeros((room, *sums.shape[1:]), jnp.float32).at[: len(sums)].set(sums)
    known = place >= 0
    expected = jnp.where(known[:, None], p, 0).astype(jnp.float32)
    both = jnp.stack([jax.nn.one_hot(tokens, p.shape[1], dtype=jnp.float32), expected], axis=1)
    earlier = _earlier(place, jnp.arange(len(place), dtype=jnp.int32))
    so_far = sums[place] + jnp.einsum("ab,bkn->akn", earlier, both) + prior
    return jnp.log(so_far[:, 0] / so_far[:, 1]), sums.at[jnp.where(known, place, room)].add(both, mode="drop")


def balance_on_host(balance: Any) -> Balance:
    """The same sums on the host."""
    if isinstance(balance, Balance):
        return balance
    return Balance(balance.keys, jax.device_get(balance.sums)[balance.places])


def on_device(runs: Sequence[Any]) -> tuple[Runs]:
    """Runs of the host, or those of a device, as one on the device."""
    if len(runs) == 1 and isinstance(runs[0], Runs):
        return (runs[0],)
    cells, counts = functools.reduce(merge_runs, runs, Run(np.zeros(0, np.uint64), np.zeros(0, np.int32)))
    room = few_sizes(len(cells), _least)
    words: Any = tuple(_padded(word, room, NO_KEY) for word in _words(cells))
    table: Any = _padded(counts, room, 0)
    return (jax.device_put(Runs(words, table)),)


def on_host(runs: Sequence[Any]) -> tuple[Run, ...]:
    """The same runs on the host."""
    return tuple(_host_run(run) if isinstance(run, Runs) else run for run in runs)


def _host_run(run: Runs) -> Run:
    high, low = (np.asarray(word).astype(np.uint64) for word in run.words)
    some = np.asarray(run.counts) > 0
    return Run((high << np.uint64(32) | low)[some], np.asarray(run.counts)[some])


def _padded(x: np.ndarray, size: int, value: Any) -> np.ndarray:
    return np.pad(x, [(0, size - len(x)), *[(0, 0)] * (x.ndim - 1)], constant_values=value)


def _words(cells: UInt64[np.ndarray, " E"]) -> list[UInt32[np.ndarray, " E"]]:
    return [(cells >> np.uint64(32)).astype(np.uint32), cells.astype(np.uint32)]


@functools.partial(jax.jit, static_argnames="room")
def _merged(known: Runs, words: list[Array], some: Array, *, room: int) -> Runs:
    both = [jnp.concatenate(parts) for parts in zip(known.words, words, strict=True)]
    runs, place = count_runs(both, jnp.concatenate([known.counts, some.astype(jnp.int32)])), jnp.arange(room, dtype=jnp.int32)
    few = tuple(word.at[place].get(mode="fill", fill_value=NO_KEY) for word in runs.words)
    return Runs(few, runs.counts.at[place].get(mode="fill", fill_value=0))


@functools.partial(jax.jit, static_argnames="N")
@full_precision
def _counts_before(
    runs: Runs, begun: Runs, of_text: list[Array], of_begun: list[Array], group: Array, tokens: Array, m: Array, *, N: int
) -> Int[Array, "n N"]:
    def after(table: Runs, high: Array, low: Array) -> Int[Array, " N"]:
        """The counts of a table after the context whose first cell has these words."""
        mask = (1 << int(token_bits(N))) - 1
        first = _search(table.words, high, low)
        place = first + jnp.arange(min(N, len(table.counts)), dtype=jnp.int32)
        own_high, own_low = (word.at[place].get(mode="fill", fill_value=NO_KEY) for word in table.words)
        mine = (own_high == high) & (own_low & ~np.uint32(mask) == low)
        count = jnp.where(mine, table.counts.at[place].get(mode="fill", fill_value=0), 0)
        return jnp.zeros(N, jnp.int32).at[own_low & np.uint32(mask)].add(count, mode="drop")

    before = jax.vmap(functools.partial(after, runs))(*of_text) + jax.vmap(functools.partial(after, begun))(*of_begun)
    one_hot = jax.nn.one_hot(tokens, N, dtype=jnp.float32)
    return before[group[m]] + (_earlier(group, m) @ one_hot).astype(jnp.int32)


def _earlier(group: Int[Array, " B"], m: Int[Array, " n"]) -> Float[Array, "n B"]:
    """Which positions of a block stand before each of m and have its context, as 0 and 1."""
    before = jnp.arange(len(group), dtype=jnp.int32)[None] < m[:, None]
    return ((group[None] == group[m][:, None]) & before).astype(jnp.float32)


def _search(words: tuple[Array, ...], high: Array, low: Array) -> Int[Array, ""]:
    """How many cells come before one."""

    def step(_, bounds):
        first, end = bounds
        middle = (first + end) // 2
        less = (words[0][middle] < high) | ((words[0][middle] == high) & (words[1][middle] < low))
        less &= first < end
        return jnp.where(less, middle + 1, first), jnp.where(less, end, middle)

    size = len(words[0])
    return jax.lax.fori_loop(0, size.bit_length(), step, (jnp.int32(0), jnp.int32(size)))[0]
