"""The cost of an update: the floating-point operations (FLOPs) of its matrix products, 2 m n k for [m, k] by [k, n].

Products are counted in the traced program, those of a loop as often as it runs. A compiler's own count (`cost_analysis`) has
one iteration of each loop, but the ridge update has eight of conjugate gradients. What is not counted, such as activations and
normalisations, adds 4 % to plain gradient descent and 10 % to the rule `digits`, in a network 64-32-10 with minibatches of 64.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params

from icl.blur.baselines import descent_curve, initial_layers
from icl.blur.data import Examples
from icl.blur.design import Rules
from icl.blur.genome import Genome
from icl.blur.learning import learning_curve
from icl.blur.rules import init_synapses
from jexplicit.nn.optimizers import make_optimizer


def matrix_flops(function: Callable[..., Any], *args: Any) -> int:
    """FLOPs of the matrix products in one call.

    Raises:
        ValueError: a loop whose number of iterations is not known before it runs.

    Example:
        >>> matrix_flops(lambda A, B: A @ B, jnp.ones((2, 3)), jnp.ones((3, 5)))
        60
    """
    return _flops(jax.make_jaxpr(function)(*args).jaxpr)


def _flops(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            out: Any = equation.outvars[0].aval
            total += 2 * math.prod(out.shape) * math.prod(left.shape[axis] for axis in contracted)
        elif name == "while":
            raise ValueError("a loop whose number of iterations is not known before it runs: use jax.lax.scan")
        elif name == "custom_linear_solve":  # its other parts are for derivatives
            total += _flops(params["jaxprs"].solve.jaxpr)
        elif name == "cond":
            total += max(_flops(branch.jaxpr) for branch in params["branches"])
        else:
            total += params.get("length", 1) * sum(map(_flops, jaxprs_in_params(params)))
    return total


def rule_flops(genome: Genome, rules: Rules, sizes: tuple[int, ...], batch_size: int) -> int:
    """FLOPs of one update of a learner with neurons `sizes` = n_0 (inputs) .. n_L (outputs), on a minibatch."""
    synapses = init_synapses(jax.random.key(0), genome, rules, sizes)
    batch, train = _minibatch(sizes, batch_size)
    return matrix_flops(lambda synapses: learning_curve(genome, rules, synapses, batch, train, ()), synapses)


def descent_flops(sizes: tuple[int, ...], batch_size: int, *, normalised: bool = False) -> int:
    """FLOPs of one update of gradient descent in the same network: `2 B (3 Σ_l n_l n_{l+1} - n_0 n_1)` for B examples.

    Example:
        >>> descent_flops((64, 32, 10), 64) == 2 * 64 * (2 * 64 * 32 + 3 * 32 * 10)
        True
    """
    layers = initial_layers(jax.random.key(0), sizes, "tanh")
    batch, train = _minibatch(sizes, batch_size)
    optimizer = make_optimizer("sgd", 0.1)
    return matrix_flops(lambda layers: descent_curve(optimizer, layers, batch, train, (), normalised=normalised), layers)


def _minibatch(sizes: tuple[int, ...], batch_size: int) -> tuple[Any, Examples]:
    """One minibatch, which is all of the examples."""
    train = Examples(jnp.zeros((batch_size, sizes[0]), np.float32), jnp.zeros((batch_size, sizes[-1]), np.float32))
    return jnp.arange(batch_size)[None], train
