"""How fast a learned rule is: the number of updates that another learner needs to get as far, divided by the rule's own.

Learned optimisers are reported by this ratio, as its interquartile mean over tasks (Metz et al., VeLO, 2022; Agarwal et al.,
Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021).
"""

import math
from collections.abc import Sequence

import numpy as np

_tie = 1e-9  # between accuracies that are the same fraction


def updates_to_reach(accuracy: float, at: Sequence[int], accuracies: Sequence[float]) -> float:
    """Number of updates after which a curve first has an accuracy; infinity if it never does.

    Args:
        accuracy: to reach.
        at: numbers of updates from 1 on, in ascending order.
        accuracies: of the curve after each of them; between two of them it is linear in log n.

    Example:
        >>> round(updates_to_reach(0.7, (1, 4, 16), (0.5, 0.6, 0.8)), 6)  # half-way from 4 to 16 in log n
        8.0
        >>> updates_to_reach(0.4, (1, 4), (0.5, 0.6)), updates_to_reach(0.9, (1, 4), (0.5, 0.6))
        (1.0, inf)
    """
    if not 1 <= len(at) == len(accuracies) or min(at) < 1 or list(at) != sorted({*at}):
        raise ValueError(f"{len(accuracies)} accuracies after {list(at)} updates: give one for each, ascending from 1 on")
    first = next((i for i, found in enumerate(accuracies) if found >= accuracy - _tie), None)
    if first is None:
        return math.inf
    if first == 0:
        return float(at[0])
    lower, upper = accuracies[first - 1], accuracies[first]
    share = min(1.0, (accuracy - lower) / (upper - lower))
    return float(at[first - 1] * (at[first] / at[first - 1]) ** share)


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half: without the lowest and the highest quarter, each rounded down.

    Example:
        >>> interquartile_mean([1, 2, 3, 100])
        2.5
    """
    if not len(values):
        raise ValueError("the interquartile mean of no values: give at least one")
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))
