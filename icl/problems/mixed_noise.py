"""Regression with a noise level of each task, and its optimum.

    σ_τ ~ p(σ),    y_i = wᵀ x_i + σ_τ ε_i,    w ~ N(0, I)

A *diagonal* layer updates tokens by four scalars,

    x_j <- x_j + w_xx Σ_i x_i x_iᵀ x_j + w_xy Σ_i x_i y_i y_j,    y_j <- y_j + w_yx Σ_i y_i x_iᵀ x_j + w_yy Σ_i y_i² y_j

of which GD++ has only w_xx and w_yx. They are fitted by L-BFGS on many tasks at once, starting from the optimal polynomial of
GD++. The *adjusted loss* of a predictor is its loss minus that of ridge regression with known σ_τ.

Source: Vladymyrov, von Oswald, Miller, Sandler 2024.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jaxtyping import Array, Float

from icl.linalg import contract, transpose
from icl.solvers.descent import ridge
from icl.solvers.polynomials import optimal_polynomials
from icl.solvers.spectrum import spectral_law
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from icl.training import blocked_gradient
from jexplicit.runs.devices import full_precision

_floor = 1e-3  # lower bound of the noise in penalties, as contexts with N = d are ill-conditioned


@dataclasses.dataclass(frozen=True)
class MixedNoise:
    """A distribution of tasks whose noise level differs from task to task.

    dim: d; context: N > d, as the noise is estimated from N - d residuals.
    levels: the possible standard deviations; a single number is the upper bound of a uniform distribution from 0.
    """

    dim: int = 10
    context: int = 20
    levels: float | tuple[float, ...] = 5.0

    def __post_init__(self):
        if not 1 <= self.dim < self.context:
            raise ValueError(f"dim {self.dim}, context {self.context}: use more pairs than inputs, to estimate the noise")
        if self.levels == () or min(self.support) < 0:
            raise ValueError(f"levels {self.levels}: give standard deviations of noise, at least 0")

    @property
    def support(self) -> tuple[float, ...]:
        """The noise levels, or a grid of the uniform distribution."""
        if isinstance(self.levels, tuple):
            return self.levels
        return tuple(float(level) for level in (np.arange(50) + 0.5) / 50 * self.levels)

    @property
    def tasks(self) -> Tasks:
        """The same tasks without noise: x ~ N(0, I)."""
        return Tasks(dim=self.dim, context=self.context, inputs="normal", input_range=12**0.5)


class DiagonalFit(NamedTuple):
    """Fitted rates [K, 4]: w_xx, w_xy, w_yx, w_yy, and their loss."""

    rates: Float[np.ndarray, "K 4"]
    loss: float


def sample_mixed_noise(key: Array, distribution: MixedNoise, size: int) -> tuple[Sequence, Float[Array, " size"]]:
    """Sample tasks, batch last, and the standard deviation of the noise of each."""
    key_sigma, key = jax.random.split(key)
    sigma = _sample_levels(key_sigma, distribution, size)
    return sample_tasks(key, dataclasses.replace(distribution.tasks, noise=sigma), size), sigma


@functools.partial(jax.jit, static_argnums=(1, 2))
def _sample_levels(key: Array, distribution: MixedNoise, size: int) -> Array:
    if isinstance(distribution.levels, tuple):
        return jax.random.choice(key, jnp.asarray(distribution.levels, jnp.zeros(()).dtype), (size,))
    return distribution.levels * jax.random.uniform(key, (size,))


def predict_diagonal(rates: Float[Array, "K 4"], batch: Sequence) -> Float[Array, "1 batch"]:
    """The predictions of K diagonal layers."""

    def layer(state: tuple[Array, ...], w: Array) -> tuple[tuple[Array, ...], None]:
        X, y, x, s = state  # [N, d, B], [N, 1, B], [d, 1, B], [1, 1, B]
        xx, xy, yx, yy = w
        G, r, q = contract(X, X), contract(X, y), contract(y, y)
        X_next = X + xx * contract(transpose(X), G) + xy * contract(transpose(y), transpose(r))
        y_next = y + yx * contract(transpose(X), r) + yy * y * q
        x_next = x + xx * contract(G, x) + xy * r * s
        s_next = s + yx * contract(r, x) + yy * q * s
        return (X_next, y_next, x_next, s_next), None

    start = batch.X, batch.Y, batch.x_q[:, None], jnp.zeros_like(batch.y_q)[:, None]
    (_, _, _, s), _ = lax.scan(layer, start, rates)
    return -s[:, 0]


def fit_diagonal(batch: Sequence, start: Float[np.ndarray, "K 4"], *, plus_plus: bool = False, steps: int = 200) -> DiagonalFit:
    """The K diagonal layers of lowest loss on given tasks, by L-BFGS."""
    if start.ndim != 2 or start.shape[1] != 4 or not len(start):
        raise ValueError(f"start {start.shape}: wanted [layers, 4]")
    free = np.broadcast_to([True, not plus_plus, True, not plus_plus], start.shape).copy()
    free[-1, :2] = False  # the output depends on y only
    rates = np.where(free | (not plus_plus), start, 0.0).astype(np.float64)
    unit = 1 / len(batch.X)  # rates are of the order of 1/N

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        rates[free] = theta * unit
        value, slope = _diagonal_loss(jnp.asarray(rates, batch.X.dtype), batch)
        slope = np.asarray(slope, np.float64)[free] * unit
        return (float(value), slope) if np.isfinite(value) else (np.inf, np.zeros_like(slope))

    theta = rates[free] / unit
    if not np.isfinite(loss(theta)[0]):
        raise ValueError(f"rates {start.tolist()}: their loss is not finite; start from smaller ones")
    found = scipy.optimize.minimize(loss, theta, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    best, _ = loss(found.x)
    return DiagonalFit(rates.copy(), best)


@jax.jit
def _diagonal_loss(rates: Array, batch: Sequence) -> tuple[Array, Array]:
    """The loss and its gradient, in blocks of tasks that fit the cache."""
    return blocked_gradient(rates, batch, lambda rates, batch: half_mse(predict_diagonal(rates, batch), batch.y_q))


def gd_plus_plus_rates(key: Array, distribution: MixedNoise, layers: int, *, contexts: int = 5000) -> Float[np.ndarray, "K 4"]:
    """The best K layers of GD++ at the root mean square noise."""
    tasks = dataclasses.replace(distribution.tasks, noise=float(np.sqrt(np.mean(np.square(distribution.support)))))
    found = optimal_polynomials(spectral_law(key, tasks, contexts), tasks, layers=layers, tied=False)[-1]
    zero = np.zeros(layers)
    return np.stack([0.0 - found.gamma, zero, -found.eta / distribution.context, zero], axis=1)


@full_precision
def estimated_variance(batch: Sequence) -> Float[Array, " batch"]:
    """An unbiased estimate of noise variance, `||y - X w||² / (N - d)`."""

    def one(sequence: Sequence) -> Array:
        X, Y = sequence.X, sequence.Y
        W = jnp.linalg.solve(X.T @ X, X.T @ Y)
        return jnp.sum((Y - X @ W) ** 2) / (X.shape[0] - X.shape[1])

    return vmap_tasks(one)(batch)


def ridge_batch(batch: Sequence, penalty: Float[Array, " batch"]) -> Float[Array, "1 batch"]:
    """Ridge regression with a penalty per task; σ² is Bayes-optimal given σ."""
    return vmap_tasks(ridge)(batch, jnp.maximum(penalty, _floor**2))


@jax.jit
def _ridge_loss(batch: Sequence, penalty: Array) -> Array:
    return half_mse(ridge_batch(batch, penalty), batch.y_q)


def constant_penalty(batch: Sequence) -> float:
    """The single penalty with the lowest loss on given tasks."""

    def loss(log: float) -> float:
        return float(_ridge_loss(batch, jnp.full(batch.X.shape[-1], np.exp(log), batch.X.dtype)))

    return float(np.exp(scipy.optimize.minimize_scalar(loss, bounds=(-8.0, 8.0), method="bounded").x))


def tuned_penalty(batch: Sequence) -> tuple[float, float]:
    """The penalty `m max(estimated variance, t)` of lowest loss, by Nelder-Mead."""
    variance = jax.jit(estimated_variance)(batch)

    def loss(logs: np.ndarray) -> float:
        m, t = map(float, np.exp(logs))
        return float(_ridge_loss(batch, m * jnp.maximum(variance, t)))

    start = np.log([1.0, float(jnp.median(variance)) / 4])
    options = {"xatol": 1e-2, "fatol": 1e-6}
    found = scipy.optimize.minimize(loss, start, method="Nelder-Mead", options=options)
    m, t = map(float, np.exp(found.x))
    return m, t


@full_precision
def posterior_mean(batch: Sequence, distribution: MixedNoise) -> Float[Array, "1 batch"]:
    """The Bayes optimum: ridge predictions weighted by the posterior of the noise.

    ŷ = Σ_σ p(σ | X, y) ŷ_σ,    y | X, σ ~ N(0, X Xᵀ + σ² I)
    """
    variances = jnp.maximum(jnp.asarray(distribution.support, batch.X.dtype), _floor) ** 2

    def one(X: Array, Y: Array, x_q: Array, _: Array) -> Array:
        values, vectors = jnp.linalg.eigh(X.T @ X)
        y, z = Y[:, 0], vectors.T @ (X.T @ Y[:, 0])
        a = vectors.T @ x_q

        def given(v: Array) -> tuple[Array, Array]:
            shrunk = z / (values + v)
            fit = (y @ y - z @ shrunk) / v  # yᵀ (X Xᵀ + v I)⁻¹ y
            log_det = jnp.sum(jnp.log(values + v)) + (len(y) - len(values)) * jnp.log(v)
            return -(fit + log_det) / 2, a @ shrunk

        evidence, y_q = jax.vmap(given)(variances)
        return (jax.nn.softmax(evidence) @ y_q)[None]

    return vmap_tasks(one)(*batch)


def ridge_baselines(batch: Sequence, distribution: MixedNoise) -> dict[str, Callable[[Sequence], Any]]:
    """Predictors without attention by name, their hyperparameters fitted to given tasks.

    ridge: one penalty for all; adaptive: the estimated variance; tuned: `tuned_penalty`; posterior mean: the Bayes optimum.
    """
    constant, (m, t) = constant_penalty(batch), tuned_penalty(batch)
    return {
        "ridge": vmap_tasks(functools.partial(ridge, penalty=constant)),
        "ridge, adaptive": lambda batch: ridge_batch(batch, estimated_variance(batch)),
        "ridge, tuned": lambda batch: ridge_batch(batch, m * jnp.maximum(estimated_variance(batch), t)),
        "posterior mean": lambda batch: posterior_mean(batch, distribution),
    }
