"""The bench of jexplicit.counts.dense.count: the same tables from the same stream, by NumPy and SciPy."""

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.counts.dense import INT32_CELLS, count
from jexplicit.data.contexts import PAD, context_columns, with_leading_pads
from jexplicit.runs.command import Preset
from jexplicit.runs.devices import data_mesh
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.bench.harness import SECONDS, Bench, compare


@dataclass(frozen=True)
class Counting:
    """Counting pairs, jexplicit against NumPy and SciPy: all give the same tables from the same stream, checked first."""

    out: str | None = None
    """New run folder; default, the first free of runs/bench-counting, runs/bench-counting-2, ..."""
    stream: str = "zipf"
    """zipf: independent draws from Zipf's law in documents of 40 tokens on average. Else a .npy file with a token stream
    `<pad> document <pad> ... <pad>`, <pad> = 0, such as train.npy in the cache of launch.lm."""
    tokens: int = 10_000_000
    """Positions to count, the ends of documents included; of a file, at most the first so many."""
    vocab_size: int = 4098
    """Token ids, <pad> included."""
    radius: tuple[int, ...] = (4,)
    """Context lengths K, in tokens: K pairs per position. Each is a comparison of its own."""
    rounds: int = 5
    """How often each method is timed; the more, the steadier the medians."""
    seed: int = 0
    """Of the stream, and of the order of the methods in each round."""


