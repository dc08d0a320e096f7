"""The optimum of the training loss of one token of context: its infimum is the conditional entropy of the counts.

    U[j, i] = log(C[j, i] / C(j)),        L = -(1/M) sum_{j,i} C[j, i] log(C[j, i] / C(j))

A pair that never occurs has its optimum at minus infinity, so where counts have zeros the infimum is approached, and not
attained.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jexplicit.counts.dense import Counts
from jexplicit.lm.core.model import LanguageModel, token_model
from jexplicit.lm.rows.explicit import with_targets

FLOOR = 1e-9  # the count in place of 0


class Optimum(NamedTuple):
    """The tables of conditional relative frequencies, and the infimum of the loss, in nats per training position."""

    model: LanguageModel
    loss: float


def bigram_optimum(counts: Counts, *, eos: bool = False, floor: float = FLOOR, dtype=jnp.float32) -> Optimum:
    """The optimum at K = 1 in closed form: conditional relative frequencies, whose loss is their conditional entropy.

    Args:
        counts: C_1; further offsets are not looked at.
        eos: predict `<pad>` at the end of a document.
        floor: the count that stands for 0 in the table, as log 0 = -inf; the summed loss of the table is at most
            `N^2 * floor` above the infimum. A context that never occurs gets equal probabilities.
        dtype: of the table.

    Raises:
        ValueError: no position to predict; a floor outside (0, 1).

    Example:
        >>> round(bigram_optimum((np.array([[3, 1], [0, 4]]),), eos=True).loss, 4)  # H(1/4) / 2
        0.2812

    Source: paper, Eq. 1 and 3, at K = 1.
    """
    if not 0 < floor < 1:
        raise ValueError(f"floor {floor}: the count that stands for 0 lies between 0 and 1")
    C = with_targets(counts[0], eos=eos)
    n = C.sum(axis=1, dtype=np.int64)
    if not n.any():
        raise ValueError("no position to predict: the text has no tokens")
    loss = -sum(float(c[c > 0] @ np.log(c[c > 0] / n_j)) for c, n_j in zip(C, n, strict=True)) / int(n.sum())
    table = np.log(np.maximum(C, floor)) - np.log(np.maximum(n, len(C) * floor))[:, None]
    return Optimum(token_model((jnp.asarray(table, dtype),), "cat", eos), loss)
