"""Gradient descent, its variants and ridge regression, and comparisons of predictors with them.

L(W) = 1/(2N) Σ_i ||W x_i - y_i||²,    ΔW = -(η/N) Σ_i (W x_i - y_i) x_iᵀ
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.attention import AttentionLayer, head_maps, layers_from_maps
from icl.tasks import Sequence, initial_weights
from jexplicit.runs.checks import checked
from jexplicit.runs.devices import full_precision

# Baselines are functions of one sequence; batch them by `jax.vmap`.

Rate = Any  # a number, or one per step


@jax.jit
@full_precision
def squared_error(W: Float[Array, "m d"], X: Float[Array, "N d"], Y: Float[Array, "N m"]) -> Float[Array, ""]:
    """`L(W) = 1/(2N) Σ_i ||W x_i - y_i||²`."""
    if (len(X), len(W)) != Y.shape or not len(X):
        raise ValueError(f"W {W.shape}, X {X.shape}, Y {Y.shape}: wanted [m, d], [N, d] and [N, m], of at least one pair")
    return jnp.sum((X @ W.T - Y) ** 2) / (2 * len(X))


@functools.partial(jax.jit, static_argnames="steps")
@full_precision
def gradient_descent(
    sequence: Sequence,
    eta: Rate,
    *,
    steps: int = 1,
    W0: Float[Array, "m d"] | None = None,
    preconditioner: Float[Array, "d d"] | None = None,
) -> Float[Array, "steps m"]:
    """The predictions `W x_q` after 1, 2, .. steps of gradient descent.

        W <- W - (η/N) Σ_i (W x_i - y_i) x_iᵀ G

    Args:
        eta: η, one number or one per step.
        W0: [m, d] initial weights; default, zero.
        preconditioner: [d, d] G; default, the identity.

    Raises:
        ValueError: shapes that do not fit, or fewer than one step.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> gradient_descent(one, 1.0, steps=2).tolist()
        [[1.5], [2.25]]

    Source: von Oswald et al. 2023, Eq. 6; with G Ahn et al. 2023.
    """
    W = initial_weights(sequence, W0)
    X, Y, x_q, _ = sequence
    (etas,) = _per_step(steps, X.dtype, eta=eta)
    if preconditioner is not None and preconditioner.shape != (X.shape[1],) * 2:
        raise ValueError(f"preconditioner {preconditioner.shape}: wanted {(X.shape[1],) * 2}")

    def step(W: Array, eta: Array) -> tuple[Array, Array]:
        change = (X @ W.T - Y).T @ X / len(X)
        W = W - eta * (change if preconditioner is None else change @ preconditioner)
        return W, W @ x_q

    return lax.scan(step, W, etas)[1]


@functools.partial(jax.jit, static_argnames="steps")
@full_precision
def gd_plus_plus(sequence: Sequence, eta: Rate, gamma: Rate, *, steps: int) -> Float[Array, "steps m"]:
    """The predictions of GD++: descent that also moves the inputs.

        y_j <- y_j - (η/N) Σ_i y_i x_iᵀ x_j,    x_j <- (I - γ Σ_i x_i x_iᵀ) x_j    (both from the same x)

    Args:
        eta, gamma: η and γ, one number or one per step. The last γ has no effect.

    Raises:
        ValueError: shapes that do not fit, or fewer than one step.

    Source: von Oswald et al. 2023, App. A.10, Eq. 23.
    """
    initial_weights(sequence)  # checks the shapes
    X, Y, x_q, y_q = sequence
    N, (etas, gammas) = len(X), _per_step(steps, X.dtype, eta=eta, gamma=gamma)

    def step(state: tuple[Array, ...], rates: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        (X, Y, x, y), (eta, gamma) = state, rates
        G, change = X.T @ X, eta / N * Y.T @ X
        state = X - gamma * X @ G, Y - X @ change.T, x - gamma * G @ x, y - change @ x
        return state, -state[3]

    return lax.scan(step, (X, Y, x_q, jnp.zeros_like(y_q)), (etas, gammas))[1]


def _per_step(steps: int, dtype: Any, **rates: Rate) -> tuple[Array, ...]:
    """Each rate once per step."""
    if steps < 1 or any(jnp.shape(rate) not in ((), (steps,)) for rate in rates.values()):
        shapes = ", ".join(f"{name} {jnp.shape(rate)}" for name, rate in rates.items())
        raise ValueError(f"{steps} steps, {shapes}: wanted at least one step, and one rate or one per step")
    return tuple(jnp.broadcast_to(jnp.asarray(rate, dtype), (steps,)) for rate in rates.values())


@checked(after=lambda y, sequence, penalty: _check_ridge(y, penalty))
@full_precision
def ridge(sequence: Sequence, penalty: Any) -> Float[Array, " m"]:
    """The prediction of ridge regression, `W = Yᵀ X (XᵀX + penalty I)⁻¹`.

    For Gaussian weights and noise, the penalty noise variance / weight variance gives the Bayes-optimal prediction.

    Raises:
        ValueError: shapes that do not fit; a penalty that is negative, infinite, or 0 where XᵀX has no inverse. Under jit, vmap
            and grad only shapes are checked.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> ridge(one, 1.0).tolist()
        [1.5]
    """
    initial_weights(sequence)  # checks the shapes
    X, Y, x_q, _ = sequence
    A = X.T @ X + penalty * jnp.eye(X.shape[1], dtype=X.dtype)
    return Y.T @ X @ jnp.linalg.solve(A, x_q)


def _check_ridge(y: Float[Array, " m"], penalty: Any) -> None:
    if not (0 <= penalty < np.inf and bool(jnp.isfinite(y).all())):
        raise ValueError(f"penalty {penalty}: use a finite number above 0, and finite numbers of the order of 1")


# A predictor is a function of a batch of sequences (batch last) to predictions [m, B]. Its sensitivity is `∂ŷ/∂x_q`; for a
# predictor that is linear in the query, this is the weight matrix W inferred from the context.

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

    Source: von Oswald et al. 2023, Sec. 3, App. A.4.

    Example:
        >>> from icl.tasks import Tasks, sample_tasks
        >>> batch = sample_tasks(jax.random.key(0), Tasks(dim=3, context=5), 4)
        >>> [leaf.shape for leaf in predictions(lambda b: jnp.sum(b.x_q, axis=0, keepdims=True), batch)]
        [(1, 4), (1, 3, 4), (4,)]

    """
    y, pullback = jax.vjp(lambda x_q: predictor(batch._replace(x_q=x_q)), batch.x_q)
    rows = [jnp.zeros_like(y).at[o].set(1) for o in range(len(y))]  # a task's prediction depends on its own query alone
    sensitivity = jnp.stack([pullback(row)[0] for row in rows])
    return Predictions(y, sensitivity, jnp.sum((y - batch.y_q) ** 2, axis=0) / 2)


