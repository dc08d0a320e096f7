"""Data augmentation: small random rotations, scales, shears and shifts of images."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.runs.checks import check_key

TURN = math.radians(10)  # largest angle in either direction
STRETCH = 0.1  # largest change of either side's scale, and largest shear
SHIFT = 0.05  # largest shift, as a share of the side
_images_per_call = 1000


def draw_affine(key: Any, side: int) -> tuple[Float[Array, "2 2"], Float[Array, "2"]]:
    """A small random affine map `p -> A p + t`: rotation, scales and shears up to STRETCH, and a shift in pixels."""
    turn, stretch, shift = jax.random.split(key, 3)
    angle = jax.random.uniform(turn, minval=-TURN, maxval=TURN)
    rotation = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    change = jax.random.uniform(stretch, (2, 2), rotation.dtype, -STRETCH, STRETCH)
    return rotation @ (jnp.eye(2, dtype=rotation.dtype) + change), side * jax.random.uniform(
        shift, (2,), rotation.dtype, -SHIFT, SHIFT
    )


def warp(image: Float[Array, "height width"], A: Float[Array, "2 2"], t: Float[Array, "2"]) -> Float[Array, "height width"]:
    """The image at `A (p - c) + c + t` for each pixel p, c the centre: bilinear, edges extended outside."""
    places = jnp.stack(jnp.meshgrid(*(jnp.arange(n, dtype=A.dtype) for n in image.shape), indexing="ij")).reshape(2, -1)
    centre = (jnp.array(image.shape, A.dtype)[:, None] - 1) / 2
    sources = A @ (places - centre) + centre + t[:, None]
    return jax.scipy.ndimage.map_coordinates(image, list(sources), order=1, mode="nearest").reshape(image.shape)


def draw_copies(key: Any, images: UInt8[np.ndarray, "M height width"]) -> UInt8[np.ndarray, "M height width"]:
    """A copy of each image by a separate random affine map, grey levels rounded.

    Args:
        key: of the maps.
        images: [M, height, width] grey levels.

    Raises:
        ValueError: not a JAX random key; grey levels that are no integers 0 .. 255.

    Example:
        >>> draw_copies(jax.random.key(0), np.zeros((5, 8, 8), np.uint8)).shape
        (5, 8, 8)
    """
    check_key(key)
    if not np.issubdtype(images.dtype, np.integer) or (images.size and not 0 <= images.min() <= images.max() <= 255):
        raise ValueError(f"images of {images.dtype}: give grey levels as integers 0 .. 255")
    keys = jax.random.split(key, len(images))
    blocks = [np.zeros((0, *images.shape[1:]), np.uint8)]
    for m in range(0, len(images), _images_per_call):
        block = slice(m, m + _images_per_call)
        blocks.append(np.asarray(_copies(keys[block], jnp.asarray(images[block], jnp.float32))))
    return np.concatenate(blocks)


@jax.jit
def _copies(keys: Array, X: Float[Array, "m height width"]) -> Array:
    def copy(key: Array, image: Array) -> Array:
        A, t = draw_affine(key, min(image.shape))
        return warp(image, A.astype(image.dtype), t.astype(image.dtype))

    return jnp.round(jax.vmap(copy)(keys, X)).astype(jnp.uint8)
