"""Optimisers of optax by name, and cooling schedules of their learning rate.

With the gradient g of step k, all operations elementwise:

    sgd         W -= η g
    momentum    M = α M + g;                W -= η M            (nesterov: looks one step ahead)
    adagrad     G += g²;                    W -= η g/√(G + ε)
    rmsprop     V = γ V + (1 - γ) g²;       W -= η g/√(V + ε)
    adadelta    the same V;                 W -= η RMS(ΔW) g/√(V + ε)
    adam        M, V decaying means, each divided by 1 - β^k;   W -= η M/(√V + ε)
    nadam       adam with Nesterov's look ahead
    adamw       adam, and W -= η λ W (Loshchilov & Hutter 2019)

AdaDelta is Zeiler's (2012): the running RMS of its own updates gives them the unit of W, so that η = 1. Lecture slides at times
write `W -= η M/√(V + ε)` under that name, with M a decaying mean of the gradients: that is Adam without its division by
1 - β^k, and another method.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import optax

OptimizerName = Literal["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adadelta", "adam", "nadam", "adamw"]
CoolingName = Literal["constant", "step", "exponential", "linear", "cosine"]
Rate = float | jax.Array | optax.Schedule

_optimizers: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "nesterov": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    # Duchi's sum starts at 0 and optax's at 0.1; eps is far below any square of a gradient and only guards against 0/0
    "adagrad": lambda rate: optax.adagrad(rate, initial_accumulator_value=0.0, eps=1e-30),
    "rmsprop": lambda rate: optax.rmsprop(rate, decay=0.9),
    "adadelta": lambda rate: optax.adadelta(rate, rho=0.9),
    "adam": optax.adam,
    "nadam": optax.nadam,
}
OPTIMIZERS: tuple[OptimizerName, ...] = (
    "sgd",
    "momentum",
    "nesterov",
    "adagrad",
    "rmsprop",
    "adadelta",
    "adam",
    "nadam",
    "adamw",
)
COOLINGS: tuple[CoolingName, ...] = ("constant", "step", "exponential", "linear", "cosine")


def make_optimizer(name: str, rate: Rate, *, weight_decay: float = 0.02) -> optax.GradientTransformation:
    """The optimiser of a name, on the gradient of a batch's mean loss.

    Args:
        name: one of OPTIMIZERS.
        rate: η, a number (traced too, so that a grid of rates can be vmapped) or a schedule (see `cooled`).
        weight_decay: λ of adamw.

    Raises:
        ValueError: another name.

    Example:
        >>> optimizer = make_optimizer("sgd", 0.5)
        >>> optimizer.update(jax.numpy.ones(1), optimizer.init(jax.numpy.zeros(1)))[0].item()
        -0.5
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")
    return optax.adamw(rate, weight_decay=weight_decay) if name == "adamw" else _optimizers[name](rate)


def cooled(name: str, rate: float, steps: int) -> optax.Schedule:
    """The learning rate by step: constant, a tenth after two thirds, or down to a hundredth or to 0 at the end.

    Args:
        name: step divides by 10 after two thirds of the steps; exponential ends at rate/100; linear and cosine end at 0.
        rate: η at the first step, above 0.
        steps: of the whole run.

    Raises:
        ValueError: another name; a rate or a number of steps that is not above 0.

    Example:
        >>> schedule = cooled("linear", 0.4, 100)
        >>> [round(float(schedule(k)), 2) for k in (0, 50, 100)]
        [0.4, 0.2, 0.0]
    """
    if not 0 < rate < float("inf") or steps < 1:
        raise ValueError(f"learning rate {rate} over {steps} steps: both are above 0")
    if name == "constant":
        return optax.constant_schedule(rate)
    if name == "step":
        return optax.piecewise_constant_schedule(rate, {2 * steps // 3: 0.1})
    if name == "exponential":
        return optax.exponential_decay(rate, steps, 0.01)
    if name == "linear":
        return optax.linear_schedule(rate, 0.0, steps)
    if name == "cosine":
        return optax.cosine_decay_schedule(rate, steps)
    raise ValueError(f"cooling {name!r}: choose one of {', '.join(COOLINGS)}")