@jax.jit
def difference(ours: Predictions, theirs: Predictions) -> PredictorDifference:
    """Prediction difference, model difference and sensitivity cosine of two predictors on the same tasks.

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

    Raises:
        ValueError: layers of several heads, or of different shapes.

    Source: von Oswald et al. 2023, Sec. 3; for several layers of separate weights the mean is not expected to do well.
    """
    if trained.P.shape != constructed.P.shape or trained.P.shape[1] != 1:
        raise ValueError(f"layers {trained.P.shape} and {constructed.P.shape}: wanted the same shape, and one head")
    (M, R), (M_gd, R_gd) = head_maps(trained), head_maps(constructed)
    b = jnp.mean(jnp.diagonal(M, axis1=-2, axis2=-1)[..., :dim], axis=-1)[..., None, None]
    return layers_from_maps((M / b + M_gd) / 2, (R * b + R_gd) / 2)


def descent_rates(layer: AttentionLayer, *, dim: int, context: int) -> tuple[Array, Array]:
    """The η and γ nearest to a layer of one head."""
    M, R = (of_layer[0] for of_layer in head_maps(layer))
    b, diagonal = jnp.mean(jnp.diagonal(M)[:dim]), jnp.diagonal(R)
    return -context * b * jnp.mean(diagonal[dim:]), -b * jnp.mean(diagonal[:dim])
