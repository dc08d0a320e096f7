"""Rows of contexts of numbers that are no tokens, but what a view makes of them: words, or classes.

A view is a pytree that maps a context [K] to a few numbers, purely, and says how many each may be (`sizes`) and how many tokens
it reads (`radius`). Rows of contexts of such numbers are those of jexplicit.lm.rows.ngrams.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from jexplicit.lm.core.model import TableRows, pytree
from jexplicit.lm.tables.contexts import vmap_contexts


def view_contexts(view: Any, X: Integer[np.ndarray, "M K"]) -> Int[np.ndarray, "M columns"]:
    """What a view says of many contexts."""
    return vmap_contexts(_view, view, X)


def _view(view: Any, x: Int[Array, " K"]) -> Int[Array, " columns"]:
    return view(x)


@pytree
class ViewRows(TableRows):
    """Rows of what a view says of a context, for several choices of its columns.

    view: from a context to numbers.
    parts: rows of contexts of these numbers; their offsets are columns of the view, from 1.
    """

    view: Any
    parts: tuple[Any, ...]

    names = property(lambda self: tuple(name for part in self.parts for name in part.names))
    tokens = property(lambda self: (1,) * len(self.names))
    radius = property(lambda self: self.view.radius)
    row_tables = property(lambda self: tuple(table for part in self.parts for table in part.row_tables))
    exponents_per_row = property(lambda self: tuple(n for part in self.parts for n in part.exponents_per_row))

    def index(self, context):
        numbers = self.view(context)
        return jnp.concatenate([part.index(numbers) for part in self.parts])

    def buckets(self, context):
        numbers = self.view(context)
        return jnp.concatenate([part.buckets(numbers) for part in self.parts])
