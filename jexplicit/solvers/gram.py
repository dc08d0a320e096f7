"""Least squares and a softmax layer from sums `HᵀH` and `HᵀY` over blocks.

Features are computed a block of examples at a time from a few numbers per example. Every device sums over its own blocks, with
one reduction over devices at the end.

Both fits need one factorisation of `HᵀH`. Least squares needs only this; the softmax layer is fitted by sweeps of

    U += 2 (C + 2 penalty)⁻¹ (Hᵀ(Y - P)/M - penalty U),    C = HᵀH/M - h̄ h̄ᵀ,

which never raise the loss (as in `jexplicit.solvers.sweeps`). The intercept is not penalised: features are centred, so that it
has a separate sweep, `b += 2 mean(Y - P)`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jexplicit.runs.checks import as_float, as_targets
from jexplicit.runs.devices import AXIS, default_mesh, full_precision
from jexplicit.solvers.sweeps import SoftmaxFit, no_factor, run_sweeps

_strips = 8  # of the lower triangle: (1 + 1/8)/2 of the products of the full square


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


def split_examples(X: Float[Any, "M r"], Y: Float[Any, "_ N"], *, block: int = 2048, mesh: Mesh | None = None) -> ExampleBlocks:
    """Examples as blocks, the last one padded, equally many per device of a mesh.

    Args:
        X: [M, r] inputs of the features.
        Y: [M, N] targets; or [M] labels.
        block: maximum number of examples whose features are in memory at a time.
        mesh: devices to split them over; default, all accelerators, or one CPU.

    Raises:
        ValueError: no examples, unequal numbers of them, targets that are not finite, or a block below 1.

    Example:
        >>> split_examples(jnp.ones((5, 3)), jnp.ones((5, 2)), block=2).weight.tolist()
        [[[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]]
    """
    if len(X) != len(Y) or not len(X) or block < 1:
        raise ValueError(
            f"inputs {X.shape}, targets {Y.shape}, blocks of {block}: give equally many of both, at least 1, in blocks"
        )
    Y = as_targets(Y)
    if not np.isfinite(np.asarray(Y)).all():
        raise ValueError("targets that are not finite: give one-hot rows or a distribution per row")
    mesh = mesh or default_mesh()
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

    Args:
        blocks: of examples.
        features: a function [m, r] -> [m, D], as `jax.tree_util.Partial` with its arrays.
        progress: called with (blocks done, total blocks).

    Example:
        >>> blocks = split_examples(jnp.array([[1.0], [2.0]]), jnp.eye(2))
        >>> gram = gram_matrix(blocks, jax.tree_util.Partial(lambda x: x))
        >>> gram.HH.tolist(), gram.HY.tolist(), float(gram.M)
        ([[5.0]], [[1.0, 2.0]], 2.0)
    """
    devices, number, m, _ = blocks.X.shape
    N, D = blocks.Y.shape[-1], jax.eval_shape(features, jax.ShapeDtypeStruct(blocks.X.shape[2:], blocks.X.dtype)).shape[1]
    shapes = ((D, D), (D, N), (D,), (N,), ())
    zeros = (jnp.zeros((devices, *shape), blocks.X.dtype, device=blocks.weight.sharding) for shape in shapes)
    sums = Gram(*zeros)
    for n in range(number):
        sums = add_block(sums, blocks, features, n)
        if progress:
            jax.block_until_ready(sums)  # otherwise all blocks would be queued at once
            progress(n + 1, number)
    return _total(sums)


@functools.partial(jax.jit, donate_argnums=0)
@full_precision
def add_block(sums: Gram, blocks: ExampleBlocks, features: Callable[[Array], Array], n: Array) -> Gram:
    """`sums` with block n of each device added; `sums` is donated."""

    def add(total: Gram, X: Array, Y: Array, weight: Array) -> Gram:
        H = features(X) * weight[:, None]
        HH, D = total.HH, H.shape[1]
        strip = -(-D // _strips)
        for i in range(0, D, strip):
            end = min(i + strip, D)
            HH = HH.at[i:end, :end].add(H[:, i:end].T @ H[:, :end])
        return Gram(HH, total.HY + H.T @ Y, total.h + H.sum(axis=0), total.y + Y.sum(axis=0), total.M + weight.sum())

    return jax.vmap(add)(sums, *(part[:, n] for part in blocks))


@functools.partial(jax.jit, donate_argnums=0)
def _total(sums: Gram) -> Gram:
    """The sum over devices."""
    return jax.tree.map(lambda part: part.sum(axis=0), sums)


@functools.partial(jax.jit, donate_argnums=0)
def add_grams(one: Gram, other: Gram) -> Gram:
    """The sums over the examples of both; the first is donated."""
    return jax.tree.map(jnp.add, one, other)


class StreamedProblem(NamedTuple):
    """Data of a sweep: examples, features, mean, factor and penalty."""

    blocks: ExampleBlocks
    features: Callable[[Array], Array]
    mean: Float[Array, " D"]
    factor: Float[Array, "D D"]
    penalty: Float[Array, ""]


def gram_least_squares(gram: Gram, *, ridge: float = 1e-4) -> SoftmaxFit:
    """Least squares with an intercept, from sums over examples.
    `U = (C + ridge t)⁻¹ (HᵀY/M - h̄ ȳᵀ)` and `b = ȳ - h̄ᵀU`, t the mean variance.

    The scores H U + b estimate class probabilities and sum to 1.

    Args:
        gram: sums over examples.
        ridge: in units of the features' mean variance; above 0.

    Returns:
        U, the intercept, and no losses.

    Raises:
        ValueError: a ridge that is not above 0, or too small for the precision of the sums.

    Example:
        >>> from jexplicit.solvers.gram import gram_matrix, split_examples
        >>> H, Y = jnp.array([[0.0], [1.0], [1.0]]), jnp.eye(2)[jnp.array([0, 1, 1])]
        >>> fit = gram_least_squares(gram_matrix(split_examples(H, Y), jax.tree_util.Partial(lambda x: x)))
        >>> (H @ fit.U + fit.intercept[None]).round(2).tolist()
        [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    factor, _ = _factorise(gram, ridge, 1.0)
    U, intercept = _solve_least_squares(gram, factor)
    return SoftmaxFit(U, intercept, np.zeros(0))


def choose_ridge(
    gram: Gram,
    ridges: Sequence[float],
    X: Float[Any, "M r"],
    Y: Float[Any, "M N"],
    features: Callable[[Array], Array],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[float, SoftmaxFit]:
    """The ridge of lowest squared error on held-out examples, and its fit.

    Ridges too small for the precision of the sums are skipped.
    """
    fits: list[tuple[float, float, SoftmaxFit]] = []
    failure = ValueError("no ridges to choose from: give at least one, e.g. 1e-4")
    for n, ridge in enumerate(ridges, 1):
        try:
            fit = gram_least_squares(gram, ridge=ridge)
            fits.append((float(jnp.mean((streamed_logits(fit, X, features) - jnp.asarray(Y)) ** 2)), ridge, fit))
        except ValueError as error:
            failure = error
        if progress:
            progress(n, len(ridges))
    if not fits:
        raise failure
    return min(fits, key=lambda fit: fit[0])[1:]


def tempered(fit: SoftmaxFit, temperature: float, ridge: float) -> tuple[SoftmaxFit, float]:
    """The layer `(U/T, b/T)`, and the ridge `T² ridge`.

    If (U, b) minimises the loss of `softmax((H U + b)/T)` with `ridge`, the tempered layer minimises that of
    `softmax(H U + b)` with the tempered ridge.
    """
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
    """Minimise `mean loss + ridge t/2 ||U||²` by curvature bound sweeps.

    Args:
        gram: sums over the examples.
        blocks: the examples.
        features: as in `gram_matrix`.
        start: initial layer, e.g. least squares divided by a temperature; default, the class frequencies.
        sweeps: number of sweeps; each computes all features once.
        ridge: in units of the features' mean variance t; above 0.
        options: checkpoints and callbacks of jexplicit.solvers.sweeps.run_sweeps.

    Returns:
        U, the intercept, and the losses with the ridge.

    Raises:
        ValueError: a ridge that is not above 0, or too small for the precision of the sums; fewer than 0 sweeps.
        FloatingPointError: a loss that is not finite.

    Example:
        >>> from jexplicit.solvers.gram import gram_matrix, split_examples
        >>> blocks = split_examples(jnp.array([[0.0], [1.0], [1.0]]), jnp.eye(2)[jnp.array([0, 1, 1])])
        >>> features = jax.tree_util.Partial(lambda x: x)
        >>> losses = gram_softmax_sweeps(gram_matrix(blocks, features), blocks, features, sweeps=3).losses
        >>> bool((np.diff(losses) < 0).all())
        True

    Source: Böhning, Multinomial logistic regression algorithm, 1992.
    """
    factor, penalty = _factorise(gram, ridge, 2.0)
    mean = gram.h / gram.M
    problem = StreamedProblem(blocks, features, mean, factor, penalty)
    state = (
        (start.U, start.intercept + mean @ start.U)
        if start
        else (jnp.zeros_like(gram.HY), jnp.log(jnp.where(gram.y > 0, gram.y, 1) / gram.M))
    )
    (U, intercept), losses = run_sweeps(streamed_sweep, state, problem, sweeps=sweeps, **options)
    return SoftmaxFit(U, intercept - mean @ U, losses)


@jax.jit
@full_precision
def streamed_sweep(state: tuple[Array, Array], problem: StreamedProblem) -> tuple[tuple[Array, Array], Array]:
    """One sweep over all blocks, and the previous mean loss."""
    blocks, features, mean, factor, penalty = problem
    U, b = state

    def residuals(X: Array, Y: Array, weight: Array) -> Any:
        """Sums over the blocks of one device."""

        def add(sums: Any, block: Any) -> Any:
            X, Y, weight = block
            H = features(X)
            log_P = jax.nn.log_softmax(H @ U + (b - mean @ U)[None, :])
            R = (Y - jnp.exp(log_P)) * weight[:, None]
            one = H.T @ R, R.sum(axis=0), -jnp.sum(Y * log_P * weight[:, None])
            return jax.tree.map(jnp.add, sums, one), None

        zeros = jnp.zeros_like(U), jnp.zeros_like(b), jnp.zeros((), U.dtype)
        return jax.lax.scan(add, zeros, (X, Y, weight))[0]

    M = blocks.weight.sum()
    HR, R, loss = jax.tree.map(lambda part: part.sum(axis=0) / M, jax.vmap(residuals)(*blocks))  # the one reduction
    ascent = HR - jnp.outer(mean, R) - penalty * U
    step = 2 * jax.scipy.linalg.cho_solve((factor, True), ascent)
    return (U + step, b + 2 * R), loss + penalty / 2 * jnp.sum(U**2)


def streamed_logits(fit: SoftmaxFit, X: Float[Any, "M r"], features: Callable[[Array], Array], *, block: int = 2048) -> Array:
    """`H U + intercept` of examples, in nats, a block at a time.

    Args:
        fit: the layer.
        X: [M, r] inputs of the features.
        features: as in `gram_matrix`.
        block: examples whose features are in memory at a time.

    Example:
        >>> fit = SoftmaxFit(jnp.array([[1.0, -1.0]]), jnp.array([0.5, 0.0]), np.zeros(0))
        >>> streamed_logits(fit, np.array([[2.0]]), jax.tree_util.Partial(lambda x: x)).tolist()
        [[2.5, -2.0]]
    """
    if block < 1:
        raise ValueError(f"blocks of {block} examples: use at least 1")
    starts = range(0, max(len(X), 1), block)  # of no examples, one empty block
    return jnp.concatenate([_block_logits(fit, jnp.asarray(X[m : m + block]), features) for m in starts])


@jax.jit
@full_precision
def _block_logits(fit: SoftmaxFit, X: Array, features: Callable[[Array], Array]) -> Array:
    return features(X) @ fit.U + fit.intercept[None, :]


def _factorise(gram: Gram, ridge: float, times: float) -> tuple[Array, Array]:
    """The lower Cholesky factor of `C + times penalty`, and the penalty `ridge t`."""
    if not 0 < ridge < jnp.inf:
        raise ValueError(f"ridge {ridge}: it keeps HᵀH invertible and must be above 0, e.g. 1e-4")
    factor, t = _covariance_factor(gram, jnp.asarray(ridge * times, gram.M.dtype))
    if not bool(jnp.isfinite(factor[-1, -1])):
        raise ValueError(no_factor(t, ridge))
    return factor, ridge * t


@jax.jit
@full_precision
def _covariance_factor(gram: Gram, ridge: Array) -> tuple[Array, Array]:
    """The lower Cholesky factor of `C + ridge t`, and t, the mean variance."""
    mean = gram.h / gram.M
    C = gram.HH / gram.M - mean[:, None] * mean[None, :]
    t, places = jnp.trace(C) / len(C), jnp.arange(len(C))
    return jax.lax.linalg.cholesky(C.at[places, places].add(ridge * t), symmetrize_input=False), t


@jax.jit
@full_precision
def _solve_least_squares(gram: Gram, factor: Array) -> tuple[Array, Array]:
    mean, share = gram.h / gram.M, gram.y / gram.M
    U = jax.scipy.linalg.cho_solve((factor, True), gram.HY / gram.M - jnp.outer(mean, share))
    return U, share - mean @ U
