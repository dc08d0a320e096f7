"""The interpolated n-gram model read by look-ups alone: its partition function is a product of back-off weights.

Rows hold log-ratios to what they back off to, `log(P(i|h) / (γ(h) P(i|h')))`, so their sum leaves out the weights γ alone:

    log p(i|x) = log P(i) + sum_n row_n(x)[i] + sum_n log γ(h_n)

with h_n the last n tokens of x. An entry of a row is found by binary search, and no row is read.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jexplicit.lm.core.model import LanguageModel, TableRows, pytree, static
from jexplicit.lm.rows.ngrams import Children, Ngrams, context_numbers
from jexplicit.lm.tables.contexts import vmap_contexts
from jexplicit.lm.tables.storage import Dense, Sparse, SparseRows


@pytree
class BackOffChain(TableRows):
    """The rows of an n-gram model: no context, the nearest token, the nearest two, ...

    base: [N] log of the distribution that the nearest token backs off to.
    children: how a context is found, level by level.
    levels: the sparse rows of contexts of one token, of two, ...; a context that never occurred has a row of zeros.
    log_gamma: [contexts] `log γ` of every level, 0 for a context that never occurred; empty where rows are of a file whose
        probabilities sum to 1 only to its digits: there the softmax normalises.
    longest: entries of the longest row of each level.
    """

    base: Any
    children: tuple[Children, ...]
    levels: tuple[SparseRows, ...]
    log_gamma: tuple[Any, ...] = ()
    longest: tuple[int, ...] = static(())

    names = property(lambda self: ("unigram", *(f"context {n}" for n in range(1, len(self.levels) + 1))))
    tokens = property(lambda self: (None, *range(1, len(self.levels) + 1)))
    radius = property(lambda self: max(1, len(self.levels)))
    vocab_size = property(lambda self: len(self.base))
    normalised = property(lambda self: bool(self.log_gamma))

    @property
    def row_tables(self):
        tables = (Sparse(rows, len(self.base), n) for rows, n in zip(self.levels, self.longest, strict=True))
        return (Dense(jnp.asarray(self.base)[None]), *tables)

    def index(self, context):
        none = jnp.zeros(1, jnp.int32)
        offsets = tuple(range(1, len(self.levels) + 1))
        return jnp.concatenate([none, context_numbers(self.children, offsets, context)]) if self.levels else none

    def target_logits(self, X, Y):
        return vmap_contexts(log_probability, self, X, Y)


def ngram_model(chain: Ngrams, *, eos: bool = False) -> LanguageModel:
    """The interpolated modified Kneser-Ney model.

    Args:
        chain: of `smoothed_ngrams` with offsets 1, 2, ... .
        eos: whether the text predicts the end of a document.

    Example:
        >>> import numpy as np
        >>> from jexplicit.lm.training_text import TrainingText
        >>> from jexplicit.lm.generation import next_token
        >>> text = TrainingText(np.array([0, 2, 3, 2, 4, 2, 3, 0]), 5)
        >>> model = ngram_model(text.ngrams((1, 2)))
        >>> round(float(np.exp(next_token(model, np.array([2]))[3])), 3)  # two times of three, discounted
        0.754

    Source: Chen & Goodman 1999, Sec. 4.
    """
    base, longest = jnp.asarray(jnp.log(chain.lower), jnp.float32), tuple(rows.longest for rows in chain.rows)
    return LanguageModel(BackOffChain(base, chain.children, chain.rows, chain.log_gamma, longest), "none", eos)


def log_probability(chain: BackOffChain, context: Int[Array, " K"], output: Int[Array, ""]) -> Float[Array, ""]:
    """`log p(output | context)`, pure; without weights γ the logit of the output."""
    numbers = chain.index(context)
    entries = [table.entry(n, output) for table, n in zip(chain.row_tables, numbers, strict=True)]
    weights = [
        jnp.where(n >= 0, jnp.asarray(log_gamma)[jnp.maximum(n, 0)], 0)
        for log_gamma, n in zip(chain.log_gamma, numbers[1:] if chain.log_gamma else (), strict=True)
    ]
    return functools.reduce(jnp.add, entries + weights)
