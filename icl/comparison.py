"""How alike are two predictors: loss, answers, sensitivities, weights, other tasks, many steps, curvature.

A predictor is a function of a batch of sequences (batch last) to their answers [m, B]. The sensitivity `∂ŷ/∂x_q` is, for a
predictor that is linear in the query, the very weights W that it has found in the context.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icl.models.attention import Layer, maps
from icl.tasks import Sequence, Tasks, sample_tasks, sequences

Predictor = Callable[[Sequence], Float[Array, "m batch"]]
_tiny = 1e-8  # added to norms, as in the paper's code


class Answers(NamedTuple):
    """What a predictor says of each task: y [m, B], its sensitivity [m, d, B], and half its squared error [B]."""

    y: Array
    sensitivity: Array
    loss: Array


class Difference(NamedTuple):
    """Means over tasks: |ŷ - ŷ'|; ||∂ŷ/∂x_q - ∂ŷ'/∂x_q||; and the cosine between these."""

    prediction_difference: Float[Array, ""]
    model_difference: Float[Array, ""]
    cosine: Float[Array, ""]


def batched(predictor: Callable[[Sequence], Float[Array, " m"]]) -> Predictor:
    """A predictor of batches from one of single sequences.

    Example:
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> batched(lambda sequence: sequence.x_q)(batch).shape
        (3, 4)
    """
    return jax.vmap(predictor, in_axes=-1, out_axes=-1)


def answers(predictor: Predictor, batch: Sequence) -> Answers:
    """A predictor's answers to a batch (batch last), their sensitivities and losses.

    Example:
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> [leaf.shape for leaf in answers(lambda b: jnp.sum(b.x_q, axis=0, keepdims=True), batch)]
        [(1, 4), (1, 3, 4), (4,)]

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """
    y, pullback = jax.vjp(lambda x_q: predictor(batch._replace(x_q=x_q)), batch.x_q)
    rows = [jnp.zeros_like(y).at[o].set(1) for o in range(len(y))]  # a task's answer depends on its own query alone
    sensitivity = jnp.stack([pullback(row)[0] for row in rows])
    return Answers(y, sensitivity, jnp.sum((y - batch.y_q) ** 2, axis=0) / 2)


def difference(ours: Answers, theirs: Answers) -> Difference:
    """Prediction difference, model difference and sensitivity cosine of two predictors on the same tasks.

    Example:
        >>> one = Answers(jnp.ones((1, 2)), jnp.ones((1, 3, 2)), jnp.ones(2))
        >>> [round(float(value), 6) for value in difference(one, one._replace(y=jnp.zeros((1, 2))))]
        [1.0, 0.0, 1.0]

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """
    a, b = ours.sensitivity, theirs.sensitivity
    norms = (jnp.linalg.norm(a, axis=1) + _tiny) * (jnp.linalg.norm(b, axis=1) + _tiny)
    return Difference(
        jnp.mean(jnp.abs(ours.y - theirs.y)),
        jnp.mean(jnp.linalg.norm(a - b, axis=1)),
        jnp.mean(jnp.sum(a * b, axis=1) / norms),
    )


def interpolate(trained: Layer, constructed: Layer, *, dim: int) -> Layer:
    """The mean of a trained and of a constructed layer of one head, after their free scale is set alike.

    With b the mean of the first d diagonal entries of M, the trained maps are taken as M/b and R b.

    Args:
        trained, constructed: [layers, 1, ...].
        dim: d.

    Raises:
        ValueError: layers of several heads, or of different shapes.

    Example:
        >>> from icl import descent_layers
        >>> layer = descent_layers(2, 4, 0.5)
        >>> mean = interpolate(layer._replace(W_Q=5 * layer.W_Q, P=layer.P / 5), layer, dim=2)
        >>> all(bool(jnp.allclose(a, b)) for a, b in zip(maps(mean), maps(layer)))
        True

    Source: von Oswald et al. 2023, Sec. 3.
    """
    if trained.P.shape != constructed.P.shape or trained.P.shape[1] != 1:
        raise ValueError(f"layers {trained.P.shape} and {constructed.P.shape}: wanted the same shape, and one head")
    (M, R), (M_gd, R_gd) = maps(trained), maps(constructed)
    b = jnp.mean(jnp.diagonal(M, axis1=-2, axis2=-1)[..., :dim], axis=-1)[..., None, None]
    eye = jnp.broadcast_to(jnp.eye(M.shape[-1], dtype=M.dtype), M.shape)
    return Layer(eye, (M / b + M_gd) / 2, (R * b + R_gd) / 2, eye)


def descent_rates(layer: Layer, *, dim: int, context: int) -> tuple[Array, Array]:
    """The η and γ that a layer of one head comes nearest to: `γ = -b mean diag R_x`, `η = -N b mean diag R_y`, of M/b and R b.

    Example:
        >>> from icl import descent_layers
        >>> layer = jax.tree.map(lambda leaf: leaf[0], descent_layers(2, 4, 0.5, gamma=0.25))
        >>> [float(rate) for rate in descent_rates(layer, dim=2, context=4)]
        [0.5, 0.25]
    """
    M, R = (of_layer[0] for of_layer in maps(layer))
    b, diagonal = jnp.mean(jnp.diagonal(M)[:dim]), jnp.diagonal(R)
    return -context * b * jnp.mean(diagonal[dim:]), -b * jnp.mean(diagonal[:dim])


def sweep_loss(
    key: Array, predict: Callable[[Any, Sequence], Float[Array, "m batch"]], number: int
) -> Callable[[Any, Tasks], Float[Array, ""]]:
    """A function `(weights, tasks) -> loss`, compiled once for all tasks of a size, with the same draws for all of a law.

    Args:
        key: of jax.random.
        predict: `(weights, batch) -> answers`.
        number: tasks.

    Example:
        >>> loss = sweep_loss(jax.random.key(0), lambda scale, batch: scale * batch.y_q, 10)
        >>> one, two = (float(loss(0.0, Tasks(weight_scale=c))) for c in (1.0, 2.0))
        >>> round(two / one, 4)
        4.0
    """

    @jax.jit
    def of_batch(weights: Any, batch: Sequence) -> Array:
        return jnp.sum((predict(weights, batch) - batch.y_q) ** 2) / (2 * number)

    return lambda weights, tasks: of_batch(weights, sample_tasks(key, tasks, number))


def path_losses(path: Callable[[Sequence], Float[Array, "steps m"]], batch: Sequence) -> Float[Array, " steps"]:
    """The loss after each step of an iteration of single sequences (`icl.roll_out`, `icl.gradient_descent`), on a batch.

    Source: von Oswald et al. 2023, Fig. 1 and 10.
    """

    def one(sequence: Sequence) -> Array:
        return jnp.sum((path(sequence) - sequence.y_q[None]) ** 2, axis=1) / 2

    return jnp.mean(jax.vmap(one)(sequences(batch)), axis=0)


def turned_curvature(values: Any, gamma: Any) -> Any:
    """The eigenvalues of XᵀX after one GD++ step on the inputs, `λ (1 - γ λ)²`.

    Example:
        >>> turned_curvature(np.array([1.0, 2.0]), 0.5).tolist()
        [0.25, 0.0]

    Source: von Oswald et al. 2023, App. A.10, with the sign of its Eq. 23.
    """
    return values * (1 - gamma * values) ** 2


def condition_numbers(values: Float[np.ndarray, "T d"]) -> Float[np.ndarray, " T"]:
    """Largest over smallest eigenvalue of each context; those of contexts with fewer pairs than inputs are infinite.

    Example:
        >>> condition_numbers(np.array([[1.0, 4.0], [0.0, 1.0]])).tolist()
        [4.0, inf]
    """
    with np.errstate(divide="ignore"):
        return values.max(axis=1) / values.min(axis=1)
