"""Tasks, weights and examples of NumPy, which compile nothing, and the comparison of a sample's mean with an expectation."""

from typing import Any

import jax
import numpy as np

from icl import Sequence
from icl.attention import AttentionLayer
from icl.blur.learning import Examples

LAWS = {  # of inputs, as `icl.Tasks` names them, of variance 1
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "normal": lambda rng, shape: rng.normal(size=shape),
    "laplace": lambda rng, shape: rng.laplace(scale=0.5**0.5, size=shape),
}


def task(
    seed: int = 0,
    dim: int = 4,
    context: int = 6,
    outputs: int = 2,
    batch: tuple[int, ...] = (),
    *,
    inputs: str = "uniform",
    input_range: float = 2.0,
    weight_scale: float = 1.0,
    noise: float = 0.0,
) -> Sequence:
    """One sequence, or a batch of them, batch last."""
    rng = np.random.default_rng(seed)
    X, x_q = ((input_range**2 / 12) ** 0.5 * LAWS[inputs](rng, (*n, dim, *batch)) for n in ((context,), ()))
    W = weight_scale * rng.normal(size=(outputs, dim, *batch))
    Y, y_q = np.einsum("nd...,md...->nm...", X, W), np.einsum("md...,d...->m...", W, x_q)
    return Sequence(*map(jax.device_put, (X, Y + noise * rng.normal(size=Y.shape), x_q, y_q)))


def arrays(one: Sequence) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, Y and x_q."""
    return np.asarray(one.X), np.asarray(one.Y), np.asarray(one.x_q)


def ones_of(batch: Sequence) -> list[Sequence]:
    """The sequences of a batch."""
    return [Sequence(*(jax.device_put(np.asarray(leaf)[..., n]) for leaf in batch)) for n in range(batch.y_q.shape[-1])]


def random_layers(seed: int, width: int, *stack: int, scale: float = 0.5) -> AttentionLayer:
    """Weights of variance scale / width; the last axis of the stack is that of heads."""
    weights = np.random.default_rng(seed).normal(size=(4, *stack, width, width)) * (scale / width) ** 0.5
    return AttentionLayer(*map(jax.device_put, weights))


def heads_of(layers: AttentionLayer, n: int) -> list[tuple[np.ndarray, ...]]:
    """The heads of layer n, as the loops take them."""
    return [tuple(np.asarray(W)[n, h] for W in layers) for h in range(layers.P.shape[1])]


def two_classes(examples: int = 40, seed: int = 0, dtype: Any = np.float32) -> Examples:
    """Two classes in three dimensions that a line almost parts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(examples, 3))
    labels = (X[:, 0] + 0.3 * rng.normal(size=examples) > 0).astype(int)
    return Examples(X.astype(dtype), np.eye(2, dtype=dtype)[labels])


def within_error(losses: np.ndarray | jax.Array, expected: Any, errors: float = 4) -> bool:
    """Whether a mean of independent losses is within so many standard errors; 4 fail by chance once in 16,000."""
    losses = np.asarray(losses)
    return bool(abs(losses.mean() - float(expected)) <= errors * losses.std() / np.sqrt(len(losses)))
