"""Rows of contexts of numbers that are no tokens, but what a view makes of them: words, or classes.

A view is a pytree that maps a context [K] to a few numbers, purely, and says how many each may be (`sizes`) and how many tokens
it reads (`radius`). Rows of contexts of such numbers are those of jexplicit.lm.rows.ngrams.
"""

from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from jexplicit.lm.model import pytree

_contexts_per_call = 1 << 16


@jax.jit
def _views(view: Any, X: Array) -> Array:
    return jax.vmap(view)(X)


def view_contexts(view: Any, X: Integer[np.ndarray, "M K"]) -> Int[np.ndarray, "M columns"]:
    """What a view says of many contexts."""
    parts = [X[m : m + _contexts_per_call] for m in range(0, len(X), _contexts_per_call)]
    return np.concatenate([np.asarray(_views(view, part)) for part in parts])


@pytree
class ViewRows:
    """Rows of what a view says of a context, for several choices of its columns.

    view: from a context to numbers.
    parts: rows of contexts of these numbers; their offsets are columns of the view, from 1.
    """

    view: Any
    parts: tuple[Any, ...]

    names = property(lambda self: tuple(name for part in self.parts for name in part.names))
    tokens = property(lambda self: (1,) * len(self.names))
    radius = property(lambda self: self.view.radius)
    history = property(lambda self: 0)
    vocab_size = property(lambda self: self.parts[0].vocab_size)
    exponents_per_row = property(lambda self: tuple(n for part in self.parts for n in part.exponents_per_row))

    def read(self, context, history=None):
        numbers = self.view(context)
        return [row for part in self.parts for row in part.read(numbers)]

    def buckets(self, context):
        """Which exponent each row takes."""
        numbers = self.view(context)
        return jnp.concatenate([part.buckets(numbers) for part in self.parts])

    def split_long(self) -> "ViewRows":
        """The same rows, faster to read for many positions."""
        parts = tuple(part.split_long() if hasattr(part, "split_long") else part for part in self.parts)
        return replace(cast(Any, self), parts=parts)

    def log_tables(self, X: np.ndarray, past: Any = None) -> list[tuple[Any, ...]]:
        """The rows of many contexts."""
        numbers = view_contexts(self.view, X)
        return [table for part in self.parts for table in part.log_tables(numbers)]
