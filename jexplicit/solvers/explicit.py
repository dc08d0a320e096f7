"""The closed form of a softmax layer `softmax(H U)`, and measures.

F = HᵀY,     U[j, i] = log F[j, i] - (K - 1)/K log(sum_d F[d, i])

H [M, D] >= 0 are features, Y [M, N] targets, K is the mean sum of a row of H. Source, "the paper" in this package: *Reducing
the need for backpropagation and discovering better optima with explicit optimizations of neural networks*, Eq. 2, 3, 5.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Integer, Num

from jexplicit.runs.devices import as_float, check_labels_of, checked, full_precision, is_concrete

_block = 512  # examples whose logits are in memory at once
_largest_delta = 64.0
_added = 1 << 20  # rows that are added one by one: a sum of ones in float32 ends at 2^24
_bins = 15  # of the calibration error
_hottest = 100.0  # temperature beyond which logits say nothing


def check_targets(Y: Any, shape: tuple[int, ...]) -> None:
    """Refuse labels that are no outputs, and rows that are no distributions."""
    if jnp.ndim(Y) == 1:
        return check_labels_of(Y, shape)
    if jnp.shape(Y) != shape:
        remedy = "one-hot or a distribution per row (jax.nn.one_hot of labels)"
        raise ValueError(f"targets {jnp.shape(Y)}: expected {shape}, {remedy}")
    if is_concrete(Y):
        rows = np.asarray(Y)
        lowest, off = rows.min(), np.abs(rows.sum(axis=1, dtype=np.float64) - 1).max()
        if not (lowest >= 0 and off < 1e-2):  # nor where they are NaN
            found = f"targets down to {lowest}, and rows with sums up to {off:g} from 1"
            raise ValueError(f"{found}: give one-hot rows, or divide each row of numbers >= 0 by its sum")


def as_targets(Y: Any, outputs: int | None = None) -> Any:
    """Targets [M, N], one-hot of labels [M]; default N from the labels."""
    if jnp.ndim(Y) != 1:
        return Y
    if outputs is None and not is_concrete(Y):
        raise ValueError("labels without the number of outputs, under jit: give one-hot rows")
    outputs = outputs or 1 + int(jnp.max(Y))
    check_labels_of(Y, (len(Y), outputs))
    return jax.nn.one_hot(jnp.asarray(Y).astype(int), outputs)


def _column_sums(F: Any) -> Float[Array, " N"]:
    return functools.reduce(jnp.add, [jnp.sum(block, axis=0) for block in jax.tree.leaves(F)])


def _check_cooccurrences(F: Any, K: Any) -> None:
    blocks = jax.tree.leaves(F)
    if not sum(jnp.size(block) for block in blocks) or any(jnp.ndim(block) != 2 for block in blocks):
        raise ValueError(f"co-occurrences {[jnp.shape(x) for x in blocks]}: give an array [D, N], or a tuple of such blocks")
    if not isinstance(K, int | float | Array | np.ndarray | np.number) or jnp.ndim(K) or not 1 <= K < jnp.inf:
        raise ValueError(f"priming number K = {K!r}: it is the features' L1 norm and at least 1; rescale the features")
    column = _column_sums(jax.tree.map(as_float, F))
    lowest = float(np.min([float(block.min()) for block in blocks]))  # NaN if any block has a NaN
    if not lowest >= 0 or not bool(jnp.isfinite(column).all()):
        wrong = lowest if not lowest >= 0 else float(column.max())
        raise ValueError(f"co-occurrences with the value {wrong}: they come from features >= 0 without NaN or infinity")
    if not float(column.min()) > 0:
        raise ValueError(
            f"output {int(column.argmin())} never occurs, so its column has no logarithm: "
            "drop the output or give it a count (jexplicit.lm.layers.with_unseen_outputs)"
        )


@checked(_check_cooccurrences)
def explicit_solution(F: Any, K: float | Num[Array, ""]) -> Any:
    """The decoder U of a softmax layer `softmax(H U)`, from co-occurrences alone.

    `U[j, i] = log F[j, i] - (K - 1)/K log(sum_d F[d, i])`, in nats. A zero co-occurrence gives -inf: smooth the counts first
    (jexplicit.lm.layers) if such a pair can occur at test time. A feature that is always 0 has weight 0. With one-hot features
    (K = 1) U is the minimum of the loss, else naive Bayes; `curvature_bound_sweeps` goes on to the minimum.

    Args:
        F: [D, N] co-occurrences HᵀY, or a tuple of blocks of its rows [D_k, N] (one block per offset, for Cat features).
        K: priming number, the (mean) L1 norm of the features, at least 1.

    Raises:
        ValueError: K < 1; no co-occurrences, or a negative, infinite or NaN one; an output that never occurs. Under jit, vmap
            and grad nothing is checked.

    Example:
        >>> F = jnp.array([[3.0, 1.0], [1.0, 1.0]])
        >>> np.exp(explicit_solution(F, K=1)).round(3).tolist()
        [[3.0, 1.0], [1.0, 1.0]]

    Source: paper, Eq. 3, 5 and 14; the theorem of Sec. 2.1 has the opposite sign.
    """
    F = jax.tree.map(as_float, F)
    log_w = (K - 1) / K * jnp.log(_column_sums(F))

    def solve(F: Array) -> Array:
        dead = (F.max(axis=1) == 0)[:, None]
        return jnp.where(dead, 0, jnp.log(jnp.where(dead, 1, F)) - log_w[None, :])

    return jax.tree.map(solve, F)


def dense_cooccurrence(
    H: Float[Array, "M D"], Y: Float[Array, "M N"] | Integer[Array | np.ndarray, " M"], outputs: int | None = None
) -> Float[Array, "D N"]:
    """`F = HᵀY`, or sums of features by label (paper, Eq. 2).

    Args:
        H: [M, D] features, non-negative and finite.
        Y: [M, N] targets, one-hot or a distribution per row; or [M] labels 0 .. N - 1.
        outputs: N, where Y are labels; default, the highest label and one. Under jit it is needed, and static.

    Raises:
        ValueError: no examples, features below 0, labels outside 0 .. N - 1; under jit, vmap, grad only shapes are checked.

    Example:
        >>> dense_cooccurrence(jnp.array([[1.0, 2.0], [3.0, 0.0]]), jnp.array([1, 1])).tolist()
        [[0.0, 4.0], [0.0, 2.0]]
    """
    labels = jnp.ndim(Y) == 1 and jnp.issubdtype(Y.dtype, jnp.integer)
    if jnp.ndim(H) != 2 or not (labels or jnp.ndim(Y) == 2) or len(H) != len(Y) or 0 in H.shape:
        raise ValueError(
            f"features {jnp.shape(H)}, targets {jnp.shape(Y)}: expected [M, D] and [M, N], or [M] integers; at least one"
        )
    if labels and outputs is None:
        if not is_concrete(Y):
            raise ValueError("labels without the number of outputs, under jit: give outputs=N")
        outputs = max(1, int(Y.max()) + 1)
    return _cooccurrence(H, Y, outputs if labels else None)


def _check_counted(H: Array, Y: Any, outputs: int | None) -> None:
    for name, x in (("features", H), *([("targets", Y)] if outputs is None else [])):
        lowest, highest = float(jnp.min(x)), float(jnp.max(x))
        if not 0 <= lowest <= highest < jnp.inf:
            remedy = "split signed features into relu(x) and relu(-x)" if x is H else "give a distribution per row"
            raise ValueError(f"{name} between {lowest} and {highest}: co-occurrences need finite {name} >= 0; {remedy}")
    if outputs is not None:
        check_labels_of(Y, (len(Y), outputs))


@checked(_check_counted, static=("outputs",))
@full_precision
def _cooccurrence(H: Float[Array, "M D"], Y: Any, outputs: int | None) -> Float[Array, "D N"]:
    if outputs is None:
        return as_float(H).T @ as_float(Y)

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

    >>> priming_number(jnp.array([[1.0, 1.0], [0.0, 4.0]])).item()
    3.0
    """
    return jnp.abs(as_float(H)).sum(axis=1).mean()


