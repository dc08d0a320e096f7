"""How alike are two predictors: loss, answers, sensitivities, weights, other tasks, many steps, curvature.

A predictor is a function of one sequence to its answer [m]. The sensitivity `∂ŷ/∂x_q` is, for a predictor that is linear in the
query, the very weights W that it has found in the context.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.attention import Layer, maps
from icl.tasks import Sequence, Tasks, sample_tasks, sequences

Predictor = Callable[[Sequence], Float[Array, " m"]]
_tiny = 1e-8  # added to norms, as in the paper's code


class Answers(NamedTuple):
    """What a predictor says of each of B tasks: y [B, m], its sensitivity [B, m, d], and half its squared error [B]."""

    y: Array
    sensitivity: Array
    loss: Array


class Difference(NamedTuple):
    """Means over tasks: |ŷ - ŷ'|; ||∂ŷ/∂x_q - ∂ŷ'/∂x_q||; and the cosine between these."""

    prediction: float
    model: float
    cosine: float


def answers(predictor: Predictor, batch: Sequence, *, block: int = 2000) -> Answers:
    """A predictor's answers to a batch (batch last), their sensitivities and losses; blocks bound the memory.

    Example:
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> [leaf.shape for leaf in answers(lambda s: jnp.zeros(1) * s.x_q.sum(), batch)]
        [(4, 1), (4, 1, 3), (4,)]

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """

    def one(sequence: Sequence) -> Answers:
        def asked(x_q: Array) -> tuple[Array, Array]:
            y = predictor(sequence._replace(x_q=x_q))
            return y, y

        sensitivity, y = jax.jacrev(asked, has_aux=True)(sequence.x_q)
        return Answers(y, sensitivity, jnp.sum((y - sequence.y_q) ** 2) / 2)

    return lax.map(one, sequences(batch), batch_size=min(block, batch.y_q.shape[-1]))


def difference(ours: Answers, theirs: Answers) -> Difference:
    """Prediction difference, model difference and sensitivity cosine of two predictors on the same tasks.

    Example:
        >>> one = Answers(jnp.ones((2, 1)), jnp.ones((2, 1, 3)), jnp.ones(2))
        >>> [round(value, 6) for value in difference(one, one._replace(y=jnp.zeros((2, 1))))]
        [1.0, 0.0, 1.0]

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.
    """
    a, b = ours.sensitivity, theirs.sensitivity
    norms = (jnp.linalg.norm(a, axis=-1) + _tiny) * (jnp.linalg.norm(b, axis=-1) + _tiny)
    return Difference(
        float(jnp.mean(jnp.abs(ours.y - theirs.y))),
        float(jnp.mean(jnp.linalg.norm(a - b, axis=-1))),
        float(jnp.mean(jnp.sum(a * b, axis=-1) / norms)),
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


def loss_sweep(
    key: Array, predictor: Predictor, laws: list[Tasks], *, number: int, block: int = 2000
) -> Float[np.ndarray, " laws"]:
    """The loss of a predictor on tasks of several laws that differ in numbers alone, compiled once; the same draws for all.

    Args:
        key: of jax.random.
        predictor: of one sequence.
        laws: the same sizes and inputs, other ranges or scales.
        number: tasks of each.

    Raises:
        ValueError: no law, or laws of different sizes or inputs.
    """
    if not laws or len({(t.dim, t.context, t.outputs, t.inputs) for t in laws}) > 1:
        raise ValueError("a sweep needs at least one law, and laws that differ in range, scale and noise alone")

    @jax.jit
    def loss(tasks: Tasks) -> Array:
        batch = sample_tasks(key, tasks, number)

        def one(sequence: Sequence) -> Array:
            return jnp.sum((predictor(sequence) - sequence.y_q) ** 2) / 2

        return jnp.mean(lax.map(one, sequences(batch), batch_size=min(block, number)))

    return np.array([float(loss(tasks)) for tasks in laws])


def path_losses(path: Callable[[Sequence], Float[Array, "steps m"]], batch: Sequence) -> Float[np.ndarray, " steps"]:
    """The loss after each step of an iteration (`icl.roll_out`, `icl.gradient_descent`), on a batch.

    Source: von Oswald et al. 2023, Fig. 1 and 10.
    """

    def one(sequence: Sequence) -> Array:
        return jnp.sum((path(sequence) - sequence.y_q[None]) ** 2, axis=1) / 2

    return np.asarray(jnp.mean(jax.vmap(one)(sequences(batch)), axis=0))


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
