"""Recursive feature machines: kernel machines with a learned metric (Radhakrishnan et al., Science 2024).

alpha = (K_M + ridge I)⁻¹ Y,      f(x) = sum_i alpha_i K_M(x, x_i),      M <- (1/n sum_j Df(x_j)ᵀ Df(x_j))^power
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jexplicit.runs.devices import Entry, as_float, full_precision, iterate
from jexplicit.solvers.sweeps import ExampleBlocks, check_examples, split_examples

Kernel = Literal["quadratic", "gaussian", "laplace"]
KERNELS: tuple[str, ...] = get_args(Kernel)
_block = 512  # examples whose kernels and gradients are in memory at a time


class FeatureMachine(NamedTuple):
    """A kernel predictor with a metric M and a bandwidth."""

    X: Float[Array, "n d"]
    alpha: Float[Array, "n c"]
    M: Float[Array, "d d"]
    bandwidth: Any = 1.0


def kernel_and_slope(
    x: Float[Array, " d"], X: Float[Array, "n d"], M: Float[Array, "d d"], kernel: Kernel, bandwidth: Any
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """`K_M(x, x_i)` of one x, and the slopes s_i of its gradient.

        quadratic (xᵀM z)²,    gaussian exp(-|x - z|²_M / 2L²),    laplace exp(-|x - z|_M / L)

    The gradient is `s_i M (x_i - x)`, or `s_i M x_i` of the quadratic kernel, which has no bandwidth L.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel {kernel!r}: choose {', '.join(KERNELS)}")
    if kernel == "quadratic":
        inner = X @ (M @ x)
        return inner**2, 2 * inner
    x, X = x - (centre := X.mean(axis=0)), X - centre[None]  # far from zero, squares of numbers would hide those of distances
    Mx = M @ x
    inner = X @ Mx
    norms = x @ Mx + ((X @ M) * X).sum(axis=1)
    square = norms - 2 * inner
    apart = square > 8 * jnp.finfo(X.dtype).eps * norms  # else x itself, where a root has no gradient
    square = jnp.where(apart, square, 1)
    if kernel == "gaussian":
        K = jnp.where(apart, jnp.exp(-square / (2 * bandwidth**2)), 1)
        return K, K / bandwidth**2
    root = jnp.sqrt(square)
    K = jnp.where(apart, jnp.exp(-root / bandwidth), 1)
    return K, jnp.where(apart, K / (bandwidth * root), 0)


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
    """Kernel ridge regression with a metric: `alpha = (K_M + ridge k I)⁻¹ Y`.

    The ridge is relative to the kernel's own size, and at least n times the rounding of the float type.

    >>> X, Y = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0], [3.0]])
    >>> np.round(np.asarray(predict(solve(X, Y, jnp.eye(2)), X)), 3).tolist()
    [[1.0], [3.0]]
    """
    check_examples(X, Y)
    X, Y, M = as_float(X), as_float(Y), as_float(M)
    K = _kernel_matrix(X, X, M, kernel, bandwidth)
    size = jnp.trace(K) / len(X)
    ridge = jnp.maximum(ridge, len(X) * jnp.finfo(K.dtype).eps) * jnp.where(size > 0, size, 1)
    factor = jax.scipy.linalg.cho_factor(K + ridge * jnp.eye(len(X), dtype=K.dtype))
    return FeatureMachine(X, jax.scipy.linalg.cho_solve(factor, Y), M, jnp.asarray(bandwidth, X.dtype))


