"""Recursive feature machines: a kernel machine that learns its metric in closed form, with no backpropagation.

    alpha = (K_M + ridge I)⁻¹ Y,      f(x) = sum_i alpha_i K_M(x, x_i)                      solve
    M <- (1/n sum_j Df(x_j)ᵀ Df(x_j))^power                                                  average gradient outer product

The gradients are those of the predictor with respect to its inputs, which a kernel has in closed form. Repeated, the metric
turns to the directions that matter: features, as the layers of a network learn them.

Source: Radhakrishnan, Beaglehole, Pandit & Belkin, Mechanism for feature learning in neural networks and backpropagation-free
machine learning models, Science 2024; modular arithmetic: Mallinar et al., Emergence in non-neural models, 2025.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jexplicit.runs.devices import full_precision
from jexplicit.runs.iterate import Entry, iterate

Kernel = Literal["quadratic", "gaussian", "laplace"]
KERNELS: tuple[str, ...] = get_args(Kernel)
_block = 256  # examples whose gradients are in memory at a time


class FeatureMachine(NamedTuple):
    """A kernel predictor.

    X: [n, d] examples.
    alpha: [n, c].
    M: [d, d] the metric, symmetric and positive semidefinite.
    bandwidth: L of the kernels of a distance.
    """

    X: Float[Array, "n d"]
    alpha: Float[Array, "n c"]
    M: Float[Array, "d d"]
    bandwidth: Any = 1.0


def kernel_and_slope(
    x: Float[Array, " d"], X: Float[Array, "n d"], M: Float[Array, "d d"], kernel: Kernel, bandwidth: Any
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """`K_M(x, x_i)` of one x, and the slopes s_i of its gradient `s_i M (x_i - x)`, or `s_i M x_i` of the quadratic one.

        quadratic (xᵀM z)²,    gaussian exp(-|x - z|²_M / 2L²),    laplace exp(-|x - z|_M / L)

    Args:
        x, X: an example and others.
        M: the metric.
        kernel: which.
        bandwidth: L; the quadratic kernel has none.

    Example:
        >>> K, _ = kernel_and_slope(jnp.ones(2), jnp.ones((1, 2)), jnp.eye(2), "quadratic", 1.0)
        >>> K.tolist()
        [4.0]
    """
    if kernel == "quadratic":
        inner = X @ (M @ x)
        return inner**2, 2 * inner
    away = X - x[None]
    square = jnp.maximum(((away @ M) * away).sum(axis=1), 0)
    K = _of_square(square, kernel, bandwidth)
    if kernel == "gaussian":
        return K, K / bandwidth**2
    near = square <= 1e-12 * jnp.trace(M)  # at x itself there is no gradient
    return K, jnp.where(near, 0, K / (bandwidth * jnp.sqrt(jnp.where(near, 1, square))))


@functools.partial(jax.jit, static_argnames="kernel")
@full_precision
def solve(
    X: Float[Array, "n d"],
    Y: Float[Array, "n c"],
    M: Float[Array, "d d"],
    *,
    kernel: Kernel = "quadratic",
    bandwidth: float | Float[Array, ""] = 1.0,
    ridge: float | Float[Array, ""] = 1e-6,
) -> FeatureMachine:
    """Kernel ridge regression with a metric: `alpha = (K_M + ridge k I)⁻¹ Y`, k the mean of the diagonal of K_M.

    Args:
        X: [n, d] examples.
        Y: [n, c] targets.
        M: the metric.
        kernel, bandwidth: of `kernel_and_slope`.
        ridge: relative to the kernel's own size.

    Example:
        >>> X, Y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0], [3.0]])
        >>> machine = solve(X, Y, jnp.eye(2))
        >>> predict(machine, X).round(3).tolist()
        [[1.0], [3.0]]
    """
    K = _kernel_matrix(X, X, M, kernel, bandwidth)
    size = jnp.trace(K) / len(X)
    factor = jax.scipy.linalg.cho_factor(K + ridge * size * jnp.eye(len(X), dtype=K.dtype))
    return FeatureMachine(X, jax.scipy.linalg.cho_solve(factor, Y), M, jnp.asarray(bandwidth, X.dtype))


@functools.partial(jax.jit, static_argnames="kernel")
@full_precision
def predict(machine: FeatureMachine, X: Float[Array, "m d"], *, kernel: Kernel = "quadratic") -> Float[Array, "m c"]:
    """`f(x) = sum_i alpha_i K_M(x, x_i)` of every row of X."""
    return _kernel_matrix(X, machine.X, machine.M, kernel, machine.bandwidth) @ machine.alpha


@functools.partial(jax.jit, static_argnames="kernel")
@full_precision
def agop(machine: FeatureMachine, *, kernel: Kernel = "quadratic") -> Float[Array, "d d"]:
    """The average gradient outer product of the predictor at its examples: `1/n sum_j Df(x_j)ᵀ Df(x_j)`, Df: [c, d].

    Example:
        >>> machine = FeatureMachine(jnp.array([[1.0]]), jnp.array([[1.0]]), jnp.eye(1))  # f(x) = x²
        >>> agop(machine).tolist()
        [[4.0]]
    """
    total = _quadratic_sum(machine) if kernel == "quadratic" else _radial_sum(machine, kernel)
    return machine.M @ total @ machine.M / len(machine.X)


def _quadratic_sum(machine: FeatureMachine) -> Float[Array, "d d"]:
    """`M⁻¹ sum_j Df(x_j)ᵀDf(x_j) M⁻¹` of `f_c(x) = (Mx)ᵀ S_c Mx`, `S_c = sum_i alpha_ic x_i x_iᵀ`: `Df_c(x) = 2 M S_c M x`."""
    X, alpha, M, _ = machine
    C = M @ (X.T @ X) @ M

    def add(total: Array, weights: Float[Array, " n"]) -> tuple[Array, None]:
        S = (X * weights[:, None]).T @ X
        return total + 4 * S @ C @ S, None

    return jax.lax.scan(add, jnp.zeros_like(M), alpha.T)[0]


def _radial_sum(machine: FeatureMachine, kernel: Kernel) -> Float[Array, "d d"]:
    """The same of kernels of a distance, of some examples at a time, so that memory does not grow with their number."""
    X, alpha, M, bandwidth = machine
    n = len(X)

    def gradients(x: Float[Array, " d"]) -> Float[Array, "c d"]:
        """`Df(x) M⁻¹`."""
        weights = alpha * kernel_and_slope(x, X, M, kernel, bandwidth)[1][:, None]
        return weights.T @ X - weights.sum(axis=0)[:, None] * x[None]

    def add(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        x, known = block
        G = (jax.vmap(gradients)(x) * known[:, None, None]).reshape(-1, X.shape[1])
        return total + G.T @ G, None

    size = min(_block, n)
    blocks = -(-n // size)
    padded = jnp.pad(X, ((0, blocks * size - n), (0, 0))).reshape(blocks, size, -1)
    known = (jnp.arange(blocks * size) < n).astype(X.dtype).reshape(blocks, size)
    return jax.lax.scan(add, jnp.zeros_like(M), (padded, known))[0]


def metric_power(M: Float[Array, "d d"], power: float) -> Float[Array, "d d"]:
    """`M^power` of a symmetric positive semidefinite matrix, scaled so that its largest entry is 1."""
    values, vectors = jnp.linalg.eigh((M + M.T) / 2)
    raised = (vectors * jnp.maximum(values, 0)[None] ** power) @ vectors.T
    return raised / jnp.maximum(jnp.abs(raised).max(), jnp.finfo(M.dtype).tiny)


@full_precision
def feature_machine(
    X: Float[Array, "n d"],
    Y: Float[Array, "_ c"],
    *,
    solves: int,
    kernel: str = "quadratic",
    bandwidth: float = 1.0,
    ridge: float = 1e-6,
    power: float = 0.5,
    measure: Callable[[FeatureMachine], Mapping[str, Any]] = lambda machine: {},
    **options: Any,
) -> tuple[FeatureMachine, list[Entry]]:
    """Solve, take the metric from the predictor's gradients, and solve again.

    Args:
        X: [n, d] examples, in the float type of the computation.
        Y: [n, c] targets.
        solves: how many; the first has the identity as its metric.
        kernel, ridge: of `solve`.
        bandwidth: L, relative to the root mean square of the distances between examples, by the metric of each solve.
        power: of the average gradient outer product.
        measure: what the history has of every solve, such as its accuracy.
        options: checkpoints and callbacks of `jexplicit.runs.iterate`.

    Returns:
        The last machine, and the history.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, no solve, an unknown kernel, or a bandwidth, ridge or
            power that is not above 0.
        FloatingPointError: a solution that is not finite: raise the ridge.

    Example:
        >>> X = jax.random.normal(jax.random.key(0), (60, 4))
        >>> machine, _ = feature_machine(X, X[:, :1] ** 2, solves=3, ridge=1e-3)
        >>> jnp.diagonal(machine.M).round(2).tolist()  # the first coordinate is all that matters
        [1.0, 0.0, 0.0, 0.0]
    """
    check_examples(X, Y)
    if solves < 1 or kernel not in KERNELS or not (bandwidth > 0 and ridge > 0 and power > 0):
        raise ValueError(
            f"{solves} solves, kernel {kernel!r}, bandwidth {bandwidth}, ridge {ridge}, power {power}: use at least one solve, "
            f"{' or '.join(KERNELS)}, and numbers above 0"
        )
    C = jnp.cov(X.T, bias=True).reshape(X.shape[1], X.shape[1])

    def scale(M: Array) -> Array:
        return bandwidth * jnp.sqrt(jnp.maximum(2 * (M * C).sum(), jnp.finfo(X.dtype).tiny))

    def step(state: tuple[Array, Array], history: Any) -> tuple[tuple[Array, Array], dict[str, Any]]:
        M, alpha = state
        if history:
            M = metric_power(agop(FeatureMachine(X, alpha, M, scale(M)), kernel=kernel), power)
        machine = solve(X, Y, M, kernel=kernel, bandwidth=scale(M), ridge=ridge)
        if not bool(jnp.isfinite(machine.alpha).all()):
            raise FloatingPointError(f"solve {len(history) + 1} is not finite: use a ridge above {ridge:g}, or smaller inputs")
        return (M, machine.alpha), {"solve": len(history) + 1, **measure(machine)}

    start = jnp.eye(X.shape[1], dtype=X.dtype), jnp.zeros(Y.shape, X.dtype)
    (M, alpha), history = iterate(step, start, done=lambda history: len(history) >= solves, **options)
    return FeatureMachine(X, alpha, M, scale(M)), history


def check_examples(X: Any, Y: Any) -> None:
    """Refuse examples and targets that do not go together."""
    if jnp.ndim(X) != 2 or jnp.ndim(Y) != 2 or len(X) != len(Y) or 0 in X.shape or 0 in Y.shape:
        raise ValueError(f"examples {jnp.shape(X)}, targets {jnp.shape(Y)}: give [n, d] and [n, c], of at least one example")
    if not bool(jnp.isfinite(X).all()) or not bool(jnp.isfinite(Y).all()):
        raise ValueError("examples or targets that are not finite: clean them first")


def _kernel_matrix(X: Array, Z: Array, M: Array, kernel: Kernel, bandwidth: Any) -> Float[Array, "m n"]:
    if kernel == "quadratic":
        return (X @ M @ Z.T) ** 2
    XM = X @ M
    square = jnp.maximum((XM * X).sum(axis=1)[:, None] - 2 * XM @ Z.T + ((Z @ M) * Z).sum(axis=1)[None], 0)
    return _of_square(square, kernel, bandwidth)


def _of_square(square: Array, kernel: Kernel, bandwidth: Any) -> Array:
    """A kernel of a distance, of its square."""
    if kernel == "gaussian":
        return jnp.exp(-square / (2 * bandwidth**2))
    apart = square > 0  # the root has no gradient at 0
    return jnp.where(apart, jnp.exp(-jnp.sqrt(jnp.where(apart, square, 1)) / bandwidth), 1)
