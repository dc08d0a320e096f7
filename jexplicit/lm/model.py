"""The language model, `p = softmax(sum_g row_g(context, history))`.

A kind of rows has the fields of `LanguageModel` and `read(context, history)`, pure: index and tables, or a network.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, Integer

from jexplicit.counts import windows
from jexplicit.data.streams import Stream, check_stream, check_token_ids, contexts, pad_to, window_contexts
from jexplicit.data.tokenizers import PAD
from jexplicit.lm.counted.contexts import predicted_places
from jexplicit.runs.devices import AXIS, default_mesh, gather_over_processes, on_cpu, part_of_process, replicate

HISTORY = 0  # as the token of a row: what it reads is the past, not a token of the context
NO_TOKEN = -1  # in a history: no token, before the start of the text
_contexts_per_call = 1 << 15  # of one device, at most
_logits_per_block = 1 << 19  # on a CPU: they stay in its cache
_window = 1 << 22  # positions of a stream that are read at a time
_overlaps = 4  # windows that read a token of a text

static = functools.partial(field, metadata={"static": True})  # a field that is no leaf of the pytree


def pytree(cls: type) -> type:
    """A frozen dataclass registered with JAX; `static()` fields hold no leaves."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, eq=False, repr=False)(cls))


@pytree
class Sparse:
    """Compressed rows, alone or over a base: `base + weight_r slope + entries_r`.

    start: [R + 1] row r spans start[r] to start[r + 1] of the entries. ids: [E] outputs, sorted within a row, of the smallest
    type that holds them. values: [E] nats. longest: entries of the longest row, at least 1. base, slope: [N]; both and
    `weight`, [R], are None for zeros. unseen: [R] the logit of outputs whose base is -inf; None where there are none.
    """

    start: Any
    ids: Any
    values: Any
    vocab_size: int = static()
    longest: int = static()
    base: Any = None
    slope: Any = None
    weight: Any = None
    unseen: Any = None

    shape = property(lambda self: (len(self.start) - 1, self.vocab_size))

    def row(self, r: Array) -> Array:
        """Row r, [N]; its entries are zeros for r = -1."""
        start, values = jnp.asarray(self.start), jnp.asarray(self.values)
        first, last = (start[jnp.maximum(r, 0) + n].astype(jnp.int32) for n in (0, 1))
        e = first + jnp.arange(min(self.longest, len(values)), dtype=jnp.int32)
        i = jnp.asarray(self.ids).at[e].get(mode="clip").astype(jnp.int32)
        i = jnp.where((e < last) & (r >= 0), i, self.vocab_size)  # which is dropped
        entries = jnp.zeros(self.vocab_size, values.dtype).at[i].add(values.at[e].get(mode="clip"), mode="drop")
        return self._over_base(entries, r, slice(None))

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        e, values = find_entry(self.start, self.ids, r, i, self.longest), jnp.asarray(self.values)
        entry = jnp.where(e >= 0, values.at[e].get(mode="clip"), 0) if len(values) else jnp.zeros((), values.dtype)
        return self._over_base(entry, r, i)

    def _over_base(self, entries: Array, r: Array, i: Any) -> Array:
        if self.base is None:
            return entries
        base, slope, weight = (jnp.asarray(part, entries.dtype) for part in (self.base, self.slope, self.weight))
        seen = entries + base[i] + weight[r] * slope[i]
        return seen if self.unseen is None else jnp.where(jnp.isneginf(base[i]), jnp.asarray(self.unseen, seen.dtype)[r], seen)


def sparse_rows(start: Any, ids: Any, values: Any, N: int, *over: Any) -> Sparse:
    """Sparse rows on the device, over a base if given."""
    longest = max(1, int(np.diff(np.asarray(start)).max(initial=0)))
    small = np.asarray(ids).astype(np.uint16 if N <= 1 << 16 else np.int32, copy=False)
    return Sparse(*jax.device_put((start, small, values), may_alias=True), N, longest, *over)


def find_entry(start: Any, ids: Any, r: Int[Array, ""], i: Int[Array, ""], most: int) -> Int[Array, ""]:
    """The place of id i in row r by binary search, or -1."""
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


