"""Tables of rows as frozen pytrees, dense or sparse over a base row.

A table has `row(r)`, a row of N logits, and `entry(r, i)`, one of them: pure. Row -1 is that of a context without entries.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.runs.devices import AXIS, default_mesh, gather_over_processes, on_cpu, part_of_process, replicate


def static(default: Any = ...) -> Any:
    """A dataclass field that is no leaf of the pytree."""
    return field(metadata={"static": True}) if default is ... else field(default=default, metadata={"static": True})


def pytree(cls: type) -> type:
    """A frozen dataclass registered with JAX: `static()` fields are metadata, all others hold leaves.

    Objects are equal if they are the same one; their `repr` has the shapes of arrays only.
    """
    if "__repr__" not in vars(cls):
        cls.__repr__ = _short_repr  # pyright: ignore[reportAttributeAccessIssue]
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False, repr=False)(cls))


def _short_repr(self: Any) -> str:
    leaves = jax.tree.leaves(self)
    return f"{type(self).__name__}({len(leaves)} arrays, {sum(getattr(leaf, 'nbytes', 0) for leaf in leaves):,} bytes)"


class SparseRows(NamedTuple):
    """Compressed rows: row r spans start[r] to start[r + 1] of sorted `outputs`."""

    start: Any  # [R + 1] integers
    outputs: Any  # [E] token ids, of the smallest type that holds them
    values: Any  # [E] nats

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.start.nbytes + self.outputs.nbytes + self.values.nbytes

    @property
    def longest(self) -> int:
        """Entries of the longest row, at least 1."""
        return max(1, int(np.diff(np.asarray(self.start)).max(initial=0)))


@pytree
class Dense:
    """All logits of every row, [R, N]."""

    rows: Any

    vocab_size = property(lambda self: self.rows.shape[1])

    def row(self, r: Array) -> Array:
        """Row r, [N]."""
        return jnp.asarray(self.rows).at[r].get(mode="promise_in_bounds")

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        return jnp.asarray(self.rows)[r, i]


@pytree
class Sparse:
    """Sparse rows over a base row, `row_r = base + weight_r slope + entries_r`.

    rows: the entries.
    outputs: N.
    longest: entries of the longest row.
    base: [N]; None for zeros.
    weight, slope: [R] and [N]; None for no such term.
    unseen: [R] the logit of outputs whose base is -inf; None where there are none.
    """

    rows: SparseRows
    outputs: int = static()
    longest: int = static()
    base: Any = None
    weight: Any = None
    slope: Any = None
    unseen: Any = None

    vocab_size = property(lambda self: self.outputs)

    def row(self, r: Array) -> Array:
        """Row r, [N]; of its entries zeros for r = -1."""
        start, values = jnp.asarray(self.rows.start), jnp.asarray(self.rows.values)
        first, last = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))
        e = first + jnp.arange(min(self.longest, len(values)), dtype=jnp.int32)
        i = jnp.asarray(self.rows.outputs).at[e].get(mode="clip").astype(jnp.int32)
        i = jnp.where((e < last) & (r >= 0), i, self.outputs)  # which is dropped
        row = jnp.zeros(self.outputs, values.dtype).at[i].add(values.at[e].get(mode="clip"), mode="drop")
        if self.base is None:
            return row
        base = jnp.asarray(self.base, row.dtype)
        row = row + base
        if self.weight is not None:
            row = row + jnp.asarray(self.weight, row.dtype)[r] * jnp.asarray(self.slope, row.dtype)
        return row if self.unseen is None else jnp.where(jnp.isneginf(base), jnp.asarray(self.unseen, row.dtype)[r], row)

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        e, values = find_entry(self.rows.start, self.rows.outputs, r, i, self.longest), jnp.asarray(self.rows.values)
        value = jnp.where(e >= 0, values.at[e].get(mode="clip"), 0) if len(values) else jnp.zeros((), values.dtype)
        if self.base is None:
            return value
        base = jnp.asarray(self.base, value.dtype)[i]
        value = value + base
        if self.weight is not None:
            value = value + jnp.asarray(self.weight, value.dtype)[r] * jnp.asarray(self.slope, value.dtype)[i]
        return value if self.unseen is None else jnp.where(jnp.isneginf(base), jnp.asarray(self.unseen, value.dtype)[r], value)


def find_entry(start: Any, ids: Any, r: Int[Array, ""], i: Int[Array, ""], most: int) -> Int[Array, ""]:
    """The place of id i in row r by binary search, or -1.

    Args:
        start: [R + 1] where each row begins.
        ids: [E] of all rows.
        r: the row; -1 for none.
        most: ids of a row, at most.

    Example:
        >>> start, ids = jnp.array([0, 2, 4]), jnp.array([1, 5, 0, 1], jnp.uint16)
        >>> [int(find_entry(start, ids, jnp.array(r), jnp.array(1), 2)) for r in (0, 1, -1)]
        [0, 3, -1]
    """
    start, ids, i = jnp.asarray(start), jnp.asarray(ids), i.astype(jnp.int32)
    if not len(ids):
        return jnp.full_like(r, -1)
    low, end = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))

    def halve(_: Any, left: tuple[Array, Array]) -> tuple[Array, Array]:
        low, n = left
        half = n >> 1
        right = (n > 0) & (jnp.take(ids, low + half, mode="clip").astype(jnp.int32) < i)
        return jnp.where(right, low + half + 1, low), jnp.where(right, n - half - 1, half)

    place, _ = jax.lax.fori_loop(0, max(1, most).bit_length(), halve, (low, end - low))
    there = (r >= 0) & (place < end) & (jnp.take(ids, place, mode="clip").astype(jnp.int32) == i)
    return jnp.where(there, place, -1)


_contexts_per_call = 1 << 15  # of one device, at most


def map_contexts(
    one: Callable[[Any, Array], Array],
    tables: Any,
    X: Integer[np.ndarray, "M K"],
    *,
    mesh: Mesh | None = None,
    block: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """`one(tables, x)` for every row of X by blocks and devices, on the host.

    Several processes share the rows, and each gets the whole answer.

    `one` is compiled once per function object: pass a module-level function, not a lambda. The tables are whatever pytree of
    arrays it reads, a language model for one; they are placed on every device. A block has 64 rows on a CPU by default, whose
    logits stay in the L2 cache, and 4096 elsewhere.
    """
    mesh = mesh or default_mesh()
    X = X[slice(*part_of_process(0, len(X)))]
    block = block or (64 if on_cpu(mesh) else 4096)
    apply = compiled_map(one, mesh, block)
    tables, out = replicate(tables, mesh), []
    for own in few_sizes(len(X), [size * mesh.size for size in (_contexts_per_call, 64 * block, 8 * block, block)]):
        out.append(jax.device_get(apply(tables, pad_to(X[own], own.stop - own.start, 0)))[: len(X) - own.start])
        if progress:
            progress(min(own.stop, len(X)), len(X))
    return gather_over_processes(np.concatenate(out))


@functools.cache
def compiled_map(one: Callable, mesh: Mesh, block: int):
    """`one(tables, x)` of all rows of X, divided over the mesh, by blocks."""

    def shard(tables, X):
        return jax.lax.map(functools.partial(one, tables), X, batch_size=block)

    data = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=(PartitionSpec(), data), out_specs=data))


def few_sizes(n: int, sizes: Sequence[int]) -> Iterator[slice]:
    """Block sizes that cover n positions, few different ones, each compiled once.

    Example:
        >>> [*few_sizes(70, (64, 32, 4))]
        [slice(0, 64, None), slice(64, 68, None), slice(68, 72, None)]
    """
    start, sizes = 0, [size for size in sizes if size <= sizes[0]]
    while start < max(1, n):
        size = next((size for size in sizes if size <= n - start), sizes[-1])
        yield slice(start, start + size)
        start += size
