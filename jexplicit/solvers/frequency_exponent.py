"""The delta-corrected exponent: how strongly an explicit solution should discount frequent outputs.

The solution weighs output i by `w_i = f_i^((1 - K)/K)`, which assumes that mean co-occurrences grow exactly as counts. If they
grow a little faster, the paper expects `w_i = f_i^((1 - K - δ)/K)` to be better for some small δ > 0 (Sec. 2.2). It takes
δ log f_i from the logits of an example of norm K, so that

    L(δ) = (1/M) sum_m log sum_i exp(z[m, i] - δ u_m l_i) - (z[m, y_m] - δ u_m l_{y_m}),    u_m = ||H_m||_1/K,   l_i = log f_i

is convex in this one number, and at its minimum the mean of u l under the model is that of the targets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import scipy.optimize
from jaxtyping import Array, Float, Integer

from jexplicit.runs.devices import full_precision

_block = 256  # examples whose logits are in memory at once
_largest = 64.0  # of |δ|


class DeltaFit(NamedTuple):
    """δ, and the loss without and with it, nats per example."""

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
    """The δ with the lowest loss on these examples.

    Args:
        logits: `x -> z` of the explicit solution, one example.
        X: [M, ...] examples.
        u: [M] their norms, relative to K; 1 for contexts of K tokens.
        labels: [M] the right outputs.
        l: [N] log f, any constant added.

    Raises:
        ValueError: no examples; or no minimum within ±64, as for examples that l separates.

    Example:
        >>> l, labels = jnp.array([0.0, 1.0]), jnp.array([0, 1, 1, 1])  # three of four: log odds of log 3 = -δ
        >>> fit = fit_delta(lambda x: x, jnp.zeros((4, 2)), jnp.ones(4), labels, l)
        >>> round(fit.delta, 3)
        -1.099

    Source: paper, Sec. 2.2.
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
    if float(l.max()) == float(l.min()):  # all outputs are as frequent: δ changes nothing
        return DeltaFit(0.0, first, first)
    width = 1.0
    while width <= _largest and slope(-width) * slope(width) >= 0:
        width *= 2
    if width > _largest:
        raise ValueError(f"no delta within ±{_largest:g} has the lowest loss: use more examples")
    delta = float(scipy.optimize.root_scalar(slope, bracket=(-width, width), xtol=1e-5).root)
    return DeltaFit(delta, first, float(loss_and_slope(jnp.asarray(delta, l.dtype))[0]))
