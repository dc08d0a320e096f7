"""Variables of flax networks drawn by NumPy, which compiles nothing."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn.networks import network_outputs

# compiled whole, which takes less time than compiling every operation
outputs = jax.jit(network_outputs, static_argnums=0)


@functools.cache
def _key() -> jax.Array:
    return jax.random.key(0)


def drawn_variables(model: nn.Module, inputs: Any, seed: int = 0) -> Any:
    """Parameters of variance 1/(their first axis), and running statistics between 0.5 and 1.5."""
    shapes = jax.eval_shape(model.init, _key(), jax.tree.map(jnp.asarray, inputs))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / leaf.shape[0] ** 0.5, leaf.dtype), shapes["params"]
    )
    statistics = jax.tree.map(
        lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), leaf.dtype), shapes.get("batch_stats", {})
    )
    return {"params": params, "batch_stats": statistics}