class SoftmaxLayer(NamedTuple):
    """A layer to solve, with its priming number."""

    K: float | None = None  # the mean norm of its inputs, at least 1


class StackSolution(NamedTuple):
    """The decoders and priming numbers of the layers."""

    params: tuple[Array, ...]
    K: tuple[float | Float[Array, ""], ...]


@full_precision
def solve_layers(H: Float[Array, "M D"], Y: Float[Array, "M N"], layers: Sequence[SoftmaxLayer]) -> StackSolution:
    """The decoders of a stack of layers, each solved from its own inputs only.

    H: [M, D] inputs of the first layer, at least 0. Y: [M, N] targets, one-hot or a distribution per row; or [M] labels.

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
    for n, layer in enumerate(layers, 1):
        numbers.append(jnp.maximum(1, priming_number(H)) if layer.K is None else layer.K)
        params.append(explicit_solution(dense_cooccurrence(H, Y), numbers[-1]))
        if n < len(layers):
            if is_concrete(params) and not bool(jnp.isfinite(params[-1]).all()):
                raise ValueError(
                    f"layer {n} has weights that are not finite, as of co-occurrences of 0, and the next one no "
                    "inputs: make its features positive, such as H + 0.01"
                )
            H = jax.nn.softmax(H @ params[-1])
    return StackSolution(tuple(params), tuple(numbers))


@jax.jit
@full_precision
def stack_logits(params: Sequence[Array], H: Float[Array, "... D"]) -> Float[Array, "... N"]:
    """Logits of the last layer, `softmax(... softmax(H U⁽¹⁾) ...) U⁽ᴸ⁾`, in nats.

    >>> stack_logits([jnp.eye(2), 3 * jnp.eye(2)], jnp.zeros((1, 2))).tolist()
    [[1.5, 1.5]]
    """
    if not len(params):
        raise ValueError("no decoder: give at least one")
    for U in params[:-1]:
        H = jax.nn.softmax(H @ U)
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
    """The δ of `w_i = f_i^((1 - K - δ)/K)` with the lowest loss.

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
    while width <= _largest_delta and slope_at(-width) * slope_at(width) >= 0:
        width *= 2
    if width > _largest_delta:
        raise ValueError(f"no delta within ±{_largest_delta:g} has the lowest loss: use more examples")
    return float(scipy.optimize.root_scalar(slope_at, bracket=(-width, width), xtol=1e-5).root)


