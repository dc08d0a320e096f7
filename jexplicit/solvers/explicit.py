"""The explicit solution of softmax layers (paper, Eq. 2, 3, 5; Sec. 3.3).

With F = HᵀY, the layer's co-occurrences, and the priming number K, the L1 norm of its inputs,

    U[j, i] = log F[j, i] - (K - 1)/K log(sum_d F[d, i]).

This is naive Bayes in closed form: for K unit-norm features `sum_d F[d, i] = K f_i`, and the logit of output i is
`log(f_i * prod_k P(x_k | i))` up to a constant. At K = 1 it is the exact optimum, the conditional relative frequencies;
for K > 1 it approximates the optimum of a convex problem.

Several layers take a forward pass only (Sec. 3.3). Every layer is solved for the same targets from its own inputs: `H⁽¹⁾ = H`,
`U⁽ˡ⁾ = explicit(F(H⁽ˡ⁾, Y), K⁽ˡ⁾)`, `H⁽ˡ⁺¹⁾ = φ⁽ˡ⁾(H⁽ˡ⁾ U⁽ˡ⁾)`. No layer depends on later layers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, Num

from jexplicit.runs.checks import as_float, as_targets, check_labels_of, checked, is_concrete, labels_are_fine
from jexplicit.runs.devices import full_precision

_added = 1 << 20  # rows that are added one by one: a sum of ones in float32 ends at 2^24


@checked(lambda F, K: check_cooccurrences(F, K))
def explicit_solution(F: Any, K: float | Num[Array, ""]) -> Any:
    """The decoder U of a softmax layer `softmax(H U)`, from co-occurrences alone.

    `U[j, i] = log F[j, i] - (K - 1)/K log(sum_d F[d, i])`. A zero co-occurrence gives -inf: smooth the counts first
    (jexplicit.lm.core.smoothing) if such a pair can occur at test time. A feature that is always 0 has weight 0.

    Args:
        F: [D, N] co-occurrences HᵀY, or a tuple of blocks of its rows [D_k, N] (one block per offset, for Cat features).
        K: priming number, the (mean) L1 norm of the features, at least 1.

    Returns:
        U, of the same shape and structure as F; logits are `H @ U`, in nats.

    Raises:
        ValueError: K < 1; no co-occurrences, or a negative, infinite or NaN one; an output that never occurs. Under jit, vmap
            and grad nothing is checked.

    Example:
        >>> U = explicit_solution(jnp.array([[3.0, 1.0], [1.0, 1.0]]), K=1)
        >>> np.exp(U).round(3).tolist()
        [[3.0, 1.0], [1.0, 1.0]]

    Source: paper, theorem of Sec. 2.1 with the sign of Eq. 3, 5 and 14.
    """
    F = jax.tree.map(as_float, F)
    column = column_sums(F)
    return jax.tree.map(lambda block: _solve(block, column, K), F)


def check_cooccurrences(F: Any, K: float | Num[Array, ""]) -> None:
    """Refuse K < 1, bad co-occurrences, and an output that never occurs."""
    if wrong := [x for x in jax.tree.leaves(F) if getattr(x, "ndim", 0) != 2 or not isinstance(x, Array | np.ndarray)]:
        kind = f"array {wrong[0].shape}" if isinstance(wrong[0], Array | np.ndarray) else type(wrong[0]).__name__
        raise ValueError(f"co-occurrences with {kind}: give an array [D, N], or a tuple of such blocks")
    if not isinstance(K, int | float | Array | np.ndarray | np.number) or jnp.ndim(K) or not 1 <= K < jnp.inf:
        given = f"{type(K).__name__} of shape {jnp.shape(K)}" if jnp.shape(K) else repr(K)
        raise ValueError(f"priming number K = {given}: it is the features' L1 norm and at least 1; rescale the features")
    F = jax.tree.map(as_float, F)
    if not sum(block.size for block in jax.tree.leaves(F)):
        raise ValueError("no co-occurrences: give a table [D, N] of at least one feature and one output")
    column = column_sums(F)
    lowest = float(np.min([float(block.min()) for block in jax.tree.leaves(F)]))  # NaN if any block has a NaN
    if not lowest >= 0 or not bool(jnp.isfinite(column).all()):
        wrong = lowest if not lowest >= 0 else float(column.max())
        raise ValueError(f"co-occurrences with the value {wrong}: they come from features >= 0 without NaN or infinity")
    if not float(column.min()) > 0:
        raise ValueError(
            f"output {int(column.argmin())} never occurs, so its column has no logarithm: "
            "drop the output or give it a count (jexplicit.lm.core.smoothing.with_unseen_outputs)"
        )


def column_sums(F: Any) -> Float[Array, " N"]:
    """`sum_d F[d, i]` over the rows of all blocks."""
    return functools.reduce(jnp.add, [jnp.sum(block, axis=0) for block in jax.tree.leaves(F)])


def dense_cooccurrence(
    H: Float[Array, "M D"], Y: Float[Array, "M N"] | Integer[Array | np.ndarray, " M"], outputs: int | None = None
) -> Float[Array, "D N"]:
    """`F = HᵀY` for numeric features, or sums of features by label.

    Args:
        H: [M, D] features, non-negative and finite.
        Y: [M, N] targets, one-hot or a distribution per row; or [M] labels 0 .. N - 1.
        outputs: N, where Y are labels; default, the highest label and one. Under jit it is needed, and static.

    Raises:
        ValueError: no examples, unequal numbers of them, a negative or non-finite feature or target, a label that is no output;
            under jit, vmap and grad only shapes are checked.

    Example:
        >>> dense_cooccurrence(jnp.array([[1.0, 2.0], [3.0, 0.0]]), jnp.eye(2)).tolist()
        [[1.0, 3.0], [2.0, 0.0]]
        >>> dense_cooccurrence(jnp.array([[1.0, 2.0], [3.0, 0.0]]), jnp.array([1, 1])).tolist()
        [[0.0, 4.0], [0.0, 2.0]]

    Source: paper, Eq. 2.
    """
    labels = jnp.ndim(Y) == 1 and jnp.issubdtype(Y.dtype, jnp.integer)
    if jnp.ndim(H) != 2 or not (labels or jnp.ndim(Y) == 2) or len(H) != len(Y) or 0 in H.shape:
        raise ValueError(
            f"features {jnp.shape(H)}, targets {jnp.shape(Y)}: expected [M, D] and [M, N], or [M] integers; at least one"
        )
    if not labels:
        return _product(H, Y)
    if outputs is None:
        if not is_concrete(Y):
            raise ValueError("labels without the number of outputs, under jit: give outputs=N")
        outputs = max(1, int(Y.max()) + 1)
    return _sums_of_labels(H, Y, outputs)


def _are_sums(x: Array) -> Array:
    """Whether all numbers are at least 0 and finite."""
    return ((x >= 0) & jnp.isfinite(x)).all()


def _check_features(H: Float[Array, "M D"]) -> None:
    if not bool(_are_sums(H)):
        raise ValueError(
            f"features between {float(jnp.min(H))} and {float(jnp.max(H))}: co-occurrences need finite features >= 0; "
            "split signed features into relu(x) and relu(-x)"
        )


def _refuse_targets(H: Float[Array, "M D"], Y: Float[Array, "M N"]) -> None:
    _check_features(H)
    raise ValueError("targets that are negative or not finite: give one-hot rows or a distribution per row")


def _check_labelled(H: Float[Array, "M D"], Y: Integer[Array | np.ndarray, " M"], outputs: int) -> None:
    _check_features(H)
    check_labels_of(Y, (len(Y), outputs))


@checked(_refuse_targets, fine=lambda H, Y: _are_sums(H) & _are_sums(Y))
@full_precision
def _product(H: Float[Array, "M D"], Y: Float[Array, "M N"]) -> Float[Array, "D N"]:
    return as_float(H).T @ as_float(Y)


@checked(_check_labelled, fine=lambda H, Y, outputs: _are_sums(H) & labels_are_fine(Y, outputs), static=("outputs",))
def _sums_of_labels(H: Float[Array, "M D"], Y: Integer[Array | np.ndarray, " M"], outputs: int) -> Float[Array, "D N"]:
    def part(H: Array, Y: Array) -> Array:  # the barrier keeps XLA from adding the rows to the sum so far, one by one
        return jax.lax.optimization_barrier(jax.ops.segment_sum(as_float(H), Y, outputs))

    Y, cut = jnp.asarray(Y), len(H) // _added * _added  # the rows before the cut are added up block by block
    if not cut:
        return part(H, Y).T
    blocks = H[:cut].reshape(-1, _added, H.shape[1]), Y[:cut].reshape(-1, _added)
    return jax.lax.scan(lambda F, block: (F + part(*block), None), part(H[cut:], Y[cut:]), blocks)[0].T


@checked(after=lambda K, H: _check_norm(K, H.shape))
def priming_number(H: Float[Array, "M D"]) -> Float[Array, ""]:
    """`K = (1/M) sum_m ||H_m||_1`, the mean L1 norm of the features.

    Raises:
        ValueError: no examples, a feature that is not finite, or norms beyond the range of the dtype; under jit, vmap and grad
            values are not checked.

    Example:
        >>> priming_number(jnp.array([[1.0, 1.0], [0.0, 4.0]])).item()
        3.0

    Source: paper, Sec. 2.1.
    """
    return jnp.abs(as_float(H)).sum(axis=1).mean()


def _check_norm(K: Array, shape: tuple[int, ...]) -> None:
    if not bool(jnp.isfinite(K)):
        raise ValueError(
            f"a mean norm of {K} of features {shape}: give at least one example, of finite features of the order of 1"
        )


def _solve(F: Float[Array, "D N"], column: Float[Array, " N"], K: float | Num[Array, ""]) -> Float[Array, "D N"]:
    dead = (F.max(axis=1) == 0)[:, None]
    return jnp.where(dead, 0, jnp.log(jnp.where(dead, 1, F)) - ((K - 1) / K * jnp.log(column))[None, :])


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
