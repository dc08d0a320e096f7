"""A convolutional network for grey images, in flax.

stage       z = BatchNorm(W * x);  a = maxpool(relu(z)),   W of 3 x 3 pixels, pools of 2 x 2
network     f(x) = W⁽ᴸ⁾ relu(W dropout(stages of x))
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

_momentum = 0.9  # of BatchNorm's running statistics; flax's 0.99 lags behind in runs of a few hundred steps


class ConvolutionalNetwork(nn.Module):
    """Convolutions with pools, then a hidden layer, [B, height width] -> [B, N]: pixels as `pixel_features` has them.

    shape: height and width of an image.
    outputs: N.
    channels: filters of each stage; every stage halves height and width, which must be at least 2 to the number of stages.
    hidden: units of the layer before the last one.
    dropout: share of the inputs of the hidden layer set to 0 at random in training (Srivastava et al. 2014).

    Example:
        >>> from jexplicit.nn.networks import init_variables, network_outputs
        >>> network, x = ConvolutionalNetwork((8, 8), outputs=10), jnp.ones((3, 64), jnp.float32)
        >>> network_outputs(network, init_variables(network, jax.random.key(0), x), x).shape
        (3, 10)

    Source: LeCun et al. 1998; BatchNorm: Ioffe & Szegedy 2015.
    """

    shape: tuple[int, int]
    outputs: int
    channels: Sequence[int] = (32, 64)
    hidden: int = 128
    dropout: float = 0.5
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train: bool = False):
        x, options = x.reshape(-1, *self.shape, 1), {"kernel_init": nn.initializers.he_normal(), "param_dtype": self.dtype}
        for n, filters in enumerate(self.channels, 1):
            x = nn.Conv(filters, (3, 3), use_bias=False, name=f"convolution_{n}", **options)(x)
            x = nn.BatchNorm(not train, momentum=_momentum, param_dtype=self.dtype, name=f"norm_{n}")(x)
            x = nn.max_pool(jax.nn.relu(x), (2, 2), (2, 2))
        x = nn.Dropout(self.dropout, deterministic=not train)(x.reshape(len(x), -1))
        x = jax.nn.relu(nn.Dense(self.hidden, name="hidden", **options)(x))
        return nn.Dense(self.outputs, name="output", param_dtype=self.dtype)(x)
