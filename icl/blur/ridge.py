"""The ridge update: synapses move to the least-squares fit of a minibatch, instead of along its Hebbian product.

    H = Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α,   α = mean_b |A_b|²

A [B, n_in + 1] are the states before the synapses, with the bias neuron, and E [B, n_out] those after them. For large λ this is
Hebb's rule, `Aᵀ E/(λ √α)`. For λ -> 0 it fits every example, `A H = √α E`; in between it fits first what many examples share.
Adaptive filters that learn so are called affine projection (Ozeki & Umeda 1984). The inverse Gram matrix takes the correlations
of the inputs out of a step, as natural gradients do.

The B equations are solved by conjugate gradients: products of matrices alone, and the same work on every device.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.devices import full_precision

_tiny = 1e-20  # of α, for inputs that are all zero


def ridge_update(
    A: Float[Array, "*c B n_in1"], E: Float[Array, "*c B n_out"], lam: Float[Array, ""], *, iterations: int
) -> Float[Array, "*c n_in1 n_out"]:
    """`Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α`, separately for each state c.

    Args:
        A: [B, n_in + 1] states before the synapses.
        E: [B, n_out] states after them.
        lam: λ, at the scale of one example whose squared norm is the mean.
        iterations: of conjugate gradients.

    Example:
        >>> A, E = jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([[1.0], [3.0]])
        >>> ridge_update(A, E, jnp.asarray(1.0), iterations=2).ravel().tolist()
        [0.5, 1.5]
    """
    gram = A @ jnp.matrix_transpose(A)
    alpha = jnp.trace(gram, axis1=-2, axis2=-1)[..., None, None] / gram.shape[-1] + _tiny
    return jnp.matrix_transpose(A) @ conjugate_gradients(gram / alpha, lam, E, iterations=iterations) * jax.lax.rsqrt(alpha)


@full_precision
def conjugate_gradients(
    K: Float[Array, "*c B B"], lam: Float[Array, ""], E: Float[Array, "*c B n"], *, iterations: int
) -> Float[Array, "*c B n"]:
    """An approximation of `(K + λ I)⁻¹ E` for a symmetric K without negative eigenvalues, for all columns at once.

    After m iterations it is the best in the Krylov space of m products with K, in the norm that `K + λ I` defines.

    Source: Hestenes & Stiefel, Methods of conjugate gradients for solving linear systems, 1952.
    """
    scale = jax.lax.stop_gradient(jnp.sqrt(_squares(E)))  # the solution is linear in E: any scale will do
    r = jnp.where(scale > 0, E / jnp.where(scale > 0, scale, 1.0), 0.0)
    x, p, size = jnp.zeros_like(r), r, _squares(r)
    for _ in range(iterations):
        going = (
            size > jnp.finfo(E.dtype).eps ** 2
        )  # a column that is solved stays, and has no quotients of zeros to differentiate
        product = K @ p + lam * p
        step = jnp.where(going, size / jnp.where(going, jnp.sum(p * product, axis=-2, keepdims=True), 1.0), 0.0)
        x, r = x + step * p, r - step * product
        before, size = size, _squares(r)
        p = jnp.where(going, r + size / jnp.where(going, before, 1.0) * p, 0.0)
    return scale * x


def _squares(r: Array) -> Array:
    return jnp.sum(r**2, axis=-2, keepdims=True)
