"""Variables of flax networks drawn by NumPy, which compiles nothing."""

import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jexplicit.nn.networks import network_outputs

# compiled whole, which takes less time than compiling every operation
outputs = jax.jit(network_outputs, static_argnums=0)


@functools.cache
def _key() -> jax.Array:
    return jax.random.key(0)


def drawn_variables(model: nn.Module, inputs: Any, seed: int = 0) -> Any:
    """Parameters of variance 1/(their first axis), and running statistics between 0.5 and 1.5."""
    shapes = jax.eval_shape(model.init, _key(), jax.tree.map(jax.device_put, inputs))
    rng, dtype = np.random.default_rng(seed), jax.tree.leaves(shapes["params"])[0].dtype
    params = jax.tree.map(
        lambda leaf: jax.device_put((rng.normal(size=leaf.shape) / leaf.shape[0] ** 0.5).astype(dtype)), shapes["params"]
    )
    statistics = jax.tree.map(
        lambda leaf: jax.device_put(rng.uniform(0.5, 1.5, leaf.shape).astype(dtype)), shapes.get("batch_stats", {})
    )
    return {"params": params, "batch_stats": statistics}
