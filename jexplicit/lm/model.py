"""The language model: a distribution of the next token, log-linear in rows that counting, solving or training has made.

    logits(context, history) = sum_g a_g row_g(context, history),        p = softmax(logits)

A model is a tuple of *kinds of rows* and the exponents a of their rows. A kind holds arrays and says which rows a context
reads: a table per offset (here), codes (jexplicit.lm.rows.bitcipher), sparse rows over a base row (sparse), columns spread over
devices (sharded), contexts of several tokens (ngrams, backoff), the recent past (cache), or a network (network). The explicit
solution and Kneser-Ney have exponents 1, mixtures have fitted ones.

Models and kinds are frozen pytrees: their arrays are leaves, and sizes and names are static, so `jit`, `vmap`, `device_put`
and `tree.map` work on them.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.lm import softmax
from jexplicit.lm.names import Features as Features
from jexplicit.lm.names import History as History

HISTORY = 0  # as the token of a row: what it reads is the past, not a token of the context
SMALLEST_WINDOW = 32
NOTHING = -1  # in a history: no token, before the start of the text


def window_of(history: str) -> int | None:
    """The tokens that a history of "window:W" has; None for none, document and all.

    Raises:
        ValueError: another history.

    Example:
        >>> window_of("window:256"), window_of("all")
        (256, None)
    """
    kind, _, size = history.partition(":")
    if history in ("none", "document", "all"):
        return None
    if kind == "window" and size.isdecimal() and int(size) >= SMALLEST_WINDOW:
        return int(size)
    raise ValueError(f"history {history!r}: choose none, document, window:W (W at least {SMALLEST_WINDOW} tokens) or all")


def static(default: Any = ...) -> Any:
    """A dataclass field that is no leaf of the pytree."""
    return field(metadata={"static": True}) if default is ... else field(default=default, metadata={"static": True})


def pytree(cls: type) -> type:
    """A frozen dataclass registered with JAX: `static()` fields are metadata, all others hold leaves."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


@runtime_checkable
class Rows(Protocol):
    """A kind of rows.

    A kind may also have host functions over many contexts that are faster than reading every row: `log_partition(X, mesh=,
    progress=)` and `target_logits(X, Y)`, or `log_probabilities(X, Y)` where no partition function is needed; and
    `log_tables(X, past)`, the rows of many positions for jexplicit.lm.rows.log_tables.
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


@pytree
class Constant:
    """One row that no context changes, such as the log unigram.

    row: [N] nats.
    """

    row: Any
    name: str = static("unigram")

    names = property(lambda self: (self.name,))
    tokens = property(lambda self: (None,))
    radius = property(lambda self: 1)
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.row.shape[-1])

    def read(self, context, history=None):
        return [self.row]

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, np.ndarray, Any]]:
        """The row, for every position."""
        return [(self.row[None], np.zeros(len(X), np.int64), None)]

    def log_partition(self, X: np.ndarray, *, mesh: Any = None, progress: Any = None) -> np.ndarray:
        """`log Z`, the same after every context."""
        return np.full(len(X), float(jax.nn.logsumexp(self.row)))

    def target_logits(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """The logit of every position's own target."""
        return np.asarray(self.row)[Y]


class RowsByOffset:
    """What kinds of rows of single tokens share: a row per offset, read from one of their different tables."""

    name = "offset"
    history = 0
    tables: tuple[Any, ...]
    table_of_offset: tuple[int, ...]

    names = property(lambda self: tuple(f"{self.name} {k}" for k in range(1, self.radius + 1)))
    tokens = property(lambda self: tuple(range(1, self.radius + 1)))
    radius = property(lambda self: len(self.table_of_offset))

    @property
    def by_offset(self) -> tuple[Any, ...]:
        """A table for every offset, nearest first."""
        return tuple(self.tables[t] for t in self.table_of_offset)


