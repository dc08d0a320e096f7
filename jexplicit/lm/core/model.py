"""The language model: a distribution of the next token, log-linear in rows that counting, solving or training has made.

    logits(context, history) = sum_g a_g row_g(context, history),        p = softmax(logits)

A model is a tuple of *kinds of rows* and the exponents a of their rows. A context may choose the exponent of a row of several
(`buckets`), and selectors add others to it: `a_g(x) = a_g[bucket_g(x)] + sum_s a_gs[selector_s(x)]`. Most kinds are index and
tables (`TableRows`): the context gives the number of a row in each table. Tables are dense (here), sparse over a
base row (jexplicit.lm.rows.sparse), with columns spread over devices (sharded), or of contexts of several tokens (ngrams,
backoff). The recent past (cache) and networks (network) are read in ways of their own. The explicit solution and Kneser-Ney
have exponents 1, mixtures have fitted ones.

Models and kinds are frozen pytrees: their arrays are leaves, and sizes and names are static, so `jit`, `vmap`, `device_put`
and `tree.map` work on them.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.names import Features as Features
from jexplicit.lm.core.names import History as History
from jexplicit.lm.core.names import window_of as window_of
from jexplicit.lm.tables.contexts import map_contexts, vmap_contexts
from jexplicit.lm.tables.pytrees import pytree as pytree
from jexplicit.lm.tables.pytrees import static as static
from jexplicit.lm.tables.storage import Dense

HISTORY = 0  # as the token of a row: what it reads is the past, not a token of the context
NO_TOKEN = -1  # in a history: no token, before the start of the text


@runtime_checkable
class Rows(Protocol):
    """A kind of rows. `TableRows` derives most of this.

    Kinds that are read at many positions for a fit, and have no tables, say how by `log_tables(X, past)`: for each row a table
    of jexplicit.lm.tables.storage (or an array [R, N], or `SparseRows`), the number of the row that each position reads, and a
    base row or None.
    A kind with several exponents for a row says how many by `exponents_per_row`, and which of them a context takes by
    `buckets(context)`, [rows] numbers from 0.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """What each row is."""
        ...

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Which token of the context each row speaks for, 1 for the nearest; HISTORY for the past, None for no token."""
        ...

    @property
    def radius(self) -> int:
        """K, how many tokens of the context it reads."""
        ...

    @property
    def history(self) -> int:
        """How many tokens of the past it reads, borders of documents ignored; 0 for none."""
        ...

    @property
    def vocab_size(self) -> int:
        """N."""
        ...

    def read(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None) -> Sequence[Float[Array, " N"]]:
        """The rows of one position, in nats: pure, for `jit` and `vmap`."""
        ...


class TableRows:
    """Rows that stand in tables: `index(context)` numbers the row of each of the `row_tables`, and all else follows.

    row_tables: for each row a table of jexplicit.lm.tables.storage.
    index: [K] token ids, nearest first -> [rows] integers, -1 for no row: pure.
    confidence: for each row which of its exponents a row of its table takes, [R] each; empty for one exponent per row.
    """

    names: Any
    row_tables: Any
    confidence: tuple[Any, ...] = ()
    normalised = False  # whether target_logits are log-probabilities
    history = 0
    vocab_size = property(lambda self: self.row_tables[0].vocab_size)
    exponents_per_row = property(lambda self: (1,) * len(self.names))  # no table is made

    def index(self, context: Int[Array, " K"]) -> Int[Array, " rows"]:
        """The row of each table, -1 for none."""
        raise NotImplementedError

    def read(self, context: Integer[Array, " K"], history: Any = None) -> list[Float[Array, " N"]]:
        """The rows of one position, in nats."""
        return [table.row(r) for table, r in zip(self.row_tables, self.index(context.astype(jnp.int32)), strict=True)]

    def buckets(self, context: Int[Array, " K"]) -> Int[Array, " rows"]:
        """Which exponent each row takes; without a row, any."""
        if not self.confidence:
            return jnp.zeros(len(self.names), jnp.int32)
        chosen = [jnp.asarray(known)[r] for known, r in zip(self.confidence, self.index(context), strict=True)]
        return jnp.stack(chosen).astype(jnp.int32)

    def log_partition(
        self, X: Integer[np.ndarray, "M K"], *, mesh: Any = None, progress: Any = None
    ) -> Float[np.ndarray, " M"]:
        """`log Z(x)` of many contexts with exponents 1, in nats, on the host."""
        return map_contexts(_log_Z, self, X, mesh=mesh, progress=progress)

    def target_logits(self, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """The logit of every position's own target with exponents 1, in nats, on the host: no row is read."""
        return vmap_contexts(_target_logit, self, X, Y)


