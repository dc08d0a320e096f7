"""The explicit solution layer by layer, by a forward pass only (paper, Sec. 3.3).

Every layer is solved for the same targets from its own inputs: `H⁽¹⁾ = H`, `U⁽ˡ⁾ = explicit(F(H⁽ˡ⁾, Y), K⁽ˡ⁾)`,
`H⁽ˡ⁺¹⁾ = φ⁽ˡ⁾(H⁽ˡ⁾ U⁽ˡ⁾)`. No layer depends on later layers, and the data pass through each layer once.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_targets, is_concrete
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number

PrimingNumber = float | Float[Array, ""]
Solver = Callable[[Float[Array, "M D"], Float[Array, "M N"], PrimingNumber], Float[Array, "D N"]]


def _explicit(H: Float[Array, "M D"], Y: Float[Array, "M N"], K: PrimingNumber) -> Float[Array, "D N"]:
    return explicit_solution(dense_cooccurrence(H, Y), K)


class SoftmaxLayer(NamedTuple):
    """The solver of one layer of a stack.

    K: priming number; default, the mean L1 norm of the layer's inputs, but at least 1 (the output of a softmax has norm 1).
    activation: φ from this layer's logits [.., N] to the next layer's inputs; it must not be negative.
    solve: `(H, Y, K) -> U`; default, the explicit solution.
    """

    K: float | None = None
    activation: Callable[[Array], Array] = jax.nn.softmax
    solve: Solver = _explicit


class StackSolution(NamedTuple):
    """The decoders U⁽¹⁾ .. U⁽ᴸ⁾ and their priming numbers."""

    params: tuple[Array, ...]
    K: tuple[PrimingNumber, ...]


@full_precision
def solve_layers(H: Float[Array, "M D"], Y: Float[Array, "M N"], layers: Sequence[SoftmaxLayer]) -> StackSolution:
    """The decoders of a stack of layers, each solved from its own inputs only.

    Args:
        H: [M, D] inputs of the first layer, at least 0.
        Y: [M, N] targets, one-hot or a distribution per row; or [M] labels.
        layers: from the input up.

    Raises:
        ValueError: no layer; a co-occurrence of 0 below the last layer; a negative or non-finite feature, K < 1, or an output
            that never occurs, in any layer. Under jit, vmap and grad values are not checked.

    Example:
        >>> H, Y = jnp.array([[2.0, 1.0], [1.0, 2.0]]), jnp.eye(2)
        >>> params, K = solve_layers(H, Y, [SoftmaxLayer(), SoftmaxLayer()])
        >>> [U.shape for U in params], [k.item() for k in K]
        ([(2, 2), (2, 2)], [3.0, 1.0])

    Source: paper, Sec. 3.3.
    """
    if not layers:
        raise ValueError("no layer to solve: give at least one SoftmaxLayer()")
    params, numbers, Y = [], [], as_targets(Y)
    for layer in layers:
        K = jnp.maximum(1, priming_number(H)) if layer.K is None else layer.K
        U = layer.solve(H, Y, K)
        params, numbers = [*params, U], [*numbers, K]
        if len(params) < len(layers):
            if is_concrete(U) and not bool(jnp.isfinite(U).all()):
                raise ValueError(
                    f"layer {len(params)} has weights that are not finite, as of co-occurrences of 0, and the next one no "
                    "inputs: make its features positive (jexplicit.features.unit_rows)"
                )
            H = layer.activation(H @ U)
    return StackSolution(tuple(params), tuple(numbers))


@functools.partial(jax.jit, static_argnames="activation")
@full_precision
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
    if not len(params):
        raise ValueError("no decoder: give at least one")
    for U in params[:-1]:
        H = activation(H @ U)
    return H @ params[-1]


def random_decoders(key: Array, inputs: int, outputs: int, layers: int, dtype=jnp.float32) -> tuple[Float[Array, "_ N"], ...]:
    """Random decoders of a stack of softmax layers, uniform in ±1/sqrt(n)."""
    sizes = [inputs] + [outputs] * (layers - 1)
    keys = jax.random.split(key, layers)
    return tuple(jax.random.uniform(k, (n, outputs), dtype, -(n**-0.5), n**-0.5) for k, n in zip(keys, sizes, strict=True))
