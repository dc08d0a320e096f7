"""The error of mini-batch gradients.

For B of M examples drawn without replacement, with Σ the covariance of the examples' gradients g_i around their mean g,

    E ||g_B - g||² = (tr Σ / B) (M - B)/(M - 1)

so the error falls as 1/√B: 100 times the compute for a tenth of the error. The *noise scale* tr Σ/||g||² is the batch size with
an error as large as the gradient itself (McCandlish et al. 2018).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

_chunk = 64  # examples whose gradients are in memory at once


class GradientNoise(NamedTuple):
    """Errors of mini-batch gradients, by batch size.

    sizes: [S] batch sizes.
    errors: [S] root mean square of ||g_B - g||/||g|| over draws.
    predicted: [S] the same by the formula.
    cosines: [S] mean cosine between g_B and g.
    scale: tr Σ/||g||², examples.
    """

    sizes: Int[np.ndarray, " S"]
    errors: Float[np.ndarray, " S"]
    predicted: Float[np.ndarray, " S"]
    cosines: Float[np.ndarray, " S"]
    scale: float


def gradient_noise(
    loss: Callable[[Any, Any, Any], Array],
    params: Any,
    X: Array,
    Y: Array,
    key: Array,
    *,
    sizes: Sequence[int],
    draws: int = 100,
) -> GradientNoise:
    """The errors of gradients of `draws` random mini-batches of each size, and their prediction.

    loss: `(params, x, y) -> J` of one example. sizes: each in 1 .. M.
    Source: lecture notes on MLP language models, "Mini-batch (32) against full batch"; McCandlish et al. 2018, Sec. 2.
    """
    M = len(X)
    if not sizes or min(sizes) < 1 or max(sizes) > M:
        raise ValueError(f"batch sizes {list(sizes)} of {M} examples: use 1 .. {M}")
    flat, restore = ravel_pytree(params)
    gradient = jax.grad(lambda flat, X, Y: jax.vmap(lambda x, y: loss(restore(flat), x, y))(X, Y).mean())

    @jax.jit
    def moments(flat: Array) -> tuple[Array, Array]:
        """The mean gradient and the mean squared norm."""
        norms = jax.lax.map(lambda xy: jnp.sum(gradient(flat, xy[0][None], xy[1][None]) ** 2), (X, Y), batch_size=_chunk)
        return gradient(flat, X, Y), norms.mean()

    g, square = moments(flat)
    size = float(jnp.linalg.norm(g))
    if not size:
        raise ValueError("the gradient of all examples is 0, so relative errors are undefined: use other parameters")
    trace = max(float(square) - size**2, 0.0)

    def draw(key: Array, B: int) -> tuple[Array, Array]:
        m = jax.random.permutation(key, M)[:B]
        mean = gradient(flat, X[m], Y[m])
        return jnp.sum((mean - g) ** 2), mean @ g / (jnp.linalg.norm(mean) * size)

    keys, B = jax.random.split(key, draws), np.asarray(sizes)
    found = [jax.jit(lambda keys, B=B: jax.lax.map(lambda key: draw(key, B), keys))(keys) for B in sizes]
    errors = np.array([float(jnp.sqrt(squares.mean()) / size) for squares, _ in found])
    cosines = np.array([float(cosines.mean()) for _, cosines in found])
    predicted = np.sqrt(trace / B * (M - B) / max(M - 1, 1)) / size
    return GradientNoise(B, errors, predicted, cosines, trace / size**2)