def _log_Z(kind: TableRows, x: Array) -> Float[Array, ""]:
    return jax.nn.logsumexp(functools.reduce(jnp.add, kind.read(x)))


def _target_logit(kind: TableRows, x: Array, y: Array) -> Float[Array, ""]:
    entries = [table.entry(r, y) for table, r in zip(kind.row_tables, kind.index(x), strict=True)]
    return functools.reduce(jnp.add, entries)


@pytree
class Constant(TableRows):
    """One row that no context changes, such as the log unigram.

    row: [N] nats.
    """

    row: Any
    name: str = static("unigram")

    names = property(lambda self: (self.name,))
    tokens = (None,)
    radius = 1
    vocab_size = property(lambda self: len(self.row))
    row_tables = property(lambda self: (Dense(jnp.asarray(self.row)[None]),))

    def index(self, context):
        return jnp.zeros(1, jnp.int32)

    def log_partition(self, X, *, mesh=None, progress=None):
        return np.full(len(X), float(jax.nn.logsumexp(self.row)))


class RowsByOffset(TableRows):
    """Rows of single tokens: the token k back reads row x_k of one of a few tables.

    table_of_offset: for k = 1 .. K, which of the `different` tables.
    """

    name = "offset"
    table_of_offset: tuple[int, ...]
    different: Any

    names = property(lambda self: tuple(f"{self.name} {k}" for k in range(1, self.radius + 1)))
    tokens = property(lambda self: tuple(range(1, self.radius + 1)))
    radius = property(lambda self: len(self.table_of_offset))

    @property
    def row_tables(self):
        different = self.different
        return tuple(different[t] for t in self.table_of_offset)

    def index(self, context):
        return context[: self.radius]


@pytree
class TokenTables(RowsByOffset):
    """Dense rows of single tokens.

    tables: the different tables, [N, N] each; offsets may share one, as those of Sum do.
    table_of_offset: for k = 1 .. K, which of them.
    name: what its rows are called before the offset.
    """

    tables: tuple[Any, ...]
    table_of_offset: tuple[int, ...] = static()
    name: str = static("offset")

    different = property(lambda self: tuple(map(Dense, self.tables)))

    @property
    def by_offset(self) -> tuple[Any, ...]:
        """A table for every offset, nearest first."""
        return tuple(self.tables[t] for t in self.table_of_offset)


