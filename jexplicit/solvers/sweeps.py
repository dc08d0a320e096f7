"""Fits of a softmax layer by sweeps over all data, and by least squares.

U[j, i] += (1/K) log(F[j, i] / (HᵀP)[j, i])                           Darroch & Ratcliff 1972
U += 2 (HᵀH/M + 2 penalty)⁻¹ ((F - HᵀP)/M - penalty U)                Böhning 1992
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jexplicit.runs.devices import AXIS, History, as_float, default_mesh, full_precision, is_concrete, iterate
from jexplicit.solvers.explicit import as_targets, check_targets, dense_cooccurrence, priming_number

_rows = 2048  # examples whose features are in memory at once
_strips = 8  # of the lower triangle: (1 + 1/8)/2 of the products of the full square
_same = jax.tree_util.Partial(lambda X: X)  # features in memory
_squares = jax.jit(full_precision(lambda H: H.T @ H))


class SoftmaxFit(NamedTuple):
    """A softmax layer `softmax(H U + intercept)`, and its losses by sweep, ridge included."""

    U: Float[Array, "D N"]
    intercept: Float[Array, " N"]
    losses: Any

    @full_precision
    def logits(self, H: Float[Array, "M D"]) -> Float[Array, "M N"]:
        """`H U + intercept`, in nats."""
        return H @ self.U + self.intercept[None, :]


def run_sweeps(
    sweep: Callable[[Any, Any], tuple[Any, Float[Array, ""]]],
    state: Any,
    problem: Any,
    *,
    sweeps: int,
    on_sweep: Callable[[int, float, Any], bool | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **checkpoints: Any,
) -> tuple[Any, Any]:
    """Iterate `state, loss = sweep(state, problem)`; the last state and losses.

    Under jit, vmap or grad the loop is one `lax.scan`, without checkpoints (those of `iterate`) and callbacks.

    on_sweep: called with (sweeps done, loss, state), from 0 sweeps on; where it returns True, they end.
    """
    if not isinstance(sweeps, int | float | np.integer) or sweeps < 0 or sweeps % 1:
        raise ValueError(f"{sweeps!r} sweeps: use a whole number of at least 0")
    if not is_concrete(state, problem):
        state, before = jax.lax.scan(lambda state, _: sweep(state, problem), state, length=sweeps)
        return state, jnp.append(before, sweep(state, problem)[1])

    def step(state: Any, history: History) -> tuple[Any, dict[str, float]]:
        moved, loss = sweep(state, problem)
        if not np.isfinite(loss):
            remedy = "start from finite parameters, of tables of the same stream or zeros"
            raise FloatingPointError(f"loss {loss} after {len(history)} sweeps: {remedy}")
        last = bool(on_sweep and on_sweep(len(history), float(loss), state)) or len(history) == sweeps
        if progress and sweeps:
            progress(len(history), sweeps)
        return (state if last else moved), {"loss": float(loss), "last": last}  # the last iteration only computes the loss

    known = {**(problem if isinstance(problem, dict) else {"problem": problem}), "start": state}
    state, history = iterate(step, state, done=lambda h: bool(h) and h[-1]["last"], known=known, **checkpoints)
    return state, np.array([entry["loss"] for entry in history])


def check_examples(X: Any, Y: Any) -> None:
    """Refuse features and targets that do not go together, or are not finite."""
    if jnp.ndim(X) != 2 or jnp.ndim(Y) != 2 or len(X) != len(Y) or 0 in (*X.shape, *Y.shape):
        raise ValueError(f"features {jnp.shape(X)}, targets {jnp.shape(Y)}: give [M, D] and [M, N] of at least one example")
    for name, x in (("features", X), ("targets", Y)):
        if is_concrete(x) and not bool((jnp if isinstance(x, jax.Array) else np).isfinite(x).all()):
            raise ValueError(f"{name} that are not finite: check how they were made")


class ScalingProblem(NamedTuple):
    """Features, targets, F and the largest norm."""

    H: Float[Array, "M D"]
    Y: Float[Array, "M N"]
    F: Float[Array, "D N"]
    K: float | Float[Array, ""]


@jax.jit
@full_precision
def scaling_sweep(U: Float[Array, "D N"], problem: ScalingProblem) -> tuple[Float[Array, "D N"], Float[Array, ""]]:
    """One sweep, and the previous mean loss in nats."""
    H, Y, F, K = problem
    log_P = jax.nn.log_softmax(H @ U)
    E, occurs = H.T @ jnp.exp(log_P), F > 0
    log_ratio = jnp.where(occurs, jnp.log(jnp.where(occurs, F, 1) / jnp.where(occurs, E, 1)), 0)
    return U + log_ratio / K, -jnp.mean(jnp.sum(Y * log_P, axis=1))


@full_precision
def iterative_scaling_sweeps(
    H: Float[Array, "M D"], Y: Float[Array, "M N"], U: Float[Array, "rows columns"], *, sweeps: int, **options: Any
) -> SoftmaxFit:
    """Fit a softmax layer by iterative scaling; no sweep raises the loss.

    Rows need one L1 norm K: if norms differ, a slack feature `h_0 = K - ||h||_1` completes each, and acts as an intercept.

    H, Y: [M, D] features, at least 0; [M, N] targets, one-hot or a distribution per row, or [M] labels. U: [D, N] start: zeros,
    or the explicit solution. options: checkpoints and callbacks of `run_sweeps`.

    Raises:
        ValueError: features or targets that are none; a feature that never co-occurs with an output, as its parameter would
            diverge to -inf. Under jit, vmap and grad only shapes are checked.
        FloatingPointError: a loss that is not finite.

    Example:
        >>> H, Y = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), jnp.array([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7]])
        >>> fit = iterative_scaling_sweeps(H, Y, jnp.zeros((2, 2)), sweeps=1)
        >>> (100 * jax.nn.softmax(fit.logits(H))).round().tolist()
        [[90.0, 10.0], [40.0, 60.0], [40.0, 60.0]]

    Source: Darroch & Ratcliff 1972; Curran & Clark 2003.
    """
    H, Y = _examples(H, Y, U)
    F, n = dense_cooccurrence(H, Y), H.sum(axis=1)
    if is_concrete(H, F):
        priming_number(H)  # refuses norms beyond the range of the dtype
        if not bool((H > 0).any()):
            raise ValueError("features that are all 0: a layer has nothing to read; check how they were made")
        never = np.argwhere(np.asarray((F <= 0) & (H.max(axis=0) > 0)[:, None]))
        if len(never):
            remedy = "add a small constant to the features, or drop the output"
            pair = f"feature {never[0, 0]} never co-occurs with output {never[0, 1]} ({len(never)} such pairs)"
            raise ValueError(f"{pair}: its parameter would diverge to -inf; {remedy}")
    K = n.max()
    h0 = jnp.where(K - n.min() > np.sqrt(jnp.finfo(H.dtype).eps) * K, K - n, 0)  # smaller differences are rounding errors
    H = jnp.concatenate([H, h0[:, None]], axis=1)
    F = jnp.concatenate([F, (h0 @ Y)[None, :]])
    U = jnp.concatenate([U, jnp.zeros_like(U[:1])])
    U, losses = run_sweeps(scaling_sweep, U, ScalingProblem(H, Y, F, K), sweeps=sweeps, **options)
    return SoftmaxFit(U[:-1] - U[-1:], K * U[-1], losses)


def _examples(H: Any, Y: Any, U: Any) -> tuple[Array, Array]:
    """Features and targets as floats, with shapes that fit the start."""
    Y = as_targets(Y, None if U is None else U.shape[1])
    check_examples(H, Y)
    if U is not None and U.shape != (H.shape[1], Y.shape[1]):
        raise ValueError(f"H {H.shape}, Y {Y.shape}, U {U.shape}: expected [M, D], [M, N] and [D, N]")
    check_targets(Y, Y.shape)
    return as_float(H), as_float(Y)


class ExampleBlocks(NamedTuple):
    """Examples in blocks over devices: inputs, targets, weights (0: padding)."""

    X: Float[Array, "devices blocks m r"]
    Y: Float[Array, "devices blocks m N"]
    weight: Float[Array, "devices blocks m"]


class Gram(NamedTuple):
    """Sums over M examples; only the lower triangle of the symmetric HH is valid."""

    HH: Float[Array, "D D"]
    HY: Float[Array, "D N"]
    h: Float[Array, " D"]
    y: Float[Array, " N"]
    M: Float[Array, ""]


def split_examples(
    X: Float[Any, "M r"], Y: Float[Any, "_ N"], *, block: int = _rows, mesh: Mesh | None = None
) -> ExampleBlocks:
    """Inputs and targets as padded blocks, equally many per device of a mesh.

    >>> split_examples(jnp.ones((5, 3)), jnp.ones((5, 2)), block=2).weight.tolist()
    [[[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]]
    """
    if block < 1:
        raise ValueError(f"blocks of {block} examples: use at least 1")
    Y, mesh = as_targets(Y), mesh or default_mesh()
    check_examples(X, Y)
    devices = mesh.size
    number = -(-len(X) // (devices * block))
    m = -(-len(X) // (devices * number))

    def cut(part: Any) -> Array:
        rows = np.asarray(part)
        rows = rows if np.issubdtype(rows.dtype, np.inexact) else np.asarray(as_float(rows))  # sums of integers would wrap
        padded = np.pad(rows, [(0, devices * number * m - len(rows)), *[(0, 0)] * (rows.ndim - 1)])
        whole = padded.reshape(devices, number, m, *rows.shape[1:])
        return jax.device_put(whole, NamedSharding(mesh, PartitionSpec(AXIS)))

    return ExampleBlocks(cut(X), cut(Y), cut(np.ones(len(X), as_float(X[:1]).dtype)))


def gram_matrix(
    blocks: ExampleBlocks, features: Callable[[Array], Array], *, progress: Callable[[int, int], None] | None = None
) -> Gram:
    """`HᵀH` (its lower triangle), `HᵀY`, and the sums of H and Y over examples.

    features: a function [m, r] -> [m, D], as `jax.tree_util.Partial` with its arrays.

    >>> gram = gram_matrix(split_examples(jnp.array([[1.0], [2.0]]), jnp.eye(2)), jax.tree_util.Partial(lambda x: x))
    >>> gram.HH.tolist(), gram.HY.tolist(), float(gram.M)
    ([[5.0]], [[1.0, 2.0]], 2.0)
    """
    devices, number, m, _ = blocks.X.shape
    N, D = blocks.Y.shape[-1], jax.eval_shape(features, jax.ShapeDtypeStruct(blocks.X.shape[2:], blocks.X.dtype)).shape[1]
    shapes = ((D, D), (D, N), (D,), (N,), ())
    sums = Gram(*(jnp.zeros((devices, *shape), blocks.X.dtype, device=blocks.weight.sharding) for shape in shapes))
    for n in range(number):
        sums = _add_block(sums, blocks, features, n)
        if progress:
            jax.block_until_ready(sums)  # otherwise all blocks would be queued at once
            progress(n + 1, number)
    return jax.tree.map(lambda part: part.sum(axis=0), sums)


@functools.partial(jax.jit, donate_argnums=0)
@full_precision
def _add_block(sums: Gram, blocks: ExampleBlocks, features: Callable[[Array], Array], n: Array) -> Gram:
    """`sums` with block n of each device added."""

    def add(total: Gram, X: Array, Y: Array, weight: Array) -> Gram:
        H = features(X) * weight[:, None]
        HH, D = total.HH, H.shape[1]
        strip = -(-D // _strips)
        for i in range(0, D, strip):
            end = min(i + strip, D)
            HH = HH.at[i:end, :end].add(H[:, i:end].T @ H[:, :end])
        return Gram(HH, total.HY + H.T @ Y, total.h + H.sum(axis=0), total.y + Y.sum(axis=0), total.M + weight.sum())

    return jax.vmap(add)(sums, *(part[:, n] for part in blocks))


class CurvatureProblem(NamedTuple):
    """Data of a sweep; a mean of None: no intercept."""

    blocks: ExampleBlocks
    features: Callable[[Array], Array]
    mean: Float[Array, " D"] | None
    factor: Float[Array, "D D"]
    penalty: Float[Array, ""]


@jax.jit
@full_precision
def curvature_sweep(state: tuple[Array, Array], problem: CurvatureProblem) -> tuple[tuple[Array, Array], Array]:
    """One sweep over all blocks, and the previous mean loss with the ridge."""
    blocks, features, mean, factor, penalty = problem
    U, b = state
    shift = b if mean is None else b - mean @ U

    def add(sums: Any, block: Any) -> Any:
        X, Y, weight = block
        H = features(X)
        log_P = jax.nn.log_softmax(H @ U + shift[None, :])
        R = (Y - jnp.exp(log_P)) * weight[:, None]
        one = H.T @ R, R.sum(axis=0), -jnp.sum(Y * log_P * weight[:, None])
        return jax.tree.map(jnp.add, sums, one), None

    zeros = jnp.zeros_like(U), jnp.zeros_like(b), jnp.zeros((), U.dtype)
    of_devices = jax.vmap(lambda *own: jax.lax.scan(add, zeros, own)[0])(*blocks)
    M = blocks.weight.sum()
    HR, R, loss = jax.tree.map(lambda part: part.sum(axis=0) / M, of_devices)  # the one reduction
    ascent = HR - penalty * U - (0 if mean is None else jnp.outer(mean, R))
    moved = U + 2 * jax.scipy.linalg.cho_solve((factor, True), ascent)
    return (moved, b if mean is None else b + 2 * R), loss + penalty / 2 * jnp.sum(U**2)


def curvature_problem(H: Float[Array, "M D"], Y: Float[Array, "M N"], ridge: float | Float[Array, ""]) -> CurvatureProblem:
    """The problem of features in memory, without an intercept."""
    blocks = ExampleBlocks(H[None, None], Y[None, None], jnp.ones((1, 1, len(H)), H.dtype))
    return CurvatureProblem(blocks, _same, None, *_factorise(_squares(H), None, len(H), ridge, 2.0))


def curvature_bound_sweeps(
    H: Float[Array, "M D"],
    Y: Float[Array, "M N"],
    U: Float[Array, "rows columns"] | None = None,
    *,
    sweeps: int,
    ridge: float | Float[Array, ""] = 1e-4,
    **options: Any,
) -> SoftmaxFit:
    """Minimise `mean loss + ridge t/2 ||U||²` by sweeps with bounded curvature.
    `U += 2 (HᵀH/M + 2 ridge t)⁻¹ ((F - HᵀP)/M - ridge t U)`.

    H, Y: [M, D] features, of either sign, with the mean square t; [M, N] targets or [M] labels. U: start; default, zeros.
    options: checkpoints and callbacks of `run_sweeps`.

    Raises:
        ValueError: features or targets that are none, a ridge that is too small or not above 0. Under jit, vmap and grad only
            shapes are checked.
        FloatingPointError: a loss that is not finite.

    Example:
        >>> H, Y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.eye(2)
        >>> curvature_bound_sweeps(H, Y, sweeps=1, ridge=1e-6).U.round(3).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]

    Source: Böhning, Multinomial logistic regression algorithm, 1992.
    """
    H, Y = _examples(H, Y, U)
    zeros = jnp.zeros((H.shape[1], Y.shape[1]), H.dtype)
    state, problem = (zeros if U is None else U, zeros[0]), curvature_problem(H, Y, ridge)
    (solution, intercept), losses = run_sweeps(curvature_sweep, state, problem, sweeps=sweeps, **options)
    return SoftmaxFit(solution, intercept, losses)


@full_precision
def gram_least_squares(gram: Gram, *, ridge: float = 1e-4) -> SoftmaxFit:
    """Least squares with an intercept, from sums over examples.
    `U = (C + ridge t)⁻¹ (HᵀY/M - h̄ ȳᵀ)` and `b = ȳ - h̄ᵀU`, t the mean variance.

    The scores H U + b estimate class probabilities and sum to 1. A ridge too small for the precision of the sums is refused.

    >>> H, Y = jnp.array([[0.0], [1.0], [1.0]]), jnp.eye(2)[jnp.array([0, 1, 1])]
    >>> fit = gram_least_squares(gram_matrix(split_examples(H, Y), jax.tree_util.Partial(lambda x: x)))
    >>> (H @ fit.U + fit.intercept[None]).round(2).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    mean, share = gram.h / gram.M, gram.y / gram.M
    factor, _ = _factorise(gram.HH, mean, gram.M, ridge, 1.0)
    U = jax.scipy.linalg.cho_solve((factor, True), gram.HY / gram.M - jnp.outer(mean, share))
    return SoftmaxFit(U, share - mean @ U, np.zeros(0))