@functools.partial(jax.jit, static_argnames="kernel")
@full_precision
def solve_on_landmarks(
    blocks: ExampleBlocks,
    Z: Float[Array, "m d"],
    M: Float[Array, "d d"],
    *,
    kernel: Kernel = "quadratic",
    bandwidth: float | Float[Array, ""] = 1.0,
    ridge: float | Float[Array, ""] = 1e-6,
) -> FeatureMachine:
    """The same regression with kernels of m landmarks alone (Nyström), in `n m²` operations:

        phi(x) = L⁻¹ K_M(Z, x),  K_M(Z, Z) = L Lᵀ,     w = (PhiᵀPhi + ridge k I)⁻¹ PhiᵀY,     alpha = L⁻ᵀ w

    Source: Williams & Seeger, Using the Nyström method to speed up kernel machines, 2000.
    """
    K, identity = _kernel_matrix(Z, Z, M, kernel, bandwidth), jnp.eye(len(Z), dtype=Z.dtype)
    size = jnp.trace(K) / len(Z)
    L = jnp.linalg.cholesky(K + len(Z) * jnp.finfo(K.dtype).eps * size * identity)

    def add(sums: Any, block: Any) -> Any:
        X, Y, weight = block
        Phi = jax.scipy.linalg.solve_triangular(L, _kernel_matrix(Z, X, M, kernel, bandwidth) * weight[None], lower=True)
        return (sums[0] + Phi @ Phi.T, sums[1] + Phi @ Y), None

    zeros = jnp.zeros_like(K), jnp.zeros((len(Z), blocks.Y.shape[-1]), K.dtype)
    of_devices = jax.vmap(lambda *own: jax.lax.scan(add, zeros, own)[0])(*blocks)
    PhiPhi, PhiY = jax.tree.map(lambda part: part.sum(axis=0), of_devices)
    w = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(PhiPhi + ridge * size * identity), PhiY)
    alpha = jax.scipy.linalg.solve_triangular(L, w, trans=1, lower=True)
    return FeatureMachine(Z, alpha, M, jnp.asarray(bandwidth, Z.dtype))


@functools.partial(jax.jit, static_argnames="kernel")
@full_precision
def predict(machine: FeatureMachine, X: Float[Array, "m d"], *, kernel: Kernel = "quadratic") -> Float[Array, "m c"]:
    """`f(x) = sum_i alpha_i K_M(x, x_i)` of every row of X."""
    Z, alpha, M, bandwidth = machine
    return jax.lax.map(lambda x: kernel_and_slope(x, Z, M, kernel, bandwidth)[0] @ alpha, X, batch_size=_block)


@functools.partial(jax.jit, static_argnames="kernel")
@full_precision
def agop(
    machine: FeatureMachine, examples: ExampleBlocks | None = None, *, kernel: Kernel = "quadratic"
) -> Float[Array, "d d"]:
    """The average gradient outer product, `1/n sum_j Df(x_j)ᵀ Df(x_j)`.

    >>> agop(FeatureMachine(jnp.array([[1.0]]), jnp.array([[1.0]]), jnp.eye(1))).tolist()  # of f(x) = x²
    [[4.0]]
    """
    if examples is None:  # one block; large machines have their examples in blocks
        X, weight = machine.X[None, None], jnp.ones((1, 1, len(machine.X)), machine.X.dtype)
    else:
        X, weight = examples.X, examples.weight
    total = _quadratic_sum(machine, X, weight) if kernel == "quadratic" else _radial_sum(machine, X, weight, kernel)
    return machine.M @ total @ machine.M / weight.sum()


def _quadratic_sum(machine: FeatureMachine, X: Array, weight: Array) -> Float[Array, "d d"]:
    """`M⁻¹ sum_j Df(x_j)ᵀDf(x_j) M⁻¹` of quadratic forms, `Df_c(x) = 2 M S_c M x`."""
    Z, alpha, M, _ = machine
    C = M @ jnp.einsum("kbmd,kbme,kbm->de", X, X, weight) @ M

    def add(total: Array, weights: Float[Array, " n"]) -> tuple[Array, None]:
        S = (Z * weights[:, None]).T @ Z
        return total + 4 * S @ C @ S, None

    return jax.lax.scan(add, jnp.zeros_like(M), alpha.T)[0]


