"""Regression tasks drawn by NumPy, which compiles nothing; laws of inputs as `icl.Tasks` names them, variance s = r²/12."""

import jax
import numpy as np

from icl import Sequence

LAWS = {
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