def choose_ridge(
    gram: Gram, ridges: Sequence[float], X: Float[Any, "M r"], Y: Float[Any, "M N"], features: Callable[[Array], Array]
) -> tuple[float, SoftmaxFit]:
    """The ridge of lowest squared error on held-out examples; ones too small are skipped."""
    fits: list[tuple[float, float, SoftmaxFit]] = []
    failure = ValueError("no ridges to choose from: give at least one, e.g. 1e-4")
    for ridge in ridges:
        try:
            fit = gram_least_squares(gram, ridge=ridge)
            fits.append((float(jnp.mean((streamed_logits(fit, X, features) - jnp.asarray(Y)) ** 2)), ridge, fit))
        except ValueError as error:
            failure = error
    if not fits:
        raise failure
    return min(fits, key=lambda fit: fit[0])[1:]


def tempered(fit: SoftmaxFit, temperature: float, ridge: float) -> tuple[SoftmaxFit, float]:
    """The layer `(U/T, b/T)`, and its ridge `T² ridge`."""
    return fit._replace(U=fit.U / temperature, intercept=fit.intercept / temperature), ridge * temperature**2


def gram_softmax_sweeps(
    gram: Gram,
    blocks: ExampleBlocks,
    features: Callable[[Array], Array],
    start: SoftmaxFit | None = None,
    *,
    sweeps: int,
    ridge: float = 1e-4,
    **options: Any,
) -> SoftmaxFit:
    """`curvature_bound_sweeps` on blocks, with an intercept without ridge, `b += 2 mean(Y - P)`.

    start: e.g. least squares divided by a temperature; default, the class frequencies. options: of `run_sweeps`.

    >>> blocks = split_examples(jnp.array([[0.0], [1.0], [1.0]]), jnp.eye(2)[jnp.array([0, 1, 1])])
    >>> features = jax.tree_util.Partial(lambda x: x)
    >>> losses = gram_softmax_sweeps(gram_matrix(blocks, features), blocks, features, sweeps=3).losses
    >>> bool((np.diff(losses) < 0).all())
    True
    """
    mean = gram.h / gram.M
    problem = CurvatureProblem(blocks, features, mean, *_factorise(gram.HH, mean, gram.M, ridge, 2.0))
    state = jnp.zeros_like(gram.HY), jnp.log(jnp.where(gram.y > 0, gram.y, 1) / gram.M)
    if start:
        state = start.U, start.intercept + mean @ start.U
    (U, intercept), losses = run_sweeps(curvature_sweep, state, problem, sweeps=sweeps, **options)
    return SoftmaxFit(U, intercept - mean @ U, losses)