def zipf_stream(rng: np.random.Generator, tokens: int, vocab_size: int) -> np.ndarray:
    """`<pad>` and `tokens` more ids, the last one `<pad>`: Zipf's law over 1..V-1, documents of geometric lengths, mean 40."""
    p = 1 / np.arange(1, vocab_size)
    ids = np.arange(1, vocab_size, dtype=np.min_scalar_type(vocab_size - 1))
    stream = rng.choice(ids, tokens + 1, p=p / p.sum())
    ends = np.cumsum(1 + rng.geometric(1 / 40, tokens // 2))
    stream[ends[ends < tokens - 1]] = PAD
    stream[[0, -1]] = PAD
    return stream


# A method prepares whatever is off the clock and returns the call to time.


def _jexplicit(x: np.ndarray, K: int, N: int):
    """`jexplicit.counts.dense.count` on one device, from token ids in host memory to tables in host memory."""
    return functools.partial(count, x, radius=K, vocab_size=N, mesh=data_mesh(1))


def _bincount(x: np.ndarray, K: int, N: int):
    """Per offset, contexts, int64 ids in one buffer for all offsets, `numpy.bincount`."""

    def tables():
        stream = with_leading_pads(x, K)
        ids = np.empty(len(stream) - K, np.int64)
        for context in context_columns(stream, K):
            np.multiply(context, N, out=ids, dtype=np.int64)
            ids += stream[K:]
            yield np.bincount(ids, minlength=N * N).reshape(N, N)

    return lambda: tuple(tables())


def _bincount_given(x: np.ndarray, K: int, N: int):
    """The stricter peer: `numpy.bincount` of int64 ids made off the clock."""
    ids = _ids(x, K, N)
    return lambda: tuple(np.bincount(column, minlength=N * N).reshape(N, N) for column in ids)


def _scatter_given(x: np.ndarray, K: int, N: int):
    """The limit, random increments without id arithmetic: per offset one jitted `.at[ids].add(1)` into a new donated int32
    table, its zeroing included, with int32 ids on the device off the clock. The fastest loop of increments at hand in NumPy
    or JAX; C does better."""
    ids = [jnp.asarray(column.astype(np.int32)) for column in _ids(x, K, N)]
    zeros = jax.jit(lambda: jnp.zeros(N * N, jnp.int32))
    add = jax.jit(lambda table, ids: table.at[ids].add(1, mode="promise_in_bounds"), donate_argnums=0)
    return lambda: jax.block_until_ready(tuple(add(zeros(), column) for column in ids))


def _scipy(x: np.ndarray, K: int, N: int):
    """Per offset, contexts, `scipy.sparse.coo_array` of ones, `.tocsr()`; the tables stay sparse."""
    import scipy.sparse  # optional

    def tables():
        stream = with_leading_pads(x, K)
        i = stream[K:].astype(np.int32)
        ones = np.ones(len(i), np.int32)
        for context in context_columns(stream, K):
            yield scipy.sparse.coo_array((ones, (context.astype(np.int32), i)), (N, N)).tocsr()

    return lambda: tuple(tables())


PEER, LIMIT = "numpy.bincount", "JAX scatter, ids given"
METHODS: dict[str, Callable[[np.ndarray, int, int], Callable[[], Any]]] = {
    "jexplicit": _jexplicit,
    PEER: _bincount,
    "numpy.bincount, ids given": _bincount_given,
    LIMIT: _scatter_given,
    "scipy.sparse": _scipy,
}


def measure(config: Counting, folder: RunFolder) -> Iterator[dict[str, Any]]:
    """A comparison per radius: equal tables first, then the clock."""
    x = stream_of(config)
    N, tokens = config.vocab_size, len(x) - 1
    has_scipy = importlib.util.find_spec("scipy") is not None
    if not has_scipy:
        console.print("without scipy.sparse: SciPy is not installed")
    for K in config.radius:
        calls = {name: make(x, K, N) for name, make in METHODS.items() if has_scipy or make is not _scipy}
        peak = _check_equal(calls, K, N, tokens)
        for name, seconds, ratio in compare(config, folder, calls, K):
            yield {
                "method": name,
                "radius": K,
                "vocab_size": N,
                "tokens": tokens,
                "pairs_per_second": K * tokens / seconds["cpu_seconds"],
                **seconds,
                "ratio_to_bincount": ratio(PEER),
                "ratio_to_limit": ratio(LIMIT),
                "peak_table_bytes": peak[name],
                "stream": config.stream,
            }


def check(config: Counting) -> None:
    """Flags that make no sense."""
    largest = int(np.sqrt(INT32_CELLS - 1))
    if config.tokens < 2:
        raise ValueError(f"--tokens {config.tokens}: a stream is at least one token and the end of its document, 2")
    if not 2 <= config.vocab_size <= largest:
        raise ValueError(f"--vocab-size {config.vocab_size}: choose 2 (<pad> and one token) to {largest} (int32 ids of pairs)")


def stream_of(config: Counting) -> np.ndarray:
    """The stream that a config asks for."""
    if config.stream == "zipf":
        return zipf_stream(np.random.default_rng(config.seed), config.tokens, config.vocab_size)
    try:
        x = np.load(config.stream)[: config.tokens + 1]
    except (OSError, ValueError) as error:
        raise ValueError(f"--stream {config.stream}: {error}; give zipf or a .npy file of token ids") from error
    if x.ndim != 1 or x.dtype.kind not in "iu" or x.size < 3 or x.min() < 0 or x.max() >= config.vocab_size:
        ids = f"ids {x.min()} to {x.max()}" if x.size else "nothing"
        raise ValueError(
            f"--stream {config.stream} of shape {x.shape} holds {ids}: give a row of token ids below --vocab-size, "
            f"{config.vocab_size}"
        )
    x[-1] = PAD  # the last document ends where the stream is cut
    return x


def _check_equal(calls: dict[str, Callable[[], Any]], K: int, N: int, tokens: int) -> dict[str, int]:
    """Refuse a method with other tables than NumPy's; the bytes of each method's tables."""
    reference, peak = calls[PEER](), {}
    for name, call in calls.items():
        tables = call()
        if not all(np.array_equal(_dense(table, N), C) for table, C in zip(tables, reference, strict=True)):
            raise ValueError(f"{name} counts otherwise than {PEER} at K = {K}: mend it before timing it")
        peak[name] = _peak_table_bytes(name, tables, tokens)
    return peak


def _ids(x: np.ndarray, K: int, N: int) -> list[np.ndarray]:
    stream = with_leading_pads(x, K)
    return [context.astype(np.int64) * N + stream[K:] for context in context_columns(stream, K)]


def _dense(table: Any, N: int) -> np.ndarray:
    return np.asarray(table.toarray() if hasattr(table, "toarray") else table).reshape(N, N)


def _peak_table_bytes(name: str, tables: Sequence[Any], tokens: int) -> int:
    """By arithmetic: the tables returned and what they are made from, device tables or the pairs before their sum."""
    parts = [part for C in tables for part in ((C.data, C.indices, C.indptr) if hasattr(C, "toarray") else (C,))]
    returned = sum(part.nbytes for part in parts)
    return returned + (8 * tokens if name == "scipy.sparse" else 0)


BENCH = Bench(
    config=Counting,
    check=check,
    measure=measure,
    methods=METHODS,
    ours=("jexplicit",),
    ratio=("ratio_to_bincount", "times numpy.bincount"),
    columns={
        "M pairs / CPU s": ("pairs_per_second", 1e-6, ".1f"),
        "vs. NumPy": ("ratio_to_bincount", 1, ".2f"),
        "vs. limit": ("ratio_to_limit", 1, ".2f"),
        **SECONDS,
        "table MB": ("peak_table_bytes", 1e-6, ",.0f"),
    },
    presets={
        "tiny": Preset(Counting(tokens=20_000, vocab_size=200, radius=(1, 2), rounds=2), "20,000 tokens; 5 s on 2 CPU cores."),
        "full": Preset(Counting(radius=(1, 2, 4), rounds=9), "10 M tokens; 2 minutes and 4 GB on 2 CPU cores."),
    },
)
