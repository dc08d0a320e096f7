"""Random weights that preserve the scale of activations, by name.

With i.i.d. weights of mean 0 and inputs of mean square s, a pre-activation `z_i = sum_j W_ij a_j` has the variance
`n_in s Var[W]`. Choices of Var[W], where g is the gain of the activation:

    Glorot    g² 2/(n_in + n_out)    a compromise between forward and backward pass
    He        g²/n_in                preserves the forward pass
    backward  g²/n_out               preserves the backward pass
    fan_in    1/(3 n_in)             U(±1/√n_in) for any activation, the baseline of Glorot & Bengio (2010, Fig. 7): too small
    standard  c/n_in                 with c E[φ(z)²] = 1 for z ~ N(0, 1), so that E[φ(z)²] is the same in every layer

A uniform distribution on ±b has variance b²/3. Zero weights never train (see `initializer`).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.nn.initializers import variance_scaling, zeros
from jaxtyping import Array

from jexplicit.nn.parts.activations import ACTIVATIONS
from jexplicit.nn.parts.names import look_up

GAINS: dict[str, float] = {
    "linear": 1.0,
    "tanh": 1.0,
    "sigmoid": 4.0,
    "relu": math.sqrt(2),
    "relu_tanh": math.sqrt(2),
    "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    "silu": math.sqrt(2),
}
"""Factors g of the standard deviation: a sigmoid has slope 1/4 near 0, a ReLU drops half of its input. Some tables give 5/3 for
tanh, to compensate for its flat ends in deep stacks."""

_schemes: dict[str, Any] = {  # mode and distribution of `variance_scaling`
    "glorot_normal": ("fan_avg", "normal"),  # 2/(n_in + n_out) is one over their mean
    "glorot_uniform": ("fan_avg", "uniform"),
    "he_normal": ("fan_in", "normal"),
    "he_uniform": ("fan_in", "uniform"),
    "backward_normal": ("fan_out", "normal"),
    "fan_in_uniform": ("fan_in", "uniform"),
    "standard": ("fan_in", "normal"),
    "zeros": ("fan_in", "normal"),
}


def initializer(name: str, activation: str) -> Callable[..., Array]:
    """The distribution of a layer's weights, `(key, shape, dtype) -> W`.

    With `zeros`, a network of two or more layers without biases never trains: every gradient has a factor of zero
    (Radhakrishnan 2024, Lemma 1). Source: Glorot & Bengio 2010; He et al. 2015.
    """
    mode, law = look_up("initializer", _schemes, name)
    gain = look_up("activation", GAINS, activation)
    if name == "zeros":
        return zeros
    scale = standard_scale(activation) if name == "standard" else 1 / 3 if name == "fan_in_uniform" else gain**2
    return variance_scaling(scale, mode, law)


@functools.cache
def standard_scale(activation: str) -> float:
    """c of the standard scheme, `1 / E[φ(z)²]` for z ~ N(0, 1).

    The lecture has N(0, c/k_i) for W⁽ⁱ⁾ [k_i, k_{i-1}]. For layers of equal width this is c/n_in; for other widths only c/n_in
    preserves the scale.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(100)
    with jax.ensure_compile_time_eval():  # a concrete number even under jit
        square = np.asarray(ACTIVATIONS[activation](jax.numpy.asarray(z)), np.float64) ** 2
    return float(weight.sum() / (weight @ square))
