"""Loss, accuracy and calibration of logits, corrected by one temperature."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from jexplicit.runs.checks import (
    as_float,
    as_labels,
    check_labels_of,
    check_logits,
    check_targets,
    checked,
    is_concrete,
    labels_are_fine,
    logits_are_fine,
    targets_are_fine,
)


def _number(f: Callable[..., Array]) -> Callable[..., Any]:
    """A decorator: a measure as a number; an array under jit, vmap and grad."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = f(*args, **kwargs)
        return float(value) if is_concrete(value, args, kwargs) else value

    return call


def _check(logits: Any, Y: Any) -> None:
    check_logits(logits)
    (check_labels_of if jnp.ndim(Y) == 1 else check_targets)(Y, logits.shape)


def _are_fine(logits: Any, Y: Any) -> Array:
    return logits_are_fine(logits) & (labels_are_fine(Y, logits.shape[1]) if jnp.ndim(Y) == 1 else targets_are_fine(Y))


@_number
@checked(_check, fine=_are_fine)
def mean_loss(logits: Float[Array, "M N"], Y: Array) -> Any:
    """Mean negative log-likelihood of targets Y, in nats.

    logits: [M, N]; -inf is a probability of 0. Y: [M, N] targets, one-hot or a distribution per row; or [M] labels 0 .. N - 1.

    Raises:
        ValueError: values that are none of these; under jit, vmap and grad only shapes are checked.

    Example:
        >>> round(mean_loss(jnp.zeros((1, 2)), jnp.array([[0.0, 1.0]])), 4)
        0.6931
    """
    _check(logits, Y)
    Y = jax.nn.one_hot(jnp.asarray(Y, jnp.int32), logits.shape[1]) if jnp.ndim(Y) == 1 else Y
    nats = jnp.where(Y == 0, 0, Y * jax.nn.log_softmax(as_float(logits)))  # 0 log 0 = 0
    return -jnp.mean(jnp.sum(nats, axis=1))


@_number
@checked(_check, fine=_are_fine)
def accuracy(logits: Float[Array, "M N"], labels: Array) -> Any:
    """The fraction of rows whose largest logit is at the label.

    Example:
        >>> accuracy(jnp.array([[0.0, 1.0], [0.0, 1.0]]), jnp.array([0, 1]))
        0.5
    """
    _check(logits, labels)
    guesses, labels = jnp.argmax(logits, axis=1), jnp.argmax(labels, axis=1) if jnp.ndim(labels) == 2 else labels
    return jnp.sum(guesses == jnp.asarray(labels, guesses.dtype), dtype=jnp.int32).astype(as_float(logits).dtype) / len(guesses)


class Closeness(NamedTuple):
    """How near a softmax layer is to another one.

    distance: `||U - V|| / ||V||` of the parameters less their mean over outputs, which no softmax sees; cosine: of their angle.
    agreement: share of examples to which both give the same output.
    """

    distance: float
    cosine: float
    agreement: float


def closeness(U: Float[Array, "D N"], V: Float[Array, "D N"], H: Float[Array, "M D"]) -> Closeness:
    """The distance of the layers `softmax(H U)` and `softmax(H V)`."""
    same = jnp.argmax(H @ U, axis=1) == jnp.argmax(H @ V, axis=1)
    return Closeness(*parameter_closeness(U, V), float(jnp.mean(same.astype(U.dtype))))


def parameter_closeness(U: Float[Array, "D N"], V: Float[Array, "D N"]) -> tuple[float, float]:
    """The distance and the cosine of `Closeness`."""
    U, V = (W - W.mean(axis=1, keepdims=True) for W in (U, V))
    sizes = jnp.linalg.norm(U), jnp.linalg.norm(V)
    return float(jnp.linalg.norm(U - V) / sizes[1]), float(jnp.vdot(U, V) / (sizes[0] * sizes[1]))


_most = 100.0  # upper bound of the temperature: the logits are uninformative beyond it


class Reliability(NamedTuple):
    """By bin of confidence: mean confidence, accuracy, and share of the examples.

    Confidence and accuracy are 0 in bins without examples.
    """

    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]
    share: Float[np.ndarray, " bins"]


def reliability(logits: Float[Array, "M N"], labels: Array | np.ndarray, *, bins: int = 15) -> Reliability:
    """Confidence and accuracy by bin of confidence (Guo et al. 2017)."""
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
    """Expected calibration error: `sum over bins of |accuracy - confidence| share`."""
    confidence, accuracy, share = reliability(logits, labels, bins=bins)
    return float(np.sum(np.abs(accuracy - confidence) * share))


def fit_temperature(logits: Float[Array, "M N"], labels: Array | np.ndarray) -> float:
    """The T with the lowest mean loss of `softmax(logits / T)`, on held-out examples.

    T > 1 corrects an overconfident model. One pseudo-example in M + 1 has a uniform label, so that T > 0 even if all of a few
    predictions are correct.
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
