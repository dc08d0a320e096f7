"""Drawn copies of images: a little turned, scaled, sheared and shifted, so that fits learn what such changes leave alike."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jexplicit.runs.checks import check_key

TURN = math.radians(10)  # largest angle either way
STRETCH = 0.1  # largest change of either side's scale, and largest shear
SHIFT = 0.05  # largest shift, as a share of the side
_images_per_call = 1000


def draw_affine(key: Any, side: int) -> tuple[Float[Array, "2 2"], Float[Array, "2"]]:
    """A small random affine map of places, `p -> A p + t`: a rotation times scales and shears, and a shift in pixels.

    Example:
        >>> A, t = draw_affine(jax.random.key(0), 28)
        >>> A.shape, t.shape, bool(jnp.abs(t).max() <= 0.05 * 28)
        ((2, 2), (2,), True)
    """
    turn, stretch, shift = jax.random.split(key, 3)
    angle = jax.random.uniform(turn, minval=-TURN, maxval=TURN)
    rotation = jnp.array([[jnp.cos(angle), -jnp.sin(angle)], [jnp.sin(angle), jnp.cos(angle)]])
    change = jax.random.uniform(stretch, (2, 2), rotation.dtype, -STRETCH, STRETCH)
    return rotation @ (jnp.eye(2, dtype=rotation.dtype) + change), side * jax.random.uniform(
        shift, (2,), rotation.dtype, -SHIFT, SHIFT
    )


def warp(image: Float[Array, "height width"], A: Float[Array, "2 2"], t: Float[Array, "2"]) -> Float[Array, "height width"]:
    """The image whose pixel at p is another's at `A (p - c) + c + t`, c the centre: bilinear, and the border goes on outside.

    Example:
        >>> warp(jnp.array([[1.0, 2.0, 4.0]]), jnp.eye(2), jnp.array([0.0, 0.5])).tolist()
        [[1.5, 3.0, 4.0]]
    """
    places = jnp.stack(jnp.meshgrid(*(jnp.arange(n, dtype=A.dtype) for n in image.shape), indexing="ij")).reshape(2, -1)
    centre = (jnp.array(image.shape, A.dtype)[:, None] - 1) / 2
    sources = A @ (places - centre) + centre + t[:, None]
    return jax.scipy.ndimage.map_coordinates(image, list(sources), order=1, mode="nearest").reshape(image.shape)


def draw_copies(key: Any, images: UInt8[np.ndarray, "M height width"]) -> UInt8[np.ndarray, "M height width"]:
    """A copy of each image by an affine map of its own, grey levels rounded.

    Args:
        key: of the maps.
        images: [M, height, width] grey levels.

    Raises:
        ValueError: a key that is none.

    Example:
        >>> draw_copies(jax.random.key(0), np.zeros((5, 8, 8), np.uint8)).shape
        (5, 8, 8)
    """
    check_key(key)
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