@pytree
class TokenTables(RowsByOffset):
    """Dense rows of single tokens: the token k back reads row x_k of its offset's table.

    tables: the different tables, [N, N] each; offsets may share one, as those of Sum do.
    table_of_offset: for k = 1 .. K, which of them.
    name: what its rows are called before the offset.
    """

    tables: tuple[Any, ...]
    table_of_offset: tuple[int, ...] = static()
    name: str = static("offset")

    vocab_size = property(lambda self: self.tables[0].shape[1])

    def read(self, context, history=None):
        return [table.at[context[k]].get(mode="promise_in_bounds") for k, table in enumerate(self.by_offset)]

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, np.ndarray, Any]]:
        """The table of every offset, and the tokens there as its rows."""
        return [(table, X[:, k], None) for k, table in enumerate(self.by_offset)]

    def log_partition(self, X: np.ndarray, *, mesh: Any = None, progress: Any = None) -> np.ndarray:
        """`log Z(x)` of many contexts; see jexplicit.lm.softmax."""
        return softmax.log_partition(self.by_offset, X, mesh=mesh, progress=progress)

    def target_logits(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """The logit of every position's own target."""
        return softmax.target_logits(self.by_offset, X, Y)


@pytree
class LanguageModel:
    """A language model: kinds of rows and the exponents that weigh their rows.

    rows: the kinds.
    exponents: [S], a number for each row of all kinds, or several of which the context chooses one.
    features: how the tokens of a context are combined: "sum" does not see their order; "none" for models that are neither.
    eos: whether `<pad>` is predicted, as the end of a document.
    """

    rows: tuple[Any, ...]
    exponents: Any
    features: str = static("cat")
    eos: bool = static(False)

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
    def ordered(self) -> bool:
        """Whether the order of a context's tokens matters: not where all offsets read one table."""
        return not all(len(set(getattr(kind, "table_of_offset", (0, 1)))) == 1 for kind in self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

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
            history: [W] token ids, nearest first, borders of documents ignored and `NOTHING` before the start of the text; for
                models that read the past.
        """
        return sum_rows(self.weights(context), self.read(context, history))

    def weights(self, context: Integer[Array, " K"]) -> Float[Array, " G"]:
        """The exponent of every row after a context."""
        if not has_buckets(self):
            return jnp.asarray(self.exponents)
        context = context.astype(jnp.int32)
        chosen = [
            kind.buckets(context) if hasattr(kind, "buckets") else jnp.zeros(len(kind.names), jnp.int32) for kind in self.rows
        ]
        first = jnp.asarray(first_exponents(self.rows), jnp.int32)
        return jnp.asarray(self.exponents)[first + jnp.concatenate(chosen)]

    def read(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> list[Float[Array, " N"]]:
        """All rows of one position, in nats, before they are weighed."""
        if self.history and history is None:
            raise ValueError(f"a model that reads the last {self.history} tokens, and no history: pass one")
        context = context.astype(jnp.int32)
        return [row for kind in self.rows for row in kind.read(context, history)]


def exponents_per_row(kind: Any) -> tuple[int, ...]:
    """How many exponents each row of a kind has to choose from."""
    return getattr(kind, "exponents_per_row", (1,) * len(kind.names))


def first_exponents(rows: Sequence[Any]) -> Int[np.ndarray, " G"]:
    """Where the exponents of every row begin."""
    per_row = [n for kind in rows for n in exponents_per_row(kind)]
    return np.cumsum([0, *per_row[:-1]])


def has_buckets(model: LanguageModel) -> bool:
    """Whether a context chooses among several exponents of a row."""
    return any(max(exponents_per_row(kind), default=1) > 1 for kind in model.rows)


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

    Example:
        >>> model = token_model([jnp.eye(2), 2 * jnp.eye(2)], "cat", False)
        >>> model.logits(jnp.array([0, 1])).tolist()
        [1.0, 2.0]

    Source: paper, Eq. 1 and Sec. 3.1.2.
    """
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


def dense_where_small(model: LanguageModel, *, most: int = 1 << 30) -> LanguageModel:
    """The same model, faster to read for many positions: its sparse rows of single tokens as dense tables where these fit in
    `most` bytes, and of all others the long rows."""
    N, sparse = model.vocab_size, [kind for kind in model.rows if hasattr(kind, "dense")]
    small = sum(len(kind.bases) for kind in sparse) * 4 * N * N <= most

    def fast(kind: Any) -> Any:
        if small and hasattr(kind, "dense"):
            return kind.dense()
        return kind.split_long() if hasattr(kind, "split_long") else kind

    rows = tuple(fast(kind) for kind in model.rows)
    return model if all(new is old for new, old in zip(rows, model.rows, strict=True)) else replace(model, rows=rows)


def context_of(history: Integer[Array, " W"], K: int) -> Integer[Array, " K"]:
    """The context that a document's model sees of a history: `<pad>` from the nearest `<pad>` on.

    Example:
        >>> context_of(jnp.array([5, 0, 7]), 3).tolist()
        [5, 0, 0]
    """
    nearest = jnp.where(history[:K] == NOTHING, PAD, history[:K])
    return jnp.where(jnp.cumsum(nearest == PAD) > 0, PAD, nearest)
