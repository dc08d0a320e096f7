"""Observed over expected: how often each token followed a context, beside how often a model expected it there.

    row[i] = log((observed_i + κ) / (expected_i + κ)),        expected_i = sum of the model's own p(i) at the context so far

corrects a model where it has been wrong so far, and is 0 before.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

Keys = UInt64[np.ndarray, " R"]


class Balance(NamedTuple):
    """Sorted contexts, and what followed each: [R, 2, N], observed and expected."""

    keys: Keys
    sums: Float[np.ndarray, "R 2 N"]

    def find(self, keys: UInt64[np.ndarray, " n"]) -> Float[np.ndarray, "n 2 N"]:
        """The sums of some contexts, 0 where they have not occurred."""
        r = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[r] == keys)[:, None, None], self.sums[r], 0)


def empty_balance(N: int) -> Balance:
    """Of a text that has not begun."""
    return Balance(np.zeros(1, np.uint64), np.zeros((1, 2, N), np.float32))


def balance_rows(
    before: Balance, keys: UInt64[np.ndarray, " B"], tokens: Int[np.ndarray, " B"], p: Float[np.ndarray, "B N"], prior: float
) -> tuple[Float[np.ndarray, "B N"], Balance]:
    """The rows of the positions of a block, and the sums after it.

    Args:
        before: sums of the text before the block.
        keys: [B] contexts.
        tokens: [B] what follows each; -1 for a token that is not counted.
        p: [B, N] the model's probabilities.
        prior: κ.

    Example:
        >>> keys, p = np.array([1, 1], np.uint64), np.array([[0.5, 0.5], [0.5, 0.5]])
        >>> rows = balance_rows(empty_balance(2), keys, np.array([0, 0]), p, 1.0)[0]
        >>> np.exp(rows.astype(float)).round(3).tolist()  # (1 + 1) / (.5 + 1)
        [[1.0, 1.0], [1.333, 0.667]]
    """
    B, N = p.shape
    distinct, group, often = np.unique(keys, return_inverse=True, return_counts=True)
    order, known = np.argsort(group, kind="stable"), before.find(distinct)
    both = np.zeros((B, 2, N))
    some = np.flatnonzero(tokens[order] >= 0)
    both[some, 0, tokens[order][some]] = 1
    both[:, 1] = p[order]
    running = np.cumsum(both, axis=0)
    first = np.repeat(np.cumsum(often) - often, often)
    so_far = running - both - (running - both)[first] + known[group[order]] + prior
    rows = np.empty((B, N), np.float32)
    rows[order] = np.log(so_far[:, 0] / so_far[:, 1])
    ends = np.cumsum(often) - 1
    new = (running[ends] - (running - both)[first[ends]] + known).astype(np.float32)
    keys_of_all = np.union1d(before.keys, distinct)
    sums = Balance(keys_of_all, before.find(keys_of_all))
    sums.sums[np.searchsorted(keys_of_all, distinct)] = new
    return rows, sums
