"""An LSTM language model, in flax: layers of flax's cell over embedded tokens.

Its state begins at 0 where a window begins and at every `<pad>`: a document does not see the one before.
Source: Hochreiter & Schmidhuber 1997; dropout between layers as in Zaremba, Sutskever & Vinyals 2014.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jexplicit.data.contexts import PAD
from jexplicit.nn.transformer import widths_of


class LSTM(nn.Module, kw_only=True):
    """Logits of the next token at every position: [B, T] -> [B, T, N].

    vocab_size: N. width: d, of the embeddings and of every layer. layers: L. window: W, the tokens that it reads.
    dropout: share of the inputs of every layer and of the output that training sets to 0 at random.
    tied: whether the output weights are the embeddings. precision: of the layers, such as bfloat16; parameters and logits have
    at least float32.
    """

    vocab_size: int
    width: int = 256
    layers: int = 1
    window: int = 64
    dropout: float = 0.0
    tied: bool = True
    precision: str = "float32"

    @nn.compact
    def __call__(self, X, *, train: bool = False):
        narrow, wide = widths_of(self.precision)
        normal, drop = nn.initializers.normal(self.width**-0.5), nn.Dropout(self.dropout, deterministic=not train)
        embed = nn.Embed(self.vocab_size, self.width, embedding_init=normal, param_dtype=wide, name="embedding")
        x = drop(embed(X)).astype(narrow)
        scan = nn.scan(_Cell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1)
        for n in range(1, self.layers + 1):
            zero = (jnp.zeros((len(X), self.width), narrow),) * 2
            _, x = scan(self.width, narrow, wide, name=f"layer_{n}")(zero, (x, X == PAD))
            x = drop(x)
        x = x.astype(wide)
        if self.tied:
            return embed.attend(x)
        return nn.Dense(self.vocab_size, use_bias=False, kernel_init=normal, param_dtype=wide, name="output")(x)

    def flops_per_token(self) -> int:
        """Floating-point operations of training per token: `6 (8 L d² + N d)`."""
        return 6 * (8 * self.layers * self.width**2 + self.vocab_size * self.width)


class _Cell(nn.Module):
    """One step, from state 0 where a document begins."""

    width: int
    narrow: Any
    wide: Any

    @nn.compact
    def __call__(self, state: Any, inputs: Any) -> Any:
        x, first = inputs
        state = jax.tree.map(lambda s: jnp.where(first[:, None], jnp.zeros_like(s), s), state)
        return nn.OptimizedLSTMCell(self.width, dtype=self.narrow, param_dtype=self.wide, name="cell")(state, x)
