"""Optimisers of optax by name, and schedules of the learning rate.

With the gradient g of step k, all operations elementwise:

    sgd         W -= η g
    momentum    M = α M + g;                W -= η M            (nesterov: evaluated one step ahead)
    adagrad     G += g²;                    W -= η g/√(G + ε)
    rmsprop     V = γ V + (1 - γ) g²;       W -= η g/√(V + ε)
    adadelta    the same V;                 W -= η RMS(ΔW) g/√(V + ε)
    adam        M, V exponential moving averages, each divided by 1 - β^k;   W -= η M/(√V + ε)
    nadam       adam with Nesterov momentum
    adamw       adam, and W -= η λ W (Loshchilov & Hutter 2019)

AdaDelta is Zeiler's (2012): the running RMS of previous updates gives updates the unit of W, so η = 1. Some lecture notes call
`W -= η M/√(V + ε)`, with M a moving average of the gradients, AdaDelta; that is Adam without bias correction.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

from jexplicit.nn.parts.names import look_up

Rate = float | jax.Array | optax.Schedule


def adagrad(rate: Rate, *, accumulator: float = 0.0, eps: float = 1e-30) -> optax.GradientTransformation:
    """Adagrad from G = 0: `G += g²; W -= η g/√(G + ε)`.

    ε is far below any g² and only prevents 0/0; optax has 1e-7.
    """
    return optax.adagrad(rate, initial_accumulator_value=accumulator, eps=eps)


_optimizers: dict[str, Callable[[Any, float, float], optax.GradientTransformation]] = {
    "sgd": lambda rate, momentum, decay: optax.sgd(rate),
    "momentum": lambda rate, momentum, decay: optax.sgd(rate, momentum),
    "nesterov": lambda rate, momentum, decay: optax.sgd(rate, momentum, nesterov=True),
    "adagrad": lambda rate, momentum, decay: adagrad(rate),
    "rmsprop": lambda rate, momentum, decay: optax.rmsprop(rate),
    "adadelta": lambda rate, momentum, decay: optax.adadelta(rate),
    "adam": lambda rate, momentum, decay: optax.adam(rate),
    "nadam": lambda rate, momentum, decay: optax.nadam(rate),
    "adamw": lambda rate, momentum, decay: optax.adamw(rate, weight_decay=decay),
}
_schedules: dict[str, Callable[[float, int], optax.Schedule]] = {
    "constant": lambda rate, steps: optax.constant_schedule(rate),
    "step": lambda rate, steps: optax.piecewise_constant_schedule(rate, {2 * steps // 3: 0.1}),
    "exponential": lambda rate, steps: optax.exponential_decay(rate, steps, 0.01),
    "linear": lambda rate, steps: optax.linear_schedule(rate, 0.0, steps),
    "cosine": optax.cosine_decay_schedule,
}


def optax_optimizer(name: str, rate: Rate) -> optax.GradientTransformation:
    """The optax optimiser `name`, if it needs only a learning rate."""
    W = jax.numpy.ones(1)
    try:
        optimizer = getattr(optax, name)(rate)
        optimizer.update(W, optimizer.init(W), W)
    except (AttributeError, TypeError, ValueError) as error:
        remedy = "try adagrad, sgd, adam or rmsprop"
        raise ValueError(f"optimizer {name!r}: optax has no plain optimiser of this name; {remedy}") from error
    return optimizer


def make_optimizer(name: str, rate: Rate, *, momentum: float = 0.9, weight_decay: float = 0.02) -> optax.GradientTransformation:
    """The optimiser `name` of the table above.

    rate: η, a number (possibly traced, so that a grid of rates can be vmapped) or a schedule (see `make_schedule`).
    momentum: α of momentum and nesterov. weight_decay: λ of adamw.
    """
    return look_up("optimizer", _optimizers, name)(rate, momentum, weight_decay)


def make_schedule(name: str, rate: float, steps: int) -> optax.Schedule:
    """The learning rate by step, from `rate` at the first of `steps`.

    name: constant; step: a tenth after two thirds of the steps; exponential: to rate/100; linear, cosine: to 0.
    """
    if not 0 < rate < float("inf") or steps < 1:
        raise ValueError(f"learning rate {rate} over {steps} steps: both must be positive")
    return look_up("schedule", _schedules, name)(rate, steps)
