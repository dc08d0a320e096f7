"""The language model: logits of the next token as a sum of rows.

    logits(context, history) = sum_g row_g(context, history),        p = softmax(logits)

A kind of rows says `names` (what each row is), `tokens` (which token of the context it speaks for, 1 for the nearest; HISTORY
for the past, None for no token), `radius` (K, tokens of the context that it reads), `history` (tokens of the past, borders of
documents ignored; 0 for none), `vocab_size`, and `read(context, history)`, the rows of one position in nats: pure.

Most kinds are index and tables (`TableRows`): the context gives the number of a row in each table. Tables are dense (here),
sparse over a base row (jexplicit.lm.rows.sparse), or of contexts of several tokens (ngrams). Networks are read otherwise.

Models and kinds are frozen pytrees: their arrays are leaves, and sizes and names are static, so `jit`, `vmap`, `device_put`
and `tree.map` work on them.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import PAD
from jexplicit.lm.core.tables import Dense, map_contexts, pytree, static

HISTORY = 0  # as the token of a row: what it reads is the past, not a token of the context
NO_TOKEN = -1  # in a history: no token, before the start of the text


class TableRows:
    """Rows in tables: `index(context)` numbers the row in each of the `row_tables`.

    row_tables: for each row a table of jexplicit.lm.core.tables.
    index: [K] token ids, nearest first -> [rows] integers, -1 for no row: pure.
    """

    names: Any
    row_tables: Any
    normalised = False  # whether target_logits are log-probabilities
    history = 0
    vocab_size = property(lambda self: self.row_tables[0].vocab_size)

    def index(self, context: Int[Array, " K"]) -> Int[Array, " rows"]:
        """The row of each table, -1 for none."""
        raise NotImplementedError

    def read(self, context: Integer[Array, " K"], history: Any = None) -> list[Float[Array, " N"]]:
        """The rows of one position, in nats."""
        return [table.row(r) for table, r in zip(self.row_tables, self.index(context.astype(jnp.int32)), strict=True)]

    def entry(self, context: Integer[Array, " K"], output: Integer[Array, ""]) -> Float[Array, ""]:
        """The logit of one output: no row is read."""
        entries = [table.entry(r, output) for table, r in zip(self.row_tables, self.index(context), strict=True)]
        return functools.reduce(jnp.add, entries)

    def log_partition(
        self, X: Integer[np.ndarray, "M K"], *, mesh: Any = None, block: int | None = None, progress: Any = None
    ) -> Float[np.ndarray, " M"]:
        """`log Z(x)` of many contexts, in nats, on the host."""
        return map_contexts(_log_Z, self, X, mesh=mesh, block=block, progress=progress)

    def target_logits(
        self, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"], *, mesh: Any = None
    ) -> Float[np.ndarray, " M"]:
        """The logit of every position's target, in nats, on the host, without whole rows."""
        x_and_y = np.concatenate([X.astype(np.int32), Y.astype(np.int32)[:, None]], axis=1)
        return map_contexts(_target_logit, self, x_and_y, mesh=mesh, block=1024)


def _log_Z(kind: TableRows, x: Array) -> Float[Array, ""]:
    return jax.nn.logsumexp(functools.reduce(jnp.add, kind.read(x)))


def _target_logit(kind: TableRows, x_and_y: Array) -> Float[Array, ""]:
    return kind.entry(x_and_y[:-1], x_and_y[-1])


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

    def log_partition(self, X, *, mesh=None, block=None, progress=None):
        return np.full(len(X), float(jax.nn.logsumexp(self.row)))


class RowsByOffset(TableRows):
    """Rows of single tokens: the token k back selects row x_k of a table.

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
    """A language model: the sum of the rows of a kind.

    rows: the kind of rows.
    features: how the tokens of a context are combined: "sum" does not see their order; "none" for models that are neither.
    eos: whether `<pad>` is predicted, as the end of a document.
    """

    rows: Any
    features: str = static("cat")
    eos: bool = static(False)

    radius = property(lambda self: self.rows.radius, doc="K, the tokens of a context.")
    history = property(lambda self: self.rows.history, doc="W, the tokens of the past that it reads beyond the context.")
    vocab_size = property(lambda self: self.rows.vocab_size, doc="N, the number of token ids.")
    names = property(lambda self: self.rows.names, doc="What each row is.")
    tokens = property(lambda self: self.rows.tokens, doc="Which token of the context each row speaks for.")

    @property
    def ordered(self) -> bool:
        """Whether the order of context tokens matters: not if all offsets share a table."""
        return len(set(getattr(self.rows, "table_of_offset", (0, 1)))) > 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def __repr__(self) -> str:
        kind = type(self.rows).__name__
        return f"LanguageModel({kind}; {len(self.names)} rows, features={self.features!r}, eos={self.eos})"

    @property
    def tables(self) -> tuple[Any, ...]:
        """The K tables of a model of dense tables, nearest offset first.

        Raises:
            ValueError: a model of other rows.
        """
        if not is_token_model(self):
            kind = type(self.rows).__name__
            raise ValueError(f"a model of {kind}: this needs plain tables [N, N] of single tokens; use a dense model")
        return self.rows.by_offset

    def logits(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> Float[Array, " N"]:
        """Logits of the next token, `sum_g row_g(context, history)`, in nats: pure, for one position.

        Args:
            context: [K] token ids, nearest first; `<pad>` from the start of the document on.
            history: [W] token ids, nearest first, borders of documents ignored and `NO_TOKEN` before the start of the text; for
                models that read the past.
        """
        return functools.reduce(jnp.add, self.read(context, history))

    def read(self, context: Integer[Array, " K"], history: Integer[Array, " W"] | None = None) -> Sequence[Float[Array, " N"]]:
        """All rows of one position, in nats."""
        if self.history and history is None:
            raise ValueError(f"a model that reads the last {self.history} tokens, and no history: pass one")
        return self.rows.read(context.astype(jnp.int32), history)


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
    return LanguageModel(TokenTables(tuple(different), index), features, eos)


def is_token_model(model: LanguageModel) -> bool:
    """Whether a model is dense tables."""
    return isinstance(model.rows, TokenTables)


def context_of(history: Integer[Array, " W"], K: int) -> Integer[Array, " K"]:
    """The part of a history in the same document, after the nearest `<pad>`.

    Example:
        >>> context_of(jnp.array([5, 0, 7]), 3).tolist()
        [5, 0, 0]
    """
    nearest = jnp.where(history[:K] == NO_TOKEN, PAD, history[:K])
    return jnp.where(jnp.cumsum(nearest == PAD) > 0, PAD, nearest)
