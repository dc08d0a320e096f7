"""A learned rule is not a gradient flow: the update, as a field over the synapses, has curl.

If ΔW were the gradient of any function of the synapses, its Jacobian `∂ΔW_k/∂W_m` would be symmetric. Gradient descent's is.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 3.3, Fig. 2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from icl.blur.genome import Genome
from icl.blur.rules import Rules, Synapse, Synapses, learn


class Curl(NamedTuple):
    """How far the Jacobian J of an update is from symmetric.

    largest: max |J - Jᵀ|.
    relative: Frobenius norm of `J - Jᵀ` over that of J, from 0 (a gradient) to 2.
    """

    largest: float
    relative: float


def xor() -> tuple[Float[np.ndarray, "4 2"], Float[np.ndarray, "4 2"]]:
    """The four inputs ±1 of exclusive or, and one-hot answers.

    Example:
        >>> xor()[1].argmax(axis=1).tolist()
        [0, 1, 1, 0]
    """
    x = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    return x, np.eye(2)[[0, 1, 1, 0]]


def update_jacobian(
    genome: Genome, rules: Rules, synapses: Synapses, x: Float[Array, "B n_in"], y: Float[Array, "B n_out"]
) -> Float[Array, "w w"]:
    """`∂ΔW_k/∂W_m` of all forward synapses and biases, by forward differentiation. Symmetric synapses turn with them.

    Raises:
        ValueError: rules with backward synapses of their own.
    """
    if not rules.symmetric:
        raise ValueError("symmetric = False: backward synapses are variables of their own; use rules with symmetric synapses")
    first, unravel = ravel_pytree([synapse.W for synapse in synapses])

    def change(flat: Array) -> Array:
        moved = tuple(Synapse(W, jnp.matrix_transpose(W[:, :-1])) for W in unravel(flat))
        after, _ = learn(genome, rules, moved, x, y)
        return ravel_pytree([synapse.W for synapse in after])[0] - flat

    return jax.jacfwd(change)(first)


def curl(jacobian: Float[Any, "w w"]) -> Curl:
    """Max and relative size of `J - Jᵀ`.

    Example:
        >>> curl(jnp.array([[1.0, 2.0], [2.0, 0.0]])).largest, round(curl(jnp.array([[0.0, 1.0], [-1.0, 0.0]])).relative, 6)
        (0.0, 2.0)
    """
    turned = jacobian - jacobian.T
    return Curl(float(jnp.max(jnp.abs(turned))), float(jnp.linalg.norm(turned) / jnp.linalg.norm(jacobian)))
