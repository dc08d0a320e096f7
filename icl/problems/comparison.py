"""Comparing two predictors: losses, predictions, sensitivities, weights, shifted tasks, many steps, curvature.

A predictor is a function of a batch of sequences (batch last) to predictions [m, B]. Its sensitivity is `∂ŷ/∂x_q`; for a
predictor that is linear in the query, this is the weight matrix W inferred from the context.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.models.attention import AttentionLayer, head_maps, layers_from_maps
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, sequences

Predictor = Callable[[Sequence], Float[Array, "m batch"]]
_tiny = 1e-8  # added to norms, as in the paper's code


class Predictions(NamedTuple):
    """Predictions [m, B], sensitivities [m, d, B] and half squared errors [B]."""

    y: Array
    sensitivity: Array
    loss: Array


class PredictorDifference(NamedTuple):
    """Mean differences of predictions and of sensitivities, and the sensitivities' cosine."""

    prediction_difference: Float[Array, ""]
    model_difference: Float[Array, ""]
    cosine: Float[Array, ""]


def predictions(predictor: Predictor, batch: Sequence) -> Predictions:
    """A predictor on a batch (batch last): its predictions, sensitivities and losses.

    Example:
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> [leaf.shape for leaf in predictions(lambda b: jnp.sum(b.x_q, axis=0, keepdims=True), batch)]
        [(1, 4), (1, 3, 4), (4,)]

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """
    y, pullback = jax.vjp(lambda x_q: predictor(batch._replace(x_q=x_q)), batch.x_q)
    rows = [jnp.zeros_like(y).at[o].set(1) for o in range(len(y))]  # a task's prediction depends on its own query alone
    sensitivity = jnp.stack([pullback(row)[0] for row in rows])
    return Predictions(y, sensitivity, jnp.sum((y - batch.y_q) ** 2, axis=0) / 2)


@jax.jit
def difference(ours: Predictions, theirs: Predictions) -> PredictorDifference:
    """Prediction difference, model difference and sensitivity cosine of two predictors on the same tasks.

    Example:
        >>> one = Predictions(jnp.ones((1, 2)), jnp.ones((1, 3, 2)), jnp.ones(2))
        >>> [round(float(value), 6) for value in difference(one, one._replace(y=jnp.zeros((1, 2))))]
        [1.0, 0.0, 1.0]

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """
    a, b = ours.sensitivity, theirs.sensitivity
    norms = (jnp.linalg.norm(a, axis=1) + _tiny) * (jnp.linalg.norm(b, axis=1) + _tiny)
    return PredictorDifference(
        jnp.mean(jnp.abs(ours.y - theirs.y)), jnp.mean(jnp.linalg.norm(a - b, axis=1)), jnp.mean(jnp.sum(a * b, axis=1) / norms)
    )


@functools.partial(jax.jit, static_argnames="dim")
def interpolate(trained: AttentionLayer, constructed: AttentionLayer, *, dim: int) -> AttentionLayer:
    """The means of trained and constructed layers of one head.

    With b the mean of the first d diagonal entries of a layer's M, its trained maps are rescaled to M/b and R b.

    Args:
        trained, constructed: [layers, 1, ...].
        dim: d.

    Raises:
        ValueError: layers of several heads, or of different shapes.

    Example:
        >>> from icl import descent_layers
        >>> layer = descent_layers(2, 4, 0.5)
        >>> mean = interpolate(layer._replace(W_Q=5 * layer.W_Q, P=layer.P / 5), layer, dim=2)
        >>> all(bool(jnp.allclose(a, b)) for a, b in zip(head_maps(mean), head_maps(layer)))
        True

    Source: von Oswald et al. 2023, Sec. 3; for several layers of separate weights the mean is not expected to do well.
    """
    if trained.P.shape != constructed.P.shape or trained.P.shape[1] != 1:
        raise ValueError(f"layers {trained.P.shape} and {constructed.P.shape}: wanted the same shape, and one head")
    (M, R), (M_gd, R_gd) = head_maps(trained), head_maps(constructed)
    b = jnp.mean(jnp.diagonal(M, axis1=-2, axis2=-1)[..., :dim], axis=-1)[..., None, None]
    return layers_from_maps((M / b + M_gd) / 2, (R * b + R_gd) / 2)


def descent_rates(layer: AttentionLayer, *, dim: int, context: int) -> tuple[Array, Array]:
    """The η and γ nearest to a layer of one head.
    `γ = -b mean diag R_x`, `η = -N b mean diag R_y`, b as in `interpolate`."""
    M, R = (of_layer[0] for of_layer in head_maps(layer))
    b, diagonal = jnp.mean(jnp.diagonal(M)[:dim]), jnp.diagonal(R)
    return -context * b * jnp.mean(diagonal[dim:]), -b * jnp.mean(diagonal[:dim])


def sweep_loss(
    key: Array, predict: Callable[[Any, Sequence], Float[Array, "m batch"]], number: int
) -> Callable[[Any, Tasks], Float[Array, ""]]:
    """A function `(weights, tasks) -> loss` with common random numbers."""

    return lambda weights, tasks: _batch_loss(predict, weights, sample_tasks(key, tasks, number))


@functools.partial(jax.jit, static_argnums=0)
def _batch_loss(predict: Callable[[Any, Sequence], Array], weights: Any, batch: Sequence) -> Array:
    return half_mse(predict(weights, batch), batch.y_q)


def path_losses(path: Callable[[Sequence], Float[Array, "steps m"]], batch: Sequence) -> Float[Array, " steps"]:
    """The mean loss over a batch after each step of an iteration."""

    def one(sequence: Sequence) -> Array:
        return jnp.sum((path(sequence) - sequence.y_q[None]) ** 2, axis=1) / 2

    return jnp.mean(jax.vmap(one)(sequences(batch)), axis=0)


def curvature_after_step(values: Any, gamma: Any) -> Any:
    """Eigenvalues after a GD++ step, `λ (1 - γ λ)²` (App. A.10, Eq. 23)."""
    return values * (1 - gamma * values) ** 2


def condition_numbers(values: Float[np.ndarray, "T d"]) -> Float[np.ndarray, " T"]:
    """Largest over smallest eigenvalue of each context; infinite for fewer pairs than inputs."""
    with np.errstate(divide="ignore"):
        return values.max(axis=1) / values.min(axis=1)
