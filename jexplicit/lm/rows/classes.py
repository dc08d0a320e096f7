"""Rows of classes of tokens: what followed the classes of the tokens before, and which class follows.

A clustering gives every token a class. A context of classes occurs far more often than one of tokens, so that longer ones can
be counted. Two kinds of rows are made of them. Those of tokens, `P(i | c_1 c_2 c_3)`, are rows of contexts as in
jexplicit.lm.rows.ngrams. Those of the class of the next token are short, and the same for all tokens of a class:

    row[i] = log P(c(i) | c_1 .. c_4) - log P(c(i)).

Source: Brown et al. 1992 for classes in n-gram models; as a log-linear row, this project.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from jexplicit.lm.core.model import TableRows, pytree, static
from jexplicit.lm.rows.ngrams import NgramRows
from jexplicit.lm.tables.storage import Gathered, take_rows


@pytree
class ClassView:
    """The nearest tokens of a context, and their classes.

    classes: tables [N] of the class of every token, for each clustering.
    radius: K, how many tokens.
    """

    classes: tuple[Any, ...]
    radius: int = static(4)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each column has."""
        sizes = (len(self.classes[0]), *(int(np.max(np.asarray(table))) + 1 for table in self.classes))
        return tuple(size for size in sizes for _ in range(self.radius))

    def columns(self, clustering: int, tokens: int) -> tuple[int, ...]:
        """The columns of the nearest tokens' classes, from 1; clustering 0 is the tokens themselves."""
        return tuple(clustering * self.radius + k for k in range(1, tokens + 1))

    def __call__(self, context: Integer[Array, " K"]) -> Int[Array, " columns"]:
        """The tokens, nearest first, then their classes for each clustering.

        Example:
            >>> ClassView((jnp.array([0, 1, 1]),), radius=2)(jnp.array([2, 0, 1])).tolist()
            [2, 0, 1, 0]
        """
        tokens = context[: self.radius].astype(jnp.int32)
        return jnp.concatenate([tokens, *(jnp.asarray(table)[tokens].astype(jnp.int32) for table in self.classes)])


@pytree
class ClassOfOutput(TableRows):
    """One row: the class of the output after contexts of several numbers, over the class alone.

    chain: rows of classes, which add up from a context's longest length to its shortest.
    base: [C] log-ratio of what the chain backs off to, to the classes' frequencies.
    class_of: [N] the class of every output.
    name: of the row.
    """

    chain: NgramRows
    base: Any
    class_of: Any
    name: str = static("class")

    names = property(lambda self: (self.name,))
    radius = property(lambda self: self.chain.radius)
    row_tables = property(lambda self: (ChainTable(self.chain, self.base, self.class_of),))

    def index(self, context):
        numbers = self.chain.index(context)
        levels = jnp.arange(len(numbers), dtype=jnp.int32)
        longest = jnp.max(jnp.where(numbers >= 0, levels, 0))
        return (jnp.asarray(_first_of_levels(self.chain), jnp.int32)[longest] + numbers[longest])[None]


@pytree
class ChainTable:
    """The sum of a chain's rows, for each context of any length, read through the class of each output.

    Rows are numbered level by level, as the longest context that is known.
    """

    chain: NgramRows
    base: Any
    class_of: Any

    vocab_size = property(lambda self: len(self.class_of))

    def row(self, r: Array) -> Array:
        """Row r, [N]."""
        parts = zip(self.chain.row_tables, self._levels(r), strict=True)
        row = functools.reduce(jnp.add, [table.row(n) for table, n in parts], jnp.asarray(self.base))
        return row[jnp.asarray(self.class_of)]

    def entry(self, r: Array, i: Array) -> Array:
        """Logit i of row r."""
        return self.row(r)[i]

    def take(self, r: Int[np.ndarray, " n"]) -> Gathered:
        """Rows r."""
        rows = np.tile(np.asarray(self.base, np.float32), (len(r), 1))
        for table, n in zip(self.chain.rows, self._levels(r), strict=True):
            known = np.flatnonzero(n >= 0)
            start, outputs, values = jax.device_get(take_rows(table, n[known]))
            rows[np.repeat(known, np.diff(start)), outputs[: start[-1]]] += values[: start[-1]]
        return Gathered(rows, self.class_of)

    def _levels(self, r: Any) -> list[Any]:
        """The number of the context at each level, -1 where it is not that long: NumPy and JAX alike."""
        xp, longer, found = r.__array_namespace__(), None, []
        for level in reversed(range(len(self.chain.rows))):
            n = r - int(_first_of_levels(self.chain)[level])
            own = (n >= 0) & (n < len(self.chain.rows[level].start) - 1)
            if longer is None:
                longer = xp.where(own, n, -1)
            else:
                start = self.chain.children[level].start
                start = jax.device_get(start) if xp is np else start
                shorter = xp.searchsorted(start, longer, side="right").astype(r.dtype) - 1
                longer = xp.where(own, n, xp.where(longer >= 0, shorter, -1))
            found.append(longer)
        return found[::-1]


def _first_of_levels(chain: NgramRows) -> Int[np.ndarray, " levels"]:
    """The number of the first context of each level."""
    return np.cumsum([0, *(len(rows.start) - 1 for rows in chain.rows[:-1])])
