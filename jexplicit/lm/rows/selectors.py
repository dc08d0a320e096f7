"""Selectors: what besides a row's own confidence its exponent depends on.

A selector gives every context one of a few classes, and each class adds a number of its own to the exponent of every row. The
model is still log-linear in these numbers, and so their fit stays convex.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.model import pytree, static
from jexplicit.lm.rows.ngrams import NgramRows
from jexplicit.lm.rows.words import line_ends

SELECTORS = "selectors"
_letters_so_far = (2, 3, 4, 6)


@pytree
class LongestContext:
    """How many tokens of a context occurred together in the counted text.

    kind: which kind of rows of the model has contexts of 2, 3, ... tokens.
    size: their lengths, and none.
    """

    kind: int = static()
    size: int = static()

    def __call__(self, rows: Sequence[Any], context: Int[Array, " K"]) -> Int[Array, ""]:
        return jnp.sum(rows[self.kind].index(context) >= 0)


@pytree
class PlaceInWord:
    """Where a context of characters ends: in a word of 1, 2, 3, 4 to 5 or more letters so far, after a word and one more
    character, at the start of a line, or elsewhere.

    letters, ends: [N] which tokens are letters, and ends of lines or of documents.
    """

    letters: Any
    ends: Any
    size: int = static(3 + 1 + len(_letters_so_far))

    def __call__(self, rows: Sequence[Any], context: Int[Array, " K"]) -> Int[Array, ""]:
        letter = jnp.asarray(self.letters)[context]
        so_far = jnp.cumprod(letter[: _letters_so_far[-1]].astype(jnp.int32)).sum()
        in_word = 3 + (so_far >= jnp.array(_letters_so_far)).sum()
        elsewhere = jnp.where(jnp.asarray(self.ends)[context[0]], 0, jnp.where(letter[1], 1, 2))
        return jnp.where(letter[0], in_word, elsewhere)


def selectors_of(
    rows: Sequence[Any], letters: Bool[np.ndarray, " N"] | None = None, tokenizer: Tokenizer | None = None
) -> tuple[Any, ...]:
    """The selectors of a mixture: the longest context, where it has contexts, and the place in the word, of characters.

    Args:
        rows: kinds of rows.
        letters: [N] which tokens are letters.
        tokenizer: which knows the ends of lines.
    """
    chains = [n for n, kind in enumerate(rows) if isinstance(kind, NgramRows) and kind.offsets[:2] == (1, 2)]
    found: list[Any] = [LongestContext(n, 1 + len(rows[n].rows)) for n in chains[:1]]
    if letters is not None:
        found.append(PlaceInWord(jnp.asarray(letters), jnp.asarray(line_ends(len(letters), tokenizer))))
    return tuple(found)
