"""The bench of counts: tables of pairs beside those of NumPy and SciPy, rows of contexts on host and devices."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jexplicit.counts.dense import count
from jexplicit.data.contexts import context_columns, contexts, with_leading_pads
from jexplicit.experiments.tables import Column
from jexplicit.lm.rows.ngrams import Ngrams, smoothed_ngrams
from jexplicit.runs.devices import data_mesh
from launch.bench.config import Counting
from launch.bench.shared.harness import Comparison, bench
from launch.bench.shared.streams import load_stream

# A method does what is off the clock and returns the call to time.


def _bincount(x: np.ndarray, K: int, N: int):
    def tables():
        stream = with_leading_pads(x, K)
        ids = np.empty(len(stream) - K, np.int64)
        for context in context_columns(stream, K):
            np.multiply(context, N, out=ids, dtype=np.int64)
            ids += stream[K:]
            yield np.bincount(ids, minlength=N * N).reshape(N, N)

    return lambda: tuple(tables())


def _ids(x: np.ndarray, K: int, N: int) -> list[np.ndarray]:
    stream = with_leading_pads(x, K)
    return [context.astype(np.int64) * N + stream[K:] for context in context_columns(stream, K)]


def _bincount_given(x: np.ndarray, K: int, N: int):
    ids = _ids(x, K, N)
    return lambda: tuple(np.bincount(column, minlength=N * N).reshape(N, N) for column in ids)


def _scatter_given(x: np.ndarray, K: int, N: int):
    ids = [jnp.asarray(column.astype(np.int32)) for column in _ids(x, K, N)]
    zeros = jax.jit(lambda: jnp.zeros(N * N, jnp.int32))
    add = jax.jit(lambda table, ids: table.at[ids].add(1, mode="promise_in_bounds"), donate_argnums=0)
    return lambda: jax.block_until_ready(tuple(add(zeros(), column) for column in ids))


def _segment_sum_given(x: np.ndarray, K: int, N: int):
    ids = [jnp.asarray(column.astype(np.int32)) for column in _ids(x, K, N)]
    add = jax.jit(lambda ids: jax.ops.segment_sum(jnp.ones(len(ids), jnp.int32), ids, N * N, mode="promise_in_bounds"))
    return lambda: jax.block_until_ready(tuple(add(column) for column in ids))


def _scipy(x: np.ndarray, K: int, N: int):
    def tables():
        stream = with_leading_pads(x, K)
        i = stream[K:].astype(np.int32)
        ones = np.ones(len(i), np.int32)
        for context in context_columns(stream, K):
            yield scipy.sparse.coo_array((ones, (context.astype(np.int32), i)), (N, N)).tocsr()

    return lambda: tuple(tables())


_positions_of_contexts = 1 << 20
PEER, LIMIT, HOST = "numpy.bincount", "JAX scatter, ids given", "contexts, host"
METHODS: dict[str, Callable[[np.ndarray, int, int], Callable[[], Any]]] = {
    "jexplicit": lambda x, K, N: functools.partial(count, x, radius=K, vocab_size=N, mesh=data_mesh(1)),
    PEER: _bincount,
    "numpy.bincount, ids given": _bincount_given,
    LIMIT: _scatter_given,
    "jax.ops.segment_sum, ids given": _segment_sum_given,
    "scipy.sparse": _scipy,
}


def comparisons(config: Counting, folder: Path) -> Iterator[Comparison]:
    """* **jexplicit**: `jexplicit.counts.dense.count` on one device, from token ids in host memory to tables in host memory.
    * **numpy.bincount**: per offset, contexts, int64 ids in one buffer shared by all offsets, `numpy.bincount`.
    * **numpy.bincount, ids given**: the stricter peer, `numpy.bincount` of int64 ids made off the clock.
    * **JAX scatter, ids given**: the limit, random increments without id arithmetic: per offset one jitted `.at[ids].add(1)`
      into a new donated int32 table, zeroing included, int32 ids on the device off the clock. The fastest loop of increments in
      NumPy or JAX; C is faster.
    * **jax.ops.segment_sum, ids given**: the same sums as `segment_sum` of ones, in a table of its own.
    * **scipy.sparse**: per offset, contexts, `scipy.sparse.coo_array` of ones, `.tocsr()`; the tables stay sparse.
    * **contexts, host**: `jexplicit.lm.rows.ngrams.smoothed_ngrams`: NumPy's sort of packed keys, smoothing in float64.
    * **contexts, devices**: the same on one device, where the rows stay: `jax.lax.sort`, `segment_sum`, smoothing in float32.
    """
    x = load_stream(config.stream, config.tokens, config.vocab_size, config.seed)
    N, tokens = config.vocab_size, len(x) - 1

    def dense(table: Any) -> np.ndarray:
        return np.asarray(table.toarray() if hasattr(table, "toarray") else table).reshape(N, N)

    def difference(tables: Sequence[Any], reference: Sequence[np.ndarray]) -> str:
        same = all(np.array_equal(dense(table), C) for table, C in zip(tables, reference, strict=True))
        return "" if same else "the counts differ"

    for K in config.radius:
        yield Comparison(
            cases={name: make(x, K, N) for name, make in METHODS.items()},
            fields={"radius": K, "vocab_size": N, "tokens": tokens, "stream": config.stream},
            row=lambda case, timings, K=K: {"pairs_per_second": K * tokens / timings.median(case, "cpu_seconds")},
            reference=PEER,
            difference=difference,
            inspect=lambda case, tables: {"peak_table_bytes": _table_bytes(tables, tokens)},
        )
    for L in config.contexts:
        X, Y = (part[:_positions_of_contexts] for part in contexts(x, L, eos=True))
        smoothed = functools.partial(smoothed_ngrams, X, Y, offsets=tuple(range(1, L + 1)), vocab_size=N)
        yield Comparison(
            cases={
                HOST: smoothed,
                "contexts, devices": lambda smoothed=smoothed: jax.block_until_ready(smoothed(mesh=data_mesh(1))),
            },
            fields={"contexts": L, "vocab_size": N, "tokens": len(Y), "stream": config.stream},
            row=lambda case, timings, pairs=Y.size * L: {"pairs_per_second": pairs / timings.median(case, "cpu_seconds")},
            reference=HOST,
            difference=_rows_differ,
            inspect=lambda case, ngrams: {"peak_table_bytes": sum(part.nbytes for part in jax.tree.leaves(ngrams.rows))},
        )


def _rows_differ(ngrams: Ngrams, reference: Ngrams) -> str:
    """Contexts and outputs are integers; rows have some ten roundings of float32 a level."""
    pairs = zip(*map(jax.tree.leaves, (ngrams, reference)), strict=True)
    return "" if all(np.allclose(one, other, rtol=0, atol=1e-5) for one, other in pairs) else "the rows differ"


def _table_bytes(tables: Sequence[Any], tokens: int) -> int:
    """Computed, not measured: the tables returned, and for SciPy the pairs that they are summed from."""
    sparse = hasattr(tables[0], "indptr")
    parts = [part for C in tables for part in ((C.data, C.indices, C.indptr) if sparse else (C,))]
    return sum(part.nbytes for part in parts) + 8 * tokens * sparse


COLUMNS = [Column("M pairs / CPU s", "pairs_per_second", ".1f", 1e-6), Column("table MB", "peak_table_bytes", ",.0f", 1e-6)]
PEERS = {
    "ratio_to_bincount": ("vs. NumPy", [PEER]),
    "ratio_to_limit": ("vs. limit", [LIMIT]),
    "ratio_to_host": ("vs. host", [HOST]),
}
SIZES = ("radius", "contexts")
run = bench("counting", comparisons, COLUMNS, sizes=SIZES, ours=["jexplicit"], peers=PEERS)
