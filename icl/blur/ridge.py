"""The ridge update: synapses move to the least-squares fit of a minibatch, instead of along its Hebbian product.

    H = Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α,   α = mean_b |A_b|²

A [B, n_in + 1] are the states before the synapses, with the bias neuron, and E [B, n_out] those after them. For large λ this is
Hebb's rule, `Aᵀ E/(λ √α)`. For λ -> 0 it fits every example, `A H = √α E`; in between it fits first what many examples share.
Adaptive filters that learn so are called affine projection (Ozeki & Umeda 1984). The inverse Gram matrix takes the correlations
of the inputs out of a step, as natural gradients do.

Where inputs are few, most of an error is nothing that they can fit, and H is small. The trust ratio makes up for it,

    H <- H/φ^p,   φ = |A H|/(√α |E|)                                                       p: trust

with φ the part of the errors that H fits. Under p = 1 all updates change the pre-activations of a layer by the same amount, as
in normalised gradient descent.

The B equations are solved by conjugate gradients: products of matrices alone, and the same work on every device.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.linear_systems import solve_rows
from jexplicit.runs.devices import full_precision

_tiny = 1e-20  # of α, for inputs that are all zero
_small = 1e-6  # of squared errors, where none are left


@full_precision
def ridge_update(
    A: Float[Array, "*c B n_in1"],
    E: Float[Array, "*c B n_out"],
    lam: Float[Array, ""],
    trust: Float[Array, ""] | float | None = None,
    *,
    iterations: int,
) -> Float[Array, "*c n_in1 n_out"]:
    """`Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α`, divided by a power of the part of E that it fits, separately for each state c.

    Args:
        A: [B, n_in + 1] states before the synapses.
        E: [B, n_out] states after them.
        lam: λ, at the scale of one example whose squared norm is the mean.
        trust: p; default, H as it is.
        iterations: of conjugate gradients.

    Example:
        >>> A, E = jnp.array([[2.0, 0.0], [0.0, 2.0]]), jnp.array([[1.0], [3.0]])
        >>> ridge_update(A, E, jnp.asarray(1.0), iterations=2).ravel().tolist()
        [0.5, 1.5]
    """
    gram = A @ jnp.matrix_transpose(A)
    alpha = jnp.trace(gram, axis1=-2, axis2=-1)[..., None, None] / gram.shape[-1] + _tiny
    K, B = gram / alpha, gram.shape[-1]
    fewer = E.shape[-1] > B  # columns in the inverse than in E
    columns = jnp.broadcast_to(jnp.eye(B, dtype=A.dtype), K.shape) if fewer else E
    solved = jnp.vectorize(functools.partial(_ridge_columns, iterations), signature="(b,b),(),(b,n)->(b,n)")(K, lam, columns)
    fitted = solved @ E if fewer else solved
    H = jnp.matrix_transpose(A) @ fitted * lax.rsqrt(alpha)
    if trust is None:
        return H
    part = (_total(K @ fitted) + _small) / (_total(E) + _small)  # φ², since A H = √α K (K + λ I)⁻¹ E
    return H * part ** (-trust / 2)


def _ridge_columns(iterations: int, K: Array, lam: Array, E: Array) -> Array:
    """`(K + λ I)⁻¹ E`."""
    return solve_rows(lambda X: X @ K + lam * X, E.T, iterations).T


def _total(r: Array) -> Array:
    return jnp.sum(r**2, axis=(-2, -1), keepdims=True)
