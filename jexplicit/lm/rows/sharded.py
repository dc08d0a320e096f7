"""Dense tables whose columns are spread over devices: a table, and a model, as large as all of their memories together.

Every device owns a share of the outputs. It counts the pairs whose target it owns, so that nothing is left to reduce; noise and
the explicit solution work on columns, but for one sum of rows where some output was never seen. Logits are sums over the
offsets of a device's own columns, and the softmax exchanges two scalars per context: the largest logit and the sum of
exponentials. Columns are dealt round-robin by frequency, for under Zipf's law a contiguous range would hold all the work.

Source: Shoeybi et al. 2019, Megatron-LM (the softmax over a split vocabulary).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from jexplicit.counts.sharded import ShardedCounts
from jexplicit.data.contexts import PAD, pad_to
from jexplicit.lm.core.model import Features, LanguageModel, RowsByOffset, TokenTables, pytree, static
from jexplicit.lm.core.smoothing import Noise, noise_model, noisy_rows
from jexplicit.lm.rows.explicit import encode_noise, solve_tables
from jexplicit.lm.tables.storage import Gathered
from jexplicit.runs.devices import AXIS, map_rows

_NEVER = -1e30  # the logit of a column without an output; finite, for a device may own no other
_EVERYWHERE, _COLUMNS = PartitionSpec(), PartitionSpec(None, AXIS)
_contexts_per_call = 1 << 15
_positions_per_call = 1 << 18


@pytree
class ShardedTables(RowsByOffset):
    """Dense rows of single tokens whose columns are spread over devices: `TokenTables` with columns as in `ShardedCounts`.

    tables: the different tables, [N, D S] each.
    places: [N] column of each output.
    table_of_offset: for k = 1 .. K, which of them.
    """

    tables: tuple[Any, ...]
    places: Any
    table_of_offset: tuple[int, ...] = static()

    different = property(lambda self: tuple(Gathered(table, self.places) for table in self.tables))
    by_offset = property(lambda self: tuple(self.tables[t] for t in self.table_of_offset))

    def gathered(self) -> TokenTables:
        """The same rows with whole tables, on the host."""
        return TokenTables(tuple(np.asarray(table)[:, np.asarray(self.places)] for table in self.tables), self.table_of_offset)

    def log_partition(self, X, *, mesh=None, progress=None):
        """`log Z(x)` of many contexts: two scalars of each are exchanged."""
        tables = self.by_offset
        return _by_calls(compiled_log_partition(tables[0].sharding.mesh), tables, (X,), _contexts_per_call, progress)

    def target_logits(self, X, Y):
        """The logit of every position's own target, from the device that owns it."""
        tables, places = self.by_offset, np.asarray(self.places)[Y]
        return _by_calls(_target_logits(tables[0].sharding.mesh), tables, (X, places), _positions_per_call, None)


def sharded_language_model(
    counts: ShardedCounts, *, features: Features, radius: int | None = None, eos: bool = False, dtype=jnp.float32
) -> LanguageModel:
    """The model of `explicit_language_model` with its columns spread over devices; equal to it to rounding.

    Args:
        counts: C_1 .. C_K' of `count_sharded`.
        features: "sum" (one table for all offsets) or "cat" (a table per offset); the same at K = 1.
        radius: K <= K'; default, all the counted offsets.
        eos: predict `<pad>` at the end of a document.
        dtype: of the tables.

    Raises:
        ValueError: a radius that was not counted; other features than the two.

    Source: paper, Eq. 3-5 and Sec. 3.1.
    """
    K = len(counts.tables) if radius is None else radius
    if not 1 <= K <= len(counts.tables):
        raise ValueError(f"radius {K} with counts of offsets 1..{len(counts.tables)}: count with a radius of at least {K}")
    noise = noise_model(counts.f)
    f = np.zeros(counts.tables[0].shape[1], dtype)  # by column; one without an output is one of an output never seen
    f[counts.places] = counts.f if eos else np.where(np.arange(counts.vocab_size) == PAD, 0, counts.f)
    taken = np.isin(np.arange(len(f)), counts.places)
    F = (encode_noise(C.astype(dtype), noise) for C in counts.tables[:K])
    tables, of_offset = solve_tables(F, f, features, lambda U: _read_rows(U, noise, taken))
    rows = ShardedTables(tables, counts.places, of_offset)
    return LanguageModel(rows, features, eos)


def _by_calls(
    apply: Callable, tables: tuple[Array, ...], columns: tuple[np.ndarray, ...], call: int, progress: Callable | None
) -> np.ndarray:
    """A compiled function of tables and positions, over equal parts of the positions, the last one filled up."""
    M = len(columns[0])
    call = -(-M // -(-M // call))
    out = []
    for start in range(0, M, call):
        part = apply(tables, *(pad_to(column[start : start + call], call, 0) for column in columns))
        out.append(np.asarray(part)[: M - start])
        if progress:
            progress(min(start + call, M), M)
    return np.concatenate(out)


@jax.jit
def _read_rows(U: Array, noise: Noise, taken: Array) -> Array:
    return jnp.where(taken[None, :], noisy_rows(U, noise), _NEVER)


@functools.cache
def compiled_log_partition(mesh: Mesh):
    """Compiled `tables, X -> log Z`, with one exchange of two scalars per context."""

    def shard(tables, X):
        def one(x):
            row = functools.reduce(jnp.add, [table[x[k]] for k, table in enumerate(tables)])
            m = row.max()
            return m, jnp.exp(row - m).sum()

        m, s = map_rows(one, X, mesh, cpu=64, elsewhere=4096)
        highest = jax.lax.pmax(m, AXIS)
        return highest + jnp.log(jax.lax.psum(s * jnp.exp(m - highest), AXIS))

    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=(_COLUMNS, _EVERYWHERE), out_specs=_EVERYWHERE))


@functools.cache
def _target_logits(mesh: Mesh):
    """Compiled `tables, X, columns of the targets -> logits`: each from the device that owns it."""

    def shard(tables, X, places):
        S = tables[0].shape[1]
        i = places - jax.lax.axis_index(AXIS) * S
        own, i = (0 <= i) & (i < S), jnp.clip(i, 0, S - 1)
        logits = functools.reduce(jnp.add, [table[X[:, k], i] for k, table in enumerate(tables)])
        return jax.lax.psum(jnp.where(own, logits, 0), AXIS)

    in_specs = (_COLUMNS, _EVERYWHERE, _EVERYWHERE)
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=in_specs, out_specs=_EVERYWHERE))