def streamed_logits(fit: SoftmaxFit, X: Float[Any, "M r"], features: Callable[[Array], Array]) -> Array:
    """`H U + intercept` of examples, in nats, a block at a time.

    >>> fit = SoftmaxFit(jnp.array([[1.0, -1.0]]), jnp.array([0.5, 0.0]), np.zeros(0))
    >>> streamed_logits(fit, np.array([[2.0]]), jax.tree_util.Partial(lambda x: x)).tolist()
    [[2.5, -2.0]]
    """
    starts = range(0, max(len(X), 1), _rows)  # of no examples, one empty block
    return jnp.concatenate([_block_logits(fit, jnp.asarray(X[m : m + _rows]), features) for m in starts])


@jax.jit
@full_precision
def _block_logits(fit: SoftmaxFit, X: Array, features: Callable[[Array], Array]) -> Array:
    return fit.logits(features(X))


def _factorise(HH: Array, mean: Array | None, M: Any, ridge: Any, times: float) -> tuple[Array, Array]:
    """The lower Cholesky factor of `C + times penalty`; the penalty, `ridge t`."""
    if isinstance(ridge, str) or (is_concrete(ridge) and not 0 < ridge < jnp.inf):
        raise ValueError(f"ridge {ridge}: it keeps HᵀH invertible and must be above 0, e.g. 1e-4")
    factor, t = _covariance_factor(HH, mean, M, jnp.asarray(ridge * times, HH.dtype))
    if is_concrete(factor, ridge) and not bool(jnp.isfinite(factor[-1, -1])):
        check = "check that the features are finite and not constant; standardise them, or raise the ridge"
        raise ValueError(f"HᵀH, of mean variance {float(t):g}, cannot be factorised with ridge {float(ridge)}: {check}")
    return factor, ridge * t


@jax.jit
def _covariance_factor(HH: Array, mean: Array | None, M: Any, ridge: Array) -> tuple[Array, Array]:
    C = HH / M - (0 if mean is None else mean[:, None] * mean[None, :])
    t, places = jnp.trace(C) / len(C), jnp.arange(len(C))
    return jax.lax.linalg.cholesky(C.at[places, places].add(ridge * t), symmetrize_input=False), t