def _check_answers(logits: Any, Y: Any) -> None:
    """Refuse no examples, NaN, rows without a softmax, and targets that are none."""
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"logits {logits.shape}: expected [M, N], of at least one example and one output")
    if is_concrete(logits) and not (finite := np.isfinite(highest := np.max(np.asarray(logits), axis=1))).all():
        wrong = f"the largest logit of example {(m := int(finite.argmin()))} is {highest[m]}"
        raise ValueError(f"{wrong}: check the features and the parameters for NaN and infinity")
    check_targets(Y, logits.shape)


def _held_out(logits: Any, Y: Any) -> np.ndarray:
    """The labels of checked examples."""
    _check_answers(logits, Y)
    return np.asarray(Y).astype(int) if jnp.ndim(Y) == 1 else np.asarray(Y).argmax(axis=1)


def _measure(f: Callable[..., Array]) -> Callable[..., Any]:
    """A decorator: a checked measure as a number, or under jit an array."""
    compiled = checked()(f)

    @functools.wraps(f)
    def call(logits: Any, Y: Any) -> Any:
        _check_answers(logits, Y)
        value = compiled(logits, Y)
        return float(value) if is_concrete(value, logits, Y) else value

    return call


@_measure
def mean_loss(logits: Float[Array, "M N"], Y: Array) -> Any:
    """Mean negative log-likelihood of targets Y, in nats.

    logits: [M, N]; -inf is a probability of 0. Y: [M, N] targets, one-hot or a distribution per row; or [M] labels. Other
    values raise ValueError; under jit, vmap and grad only shapes are checked.

    >>> round(mean_loss(jnp.zeros((1, 2)), jnp.array([[0.0, 1.0]])), 4)
    0.6931
    """
    Y = jax.nn.one_hot(jnp.asarray(Y, jnp.int32), logits.shape[1]) if jnp.ndim(Y) == 1 else Y
    nats = jnp.where(Y == 0, 0, Y * jax.nn.log_softmax(as_float(logits)))  # 0 log 0 = 0
    return -jnp.mean(jnp.sum(nats, axis=1))


