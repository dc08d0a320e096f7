"""The baselines of attention: gradient descent, its variants and ridge regression.

    L(W) = 1/(2N) Σ_i ||W x_i - y_i||²,    ΔW = -(η/N) Σ_i (W x_i - y_i) x_iᵀ

They are functions of one sequence; batch them by `jax.vmap`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.tasks import Sequence, initial_weights
from jexplicit.runs.checks import checked
from jexplicit.runs.devices import full_precision

Rate = Any  # a number, or one per step


@jax.jit
@full_precision
def squared_error(W: Float[Array, "m d"], X: Float[Array, "N d"], Y: Float[Array, "N m"]) -> Float[Array, ""]:
    """`L(W) = 1/(2N) Σ_i ||W x_i - y_i||²`.

    Example:
        >>> float(squared_error(jnp.zeros((1, 2)), jnp.ones((4, 2)), jnp.full((4, 1), 3.0)))
        4.5
    """
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

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> gd_plus_plus(one, 1.0, 0.0, steps=2).tolist()  # GD
        [[1.5], [2.25]]

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
