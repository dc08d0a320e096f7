"""Random weights that preserve the scale of activations through a network, by name and activation.

With i.i.d. weights of mean 0 and inputs of mean square s, a pre-activation `z_i = sum_j W_ij a_j` has the variance
`n_in s Var[W]`. Choices of Var[W], where g is the gain of the activation:

    Glorot    g² 2/(n_in + n_out)    a compromise between forward and backward pass
    He        g²/n_in                preserves the forward pass
    backward  g²/n_out               preserves the backward pass
    fan_in    1/(3 n_in)             U(±1/√n_in) for any activation, which Glorot & Bengio (2010, Fig. 7) start from: too small
    standard  c/n_in                 with c E[φ(z)²] = 1 for z ~ N(0, 1), so that E[φ(z)²] is the same in every layer

A uniform law on ±b has variance b²/3. Weights of zero never train (see `initializer`).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.nn.initializers import variance_scaling, zeros
from jaxtyping import Array

from jexplicit.nn.activations import ACTIVATIONS
from jexplicit.nn.names import look_up

GAINS: dict[str, float] = {
    "linear": 1.0,
    "tanh": 1.0,
    "sigmoid": 4.0,
    "relu": math.sqrt(2),
    "relu_tanh": math.sqrt(2),
    "leaky_relu": math.sqrt(2 / (1 + 0.01**2)),
    "silu": math.sqrt(2),
}
"""g multiplies the standard deviation: a sigmoid has slope 1/4 near 0, a ReLU drops half of its input. Some tables give 5/3 for
tanh, to compensate for its flat ends in deep stacks."""

_schemes: dict[str, Any] = {  # the mode and the law of `variance_scaling`
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
    """The distribution of a layer's weights, `(key, shape, dtype) -> W` with shape [n_in, n_out], from jax.nn.initializers.

    With `zeros`, a network of two or more layers without biases never moves: every gradient has a factor of zero
    (Radhakrishnan 2024, Lemma 1).

    Args:
        name: of the scheme.
        activation: what follows the layer; it determines the gain g, or c of the standard scheme.

    Raises:
        ValueError: unknown name, or an activation without a gain.

    Example:
        >>> W = initializer("he_normal", "relu")(jax.random.key(0), (400, 300), np.float32)
        >>> round(float(W.var()) * 400, 1)  # g² = 2
        2.0

    Source: Glorot & Bengio 2010; He et al. 2015.
    """
    mode, law = look_up("initializer", _schemes, name)
    gain = look_up("activation", GAINS, activation)
    if name == "zeros":
        return zeros
    scale = standard_scale(activation) if name == "standard" else 1 / 3 if name == "fan_in_uniform" else gain**2
    return variance_scaling(scale, mode, law)


@functools.cache
def standard_scale(activation: str) -> float:
    """c of the standard scheme, `1 / E[φ(z)²]` for z ~ N(0, 1), by Gauss-Hermite quadrature.

    The lecture has N(0, c/k_i) for W⁽ⁱ⁾ [k_i, k_{i-1}]. For layers of equal width that is c/n_in; for other widths only c/n_in
    preserves the scale.

    Example:
        >>> round(standard_scale("relu"), 6), round(standard_scale("tanh"), 3)
        (2.0, 2.536)
    """
    z, weight = np.polynomial.hermite_e.hermegauss(100)
    with jax.ensure_compile_time_eval():  # a number even when a network is initialised under jit
        square = np.asarray(ACTIVATIONS[activation](jax.numpy.asarray(z)), np.float64) ** 2
    return float(weight.sum() / (weight @ square))
