"""The interpolated n-gram model read by look-ups alone: its partition function is a product of back-off weights.

Rows hold log-ratios to what they back off to, `log(P(i|h) / (γ(h) P(i|h')))`, so their sum leaves out the weights γ alone:

    log p(i|x) = sum_n row_n(x)[i] + sum_n log γ(h_n)        where all exponents are 1

with h_n the last n tokens of x. An entry of a row is found by binary search, and no row is read.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jexplicit.lm.core.model import Constant, TableRows, pytree
from jexplicit.lm.rows.ngrams import NgramRows, context_numbers
from jexplicit.lm.rows.sparse import SparseTables
from jexplicit.lm.tables.contexts import vmap_contexts


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model: the unigram, the nearest token, longer contexts.

    unigram, nearest, longer: rows that add up to the model.
    log_gamma: [contexts] `log γ` of every level, nearest token first; 0 for a context that never occurred.
    """

    unigram: Constant
    nearest: SparseTables
    longer: NgramRows
    log_gamma: tuple[Any, ...]

    kinds = property(lambda self: (self.unigram, self.nearest, self.longer))
    names = property(lambda self: tuple(name for kind in self.kinds for name in kind.names))
    tokens = property(lambda self: tuple(token for kind in self.kinds for token in kind.tokens))
    radius = property(lambda self: self.longer.radius)
    vocab_size = property(lambda self: self.unigram.vocab_size)
    normalised = True
    row_tables = property(lambda self: tuple(table for kind in self.kinds for table in kind.row_tables))

    def index(self, context):
        levels = context_numbers(self.longer.children, self.longer.offsets, context)
        return jnp.concatenate([jnp.zeros(1, jnp.int32), levels])

    def target_logits(self, X, Y):
        return vmap_contexts(log_probability, self, X, Y)


def log_probability(chain: BackOffChain, context: Int[Array, " K"], output: Int[Array, ""]) -> Float[Array, ""]:
    """`log p(output | context)` with all exponents 1: pure."""
    numbers = chain.index(context)
    entries = [table.entry(n, output) for table, n in zip(chain.row_tables, numbers, strict=True)]
    weights = [
        jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        for log_gamma, n in zip(chain.log_gamma, numbers[1:], strict=True)
    ]
    return functools.reduce(jnp.add, entries + weights)
