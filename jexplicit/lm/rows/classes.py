"""Rows of classes of tokens: what followed the classes of the tokens before, and which class follows.

A clustering gives every token a class. A context of classes occurs far more often than one of tokens, so that longer ones can
be counted. Two kinds of rows are made of them. Those of tokens, `P(i | c_1 c_2 c_3)`, are rows of contexts as in
jexplicit.lm.rows.ngrams. Those of the class of the next token are short, and the same for all tokens of a class:

    row[i] = log P(c(i) | c_1 .. c_4) - log P(c(i)).

Source: Brown et al. 1992 for classes in n-gram models; as a log-linear row, this project.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer
from scipy.sparse import csr_array

from jexplicit.lm.model import pytree, static
from jexplicit.lm.rows.log_tables import Gathered
from jexplicit.lm.rows.ngrams import NgramRows

_fewest_rows = 1 << 12  # that a table is filled up to, and then to a power of two: few shapes are compiled


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
class ClassOfOutput:
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
    exponents_per_row = (1,)
    radius = property(lambda self: self.chain.radius)
    history = property(lambda self: 0)
    vocab_size = property(lambda self: len(self.class_of))

    def read(self, context, history=None):
        row = sum(self.chain.read(context), start=jnp.asarray(self.base))
        return [row[jnp.asarray(self.class_of)]]

    def buckets(self, context):
        """The row has one exponent."""
        return jnp.zeros(1, jnp.int32)

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, ...]]:
        """The rows of the different contexts: the longest that a position knows names them."""
        read = self.chain.log_tables(X)
        numbers = np.stack([np.zeros(len(X), np.int64), *(column + 1 for _, column, _ in read)], axis=1)
        length = np.argmax((numbers > 0) * np.arange(1, 1 + numbers.shape[1]), axis=1)
        first = np.cumsum([0, 1, *(len(table.start) for table, _, _ in read[:-1])])
        _, m, which = np.unique(first[length] + numbers[np.arange(len(X)), length], return_index=True, return_inverse=True)
        size = max(len(m), min(len(X), _fewest_rows))
        rows = np.tile(np.asarray(self.base, np.float32), (1 << (size - 1).bit_length(), 1))
        for (start, outputs, values), column, _ in read:
            shape = (len(start) - 1, rows.shape[1])
            table = csr_array(
                (np.asarray(values), np.asarray(outputs).astype(np.int32), np.asarray(start).astype(np.int64)), shape
            )
            known = np.flatnonzero(column[m] >= 0)
            rows[known] += table[column[m][known]].toarray()
        return [(Gathered(jnp.asarray(rows), jnp.asarray(self.class_of)), which, None)]  # on the device once for all blocks
