"""The explicit solution of softmax layers (paper, Eq. 2, 3, 5; Sec. 3.3).

    F = HᵀY,     U[j, i] = log F[j, i] - (K - 1)/K log(sum_d F[d, i]),     K the L1 norm of the inputs

This is naive Bayes in closed form, at K = 1 the exact optimum. Several layers take a forward pass only: each is solved for the
same targets from its own inputs. K changes only one weight per output, `logits = H log F + ||H||_1 ⊗ log w`, so a scan over K
needs one product. The paper expects `w_i = f_i^((1 - K - δ)/K)` to be better for some small δ > 0 (Sec. 2.2): the loss is
convex in δ, and at its minimum the mean of `||h||_1/K log f` under the model is that of the targets.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Integer, Num

from jexplicit.runs.checks import as_float, as_targets, check_labels_of, checked, is_concrete, labels_are_fine
from jexplicit.runs.devices import full_precision

_block = 512  # examples whose logits are in memory at once
_largest = 64.0  # bound of |δ|
_added = 1 << 20  # rows that are added one by one: a sum of ones in float32 ends at 2^24


@checked(lambda F, K: check_cooccurrences(F, K))
def explicit_solution(F: Any, K: float | Num[Array, ""]) -> Any:
    """The decoder U of a softmax layer `softmax(H U)`, from co-occurrences alone.

    `U[j, i] = log F[j, i] - (K - 1)/K log(sum_d F[d, i])`, in nats. A zero co-occurrence gives -inf: smooth the counts first
    (jexplicit.lm.core.smoothing) if such a pair can occur at test time. A feature that is always 0 has weight 0.

    Args:
        F: [D, N] co-occurrences HᵀY, or a tuple of blocks of its rows [D_k, N] (one block per offset, for Cat features).
        K: priming number, the (mean) L1 norm of the features, at least 1.

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
    blocks = jax.tree.leaves(F)
    if not sum(jnp.size(block) for block in blocks) or any(jnp.ndim(block) != 2 for block in blocks):
        raise ValueError(f"co-occurrences {[jnp.shape(x) for x in blocks]}: give an array [D, N], or a tuple of such blocks")
    if not isinstance(K, int | float | Array | np.ndarray | np.number) or jnp.ndim(K) or not 1 <= K < jnp.inf:
        raise ValueError(f"priming number K = {K!r}: it is the features' L1 norm and at least 1; rescale the features")
    column = column_sums(jax.tree.map(as_float, F))
    lowest = float(np.min([float(block.min()) for block in blocks]))  # NaN if any block has a NaN
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
    """`F = HᵀY`, or sums of features by label (paper, Eq. 2).

    Args:
        H: [M, D] features, non-negative and finite.
        Y: [M, N] targets, one-hot or a distribution per row; or [M] labels 0 .. N - 1.
        outputs: N, where Y are labels; default, the highest label and one. Under jit it is needed, and static.

    Raises:
        ValueError: examples, targets or labels that are none; under jit, vmap and grad only shapes are checked.

    Example:
        >>> dense_cooccurrence(jnp.array([[1.0, 2.0], [3.0, 0.0]]), jnp.eye(2)).tolist()
        [[1.0, 3.0], [2.0, 0.0]]
        >>> dense_cooccurrence(jnp.array([[1.0, 2.0], [3.0, 0.0]]), jnp.array([1, 1])).tolist()
        [[0.0, 4.0], [0.0, 2.0]]
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


def _check(H: Array, Y: Any, outputs: int | None = None) -> None:
    if not bool(_are_sums(H)):
        raise ValueError(
            f"features between {float(jnp.min(H))} and {float(jnp.max(H))}: co-occurrences need finite features >= 0; "
            "split signed features into relu(x) and relu(-x)"
        )
    if outputs is None:
        raise ValueError("targets that are negative or not finite: give one-hot rows or a distribution per row")
    check_labels_of(Y, (len(Y), outputs))


@checked(_check, fine=lambda H, Y: _are_sums(H) & _are_sums(Y))
@full_precision
def _product(H: Float[Array, "M D"], Y: Float[Array, "M N"]) -> Float[Array, "D N"]:
    return as_float(H).T @ as_float(Y)


@checked(_check, fine=lambda H, Y, outputs: _are_sums(H) & labels_are_fine(Y, outputs), static=("outputs",))
def _sums_of_labels(H: Float[Array, "M D"], Y: Integer[Array | np.ndarray, " M"], outputs: int) -> Float[Array, "D N"]:
    def part(H: Array, Y: Array) -> Array:  # the barrier keeps XLA from adding the rows to the sum so far, one by one
        return jax.lax.optimization_barrier(jax.ops.segment_sum(as_float(H), Y, outputs))

    Y, cut = jnp.asarray(Y), len(H) // _added * _added  # the rows before the cut are added up block by block
    if not cut:
        return part(H, Y).T
    blocks = H[:cut].reshape(-1, _added, H.shape[1]), Y[:cut].reshape(-1, _added)
    return jax.lax.scan(lambda F, block: (F + part(*block), None), part(H[cut:], Y[cut:]), blocks)[0].T


def _check_norm(K: Array, H: Array) -> None:
    if not bool(jnp.isfinite(K)):
        raise ValueError(f"a mean norm of {K} of features {H.shape}: give at least one example, of finite features near 1")


@checked(after=_check_norm)
def priming_number(H: Float[Array, "M D"]) -> Float[Array, ""]:
    """`K = (1/M) sum_m ||H_m||_1`, the features' mean L1 norm.

    Example:
        >>> priming_number(jnp.array([[1.0, 1.0], [0.0, 4.0]])).item()
        3.0
    """
    return jnp.abs(as_float(H)).sum(axis=1).mean()


def _solve(F: Float[Array, "D N"], column: Float[Array, " N"], K: float | Num[Array, ""]) -> Float[Array, "D N"]:
    dead = (F.max(axis=1) == 0)[:, None]
    return jnp.where(dead, 0, jnp.log(jnp.where(dead, 1, F)) - ((K - 1) / K * jnp.log(column))[None, :])


Solver = Callable[[Float[Array, "M D"], Float[Array, "M N"], float | Float[Array, ""]], Float[Array, "D N"]]


class SoftmaxLayer(NamedTuple):
    """The solver of one layer of a stack.

    K: priming number; default, the mean L1 norm of the layer's inputs, but at least 1 (the output of a softmax has norm 1).
    activation: φ from this layer's logits [.., N] to the next layer's inputs; it must not be negative.
    solve: `(H, Y, K) -> U`; default, the explicit solution.
    """

    K: float | None = None
    activation: Callable[[Array], Array] = jax.nn.softmax
    solve: Solver = lambda H, Y, K: explicit_solution(dense_cooccurrence(H, Y), K)


class StackSolution(NamedTuple):
    """The decoders U⁽¹⁾ .. U⁽ᴸ⁾ and their priming numbers."""

    params: tuple[Array, ...]
    K: tuple[float | Float[Array, ""], ...]


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


def fit_delta(
    logits: Callable[[Any], Float[Array, " N"]],
    X: Any,
    u: Float[Array, " M"],
    labels: Integer[Array, " M"],
    l: Float[Array, " N"],  # noqa: E741
) -> float:
    """The δ with the lowest loss on M examples (paper, Sec. 2.2).

    X: [M, ...] examples. u: [M] their norms, relative to K. labels: [M] correct outputs. l: [N] log f, up to a constant.
    """
    if not len(labels):
        raise ValueError("no examples to fit delta on: give at least one")

    @jax.jit
    @full_precision
    def slope(delta: Array) -> Array:
        def one(example: tuple[Any, Array, Array]) -> Array:
            x, u, y = example
            return u * (l[y] - jax.nn.softmax(logits(x) - delta * u * l) @ l)

        return jax.lax.map(one, (X, u, labels), batch_size=_block).mean()

    def slope_at(delta: float) -> float:
        return float(slope(jnp.asarray(delta, l.dtype)))

    if float(l.max()) == float(l.min()):  # equally frequent outputs: the loss does not depend on δ
        return 0.0
    width = 1.0
    while width <= _largest and slope_at(-width) * slope_at(width) >= 0:
        width *= 2
    if width > _largest:
        raise ValueError(f"no delta within ±{_largest:g} has the lowest loss: use more examples")
    return float(scipy.optimize.root_scalar(slope_at, bracket=(-width, width), xtol=1e-5).root)


class PrimingScan(NamedTuple):
    """Accuracy of the explicit solution, as a fraction, at each of S priming numbers."""

    K: Float[Array, " S"]
    accuracy: Float[Array, " S"]


def log_intercept(F: Float[Array, "D N"], K: float) -> Float[Array, " N"]:
    """`log w_i = -(K - 1)/K log(sum_d F[d, i])` (paper, Eq. 14)."""
    return -(K - 1) / K * jnp.log(column_sums(F))


def delta_intercept(F: Float[Array, "D N"], f: Float[Array, " N"], K: float, delta: float) -> Float[Array, " N"]:
    """`-(K - 1)/K log(sum_d F[d, i]) - δ/K log f_i`, f > 0."""
    return log_intercept(F, K) - delta / K * jnp.log(f)


@full_precision
def intercept_logits(H: Float[Array, "M D"], F: Float[Array, "D N"], log_w: Float[Array, " N"]) -> Float[Array, "M N"]:
    """Logits `H log F + ||H||_1 ⊗ log w` (paper, Eq. 6, Sec. 5)."""
    return H @ jnp.log(F) + H.sum(axis=1)[:, None] * log_w[None, :]


def _scan_is_fine(H: Array, F: Array, labels: Array, K: Array) -> Array:
    of_H, of_F, of_K = (((low <= x) & (x < jnp.inf)).all() for low, x in ((0, H), (0, F), (1, K)))
    return of_H & of_F & of_K & (F != 0).all() & labels_are_fine(labels, F.shape[1])


def _check_scan(H: Array, F: Array, labels: Array, K: Array) -> None:
    check_labels_of(labels, (len(H), F.shape[1]))
    parts = ("features", H, 0, ">= 0"), ("priming numbers", K, 1, ">= 1"), ("co-occurrences", F, jnp.finfo(F.dtype).tiny, "> 0")
    for name, x, least, words in parts:
        if not least <= float(x.min()) <= float(x.max()) < jnp.inf:
            raise ValueError(f"{name} between {float(x.min())} and {float(x.max())}: the scan needs finite {name} {words}")


@checked(_check_scan, fine=_scan_is_fine)
def priming_scan(H: Float[Array, "M D"], F: Float[Array, "D N"], labels: Array, K: Float[Array, " S"]) -> PrimingScan:
    """Accuracy of the explicit solution at every K, in one compiled call.

    `argmax_i (H log F)[m, i] - (K - 1)/K ||H_m||_1 log(sum_d F[d, i])`, by blocks of rows.

    Args:
        H: [M, D] features, at least 0.
        F: [D, N] co-occurrences of the training data, above 0.
        labels: [M] correct outputs.
        K: [S] priming numbers, at least 1.

    Example:
        >>> F = jnp.array([[8.0, 1.0], [2.0, 1.0]])
        >>> priming_scan(jnp.eye(2), F, jnp.array([0, 1]), jnp.array([1.0, 4.0])).accuracy.tolist()
        [0.5, 1.0]

    Source: paper, Sec. 3.2.1 and Fig. 2 right.
    """
    H, F = as_float(H), as_float(F)
    if H.ndim != 2 or F.shape[:1] != H.shape[1:] or 0 in H.shape or not K.size:
        raise ValueError(f"H {H.shape}, F {F.shape}, K {K.shape}: expected [M, D], [D, N] and [S], none of them empty")
    check_labels_of(labels, (len(H), F.shape[1]))
    K = K.astype(H.dtype)
    return PrimingScan(K, _correct(H, F, labels, K).astype(H.dtype) / len(H))


def fit_image_delta(H: Float[Array, "M D"], labels: Array, F: Float[Array, "D N"], f: Float[Array, " N"], K: float) -> float:
    """The δ of `w_i = f_i^((1 - K - δ)/K)` with the lowest loss."""
    log_F, log_w = jnp.log(F), log_intercept(F, K)
    u = H.sum(axis=1) / K
    return fit_delta(lambda h: h @ log_F + h.sum() * log_w, H, u, labels, jnp.log(f))


@jax.jit
@full_precision
def _correct(H: Array, F: Array, labels: Array, K: Array) -> Array:
    """[S] number of correctly classified rows at each K."""
    column, share = jnp.log(column_sums(F)), (K - 1) / K

    def correct(row: tuple[Array, Array, Array]) -> Array:
        base, n, label = row
        guess = jnp.argmax(base[None, :] - share[:, None] * n * column[None, :], axis=1)
        return guess == label.astype(guess.dtype)

    rows = H @ jnp.log(F), H.sum(axis=1), labels
    return jax.lax.map(correct, rows, batch_size=_block).sum(axis=0, dtype=jnp.int32)