@pytree
class LanguageModel:
    """A language model: kinds of rows and the exponents that weigh their rows.

    rows: the kinds.
    exponents: [S], a number for each row of all kinds, or several of which the context chooses one; then for each selector one
        of every row and class.
    features: how the tokens of a context are combined: "sum" does not see their order; "none" for models that are neither.
    eos: whether `<pad>` is predicted, as the end of a document.
    selectors: of jexplicit.lm.rows.selectors; each adds to the exponent of every row one that its class of the context chooses.
    """

    rows: tuple[Any, ...]
    exponents: Any
    features: str = static("cat")
    eos: bool = static(False)
    selectors: tuple[Any, ...] = ()

    @property
    def radius(self) -> int:
        """K, the tokens of a context."""
        return max(kind.radius for kind in self.rows)

    @property
    def history(self) -> int:
        """W, the tokens of the past that it reads beyond the context; 0 for none."""
        return max(kind.history for kind in self.rows)

    @property
    def vocab_size(self) -> int:
        """N, the number of token ids."""
        return self.rows[0].vocab_size

    @property
    def names(self) -> tuple[str, ...]:
        """What each row is."""
        return tuple(name for kind in self.rows for name in kind.names)

    @property
    def tokens(self) -> tuple[int | None, ...]:
        """Which token of the context each row speaks for."""
        return tuple(token for kind in self.rows for token in kind.tokens)

    @property
    def counted(self) -> tuple[Any, ...]:
        """The kinds of rows that selectors ask: those of the model within, where its prediction is a row (`ModelRow`)."""
        return getattr(self.rows[0], "counted", self.rows)

    @property
    def ordered(self) -> bool:
        """Whether the order of a context's tokens matters: not where all offsets read one table."""
        return not all(len(set(getattr(kind, "table_of_offset", (0, 1)))) == 1 for kind in self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def __repr__(self) -> str:
        kinds = ", ".join(type(kind).__name__ for kind in self.rows)
        return f"LanguageModel({kinds}; {len(self.names)} rows, features={self.features!r}, eos={self.eos})"

    @property
    def tables(self) -> tuple[Any, ...]:
        """The K tables of a model of dense tables alone, nearest offset first.

        Raises:
            ValueError: a model of other rows, or one whose exponents are not 1.
        """
        if not is_token_model(self):
            kinds = ", ".join(type(kind).__name__ for kind in self.rows)
            raise ValueError(f"a model of {kinds}: this needs plain tables [N, N] of single tokens; use a dense model")
        return self.rows[0].by_offset

    def logits(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> Float[Array, " N"]:
        """Logits of the next token, `sum_g a_g row_g(context, history)`, in nats: pure, for one position.

        Args:
            context: [K] token ids, nearest first; `<pad>` from the start of the document on.
            history: [W] token ids, nearest first, borders of documents ignored and `NO_TOKEN` before the start of the text; for
                models that read the past.
        """
        return sum_rows(self.weights(context), self.read(context, history))

    def weights(self, context: Integer[Array, " K"]) -> Float[Array, " G"]:
        """The exponent of every row after a context."""
        if not has_buckets(self):
            return jnp.asarray(self.exponents)
        context = context.astype(jnp.int32)
        own = jnp.concatenate([buckets_of(kind, context) for kind in self.rows])
        own += jnp.asarray(exponent_offsets(self.rows), jnp.int32)
        a = jnp.asarray(self.exponents)
        if not self.selectors:
            return a[own]
        sizes = [selector.size for selector in self.selectors]
        classes = selected((self.counted, self.selectors), context)
        return a[add_selected(own, classes, len(unit_exponents(self.rows)), sizes)].sum(axis=-1)

    def read(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> list[Float[Array, " N"]]:
        """All rows of one position, in nats, before they are weighed."""
        if self.history and history is None:
            raise ValueError(f"a model that reads the last {self.history} tokens, and no history: pass one")
        context = context.astype(jnp.int32)
        return [row for kind in self.rows for row in kind.read(context, history)]


def exponents_per_row(kind: Any) -> tuple[int, ...]:
    """How many exponents each row of a kind has to choose from."""
    return getattr(kind, "exponents_per_row", (1,) * len(kind.names))


def buckets_of(kind: Any, context: Int[Array, " K"]) -> Int[Array, " rows"]:
    """Which of its exponents each row of a kind takes."""
    return kind.buckets(context) if hasattr(kind, "buckets") else jnp.zeros(len(kind.names), jnp.int32)


def exponent_offsets(rows: Sequence[Any]) -> Int[np.ndarray, " G"]:
    """Where the exponents of every row begin."""
    per_row = [n for kind in rows for n in exponents_per_row(kind)]
    return np.cumsum([0, *per_row[:-1]])


def has_buckets(model: LanguageModel) -> bool:
    """Whether a context chooses among several exponents of a row."""
    return bool(model.selectors) or any(max(exponents_per_row(kind), default=1) > 1 for kind in model.rows)


def selected(rows_and_selectors: tuple[Any, Any], context: Int[Array, " K"]) -> Int[Array, " selectors"]:
    """The class of a context for every selector."""
    rows, selectors = rows_and_selectors
    return jnp.stack([selector(rows, context).astype(jnp.int32) for selector in selectors])


def add_selected(own: Any, classes: Any, first: int, sizes: Sequence[int]) -> Any:
    """`[..., G, 1 + selectors]`, all exponents that add up to that of each row.

    Args:
        own: [..., G] the exponent of its own that each row takes.
        classes: [..., selectors] class for each selector.
        first: number of the selectors' first exponent.
        sizes: classes of each selector.

    Example:
        >>> add_selected(np.array([0, 1]), np.array([2]), 2, (3,)).tolist()  # two rows, three classes
        [[0, 4], [1, 7]]
    """
    G, parts = own.shape[-1], [own]
    for n, size in enumerate(sizes):
        parts.append(first + size * np.arange(G, dtype=np.int32) + classes[..., n, None])
        first += G * size
    return (np if isinstance(own, np.ndarray) else jnp).stack(parts, axis=-1)


def sum_rows(exponents: Any, rows: Sequence[Any]) -> Any:
    """`sum_g a_g row_g`."""
    a = jnp.asarray(exponents).astype(rows[0].dtype)
    return functools.reduce(jnp.add, [a[g] * row for g, row in enumerate(rows)])


def token_model(tables: Sequence[Any], features: str, eos: bool) -> LanguageModel:
    """The model with the logits `sum_k tables[k][x_k]`.

    Args:
        tables: K tables [N, N], nearest offset first; one array given several times is kept once.
        features: "sum" or "cat".
        eos: whether `<pad>` is predicted as the end of a document.

    Raises:
        ValueError: no table, or tables of different shapes.

    Example:
        >>> model = token_model([jnp.eye(2), 2 * jnp.eye(2)], "cat", False)
        >>> model.logits(jnp.array([0, 1])).tolist()
        [1.0, 2.0]

    Source: paper, Eq. 1 and Sec. 3.1.2.
    """
    if len({table.shape for table in tables}) != 1:
        raise ValueError(f"tables {[table.shape for table in tables]}: give at least one, all [N, N]")
    different = list({id(table): table for table in tables}.values())
    index = tuple(next(n for n, other in enumerate(different) if other is table) for table in tables)
    kind = TokenTables(tuple(different), index)
    return LanguageModel((kind,), unit_exponents((kind,), tables[0].dtype), features, eos)


def is_token_model(model: LanguageModel) -> bool:
    """Whether a model is dense tables alone."""
    return len(model.rows) == 1 and isinstance(model.rows[0], TokenTables) and has_unit_exponents(model)


def unit_exponents(rows: Sequence[Any], dtype: Any = jnp.float32) -> Float[np.ndarray, " G"]:
    """All exponents 1."""
    return np.ones(sum(sum(exponents_per_row(kind)) for kind in rows), dtype)


def has_unit_exponents(model: LanguageModel) -> bool:
    """Whether all exponents are 1."""
    return bool((np.asarray(model.exponents) == 1).all())


def context_of(history: Integer[Array, " W"], K: int) -> Integer[Array, " K"]:
    """The context that a document's model sees of a history: `<pad>` from the nearest `<pad>` on.

    Example:
        >>> context_of(jnp.array([5, 0, 7]), 3).tolist()
        [5, 0, 0]
    """
    nearest = jnp.where(history[:K] == NO_TOKEN, PAD, history[:K])
    return jnp.where(jnp.cumsum(nearest == PAD) > 0, PAD, nearest)
