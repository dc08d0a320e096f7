"""A causal transformer that predicts y_t at x_t, for every t.

Source: Garg et al. 2022, Sec. 3: GPT-2 with linear read-in and read-out in place of token embeddings.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class CausalTransformer(nn.Module):
    """Pre-norm blocks of causal self-attention and an MLP of GELU units.

    width: channels; layers: blocks; heads: of each block, a divisor of the width; dtype: of the parameters. Garg et al. 2022
    use width 256, 12 layers and 8 heads.
    """

    width: int = 64
    layers: int = 3
    heads: int = 4
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, X: Float[Array, "B T d"], y: Float[Array, "B T"]) -> Float[Array, "B T"]:
        """Predictions [B, T]; the prediction at t depends on x_1, y_1, .., x_t only."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} for {self.heads} heads: choose a multiple of the heads")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # needed inside flax's layers
            return self._predict(X, y)

    def _predict(self, X: Array, y: Array) -> Array:
        B, T, _ = X.shape
        dense = functools.partial(nn.Dense, param_dtype=self.dtype)
        norm = functools.partial(nn.LayerNorm, param_dtype=self.dtype)
        positions = self.param("positions", nn.initializers.normal(0.02), (2 * T, self.width), self.dtype)
        E = dense(self.width, name="read_in")(interleave(X, y)) + positions[None]
        mask = nn.make_causal_mask(jnp.zeros((B, 2 * T)))
        for _ in range(self.layers):
            E = E + nn.MultiHeadDotProductAttention(self.heads, param_dtype=self.dtype)(norm()(E), mask=mask)
            E = E + dense(self.width)(nn.gelu(dense(4 * self.width)(norm()(E))))
        return dense(1, name="read_out")(norm()(E))[:, ::2, 0]


def interleave(X: Float[Array, "B T d"], y: Float[Array, "B T"]) -> Float[Array, "B 2*T d"]:
    """The tokens x_1, (y_1, 0, .., 0), x_2, .."""
    values = jnp.zeros_like(X).at[..., 0].set(y)
    return jnp.stack([X, values], axis=2).reshape(len(X), -1, X.shape[2])
