"""Products of small matrices, batch last, and batches of linear systems.

`Σ_k A[k, i] B[k, j]` is a sum over k of outer products of rows. Each is one contiguous pass over the batch, and its gradient is
two products of the same form. On a CPU, batched products of 11 x 11 matrices or sums over middle axes are three to ten times
slower. On an accelerator a loop over rows would launch one kernel per row, and a matrix product would round to TF32 or
bfloat16, so the sum is one fused kernel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


@jax.custom_vjp
def contract(A: Float[Array, "k i *batch"], B: Float[Array, "k j *batch"]) -> Float[Array, "i j *batch"]:
    """`Σ_k A[k, i] B[k, j]` for every task of a batch."""

    return lax.platform_dependent(A, B, cpu=_by_rows, default=_by_broadcast)


def _by_rows(A: Array, B: Array) -> Array:
    def add(total: Array, rows: tuple[Array, Array]) -> tuple[Array, None]:
        a, b = rows
        return total + a[:, None] * b[None], None

    return lax.scan(add, jnp.zeros((A.shape[1], *B.shape[1:]), A.dtype), (A, B))[0]


def _by_broadcast(A: Array, B: Array) -> Array:
    return jnp.sum(A[:, :, None] * B[:, None], axis=0)


def _contract_forward(A: Array, B: Array) -> tuple[Array, tuple[Array, Array]]:
    return contract(A, B), (A, B)


def _contract_backward(saved: tuple[Array, Array], G: Array) -> tuple[Array, Array]:
    A, B = saved
    return contract(transpose(B), transpose(G)), contract(transpose(A), G)


contract.defvjp(_contract_forward, _contract_backward)


def transpose(A: Float[Array, "i j *batch"]) -> Float[Array, "j i *batch"]:
    """The transpose of every task's matrix."""
    return jnp.swapaxes(A, 0, 1)


def solve_rows(product: Callable[[Array], Array], B: Float[Array, "n d"], steps: int) -> Float[Array, "n d"]:
    """Solutions of n symmetric positive definite systems, by conjugate gradients.

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