def map_contexts(
    one: Callable[[Any, Array], Array],
    tables: Any,
    X: Integer[np.ndarray, "M K"],
    *,
    mesh: Mesh | None = None,
    block: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """`one(tables, x)` for every row of X, over devices and processes.

    `one` is compiled once per function object: pass a module-level function, not a lambda. Tables are any pytree of arrays.
    """
    mesh = mesh or default_mesh()
    X = X[slice(*part_of_process(0, len(X)))]
    block = block or (64 if on_cpu(mesh) else 4096)
    apply, tables, out, done = _compiled_map(one, mesh, block), replicate(tables, mesh), [], 0
    sizes = [size * mesh.size for size in (_contexts_per_call, 64 * block, 8 * block, block) if size <= _contexts_per_call]
    while done < len(X) or not out:  # few different sizes, each compiled once
        size = next((size for size in sizes if size <= len(X) - done), sizes[-1])
        out.append(jax.device_get(apply(tables, pad_to(X[done : done + size], size, 0)))[: len(X) - done])
        done = min(done + size, len(X))
        if progress:
            progress(done, len(X))
    return gather_over_processes(np.concatenate(out))


@functools.cache
def _compiled_map(one: Callable, mesh: Mesh, block: int):
    """`one(tables, x)` of all rows of X, divided over the mesh, by blocks."""

    def shard(tables, X):
        return jax.lax.map(functools.partial(one, tables), X, batch_size=block)

    data = PartitionSpec(AXIS)
    return jax.jit(jax.shard_map(shard, mesh=mesh, in_specs=(PartitionSpec(), data), out_specs=data))


class TableRows:
    """Rows in tables: `index(context)` numbers the row of each, -1 for none."""

    names: Any
    index: Any
    row_tables: Any  # arrays and sparse ones
    normalised = False  # whether target_logits are log-probabilities
    history = 0
    vocab_size = property(lambda self: self.row_tables[0].shape[1])

    def read(self, context: Integer[Array, " K"], history: Any = None) -> list[Float[Array, " N"]]:
        """The rows of one position, in nats."""
        pairs = zip(self.row_tables, self.index(context.astype(jnp.int32)), strict=True)
        return [t.row(r) if isinstance(t, Sparse) else jnp.asarray(t).at[r].get(mode="promise_in_bounds") for t, r in pairs]

    def entry(self, context: Integer[Array, " K"], output: Integer[Array, ""]) -> Float[Array, ""]:
        """The logit of one output: no row is read."""
        pairs = zip(self.row_tables, self.index(context), strict=True)
        found = [t.entry(r, output) if isinstance(t, Sparse) else jnp.asarray(t)[r, output] for t, r in pairs]
        return functools.reduce(jnp.add, found)

    def log_partition(
        self, X: Integer[np.ndarray, "M K"], *, mesh: Mesh | None = None, progress: Any = None
    ) -> Float[np.ndarray, " M"]:
        """`log Z(x)` of many contexts, in nats, on the host."""
        mesh = mesh or default_mesh()
        block = max(1, min(64, _logits_per_block // self.vocab_size)) if on_cpu(mesh) else None
        return map_contexts(TableRows._log_Z, self, X, mesh=mesh, block=block, progress=progress)

    def _log_Z(self, x: Array) -> Float[Array, ""]:
        return jax.nn.logsumexp(functools.reduce(jnp.add, self.read(x)))

    def target_logits(
        self, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, mesh: Mesh | None = None
    ) -> Float[np.ndarray, " M"]:
        """The logit of every position's target, in nats, on the host, without whole rows."""
        x_and_y = np.concatenate([X.astype(np.int32), Y.astype(np.int32)[:, None]], axis=1)
        return map_contexts(TableRows._target_logit, self, x_and_y, mesh=mesh, block=4096)

    def _target_logit(self, x_and_y: Array) -> Float[Array, ""]:
        return self.entry(x_and_y[:-1], x_and_y[-1])


@pytree
class TokenTables(TableRows):
    """Rows of single tokens: the token k back selects row x_k of a table.

    tables: the different ones, [N, N] or `Sparse`, shared by offsets in Sum. table_of_offset: for k = 1 .. K, which of them.
    """

    tables: tuple[Any, ...]
    table_of_offset: tuple[int, ...] = static()

    names = property(lambda self: tuple(f"offset {k}" for k in self.tokens))
    tokens = property(lambda self: tuple(range(1, self.context + 1)))
    context = property(lambda self: len(self.table_of_offset))
    row_tables = property(lambda self: tuple(self.tables[t] for t in self.table_of_offset))

    def index(self, context):
        return context[: self.context]


@pytree
class NetworkRows:
    """The logits of a flax network of K tokens, as one row."""

    variables: Any
    network: Any = static()
    context: int = static()

    names, tokens, history = ("network",), (None,), 0
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history=None):
        from jexplicit.nn.networks import network_outputs

        return [network_outputs(self.network, self.variables, context[None])[0]]


@pytree
class SequenceRows:
    """The logits of a causal flax network of W tokens, as one row."""

    variables: Any
    network: Any = static()

    names, tokens, context = ("network",), (None,), 1
    history = property(lambda self: self.network.window)
    vocab_size = property(lambda self: self.network.vocab_size)

    def read(self, context, history: Any = None):
        """The row after a history, nearest token first, within its document."""
        from jexplicit.nn.networks import network_outputs

        W = self.history
        known = jnp.where(history == NO_TOKEN, PAD, history)
        n = jnp.argmax(jnp.append(known == PAD, True))  # tokens of the document
        tokens = jnp.roll(known[::-1], -jnp.maximum(W - n - 1, 0))  # the document comes first, from its `<pad>` on
        logits = network_outputs(self.network, self.variables, tokens[None])[0]
        return [logits[jnp.minimum(n, W - 1)]]

    def log_p(self, past: Any, *, whole: bool = False, **options: Any) -> np.ndarray:
        """`log p` of the token, or of all tokens, at places of a text."""
        from jexplicit.nn.sequences import stream_log_probabilities

        if past is None:
            raise ValueError("a network that reads a window of the text: say where the positions stand (past)")
        options |= {"window": self.history, "stride": -(-self.history // _overlaps)}
        if whole:
            return stream_log_probabilities(self.network, self.variables, past.stream, past.places, **options)
        return stream_log_probabilities(self.network, self.variables, past.stream, **options)[past.places - 1]


@pytree
class LanguageModel:
    """A language model: the sum of the rows of a kind, a frozen pytree.

    features: how the tokens of a context are combined: "sum" does not see their order; "none" for models that are neither.
    eos: whether `<pad>` is predicted, as the end of a document.
    """

    rows: Any
    features: str = static(default="cat")
    eos: bool = static(default=False)

    context = property(lambda self: self.rows.context, doc="K, the tokens of a context.")
    history = property(lambda self: self.rows.history, doc="W, tokens of the past that it reads, borders of documents ignored.")
    vocab_size = property(lambda self: self.rows.vocab_size, doc="N, the number of token ids.")
    names = property(lambda self: self.rows.names, doc="What each row is.")
    tokens = property(lambda self: self.rows.tokens, doc="The token of the context of each row: 1 nearest, HISTORY, None.")
    nbytes = property(lambda self: sum(leaf.nbytes for leaf in jax.tree.leaves(self)), doc="Bytes of all arrays.")

    @property
    def ordered(self) -> bool:
        """Whether the order of context tokens matters: not if all offsets share a table."""
        return len(set(getattr(self.rows, "table_of_offset", (0, 1)))) > 1

    def __repr__(self) -> str:
        kind = type(self.rows).__name__
        return f"LanguageModel({kind}; {len(self.names)} rows, features={self.features!r}, eos={self.eos})"

    @property
    def tables(self) -> tuple[Any, ...]:
        """The K tables of a model of dense tables, nearest offset first."""
        if not is_token_model(self):
            kind = type(self.rows).__name__
            raise ValueError(f"a model of {kind}: this needs plain tables [N, N] of single tokens; use a dense model")
        return self.rows.row_tables

    def logits(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> Float[Array, " N"]:
        """Logits of the next token, `sum_g row_g(context, history)`, in nats: pure, for one position.

        Args:
            context: [K] token ids, nearest first; `<pad>` from the start of the document on.
            history: [W] the same across documents, `NO_TOKEN` before the text; for models that read the past.
        """
        return functools.reduce(jnp.add, self.read(context, history))

    def read(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> Sequence[Float[Array, " N"]]:
        """All rows of one position, in nats."""
        if self.history and history is None:
            raise ValueError(f"a model that reads the last {self.history} tokens, and no history: pass one")
        return self.rows.read(context.astype(jnp.int32), history)


def token_model(tables: Sequence[Any], features: str, eos: bool) -> LanguageModel:
    """The model with the logits `sum_k tables[k][x_k]`; repeated tables are kept once."""
    if len({table.shape for table in tables}) != 1:
        raise ValueError(f"tables {[table.shape for table in tables]}: give at least one, all [N, N]")
    different = {id(table): table for table in tables}
    index = tuple(list(different).index(id(table)) for table in tables)
    return LanguageModel(TokenTables(tuple(different.values()), index), features, eos)


def network_model(network: Any, variables: Any, *, context: int = 0, eos: bool = True) -> LanguageModel:
    """The language model of a network.

    Args:
        network: a flax module, [B, K] token ids -> [B, N] logits; or [B, T] -> [B, T, N], with a `window`.
        context: K, the tokens that it reads, of a network of K tokens.
        eos: whether it predicts the end of a document.

    Example:
        >>> from jexplicit.nn.networks import MLPLanguageModel, init_variables
        >>> network = MLPLanguageModel(vocab_size=4, embedding=2, hidden=(3,))
        >>> model = network_model(network, init_variables(network, jax.random.key(0), jnp.zeros((1, 2), int)), context=2)
        >>> model.logits(jnp.array([1, 3])).shape
        (4,)
    """
    rows = SequenceRows(variables, network) if hasattr(network, "window") else NetworkRows(variables, network, context)
    return LanguageModel(rows, "none", eos)


def is_token_model(model: LanguageModel) -> bool:
    """Whether a model is dense tables."""
    return isinstance(model.rows, TokenTables) and not any(isinstance(table, Sparse) for table in model.rows.tables)


@jax.jit
def logits(tables: Sequence[Float[Array, "N N"]], x: Integer[Array, " K"]) -> Float[Array, " N"]:
    """Logits of one context, `sum_k U_k[x_k]` = H U for one-hot H, in nats.

    tables: K tables [N, N]. x: [K] token ids, nearest first.

    Example:
        >>> logits([jnp.eye(2), 2 * jnp.eye(2)], jnp.array([0, 1])).tolist()
        [1.0, 2.0]

    Source: paper, Eq. 1 and Sec. 3.1.2.
    """
    rows = [table.at[x[k]].get(mode="promise_in_bounds") for k, table in enumerate(tables)]
    return functools.reduce(jnp.add, rows)


def context_of(history: Integer[Any, "*M W"], K: int) -> Integer[Any, "*M K"]:
    """The part of histories in the same document, of NumPy or JAX."""
    xp, nearest = history.__array_namespace__(), history[..., :K]
    return xp.where(xp.cumulative_sum(nearest == PAD, axis=-1) > 0, PAD, nearest)  # there is one before any NO_TOKEN


class Past(NamedTuple):
    """Where positions stand in a text."""

    stream: Integer[np.ndarray, " L"]
    places: Integer[np.ndarray, " M"]

    def take(self, m: Any) -> "Past":
        """Some of the positions."""
        return self._replace(places=self.places[m])


class State(NamedTuple):
    """The tokens that a model has read, from the first `<pad>` on."""

    tokens: Integer[np.ndarray, " n"]


class EncodedText(NamedTuple):
    """All predictions of a stream: contexts, targets, and where they stand."""

    X: Integer[np.ndarray, "M K"]
    Y: Integer[np.ndarray, " M"]
    past: Past


def read_text(stream: np.ndarray, K: int, *, eos: bool = False) -> EncodedText:
    """The predictions of a stream, `<pad> d_1 <pad> ... d_n <pad>`, in its order."""
    return EncodedText(*contexts(stream, K, eos=eos), Past(stream, predicted_places(stream, eos)))


def contexts_at(stream: Integer[np.ndarray, " L"], places: Integer[np.ndarray, " M"], K: int) -> Integer[np.ndarray, "M K"]:
    """The contexts of some places of a stream, nearest first, padded at document starts."""
    return context_of(histories(Past(stream, places), K), K)


def histories(past: Past, W: int) -> Integer[np.ndarray, "M W"]:
    """The W tokens before every position, nearest first, `NO_TOKEN` before the text."""
    places = past.places[:, None] - 1 - np.arange(W)[None, :]
    return np.where(places >= 0, past.stream[np.maximum(places, 0)].astype(np.int32), NO_TOKEN)


def sampled_positions(
    stream: Stream, K: int, vocab_size: int, *, eos: bool = False, sample: int | None = None, seed: int = 0
) -> tuple[Integer[np.ndarray, "M K"], Integer[np.ndarray, " M"]]:
    """Contexts and targets of a stream, or of a seeded sample."""
    check_stream(stream)
    M, windows_of = 0, functools.partial(windows, stream, 1, len(stream), context=K, span=_window)
    for tokens in windows_of():
        check_token_ids(tokens, vocab_size, f"and a model of {vocab_size}: use the model's own tokenizer")
        M += len(tokens) - K if eos else int(np.count_nonzero(tokens[K:] != PAD))
    m = draw_sample(M, sample, seed)
    X, Y, before = [], [], 0
    for tokens in windows_of():
        x, y = window_contexts(tokens, K, eos=eos)
        own = m[np.searchsorted(m, before) : np.searchsorted(m, before + len(y))] - before
        X.append(x[own])
        Y.append(y[own])
        before += len(y)
    return np.concatenate(X), np.concatenate(Y)


def draw_sample(M: int, sample: int | None, seed: int, shuffle: bool = False) -> np.ndarray:
    """The positions of a sample; shuffle draws another one."""
    if sample is None or sample >= M:
        return np.arange(M)
    return np.sort(np.random.default_rng(seed).choice(M, sample, replace=False, shuffle=shuffle))
