"""A decoder-only transformer language model, in flax.

    embeddings  x_t = E[w_t], and P[t] where positions are learned
    a layer     x += W_o softmax(q kᵀ/√h) v,  with q, k, v = W LN(x);   x += W₂ gelu(W₁ LN(x))
    logits      z = E LN(x), and D[w_t] where a direct connection is asked for

A position attends to the positions before it and to itself, from the last `<pad>` on: a document does not see the one before.
Source: Vaswani et al. 2017; normalisation first as in Radford et al. 2019; rotary positions as in Su et al. 2021.
"""

import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from jexplicit.data.contexts import PAD

Positions = Literal["rotary", "learned"]


class Transformer(nn.Module, kw_only=True):
    """Logits of the next token at every position: [B, T] -> [B, T, N].

    vocab_size: N. width: d, a multiple of heads. layers: L. heads: H; with rotary positions, d/H is even.
    window: W, the most tokens that learned positions reach; T <= W.
    dropout: share of the outputs of every layer and of the embeddings that training sets to 0 at random.
    tied: whether the output weights are the embeddings E. positions: rotary, or a learned vector for each place in the window.
    direct: whether a table D [N, N], 0 at first, adds logits by the last token.
    remat: compute each layer again in the backward pass, which saves memory. precision: of the products, such as bfloat16;
    parameters, normalisation and logits have at least float32.
    """

    vocab_size: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    window: int = 64
    dropout: float = 0.0
    tied: bool = True
    positions: Positions = "rotary"
    direct: bool = False
    remat: bool = False
    precision: str = "float32"

    @nn.compact
    def __call__(self, X, *, train: bool = False):
        narrow, wide = widths_of(self.precision)
        T, normal = X.shape[1], nn.initializers.normal(0.02)
        embed = nn.Embed(self.vocab_size, self.width, embedding_init=normal, param_dtype=wide, name="embedding")
        x = embed(X)
        if self.positions == "learned":
            x = x + self.param("positions", normal, (self.window, self.width), wide)[None, :T]
        x = nn.Dropout(self.dropout, deterministic=not train)(x).astype(narrow)
        layer = nn.remat(_Layer, static_argnums=(3,)) if self.remat else _Layer
        mask = visible(jnp.asarray(X))
        for n in range(1, self.layers + 1):
            options = (self.heads, self.layers, self.dropout, self.positions == "rotary")
            x = layer(*options, narrow, wide, name=f"layer_{n}")(x, mask, train)
        x = nn.LayerNorm(use_bias=False, param_dtype=wide, name="norm")(x.astype(wide))
        self.sow("intermediates", "features", x)
        output = nn.Dense(self.vocab_size, use_bias=False, kernel_init=normal, param_dtype=wide, name="output")
        z = embed.attend(x) if self.tied else output(x)
        if self.direct:
            z = z + self.param("direct", nn.initializers.zeros, (self.vocab_size, self.vocab_size), wide)[X]
        return z

    def flops_per_token(self) -> int:
        """`6 (12 L d² + N d) + 12 L d W`: FLOPs.

        Source: Chowdhery et al. 2022, App. B.
        """
        L, d, N, W = self.layers, self.width, self.vocab_size, self.window
        return 6 * (12 * L * d**2 + N * d) + 12 * L * d * W


class _Layer(nn.Module):
    """Attention and a network of one hidden layer, each added to its input."""

    heads: int
    layers: int
    dropout: float
    rotary: bool
    narrow: Any
    wide: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B T d"], mask: Bool[Array, "B 1 T T"], train: bool) -> Float[Array, "B T d"]:
        (B, T, d), H = x.shape, self.heads
        options: dict[str, Any] = {"use_bias": False, "dtype": self.narrow, "param_dtype": self.wide}
        into = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.02), **options)
        # what is added up over 2 L branches has smaller weights (Radford et al. 2019)
        back = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(0.02 / (2 * self.layers) ** 0.5), **options)
        norm = functools.partial(nn.LayerNorm, use_bias=False, param_dtype=self.wide)
        drop = nn.Dropout(self.dropout, deterministic=not train)
        h = into(3 * d, name="qkv")(norm(name="norm_1")(x.astype(self.wide)).astype(self.narrow))
        q, k, v = jnp.unstack(h.reshape(B, T, 3, H, d // H), axis=2)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        a = jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(B, T, d)
        x = x + drop(back(d, name="attention")(a))
        h = into(4 * d, name="hidden")(norm(name="norm_2")(x.astype(self.wide)).astype(self.narrow))
        return x + drop(back(d, name="output")(nn.gelu(h)))


def widths_of(precision: str) -> tuple[np.dtype, np.dtype]:
    """The types of products, and of parameters, normalisation and logits."""
    return jnp.dtype(precision), np.promote_types(jnp.dtype(precision), np.float32)


def visible(X: Integer[Array, "B T"]) -> Bool[Array, "B 1 T T"]:
    """Whether t sees s: s <= t and in its document."""
    document = jnp.cumsum(X == PAD, axis=1)
    same = document[:, :, None] == document[:, None, :]
    return (same & jnp.tri(X.shape[1], dtype=bool)[None])[:, None]


def rotate(x: Float[Array, "B T H h"]) -> Float[Array, "B T H h"]:
    """Rotary positions: turn the pairs (x_n, x_{n + h/2}) by `t 10000^(-2n/h)`.

    Source: Su et al. 2021, Eq. 34.
    """
    T, h = x.shape[1], x.shape[3]
    n = jnp.arange(h // 2, dtype=jnp.float32)
    angles = jnp.arange(T, dtype=jnp.float32)[:, None] * 10_000 ** (-2 * n / h)[None]
    cos, sin = (f(angles).astype(x.dtype)[None, :, None] for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, axis=3)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=3)