@_measure
def accuracy(logits: Float[Array, "M N"], Y: Array) -> Any:
    """The fraction of rows whose largest logit is at the label.

    >>> accuracy(jnp.array([[0.0, 1.0], [0.0, 1.0]]), jnp.array([0, 1]))
    0.5
    """
    guesses, labels = jnp.argmax(logits, axis=1), jnp.argmax(Y, axis=1) if jnp.ndim(Y) == 2 else Y
    return jnp.sum(guesses == jnp.asarray(labels, guesses.dtype), dtype=jnp.int32).astype(as_float(logits).dtype) / len(guesses)


def closeness(U: Float[Array, "D N"], V: Float[Array, "D N"], H: Float[Array, "M D"] | None = None) -> dict[str, float]:
    """Distance, cosine and common guesses of two layers, less their means over outputs."""
    same = {} if H is None else {"agreement": float((jnp.argmax(H @ U, axis=1) == jnp.argmax(H @ V, axis=1)).mean())}
    U, V = (W - W.mean(axis=1, keepdims=True) for W in (U, V))
    sizes = jnp.linalg.norm(U), jnp.linalg.norm(V)
    return {
        "distance": float(jnp.linalg.norm(U - V) / sizes[1]),
        "cosine": float(jnp.vdot(U, V) / (sizes[0] * sizes[1])),
        **same,
    }


def calibration_error(logits: Float[Array, "M N"], labels: Array | np.ndarray) -> float:
    """Expected calibration error: `sum over 15 bins of |accuracy - confidence| share`."""
    labels = _held_out(logits, labels)
    P = np.asarray(jax.nn.softmax(logits), np.float64)
    confidence, right = P.max(axis=1), P.argmax(axis=1) == labels
    place = np.minimum((confidence * _bins).astype(int), _bins - 1)
    sure, correct = (np.bincount(place, weights, minlength=_bins) for weights in (confidence, right))
    return float(np.sum(np.abs(correct - sure)) / len(P))


def fit_temperature(logits: Float[Array, "M N"], labels: Array | np.ndarray) -> float:
    """The T with the lowest mean loss of `softmax(logits / T)`, on held-out examples.

    One pseudo-example in M + 1 has a uniform label, so that T > 0 even if all of a few predictions are correct.
    """
    if not len(logits) or not bool(jnp.isfinite(logits).all()):
        raise ValueError(f"{len(logits)} examples: give at least one, with finite logits")
    labels = _held_out(logits, labels)
    z, rows = np.asarray(logits, np.float64), np.arange(len(logits))
    z = z - z.max(axis=1, keepdims=True)
    any_class = 1 / (len(z) + 1)
    wanted = (1 - any_class) * z[rows, labels] + any_class * z.mean(axis=1)

    def loss(log_temperature: float) -> float:
        scaled = np.exp(-log_temperature)
        return float(np.mean(np.log(np.exp(z * scaled).sum(axis=1)) - wanted * scaled))

    most = float(np.log(_hottest))
    found: Any = scipy.optimize.minimize_scalar(loss, bounds=(-most, most), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))
