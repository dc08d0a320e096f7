"""Counts of keys by sorting, on devices: runs of equal keys, and the contexts of several tokens that they are.

    sort the keys;   a run begins where a key differs from the one before;   counts = segment_sum(1, number of the run)

A key is a few words of 32 bits. Shapes are static: what is no key has all bits set and is counted 0 times. The levels are those
of `jexplicit.counts.contexts.count_contexts`, to the last bit. They stay on the devices, each with the contexts of a range of
first ids, until `join_ranges` has asked for their sizes.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Integer, UInt32

from jexplicit.runs.devices import AXIS

NO_KEY = np.uint32(2**32 - 1)
_word = 1 << 32  # values


class Runs(NamedTuple):
    """Different keys in their order, and how often each occurred; what is counted 0 times comes last and is none."""

    words: tuple[UInt32[Array, " E"], ...]
    counts: Int[Array, " E"]


class DeviceLevel(NamedTuple):
    """The contexts of one length in the order of their ids, and what followed them; a context of a single id has it as number.

    shorter, ids: the number of the shorter context of each one, and the id that it adds.
    totals: how often each occurred; 0 for no context, which comes last.
    numbers, outputs, counts: the context and the target of each pair, sorted, and its count as in `ContextLevel`; 0 for no
        pair, which comes last.
    """

    shorter: Int[Array, "... C"]
    ids: Int[Array, "... C"]
    totals: Int[Array, "... C"]
    numbers: Int[Array, "... E"]
    outputs: Int[Array, "... E"]
    counts: Int[Array, "... E"]


def count_runs(words: Sequence[UInt32[Array, " M"]], times: Int[Array, " M"]) -> Runs:
    """The different keys, and the sum of `times` of each.

    Example:
        >>> runs = count_runs([jnp.array([7, 3, 7], jnp.uint32)], jnp.array([1, 1, 1]))
        >>> runs.words[0][:2].tolist(), runs.counts.tolist()
        ([3, 7], [1, 2, 0])
    """
    *words, times = jax.lax.sort((*words, times), num_keys=len(words), is_stable=False)
    begins = functools.reduce(jnp.logical_or, map(_changes, words))
    counts = jax.ops.segment_sum(times, jnp.cumsum(begins, dtype=jnp.int32) - 1, len(times), indices_are_sorted=True)
    first = jnp.flatnonzero(begins, size=len(times), fill_value=len(times))
    return Runs(tuple(word.at[first].get(mode="fill", fill_value=NO_KEY) for word in words), counts)


def context_levels(
    ids: Sequence[Int[Array, " E"]], y: Int[Array, " E"], counts: Int[Array, " E"], size: int
) -> list[DeviceLevel]:
    """The contexts of 1, 2, ... ids of different (ids, target) in their order, in arrays of E places.

    Args:
        ids: the ids of each, in the order in which a context grows.
        y: [E] targets.
        counts: how often each occurred; those that did not come last.
        size: how many first ids there are.
    """
    E, some = len(y), counts > 0
    begins, number, every = _changes(ids[0]), ids[0], jnp.arange(size, dtype=jnp.int32)
    of_length: list[Any] = [(every, every, jax.ops.segment_sum(counts, number, size))]
    for column in ids[1:]:
        begins |= _changes(column)
        first = jnp.flatnonzero(begins & some, size=E, fill_value=0)
        longer = jnp.cumsum(begins & some, dtype=jnp.int32) - 1
        totals = jax.ops.segment_sum(counts, longer, E, indices_are_sorted=True)
        of_length.append((number[first], column[first], totals))
        number = longer
    pairs: list[Any] = [(number, y, counts)]
    for shorter, *_ in of_length[:0:-1]:  # pairs of a shorter length, each counted once for every longer context
        number, y, counts = pairs[-1]
        key = [jnp.where(counts > 0, part.astype(jnp.uint32), NO_KEY) for part in (shorter[number], y)]
        runs = count_runs(key, (counts > 0).astype(jnp.int32))
        pairs.append((*(word.astype(jnp.int32) for word in runs.words), runs.counts))
    return [DeviceLevel(*own, *after) for own, after in zip(of_length, reversed(pairs), strict=True)]


def count_contexts_on_devices(
    columns: Sequence[Integer[np.ndarray, " M"]],
    Y: Integer[np.ndarray, " M"],
    sizes: Sequence[int],
    vocab_size: int,
    mesh: Mesh,
) -> list[DeviceLevel]:
    """`count_contexts` on devices: each sorts the positions of a part of the text, and after one exchange the contexts of a
    range of first ids. Their numbers count from the first one of the range.

    Args:
        columns, Y, sizes, vocab_size: those of `count_contexts`.
        mesh: devices.

    Returns:
        Levels whose arrays have a row for each device.

    Example:
        >>> from jexplicit.runs.devices import data_mesh
        >>> columns, Y = [np.array([1, 1, 1]), np.array([0, 2, 2])], np.array([1, 1, 1])
        >>> one, two = count_contexts_on_devices(columns, Y, (3, 3), 2, data_mesh(1))
        >>> two.shorter.tolist(), two.ids.tolist(), two.counts.tolist()
        ([[1, 1, 1]], [[0, 2, 0]], [[1, 2, 0]])
    """
    radices = (*sizes, vocab_size)
    each = -(-len(Y) // mesh.size)
    padded = [np.zeros(mesh.size * each, np.int32) for _ in radices]
    for part, column in zip(padded, (*columns, Y), strict=True):
        part[: len(Y)] = column
    runs, starts, most = compiled_parts(mesh, radices)(padded, np.arange(mesh.size * each) < len(Y))
    return compiled_levels(mesh, radices, 1 << (int(jax.device_get(most)) - 1).bit_length())(runs, starts)


def join_ranges(levels: Sequence[DeviceLevel], wanted: Sequence[tuple[Any, Any]], mesh: Mesh) -> list[tuple[Any, Any]]:
    """The ranges of all devices one after the other, whole on every device.

    Args:
        levels: what was counted.
        wanted: for each of them, arrays of its contexts and arrays of its pairs, as pytrees; of a context of a single id, which
            all devices have, 0 where it is in another one's range.
        mesh: devices.
    """
    (_, *contexts), pairs = np.array(jax.device_get(_sizes(levels))).T.tolist()
    return _join_ranges(mesh, tuple(zip((levels[0].totals.shape[1], *contexts), pairs, strict=True)))(levels, wanted)


@jax.jit
def _sizes(levels: Sequence[DeviceLevel]) -> list[list[Int[Array, ""]]]:
    """How many contexts and pairs there are."""
    return [[jnp.count_nonzero(of) for of in (level.totals, level.counts)] for level in levels]


@functools.cache
def compiled_parts(mesh: Mesh, radices: tuple[int, ...]):
    """Compiled `columns, known -> runs, starts, most`: what each device has of the text, and where the rows start that it
    sends to each of them, at most so many."""

    def of_part(columns, known):
        words = [jnp.where(known, word, NO_KEY) for word in _packed(columns, radices)]
        runs = count_runs(words, known.astype(jnp.int32))
        first = _unpacked(runs.words, radices)[0]
        of_first = jax.ops.segment_sum((runs.counts > 0).astype(jnp.int32), first, radices[0])
        own = jnp.append(0, jnp.cumsum(of_first))  # rows up to each first id
        until = jax.lax.psum(own, AXIS)
        cuts = jnp.searchsorted(until, until[-1] // mesh.size * jnp.arange(1, mesh.size, dtype=jnp.int32))
        starts = jnp.concatenate([own[:1], own[cuts], own[-1:]])
        return runs, starts[None], jax.lax.pmax(jnp.diff(starts).max(), AXIS)

    own = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(of_part, mesh=mesh, in_specs=own, out_specs=(own, own, PartitionSpec())))


@functools.cache
def compiled_levels(mesh: Mesh, radices: tuple[int, ...], most: int):
    """Compiled `runs, starts -> levels`: each device gets the rows of its range from all others, at most `most` from each."""

    def exchanged(runs, starts):
        def sent(first, end):
            place = first + jnp.arange(most, dtype=jnp.int32)
            parts = (*((word, NO_KEY) for word in runs.words), (runs.counts, 0))
            return [jnp.where(place < end, part.at[place].get(mode="clip"), none) for part, none in parts]

        received = jax.vmap(sent)(starts[:-1], starts[1:])
        *words, counts = (jax.lax.all_to_all(part, AXIS, 0, 0, tiled=True).reshape(-1) for part in received)
        return count_runs(words, counts)

    def of_range(runs, starts):
        runs = exchanged(runs, starts[0]) if mesh.size > 1 else runs
        *ids, y = _unpacked(runs.words, radices)
        return jax.tree.map(lambda x: x[None], context_levels(ids, y, runs.counts, radices[0]))

    own = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(of_range, mesh=mesh, in_specs=own, out_specs=own))


@functools.cache
def _join_ranges(mesh: Mesh, sizes: tuple[tuple[int, int], ...]):
    """Compiled `levels, wanted -> wanted` of so many contexts and pairs."""

    def joined(some: Array, part: Array, size: int) -> Array:
        """What each device has, where those before it end."""
        of_devices = jax.lax.all_gather(some.sum(dtype=jnp.int32), AXIS)
        before = (jnp.cumsum(of_devices) - of_devices)[jax.lax.axis_index(AXIS)]
        room = jnp.zeros(size + len(part), part.dtype)
        return jax.lax.psum(jax.lax.dynamic_update_slice(room, jnp.where(some, part, 0), (before,)), AXIS)[:size]

    def of_range(levels, wanted):
        levels, wanted, found = *jax.tree.map(lambda x: x[0], (levels, wanted)), []
        for n, (level, (own, after), (C, E)) in enumerate(zip(levels, wanted, sizes, strict=True)):
            of_contexts = functools.partial(joined, level.totals > 0, size=C) if n else lambda part: jax.lax.psum(part, AXIS)
            of_pairs = functools.partial(joined, level.counts > 0, size=E)
            found.append((jax.tree.map(of_contexts, own), jax.tree.map(of_pairs, after)))
        return found

    return jax.jit(jax.shard_map(of_range, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec()))


def _changes(x: Array) -> Bool[Array, " E"]:
    """Where a value differs from the one before."""
    return jnp.append(True, x[1:] != x[:-1])


def _fields(radices: Sequence[int]) -> list[list[int]]:
    """Which digits each word has: as many as it holds."""
    fields: list[list[int]] = [[]]
    for n, radix in enumerate(radices):
        if fields[-1] and np.prod([radices[i] for i in fields[-1]], dtype=object) * radix > _word:
            fields.append([])
        fields[-1].append(n)
    return fields


def _packed(columns: Sequence[Int[Array, " M"]], radices: Sequence[int]) -> list[UInt32[Array, " M"]]:
    """Digits as words, the first the most significant."""

    def pack(digits: list[int]) -> Array:
        word = columns[digits[0]].astype(jnp.uint32)
        for n in digits[1:]:
            word = word * np.uint32(radices[n]) + columns[n].astype(jnp.uint32)
        return word

    return [pack(digits) for digits in _fields(radices)]


def _unpacked(words: Sequence[UInt32[Array, " E"]], radices: Sequence[int]) -> list[Int[Array, " E"]]:
    """The digits of words."""
    columns: list[Array] = []
    for word, digits in zip(words, _fields(radices), strict=True):
        of_word = []
        for n in reversed(digits[1:]):
            word, digit = word // np.uint32(radices[n]), word % np.uint32(radices[n])
            of_word.append(digit)
        columns += [word, *reversed(of_word)]
    return [column.astype(jnp.int32) for column in columns]
