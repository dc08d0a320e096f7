"""The explicit solution layer by layer, with information that only flows forward (paper, Sec. 3.3).

Every layer is solved for the same targets from its own inputs: `H⁽¹⁾ = H`, `U⁽ˡ⁾ = explicit(F(H⁽ˡ⁾, Y), K⁽ˡ⁾)`,
`H⁽ˡ⁺¹⁾ = φ⁽ˡ⁾(H⁽ˡ⁾ U⁽ˡ⁾)`. No layer knows of the ones above it, and the data pass through each once.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.counts.dense import dense_cooccurrence
from jexplicit.solvers.explicit import explicit_solution, priming_number

Solver = Callable[[Float[Array, "M D"], Float[Array, "M N"], float], Float[Array, "D N"]]


def _explicit(H: Float[Array, "M D"], Y: Float[Array, "M N"], K: float) -> Float[Array, "D N"]:
    return explicit_solution(dense_cooccurrence(H, Y), K)


class Layer(NamedTuple):
    """A layer to be solved.

    K: priming number; default, the mean L1 norm of the layer's own inputs, but at least 1 (a softmax's output has norm 1).
    activation: φ, what the next layer reads of this one's logits [.., N]; it must not be negative.
    solve: `(H, Y, K) -> U`; default, the explicit solution.
    """

    K: float | None = None
    activation: Callable[[Array], Array] = jax.nn.softmax
    solve: Solver = _explicit


class Solved(NamedTuple):
    """The decoders U⁽¹⁾ .. U⁽ᴸ⁾ and the priming numbers that they were solved with."""

    params: tuple[Array, ...]
    K: tuple[float, ...]


def solve_layers(H: Float[Array, "M D"], Y: Float[Array, "M N"], layers: Sequence[Layer]) -> Solved:
    """The decoders of a stack of layers, each solved from its own inputs alone.

    Args:
        H: [M, D] inputs of the first layer, at least 0.
        Y: [M, N] targets, one-hot or a distribution per row.
        layers: from the input up.

    Raises:
        ValueError: no layer; a negative or non-finite feature, K < 1, an output that was never seen, in any layer.

    Example:
        >>> H, Y = jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.eye(2)
        >>> [U.shape for U in solve_layers(H, Y, [Layer(), Layer()]).params], solve_layers(H, Y, [Layer()]).K
        ([(2, 2), (2, 2)], (3.0,))

    Source: paper, Sec. 3.3.
    """
    if not layers:
        raise ValueError("no layer to solve: give at least one Layer()")
    params, numbers = [], []
    for layer in layers:
        K = max(1.0, float(priming_number(H))) if layer.K is None else layer.K
        U = layer.solve(H, Y, K)
        params, numbers = [*params, U], [*numbers, K]
        H = layer.activation(H @ U)
    return Solved(tuple(params), tuple(numbers))


def stack_logits(
    params: Sequence[Array], H: Float[Array, "... D"], activation: Callable[[Array], Array] = jax.nn.softmax
) -> Float[Array, "... N"]:
    """Logits of the last layer, `φ(... φ(H U⁽¹⁾) ...) U⁽ᴸ⁾`, in nats.

    Args:
        params: decoders, each [inputs, outputs] of its layer, from the input up.
        H: [.., D] inputs of the first layer.
        activation: φ, between layers.

    Example:
        >>> stack_logits([jnp.eye(2), 3 * jnp.eye(2)], jnp.zeros((1, 2))).tolist()
        [[1.5, 1.5]]
    """
    for U in params[:-1]:
        H = activation(H @ U)
    return H @ params[-1]


def accuracy(logits: Float[Array, "M N"], labels: Array) -> float:
    """The share of rows whose largest logit is that of their label.

    Example:
        >>> accuracy(jnp.array([[0.0, 1.0], [0.0, 1.0]]), jnp.array([0, 1]))
        0.5
    """
    guesses = jnp.argmax(logits, axis=1)
    return float(jnp.mean((guesses == jnp.asarray(labels, guesses.dtype)).astype(logits.dtype)))
