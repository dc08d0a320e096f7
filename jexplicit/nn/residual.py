"""Networks that learn what a counted base does not know.

z_t = a base_t + network(tokens)_t,        base_t = log p of the token after position t, from elsewhere
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp


class Residual(nn.Module, kw_only=True):
    """A network over a base: `(tokens [B, T], base [B, T, N]) -> [B, T, N]`, with the exponent a of the base, 1 at first.

    network: [B, T] token ids -> [B, T, N] logits.
    """

    network: nn.Module

    vocab_size = property(lambda self: self.network.vocab_size)  # N

    @nn.compact
    def __call__(self, inputs: Any, *, train: bool = False):
        tokens, base = inputs
        z = jnp.asarray(self.network(tokens, train=train))  # pyright: ignore[reportCallIssue]
        exponent = self.param("exponent", nn.initializers.ones, (), z.dtype)
        return exponent * base.astype(z.dtype) + z


def network_of_residual(variables: Any) -> tuple[dict[str, Any], float]:
    """The variables of the network within, and the exponent of the base."""
    params = variables["params"]
    return {"params": params["network"], "batch_stats": {}}, float(params["exponent"])
