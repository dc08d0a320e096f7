"""The update as a vector field over the synapses: a learned rule is not a gradient flow, as its field has curl.

If ΔW were the gradient of some function of the synapses, its Jacobian `∂ΔW_k/∂W_m` would be symmetric, as that of gradient
descent is.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 3.3, Fig. 2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from icl.blur.data import Examples
from icl.blur.genome import Genome
from icl.blur.rules import Rules, Synapses, learn
from icl.blur.states import transpose_synapses


class Curl(NamedTuple):
    """The antisymmetric part of the Jacobian J of an update.

    largest: max |J - Jᵀ|.
    relative: Frobenius norm of `J - Jᵀ` over that of J, from 0 (a gradient) to 2.
    """

    largest: Float[Any, ""]
    relative: Float[Any, ""]


def xor() -> tuple[Float[np.ndarray, "4 2"], Float[np.ndarray, "4 2"]]:
    """The four inputs ±1 of exclusive or, and their one-hot targets.

    Example:
        >>> xor()[1].argmax(axis=1).tolist()
        [0, 1, 1, 0]
    """
    x = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    return x, np.eye(2)[[0, 1, 1, 0]]


def corners(examples: int, rng: np.random.Generator, *, noise: float = 0.1) -> Examples:
    """The four inputs of `xor` with noise, each a class of its own: merged into two, they are functions of two inputs.

    Example:
        >>> x, y = corners(100, np.random.default_rng(0))
        >>> np.array_equal(np.sign(x), xor()[0][y.argmax(axis=1)])
        True
    """
    corner = rng.integers(0, 4, examples)
    x = xor()[0][corner] + noise * rng.normal(size=(examples, 2))
    return Examples(x.astype(np.float32), np.eye(4, dtype=np.float32)[corner])


def update_jacobian(
    genome: Genome, rules: Rules, synapses: Synapses, x: Float[Array, "B n_in"], y: Float[Array, "B n_out"]
) -> Float[Array, "w w"]:
    """`∂ΔW_k/∂W_m` over all forward synapses and biases, by forward differentiation, with V = Wᵀ throughout.

    Raises:
        ValueError: rules with separate backward synapses.

    Example:
        >>> from icl.blur import backprop_genome, init_synapses
        >>> rules, genome = Rules(states=2), backprop_genome(2)
        >>> def jacobian(key, x, y):
        ...     return update_jacobian(genome, rules, init_synapses(key, genome, rules, (2, 3, 2)), x, y)
        >>> jax.eval_shape(jacobian, jax.random.key(0), jnp.ones((4, 2), "f4"), jnp.ones((4, 2), "f4")).shape  # 2 (3 3 + 4 2)
        (34, 34)
    """
    if not rules.symmetric:
        raise ValueError("symmetric = False: backward synapses are separate variables; use rules with symmetric synapses")
    weights, unravel = ravel_pytree([synapse.W for synapse in synapses])

    def change(flat: Array) -> Array:
        moved = [old._replace(W=W, V=transpose_synapses(W)) for old, W in zip(synapses, unravel(flat), strict=True)]
        after, _ = learn(genome, rules, tuple(moved), x, y)
        return ravel_pytree([synapse.W for synapse in after])[0] - flat

    return jax.jacfwd(change)(weights)


def curl(jacobian: Float[Any, "w w"]) -> Curl:
    """Largest entry and relative norm of `J - Jᵀ`.

    Example:
        >>> symmetric, rotation = jnp.array([[1.0, 2.0], [2.0, 0.0]]), jnp.array([[0.0, 1.0], [-1.0, 0.0]])
        >>> float(curl(symmetric).largest), round(float(curl(rotation).relative), 6)
        (0.0, 2.0)
    """
    difference = jacobian - jacobian.T
    return Curl(jnp.max(jnp.abs(difference)), jnp.linalg.norm(difference) / jnp.linalg.norm(jacobian))
