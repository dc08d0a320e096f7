"""Positive features for the explicit solution and iterative scaling, preferably with rows of equal L1 norm.

Signed numbers are split into `relu(x)` and `relu(-x)`; rows are scaled to norm K.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.checks import check_key, is_concrete
from jexplicit.runs.devices import full_precision


def positive_parts(x: Float[Array, "... D"], threshold: float = 0.0) -> Float[Array, "... DD"]:
    """`[relu(x - t), relu(-x - t)]`: twice as many features, none negative; at t = 0 no information is lost.

    Example:
        >>> positive_parts(jnp.array([1.0, -2.0])).tolist()
        [1.0, 0.0, 0.0, 2.0]
    """
    return jnp.concatenate([jax.nn.relu(x - threshold), jax.nn.relu(-x - threshold)], axis=-1)


def unit_rows(H: Float[Array, "M D"], *, K: float = 1.0, floor: float = 0.01) -> Float[Array, "M D"]:
    """Strictly positive features whose rows all have L1 norm K: `K (h/||h||_1 + floor/D) / (1 + floor)`.

    With the floor every feature co-occurs with every output, as with the 1 in (X + 1)/256 for pixels.

    Args:
        H: [M, D] features, at least 0.
        K: norm of the rows.
        floor: mass spread evenly over a row, relative to its features; above 0.

    Raises:
        ValueError: a negative or non-finite feature, a row of zeros, a floor or K that is not above 0; under jit, vmap and grad
            features are not checked.

    Example:
        >>> unit_rows(jnp.array([[3.0, 1.0]]), K=2.0, floor=1.0).tolist()
        [[1.25, 0.75]]
    """
    if not floor > 0 or not K > 0:
        raise ValueError(f"floor {floor}, K {K}: both must be above 0")
    norms = H.sum(axis=1, keepdims=True)
    if is_concrete(H):
        _check_norms(float(H.min()), norms)
    return (H / norms + floor / H.shape[1]) * (K / (1 + floor))


def _check_norms(lowest: float, norms: Array) -> None:
    if not lowest >= 0 or not bool(jnp.isfinite(norms).all()):
        raise ValueError(
            f"features down to {lowest}: rows of equal norm need finite features >= 0; split them by positive_parts"
        )
    if not float(norms.min()) > 0:
        raise ValueError(f"row {int(norms.argmin())} has no feature above 0, and so cannot be normalised: drop this example")


def random_directions(key: Any, inputs: int, number: int, dtype=jnp.float32) -> Float[Array, "inputs number"]:
    """Uniformly random directions on the unit sphere.

    Example:
        >>> random_directions(jax.random.key(0), 3, 5).shape
        (3, 5)
    """
    check_key(key)
    W = jax.random.normal(key, (inputs, number), dtype)
    return W / jnp.linalg.norm(W, axis=0, keepdims=True)


@full_precision
def random_features(X: Float[Array, "M P"], W: Float[Array, "P n"], *, threshold: float = 0.0) -> Float[Array, "M nn"]:
    """Random positive features: positive parts of standardised random projections.

    `positive_parts(z / std(z), t)` with `z = (x - mean(x)) W`, for each row x; mean over its pixels, std over its projections.

    Args:
        X: [M, P] numbers per example.
        W: [P, n] directions.
        threshold: in standard deviations; above 0 the features are sparse.

    Example:
        >>> W = random_directions(jax.random.key(0), 4, 3)
        >>> random_features(jnp.arange(8, dtype="f4").reshape(2, 4), W).shape
        (2, 6)
    """
    z = (X - X.mean(axis=1, keepdims=True)) @ W
    spread = jnp.sqrt(jnp.mean(z**2, axis=1, keepdims=True))
    return positive_parts(z / jnp.where(spread > 0, spread, 1), threshold)
