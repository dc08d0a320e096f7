"""The delta-corrected exponent: the discount of frequent outputs in an explicit solution.

The solution weights output i by `w_i = f_i^((1 - K)/K)`, which assumes that mean co-occurrences are proportional to counts. If
they grow slightly faster, the paper expects `w_i = f_i^((1 - K - δ)/K)` to be better for some small δ > 0 (Sec. 2.2). This
subtracts δ log f_i from the logits of an example of norm K, so that

    L(δ) = (1/M) sum_m log sum_i exp(z[m, i] - δ u_m l_i) - (z[m, y_m] - δ u_m l_{y_m}),    u_m = ||H_m||_1/K,   l_i = log f_i

is convex in this one number, and at its minimum the mean of u l under the model is that of the targets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import scipy
from jaxtyping import Array, Float, Integer

from jexplicit.runs.devices import full_precision

_block = 256  # examples whose logits are in memory at once
_largest = 64.0  # bound of |δ|


class DeltaFit(NamedTuple):
    """δ, and the losses without and with it, nats per example."""

    delta: float
    first_loss: float
    loss: float


def fit_delta(
    logits: Callable[[Any], Float[Array, " N"]],
    X: Any,
    u: Float[Array, " M"],
    labels: Integer[Array, " M"],
    l: Float[Array, " N"],  # noqa: E741
) -> DeltaFit:
    """The δ with the lowest loss on M examples (paper, Sec. 2.2).

    X: [M, ...] examples. u: [M] their norms, relative to K; 1 for contexts of K tokens. labels: [M] correct outputs.
    l: [N] log f, up to a constant. Refuses no examples, and examples separated by l, which have no minimum within ±64.
    """
    if not len(labels):
        raise ValueError("no examples to fit delta on: give at least one")

    @jax.jit
    @full_precision
    def loss_and_slope(delta: Array) -> tuple[Array, Array]:
        def one(example: tuple[Any, Array, Array]) -> tuple[Array, Array]:
            x, u, y = example
            log_p = jax.nn.log_softmax(logits(x) - delta * u * l)
            return -log_p[y], u * (l[y] - jnp.exp(log_p) @ l)

        losses, slopes = jax.lax.map(one, (X, u, labels), batch_size=_block)
        return losses.mean(), slopes.mean()

    def slope(delta: float) -> float:
        return float(loss_and_slope(jnp.asarray(delta, l.dtype))[1])

    first = float(loss_and_slope(jnp.zeros((), l.dtype))[0])
    if float(l.max()) == float(l.min()):  # equally frequent outputs: the loss does not depend on δ
        return DeltaFit(0.0, first, first)
    width = 1.0
    while width <= _largest and slope(-width) * slope(width) >= 0:
        width *= 2
    if width > _largest:
        raise ValueError(f"no delta within ±{_largest:g} has the lowest loss: use more examples")
    delta = float(scipy.optimize.root_scalar(slope, bracket=(-width, width), xtol=1e-5).root)
    return DeltaFit(delta, first, float(loss_and_slope(jnp.asarray(delta, l.dtype))[0]))
