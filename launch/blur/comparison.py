"""Designs compared over the seeds of their meta-training: which differences exceed what another seed would have changed?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Comparison(NamedTuple):
    """A design beside a reference, each with the accuracy of its genomes of several seeds.

    mean, spread: mean and standard deviation over the seeds of the design; with one seed the spread is None.
    difference: of the means, design minus reference.
    error: standard error of the difference; None with one seed.
    clear: whether the difference is more than twice its standard error.
    """

    mean: float
    spread: float | None
    difference: float
    error: float | None
    clear: bool


def compare_seeds(design: Sequence[float], reference: Sequence[float]) -> Comparison:
    """The difference of two means over seeds and its standard error, `√(s₁²/n₁ + s₂²/n₂)` with s² the variances over n - 1.

    Args:
        design, reference: an accuracy per seed. One and the same is no difference.

    Raises:
        ValueError: no accuracies.

    Example:
        >>> found = compare_seeds((0.75, 0.75, 0.75), (0.25, 0.5, 0.75))
        >>> found.difference, round(found.error, 4), found.clear
        (0.25, 0.1443, False)
    """
    if not design or not reference:
        raise ValueError(f"{len(design)} and {len(reference)} seeds: at least one of each is needed")
    difference = float(np.mean(design) - np.mean(reference))
    if min(len(design), len(reference)) < 2:
        return Comparison(float(np.mean(design)), None, difference, None, False)
    variances = [float(np.var(values, ddof=1)) for values in (design, reference)]
    error = float(np.sqrt(variances[0] / len(design) + variances[1] / len(reference)))
    return Comparison(float(np.mean(design)), variances[0] ** 0.5, difference, error, abs(difference) > 2 * error)
