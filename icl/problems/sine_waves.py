"""Nonlinear regression in context: descent on features of an MLP.

    e = E (x, y),    φ = e + MLP(e),    ŷ = -(last channel of φ_q after layers of linear attention on φ)

The last channel is `y - f(x)`. The prediction before the layers, `-φ_q[-1]`, is thus a function of the query alone, which
attention corrects by the context. In the *control* the layers are not trained: each is one step of gradient descent on the
other channels, and only the features are learned. *Ridge* replaces these steps by their limit, on the same features.

Source: von Oswald et al. 2023, Sec. 3, 4 and App. A.12.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icl.draws import draw, truncated_std, truncated_weights
from icl.models.attention import AttentionLayer, init_layers, transform_batch
from icl.models.constructions import descent_layers
from icl.tasks import QueryLoss, Sequence, vmap_tasks
from jexplicit.runs.devices import full_precision


@dataclasses.dataclass(frozen=True)
class Waves:
    """A distribution of tasks `y = a sin(x + p)`.

    context: N, pairs in the context.
    input_range: x ~ U(-r/2, r/2).
    amplitude: bounds of the uniform amplitude a. The paper's code has 0.1 to 0.5, its text 0.1 to 5.
    independent: whether a and p ~ U(0, π) are independent, as in the paper's text. Its code computes both from one random
        number, so that a task has a single unknown.
    """

    context: int = 10
    input_range: float = 10.0
    amplitude: tuple[float, float] = (0.1, 0.5)
    independent: bool = False

    def __post_init__(self):
        low, high = self.amplitude
        if self.context < 1 or not self.input_range > 0 or not 0 <= low <= high:
            raise ValueError(
                f"context {self.context}, input range {self.input_range}, amplitude {self.amplitude}: "
                "use at least one pair, a range above 0, and amplitudes 0 <= low <= high"
            )

    def sample(self, key: Array, *batch: int, dtype: Any = None) -> Sequence:
        """Fresh tasks, batch last."""
        return _sample_waves(key, self, batch, jnp.dtype(dtype or jnp.zeros(()).dtype))


class Encoder(NamedTuple):
    """The feature map of tokens: the embedding E and a residual MLP.

    E: [C, 2]; W1: [H, C]; b1: [H]; W2: [C, H]; b2: [C].
    """

    E: Float[Array, "*seeds C 2"]
    W1: Float[Array, "*seeds H C"]
    b1: Float[Array, "*seeds H"]
    W2: Float[Array, "*seeds C H"]
    b2: Float[Array, "*seeds C"]


class Network(NamedTuple):
    """An encoder and layers of attention, None for the control."""

    encoder: Encoder
    attention: AttentionLayer | None


class WavePredictions(NamedTuple):
    """Predictions [1, batch] before and after attention."""

    initial: Float[Array, "1 batch"]
    final: Float[Array, "1 batch"]


@dataclasses.dataclass(frozen=True)
class NonlinearRegression(QueryLoss):
    """Networks on sine tasks: a problem for `icl.train_layers`.

    tasks: their distribution.
    eta: η of the control's steps.
    depth: number of layers of attention, or of the control's steps. A single layer is applied repeatedly.
    """

    tasks: Waves
    eta: float = 0.1
    depth: int = 1

    def predict(self, params: Network, batch: Sequence) -> Float[Array, "1 batch"]:
        """Predictions after attention."""
        return predict_waves(params, batch, eta=self.eta, depth=self.depth).final


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _sample_waves(key: Array, waves: Waves, batch: tuple[int, ...], dtype: Any) -> Sequence:
    key_x, key_a, key_p = jax.random.split(key, 3)
    low, high = waves.amplitude
    u = jax.random.uniform(key_a, batch, dtype)
    a, p = low + (high - low) * u, jnp.pi * (jax.random.uniform(key_p, batch, dtype) if waves.independent else u)
    x = waves.input_range * draw(
        jax.random.uniform, key_x, (waves.context + 1, 1, *batch), dtype=dtype, minval=-0.5, maxval=0.5
    )
    y = a[None, None] * jnp.sin(x + p[None, None])
    return Sequence(x[:-1], y[:-1], x[-1], y[-1])


def init_network(
    key: Array, *, channels: int = 40, hidden: int = 160, scale: float = 0.002, layers: int = 1, dtype: Any = None
) -> Network:
    """Random weights of variance scale / fan-in, biases 0; no layers for controls."""
    if channels < 2 or min(hidden, layers + 1) < 1 or not scale > 0:
        sizes = f"{channels} channels, {hidden} hidden units, {layers} layers, scale {scale}"
        raise ValueError(f"{sizes}: use at least 2 channels, 1 hidden unit and 0 layers, and a positive scale")
    dtype = jnp.dtype(dtype or jnp.zeros(()).dtype)
    *keys, last = jax.random.split(key, 4)
    encoder = _init_encoder(keys, channels, hidden, [truncated_std(scale / n, dtype) for n in (2, channels, hidden)], dtype)
    return Network(encoder, init_layers(last, channels, layers=layers, scale=scale, dtype=dtype) if layers else None)


@functools.partial(jax.jit, static_argnums=(1, 2, 4))
def _init_encoder(keys: list[Array], channels: int, hidden: int, stds: Any, dtype: Any) -> Encoder:
    shapes = (channels, 2), (hidden, channels), (channels, hidden)
    E, W1, W2 = (truncated_weights(*of_layer, dtype) for of_layer in zip(keys, shapes, stds, strict=True))
    return Encoder(E, W1, jnp.zeros(hidden, dtype), W2, jnp.zeros(channels, dtype))


@full_precision
def features(encoder: Encoder, tokens: Float[Array, "2 n batch"]) -> Float[Array, "C n batch"]:
    """`φ = e + MLP(e)` of tokens `e = E (x, y)`."""
    E, W1, b1, W2, b2 = encoder
    e = jnp.einsum("ij,jnb->inb", E, tokens)
    h = jax.nn.gelu(jnp.einsum("he,enb->hnb", W1, e) + b1[:, None, None])
    return e + jnp.einsum("eh,hnb->enb", W2, h) + b2[:, None, None]


def encode(encoder: Encoder, batch: Sequence) -> tuple[Float[Array, "C N batch"], Float[Array, "C 1 batch"]]:
    """The features of a batch's context, and of its queries with y = 0."""
    context = jnp.stack([batch.X[:, 0], batch.Y[:, 0]])
    query = jnp.stack([batch.x_q, jnp.zeros_like(batch.y_q)])
    return features(encoder, context), features(encoder, query)


def predict_waves(params: Network, batch: Sequence, *, eta: Any = 0.1, depth: int = 1) -> WavePredictions:
    """Predictions before and after the layers, or the control's steps of descent."""
    context, query = encode(params.encoder, batch)
    C, N = context.shape[:2]
    layers = params.attention or descent_layers(C - 1, N, eta, dtype=context.dtype)
    return WavePredictions(-query[-1], -transform_batch(layers, context, query, depth=depth)[-1])


@full_precision
def ridge_on_features(encoder: Encoder, batch: Sequence, penalty: Any) -> Float[Array, "1 batch"]:
    """Ridge regression on the features: the limit of descent by layers.

    ŷ = -φ_q[-1] - rᵀ (Φ Φᵀ + penalty I)⁻¹ Φ φ_q,    Φ: the context's other channels, r: its last channel
    """

    def one(context: Array, query: Array) -> Array:
        phi, r = context[:-1], context[-1]
        K = phi.T @ phi + penalty * jnp.eye(len(r), dtype=r.dtype)
        return -query[-1] + r @ jnp.linalg.solve(K, phi.T @ query[:-1])

    return vmap_tasks(one)(*encode(encoder, batch))
