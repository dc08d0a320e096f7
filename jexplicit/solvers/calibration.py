"""Calibration of predicted probabilities, and its correction by one temperature."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_labels, check_logits

_most = 100.0  # upper bound of the temperature: the logits are uninformative beyond it


class Reliability(NamedTuple):
    """By bin of confidence: mean confidence, accuracy, and share of the examples.

    Confidence and accuracy are 0 in bins without examples.
    """

    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]
    share: Float[np.ndarray, " bins"]


def reliability(logits: Float[Array, "M N"], labels: Array | np.ndarray, *, bins: int = 15) -> Reliability:
    """Confidence and accuracy by bin of confidence; they are equal for a calibrated model.

    The confidence of an example is its largest probability; bins divide [0, 1] evenly.

    Raises:
        ValueError: no examples, fewer than 1 bin, a logit that is NaN or infinite, or labels that are neither M
            numbers 0 .. N - 1 nor one-hot.

    Example:
        >>> reliability(jnp.zeros((4, 2)), jnp.array([0, 0, 0, 1]), bins=2)  # confidence 1/2, accuracy 3/4
        Reliability(confidence=array([0. , 0.5]), accuracy=array([0.  , 0.75]), share=array([0., 1.]))

    Source: Guo et al., On calibration of modern neural networks, 2017, Sec. 2.
    """
    if not len(logits) or bins < 1 or bins % 1:
        raise ValueError(f"{len(logits)} examples in {bins} bins: give at least one of each, and whole numbers")
    check_logits(logits)
    labels = as_labels(labels, logits.shape)
    P = np.asarray(jax.nn.softmax(logits), np.float64)
    confidence, right = P.max(axis=1), P.argmax(axis=1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    number, sure, correct = (np.bincount(place, weights, minlength=bins) for weights in (None, confidence, right))
    most = np.maximum(number, 1)
    return Reliability(sure / most, correct / most, number / len(P))


def calibration_error(logits: Float[Array, "M N"], labels: Array | np.ndarray, *, bins: int = 15) -> float:
    """Expected calibration error: `sum over bins of |accuracy - confidence| share`.

    Raises:
        ValueError: those of `reliability`.

    Example:
        >>> calibration_error(jnp.zeros((4, 2)), jnp.array([0, 0, 1, 1]))  # confidence and accuracy are 1/2
        0.0
    """
    confidence, accuracy, share = reliability(logits, labels, bins=bins)
    return float(np.sum(np.abs(accuracy - confidence) * share))


def fit_temperature(logits: Float[Array, "M N"], labels: Array | np.ndarray) -> float:
    """The T with the lowest mean loss of `softmax(logits / T)`.

    Use held-out examples. T > 1 corrects an overconfident model. One pseudo-example in M + 1 has a uniform label, so that T > 0
    even if all of a few predictions are correct.

    Raises:
        ValueError: no examples, logits that are not finite, or labels that are neither M numbers 0 .. N - 1 nor one-hot.

    Example:
        >>> logits = jnp.array([[8.0, 0.0]] * 4)  # 3 of 4 are correct; with the pseudo-example, odds of 7 to 3
        >>> round(fit_temperature(logits, jnp.array([0, 0, 0, 1])), 2)  # 8 / log(7/3)
        9.44
    """
    if not len(logits) or not bool(jnp.isfinite(logits).all()):
        raise ValueError(f"{len(logits)} examples: give at least one, with finite logits")
    check_logits(logits)
    labels = as_labels(labels, logits.shape)
    z, rows = np.asarray(logits, np.float64), np.arange(len(logits))
    z = z - z.max(axis=1, keepdims=True)
    any_class = 1 / (len(z) + 1)
    wanted = (1 - any_class) * z[rows, labels] + any_class * z.mean(axis=1)

    def loss(log_temperature: float) -> float:
        scaled = np.exp(-log_temperature)
        return float(np.mean(np.log(np.exp(z * scaled).sum(axis=1)) - wanted * scaled))

    most = float(np.log(_most))
    found: Any = scipy.optimize.minimize_scalar(loss, bounds=(-most, most), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))
