"""The interpolated n-gram model read by look-ups alone: its partition function is a product of back-off weights.

Rows hold log-ratios to what they back off to, `log(P(i|h) / (γ(h) P(i|h')))`, so their sum leaves out the weights γ alone:

    log p(i|x) = sum_n row_n(x)[i] + sum_n log γ(h_n),        log Z(x) = - sum_n log γ(h_n)        where all exponents are 1

with h_n the last n tokens of x. An entry of a row is found by binary search, and no row is read.
"""

from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jexplicit.data.contexts import pad_to
from jexplicit.lm.model import Constant, pytree
from jexplicit.lm.rows.log_tables import SparseRows
from jexplicit.lm.rows.look_up import entry_value
from jexplicit.lm.rows.ngrams import NgramRows, context_numbers
from jexplicit.lm.rows.sparse import SparseTables

_positions_per_call = 1 << 16


@pytree
class BackOffChain:
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
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.unigram.vocab_size)

    def read(self, context, history=None):
        return [row for kind in self.kinds for row in kind.read(context, history)]

    def split_long(self) -> "BackOffChain":
        """The same rows, faster to read for many positions."""
        return replace(cast(Any, self), nearest=self.nearest.split_long(), longer=self.longer.split_long())

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, ...]]:
        """The rows of many contexts."""
        return [table for kind in self.kinds for table in kind.log_tables(X, past)]

    def log_probability(self, context: Integer[Array, " K"], output: Integer[Array, ""]) -> Float[Array, ""]:
        """`log p(output | context)` with all exponents 1: pure."""
        numbers = context_numbers(self.longer.children, self.longer.offsets, context)
        levels: list[tuple[SparseRows, int]] = [
            (self.nearest.corrections[0], self.nearest.longest[0]),
            *zip(self.longer.rows, self.longer.longest, strict=True),
        ]
        log_p = jnp.asarray(self.unigram.row)[output] + jnp.asarray(self.nearest.bases[0])[output]
        for (rows, longest), number, log_gamma in zip(levels, numbers, self.log_gamma, strict=True):
            weight = jnp.where(number >= 0, jnp.asarray(log_gamma)[jnp.maximum(number, 0)], 0)
            log_p += entry_value(rows, number, output, longest) + weight
        return log_p

    def log_probabilities(self, X: Integer[np.ndarray, "M K"], Y: Integer[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """`log p(y_m | x_m)` of many positions with all exponents 1, in nats."""
        X_and_Y = np.concatenate([X.astype(np.int32), Y.astype(np.int32)[:, None]], axis=1)
        found = [np.zeros(0, np.float32)]
        for m in range(0, len(Y), _positions_per_call):
            part = X_and_Y[m : m + _positions_per_call]
            size = min(_positions_per_call, 1 << (len(part) - 1).bit_length())  # few shapes are compiled
            found.append(np.asarray(_log_probabilities(self, pad_to(part, size, 0)))[: len(part)])
        return np.concatenate(found)


@jax.jit
def _log_probabilities(chain: BackOffChain, X_and_Y: Int[Array, "M K_plus_1"]) -> Float[Array, " M"]:
    return jax.vmap(lambda x: chain.log_probability(x[:-1], x[-1]))(X_and_Y)
