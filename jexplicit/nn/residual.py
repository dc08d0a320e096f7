"""Networks that learn what a counted base does not know.

z_t = a base_t + network(tokens)_t,        base_t = log p of the token after position t, from elsewhere
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Integer

from jexplicit.nn.sequences import window_batch
from jexplicit.runs.devices import AXIS, data_mesh


class Residual(nn.Module, kw_only=True):
    """A network over a base: `(tokens [B, T], base [B, T, N]) -> [B, T, N]`, with the exponent a of the base, 1 at first.

    network: [B, T] token ids -> [B, T, N] logits.
    """

    network: nn.Module

    @nn.compact
    def __call__(self, inputs: Any, *, train: bool = False):
        tokens, base = inputs
        z = jnp.asarray(self.network(tokens, train=train))  # pyright: ignore[reportCallIssue]
        exponent = self.param("exponent", nn.initializers.ones, (), z.dtype)
        return exponent * base.astype(z.dtype) + z


def residual_batch(
    stream: Integer[np.ndarray, " L"], base: Float[np.ndarray, "L N"], window: int, mesh: Mesh | None = None
) -> Callable[[np.ndarray], tuple[tuple[Array, Array], Array]]:
    """`starts -> ((X, base), Y)`, windows as those of `window_batch`, and log p of each token after theirs.

    base: [L, N] log p by the place of the predicted token.
    """
    tokens, place = window_batch(stream, window, mesh), NamedSharding(mesh or data_mesh(1), PartitionSpec(AXIS))

    def batch(starts: np.ndarray) -> tuple[tuple[Array, Array], Array]:
        X, Y = tokens(starts)
        return (X, jax.device_put(base[starts[:, None] + 1 + np.arange(window)], place)), Y

    return batch


def network_of_residual(variables: Any) -> tuple[dict[str, Any], float]:
    """The variables of the network within, and the exponent of the base."""
    params = variables["params"]
    return {"params": params["network"], "batch_stats": {}}, float(params["exponent"])
