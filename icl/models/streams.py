"""Streams of keys and values for online learning of a linear map.

    y_t = W_t x_t + noise,    W_{t+1} = a W_t + sqrt(1 - a²) Ξ,    rows of W_1 and Ξ ~ N(0, I/d)

At token t a layer predicts `W_{t+1} x_{t+1}` from t pairs. In a dynamical system `y_t = x_{t+1}`.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from icl.draws import draw
from icl.models.recurrences import Stream
from jexplicit.runs.devices import full_precision


@dataclasses.dataclass(frozen=True)
class Streams:
    """A distribution of streams of pairs (x_t, y_t), x ~ N(0, diag(variances)).

    dim: d, inputs; outputs: m.
    tokens: T.
    noise: standard deviation σ of the noise on y.
    memory: a, the correlation of the weights of a token with those of the next; 1 for constant weights.
    variances: of the d inputs; default, 1 each.

    Raises:
        ValueError: a size below 1, noise that is not positive, memory outside [0, 1], or not d positive variances.

    Example:
        >>> stream, targets = Streams(dim=3, tokens=5, outputs=2).sample(jax.random.key(0))
        >>> stream.K.shape, stream.V.shape, targets.shape
        ((5, 3), (5, 2), (5, 2))
    """

    dim: int = 10
    tokens: int = 200
    outputs: int = 1
    noise: float = 0.5
    memory: float = 1.0
    variances: tuple[float, ...] | None = None

    def __post_init__(self):
        if min(self.dim, self.tokens, self.outputs) < 1:
            raise ValueError(f"dim {self.dim}, tokens {self.tokens}, outputs {self.outputs}: use at least 1 for each")
        if not (self.noise > 0 and 0 <= self.memory <= 1):
            raise ValueError(f"noise {self.noise}, memory {self.memory}: use noise above 0, and memory from 0 to 1")
        if self.variances is not None and (len(self.variances) != self.dim or not min(self.variances) > 0):
            raise ValueError(f"variances {self.variances} of {self.dim} inputs: give a positive one for each")

    @property
    def spectrum(self) -> tuple[float, ...]:
        """The variances of the inputs."""
        return self.variances or (1.0,) * self.dim

    @property
    def penalty(self) -> float:
        """σ² d: with this penalty ridge regression is the posterior mean of constant weights."""
        return self.noise**2 * self.dim

    @full_precision
    def sample(self, key: Array, dtype: Any = None) -> tuple[Stream, Float[Array, "T m"]]:
        """One stream of pairs (x_t, y_t), and the targets `W_{t+1} x_{t+1}`."""
        dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
        key_x, key_w, key_noise = jax.random.split(key, 3)
        T, d, m = self.tokens, self.dim, self.outputs
        X = draw(jax.random.normal, key_x, (T + 1, d), dtype=dtype) * jnp.sqrt(jnp.asarray(self.spectrum, dtype))[None]
        steps = 1 if self.memory == 1 else T + 1
        Xi = draw(jax.random.normal, key_w, (steps, m, d), dtype=dtype) / math.sqrt(d)
        if steps > 1:
            new = math.sqrt(1 - self.memory**2)

            def drift(W: Array, xi: Array) -> tuple[Array, Array]:
                W = self.memory * W + new * xi
                return W, W

            Xi = jnp.concatenate([Xi[:1], lax.scan(drift, Xi[0], Xi[1:])[1]])
        Y = jnp.einsum("tmd,td->tm", jnp.broadcast_to(Xi, (T + 1, m, d)), X)
        noise = self.noise * draw(jax.random.normal, key_noise, (T, m), dtype=dtype)
        return Stream(X[:-1], Y[:-1] + noise, X[1:]), Y[1:]


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """Linear dynamical systems, `x_{t+1} = W x_t + noise`, W random orthogonal.

    dim: d; tokens: T; noise: its standard deviation.

    Raises:
        ValueError: a size below 1, or noise that is not positive.

    Source: von Oswald et al. 2023, Uncovering mesa-optimization algorithms.
    """

    dim: int = 10
    tokens: int = 200
    noise: float = 0.1

    def __post_init__(self):
        if min(self.dim, self.tokens) < 1 or not self.noise > 0:
            raise ValueError(f"dim {self.dim}, tokens {self.tokens}, noise {self.noise}: all must be positive")

    @property
    def penalty(self) -> float:
        """σ² d: entries of an orthogonal W have variance 1/d."""
        return self.noise**2 * self.dim

    @full_precision
    def sample(self, key: Array, dtype: Any = None) -> tuple[Stream, Float[Array, "T d"]]:
        """One stream of states from `x_1 ~ N(0, I)`, and the targets `W x_{t+1}`."""
        dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
        key_x, key_w, key_noise = jax.random.split(key, 3)
        U, R = jnp.linalg.qr(draw(jax.random.normal, key_w, (self.dim, self.dim), dtype=dtype))
        W = U * jnp.sign(jnp.diagonal(R))[None]  # with these signs it is uniform
        noise = self.noise * draw(jax.random.normal, key_noise, (self.tokens, self.dim), dtype=dtype)

        def advance(x: Array, noise: Array) -> tuple[Array, Array]:
            x = W @ x + noise
            return x, x

        first = jax.random.normal(key_x, (self.dim,), dtype)
        X = jnp.concatenate([first[None], lax.scan(advance, first, noise)[1]])
        return Stream(X[:-1], X[1:], X[1:]), X[1:] @ W.T
