"""The ridge update: synapses move to the ridge regression fit of a minibatch, instead of along its Hebbian product.

    H = Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α,   α = mean_b |A_b|²

A [B, n_in + 1] are the states before the synapses, with the bias neuron, and E [B, n_out] those after them. For large λ this is
Hebb's rule, `Aᵀ E/(λ √α)`. For λ -> 0 it fits every example, `A H = √α E`; in between, directions shared by many examples are
fitted first. In adaptive filtering this is affine projection (Ozeki & Umeda 1984). The inverse Gram matrix removes the
correlations of the inputs from a step, as in natural gradients.

With few inputs most of an error lies outside their span, and H is small. The trust ratio compensates for it,

    H <- H/φ^p,   φ = |A H|/(√α |E|)                                                       p: trust

with φ the share of the errors fitted by H. Under p = 1 all updates change the pre-activations of a layer by the same amount, as
in normalised gradient descent.

The B equations are solved by conjugate gradients, by matrix products alone.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.linear_systems import solve_rows
from jexplicit.runs.devices import full_precision

_tiny = 1e-20  # lower bound of α, for inputs that are all zero
_small = 1e-6  # added to squared errors, which may be zero


@full_precision
def ridge_update(
    A: Float[Array, "*c B n_in1"],
    E: Float[Array, "*c B n_out"],
    lam: Float[Array, ""],
    trust: Float[Array, ""] | float | None = None,
    *,
    iterations: int,
) -> Float[Array, "*c n_in1 n_out"]:
    """`Aᵀ (A Aᵀ/α + λ I)⁻¹ E / √α`, divided by φ^trust (default, undivided), separately for each state c."""
    gram = A @ jnp.matrix_transpose(A)
    alpha = jnp.trace(gram, axis1=-2, axis2=-1)[..., None, None] / gram.shape[-1] + _tiny
    K, B = gram / alpha, gram.shape[-1]
    fewer = E.shape[-1] > B  # columns: those of the inverse are fewer than those of E
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
