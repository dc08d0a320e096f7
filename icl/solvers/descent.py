"""What attention is compared with: gradient descent on the context's squared error, its variants, and ridge regression.

    L(W) = 1/(2N) Σ_i ||W x_i - y_i||²,    ΔW = -(η/N) Σ_i (W x_i - y_i) x_iᵀ

All are functions of one sequence; `jax.vmap` makes them functions of many.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.tasks import Sequence, check_sequence

Rate = Any  # a number, or one per step


def squared_error(W: Float[Array, "m d"], X: Float[Array, "N d"], Y: Float[Array, "N m"]) -> Float[Array, ""]:
    """`L(W) = 1/(2N) Σ_i ||W x_i - y_i||²`.

    Example:
        >>> float(squared_error(jnp.zeros((1, 2)), jnp.ones((4, 2)), jnp.full((4, 1), 3.0)))
        4.5
    """
    return jnp.sum((X @ W.T - Y) ** 2) / (2 * len(X))


def gradient_descent(
    sequence: Sequence,
    eta: Rate,
    *,
    steps: int = 1,
    W0: Float[Array, "m d"] | None = None,
    preconditioner: Float[Array, "d d"] | None = None,
) -> Float[Array, "steps m"]:
    """The answers `W x_q` after 1, 2, .. steps of (preconditioned) gradient descent on one context.

        W <- W - (η/N) Σ_i (W x_i - y_i) x_iᵀ G

    Args:
        sequence: of one task.
        eta: η, one number or one per step.
        steps: how many.
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
    check_sequence(sequence)
    X, Y, x_q, _ = sequence
    if steps < 1 or jnp.shape(eta) not in ((), (steps,)):
        raise ValueError(f"{steps} steps with rates {jnp.shape(eta)}: wanted at least one step, and one rate or one per step")
    W = jnp.zeros((Y.shape[1], X.shape[1]), X.dtype) if W0 is None else W0
    if W.shape != (Y.shape[1], X.shape[1]):
        raise ValueError(f"W0 {W.shape}: wanted [outputs, inputs] = {(Y.shape[1], X.shape[1])}")
    if preconditioner is not None and preconditioner.shape != (X.shape[1],) * 2:
        raise ValueError(f"preconditioner {preconditioner.shape}: wanted {(X.shape[1],) * 2}")

    def step(W: Array, eta: Array) -> tuple[Array, Array]:
        change = (X @ W.T - Y).T @ X / len(X)
        W = W - eta * (change if preconditioner is None else change @ preconditioner)
        return W, W @ x_q

    return lax.scan(step, W, jnp.broadcast_to(jnp.asarray(eta, X.dtype), (steps,)))[1]


def gd_plus_plus(sequence: Sequence, eta: Rate, gamma: Rate, *, steps: int) -> Float[Array, "steps m"]:
    """The answers after 1, 2, .. steps of GD++, descent that also turns the inputs towards a sphere.

        y_j <- y_j - (η/N) Σ_i y_i x_iᵀ x_j,    x_j <- (I - γ Σ_i x_i x_iᵀ) x_j    (both from the same x)

    Args:
        sequence: of one task.
        eta, gamma: η and γ, one number or one per step. The last γ changes nothing.
        steps: how many.

    Raises:
        ValueError: shapes that do not fit, or fewer than one step.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> gd_plus_plus(one, 1.0, 0.0, steps=2).tolist()  # GD
        [[1.5], [2.25]]

    Source: von Oswald et al. 2023, App. A.10, Eq. 23.
    """
    check_sequence(sequence)
    X, Y, x_q, y_q = sequence
    if steps < 1 or any(jnp.shape(rate) not in ((), (steps,)) for rate in (eta, gamma)):
        raise ValueError(f"{steps} steps, eta {jnp.shape(eta)}, gamma {jnp.shape(gamma)}: wanted one rate or one per step")
    N = len(X)

    def step(state: tuple[Array, ...], rates: tuple[Array, Array]) -> tuple[tuple[Array, ...], Array]:
        (X, Y, x, y), (eta, gamma) = state, rates
        G, change = X.T @ X, eta / N * Y.T @ X
        state = X - gamma * X @ G, Y - X @ change.T, x - gamma * G @ x, y - change @ x
        return state, -state[3]

    etas, gammas = (jnp.broadcast_to(jnp.asarray(rate, X.dtype), (steps,)) for rate in (eta, gamma))
    return lax.scan(step, (X, Y, x_q, jnp.zeros_like(y_q)), (etas, gammas))[1]


def ridge(sequence: Sequence, penalty: Any) -> Float[Array, " m"]:
    """The answer of ridge regression, `W = Yᵀ X (XᵀX + penalty I)⁻¹`.

    With the penalty noise variance / weight variance it is the best of all predictors of Gaussian weights.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> one = Sequence(jnp.eye(2), jnp.array([[1.0], [2.0]]), jnp.ones(2), jnp.zeros(1))
        >>> ridge(one, 1.0).tolist()
        [1.5]
    """
    check_sequence(sequence)
    X, Y, x_q, _ = sequence
    A = X.T @ X + penalty * jnp.eye(X.shape[1], dtype=X.dtype)
    return Y.T @ X @ jnp.linalg.solve(A, x_q)


def line_search(batch: Sequence, *, steps: int, rates: Float[Array, " rates"]) -> tuple[float, Float[Array, " rates"]]:
    """The η of a grid with the lowest loss on given tasks, the same at every step, and the loss of each.

    Args:
        batch: tasks, batch last.
        steps: of descent.
        rates: the grid. The paper's is 0.001, 0.101, .. 24.901, and its tasks are those it is scored on.

    Example:
        >>> from icl import Tasks, sample_tasks
        >>> import jax
        >>> batch = sample_tasks(jax.random.key(0), Tasks(), 1000)
        >>> 5 < line_search(batch, steps=1, rates=paper_rates())[0] < 7
        True

    Source: von Oswald et al. 2023, App. A.12.
    """
    X, Y, x_q, y_q = (jnp.moveaxis(leaf, -1, 0) for leaf in batch)

    def loss(eta: Array) -> Array:
        def step(y: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            r, s = y
            change = eta / X.shape[1] * jnp.einsum("bnm,bnd->bmd", r, X)
            return (r - jnp.einsum("bnd,bmd->bnm", X, change), s + jnp.einsum("bmd,bd->bm", change, x_q)), None

        (_, answer), _ = lax.scan(step, (Y, jnp.zeros_like(y_q)), None, length=steps)
        return jnp.mean(jnp.sum((answer - y_q) ** 2, axis=1)) / 2

    losses = lax.map(loss, rates)
    return float(rates[jnp.nanargmin(losses)]), losses


def paper_rates(dtype: Any = None) -> Float[Array, " rates"]:
    """The paper's grid of η: 0.001, 0.101, .. 24.901."""
    return 0.001 + 0.1 * jnp.arange(250, dtype=dtype or jnp.zeros(()).dtype)
