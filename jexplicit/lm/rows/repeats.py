"""Rows of the context's own tokens: what stands in it is likelier to come again, whatever the text before says.

    row[i] = log(1 + c_i / (n₊ b_i)),

c_i counts token i among the nearest W tokens of the context, n₊ different ones are there, b is the unigram. It is the row of
a cache (jexplicit.lm.rows.cache) that sees no further than a context, and so nothing of another document.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.lm.model import HISTORY, pytree, static
from jexplicit.lm.rows.cache import Cache, count_tokens, recent_row, rows_of_counts
from jexplicit.lm.tables.storage import SparseRows


@pytree
class RepeatRows:
    """A row for each of several numbers of nearest tokens.

    log_base: [N] log unigram.
    lengths: W of each row.

    Example:
        >>> kind = RepeatRows(jnp.log(jnp.array([0.25, 0.5, 0.25])), (2,))
        >>> jnp.exp(kind.read(jnp.array([1, 1]))[0]).round(3).tolist()  # 1 + 2 / (1 * 0.5)
        [1.0, 5.0, 1.0]
    """

    log_base: Any
    lengths: tuple[int, ...] = static()

    names = property(lambda self: tuple(f"repeat {W}" for W in self.lengths))
    tokens = property(lambda self: (HISTORY,) * len(self.lengths))
    radius = property(lambda self: max(self.lengths))
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.log_base.shape[0])

    def read(self, context, history=None):
        near = context.astype(jnp.int32)  # unsigned ids have no number for "none"
        return [recent_row(near[:W], self.log_base, Cache(W)) for W in self.lengths]

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, np.ndarray, Any]]:
        """A sparse table of a row per position for each W."""
        b, own = np.exp(np.asarray(self.log_base)), np.arange(len(X))
        return [(repeat_rows(X[:, :W], b), own, None) for W in self.lengths]


def repeat_rows(X: np.ndarray, b: np.ndarray) -> SparseRows:
    """The rows of many contexts [M, W]; row m is read by position m alone."""
    M, W = X.shape
    return rows_of_counts([count_tokens(np.repeat(np.arange(M), W), X.ravel(), M, len(b))], b)
