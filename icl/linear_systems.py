"""Batches of linear systems, solved and differentiated by matrix products alone: the same algorithm on every device."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def solve_rows(product: Callable[[Array], Array], B: Float[Array, "n d"], steps: int) -> Float[Array, "n d"]:
    """Solutions X of n symmetric positive definite systems, `product(X) = B` row by row, by conjugate gradients.

    Runs `steps` iterations from zero; derivatives are implicit, computed with `steps` iterations too. Rows whose residual is
    below the rounding error of B are not updated further. Source: Hestenes and Stiefel 1952.
    """
    return lax.custom_linear_solve(product, B, lambda product, B: _conjugate_gradients(product, B, steps), symmetric=True)


def _conjugate_gradients(product: Callable[[Array], Array], B: Array, steps: int) -> Array:
    least = jnp.finfo(B.dtype).eps ** 2 * jnp.sum(B * B, axis=1)

    def step(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        X, R, P, rr = state
        AP = product(P)
        goes_on = rr > least
        alpha = jnp.where(goes_on, rr / jnp.where(goes_on, jnp.sum(P * AP, axis=1), 1), 0)[:, None]
        X, R = X + alpha * P, R - alpha * AP
        rr_next = jnp.sum(R * R, axis=1)
        beta = jnp.where(goes_on, rr_next / jnp.where(goes_on, rr, 1), 0)[:, None]
        return (X, R, R + beta * P, rr_next), None

    return lax.scan(step, (jnp.zeros_like(B), B, B, jnp.sum(B * B, axis=1)), None, length=steps)[0][0]