def _radial_sum(machine: FeatureMachine, X: Array, weight: Array, kernel: Kernel) -> Float[Array, "d d"]:
    """The same of kernels of a distance, `sum_i s_i alpha_i (z_i - x)ᵀ`."""
    Z, alpha, M, bandwidth = machine
    (m, d), c = Z.shape, alpha.shape[1]
    centre = Z.mean(axis=0)
    X, Z = X - centre[None, None, None], Z - centre[None]
    weighted = (alpha[:, :, None] * Z[:, None, :]).reshape(m, c * d)

    def gradients(x: Float[Array, " d"]) -> Float[Array, "c d"]:
        slope = kernel_and_slope(x, Z, M, kernel, bandwidth)[1]
        return (slope @ weighted).reshape(c, d) - (slope @ alpha)[:, None] * x[None]

    def add(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        x, known = block
        G = (jax.vmap(gradients)(x) * known[:, None, None]).reshape(-1, d)
        return total + G.T @ G, None

    return jax.vmap(lambda *blocks: jax.lax.scan(add, jnp.zeros_like(M), blocks)[0])(X, weight).sum(axis=0)


def metric_power(M: Float[Array, "d d"], power: float) -> Float[Array, "d d"]:
    """`M^power` of a positive semidefinite matrix, scaled so that its largest entry is 1."""
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
    landmarks: int | None = None,
    seed: int = 0,
    mesh: Mesh | None = None,
    measure: Callable[[FeatureMachine], Mapping[str, Any]] = lambda machine: {},
    **options: Any,
) -> tuple[FeatureMachine, list[Entry]]:
    """Solve, take the metric from the predictor's gradients, and solve again.

    Args:
        solves: how many; the first has the identity as its metric.
        bandwidth: L, relative to the root mean square of the distances between examples, by the metric of each solve.
        power: of the average gradient outer product.
        landmarks: number of examples, drawn by the seed, whose kernels the predictor is made of; default, all.
        measure: fields of the history of every solve, such as its accuracy.
        options: checkpoints and callbacks of `iterate`.

    Example:
        >>> X = jax.random.normal(jax.random.key(0), (60, 4))
        >>> machine, _ = feature_machine(X, X[:, :1] ** 2, solves=3, ridge=1e-3)
        >>> jnp.diagonal(machine.M).round(2).tolist()  # the first coordinate is all that matters
        [1.0, 0.0, 0.0, 0.0]
    """
    X, Y = as_float(X), as_float(Y)
    whole = all(isinstance(n, int | np.integer) and n >= 1 for n in (solves, 1 if landmarks is None else landmarks))
    positive = all(not isinstance(x, str) and 0 < x < np.inf for x in (bandwidth, ridge, power))
    if not whole or kernel not in KERNELS or not positive:
        raise ValueError(
            f"{solves} solves, kernel {kernel!r}, bandwidth {bandwidth}, ridge {ridge}, power {power}, {landmarks} landmarks: "
            f"use whole numbers of at least 1, {' or '.join(KERNELS)}, and numbers above 0"
        )
    blocks = split_examples(X, Y, block=_block, mesh=mesh)
    some = landmarks is not None and landmarks < len(X)
    Z = X[np.sort(np.random.default_rng(seed).permutation(len(X))[:landmarks])] if some else X
    C = jnp.cov(X.T, bias=True).reshape(X.shape[1], X.shape[1])

    def scale(M: Array) -> Array:
        return bandwidth * jnp.sqrt(jnp.maximum(2 * (M * C).sum(), jnp.finfo(X.dtype).tiny))

    def step(state: tuple[Array, Array], history: Any) -> tuple[tuple[Array, Array], dict[str, Any]]:
        M, alpha = state
        if history:
            M = metric_power(agop(FeatureMachine(Z, alpha, M, scale(M)), blocks, kernel=kernel), power)
        regression: Any = {"kernel": kernel, "bandwidth": scale(M), "ridge": ridge}
        machine = solve_on_landmarks(blocks, Z, M, **regression) if some else solve(X, Y, M, **regression)
        if not bool(jnp.isfinite(machine.alpha).all()):
            raise FloatingPointError(f"solve {len(history) + 1} is not finite: use a ridge above {ridge:g}, or smaller inputs")
        return (M, machine.alpha), {"solve": len(history) + 1, **measure(machine)}

    start = jnp.eye(X.shape[1], dtype=X.dtype), jnp.zeros((len(Z), Y.shape[1]), X.dtype)
    known: Any = {"examples": X, "targets": Y, "kernel": kernel, "seed": seed}
    known |= {"bandwidth": bandwidth, "ridge": ridge, "power": power}
    (M, alpha), history = iterate(step, start, done=lambda history: len(history) >= solves, known=known, **options)
    return FeatureMachine(Z, alpha, M, scale(M)), history


def _kernel_matrix(X: Array, Z: Array, M: Array, kernel: Kernel, bandwidth: Any) -> Float[Array, "m n"]:
    return jax.vmap(lambda x: kernel_and_slope(x, Z, M, kernel, bandwidth)[0])(X)
