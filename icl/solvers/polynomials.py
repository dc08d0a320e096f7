"""The optimal K layers of GD and GD++ without training: polynomials in the eigenvalues of the context.

GD and GD++ act on each eigenvalue λ of XᵀX separately. Starting from a = r = 1, a layer is

    m = a² λ,    r <- r (1 - (η/N) m),    a <- a (1 - γ m),

and after K layers the error of the prediction is `wᵀ r(XᵀX) x_q`. The loss is then a mean over eigenvalues, a function of a few
numbers that is minimised in seconds:

    loss = (m s/2) E Σ_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i).

The polynomial of GD++ has a degree that grows as 3^K, and its loss has heavy tails on rare contexts: quantiles are reported
with the mean. From K = 3 on, rates that are optimal for 20,000 contexts can be arbitrarily bad on one of the next 100,000,
whose largest eigenvalue is a little larger. A guard keeps errors from growing there, at little cost elsewhere.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from icl.tasks import Tasks, sample_tasks

_coarse = 2000  # contexts that every starting point is tried on
_finalists = 3  # starting points that are minimised on all contexts
_guard_points = 500  # eigenvalues at which the guard is evaluated
QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Polynomial(NamedTuple):
    """K layers of GD or GD++, and their loss on a set of contexts.

    eta, gamma: [K], one number per layer, K equal numbers where tied; the last γ has no effect.
    loss: half the mean squared error; standard_error: of that mean.
    quantiles: of the loss by context, at QUANTILES; half a per cent of the contexts can make up most of the mean.
    """

    eta: np.ndarray
    gamma: np.ndarray
    loss: float
    standard_error: float
    quantiles: tuple[float, ...]


def context_eigenvalues(key: Array, tasks: Tasks, number: int) -> Float[np.ndarray, "number d"]:
    """The eigenvalues of XᵀX of fresh contexts, smallest first, in float64.

    Args:
        tasks: their distribution, with independent symmetric coordinates.
        number: of contexts.

    Raises:
        ValueError: other inputs, or no context.

    Example:
        >>> context_eigenvalues(jax.random.key(0), Tasks(dim=3, context=5), 2).shape
        (2, 3)
    """
    _ = tasks.kurtosis  # refuses other inputs
    if number < 1:
        raise ValueError(f"{number} contexts: draw at least one")
    X = np.moveaxis(np.asarray(sample_tasks(key, tasks, number).X, np.float64), -1, 0)
    gram = X.swapaxes(1, 2) @ X
    return np.maximum(np.linalg.eigvalsh(gram), 0)


def residual(values: Array, eta: Float[Array, " K"], gamma: Float[Array, " K"], N: int) -> Array:
    """`r(λ)` after K layers, for any number of eigenvalues.

    Example:
        >>> residual(jnp.array([0.0, 1.0]), jnp.array([5.0]), jnp.zeros(1), 10).tolist()
        [1.0, 0.5]
    """
    a, r = jnp.ones_like(values), jnp.ones_like(values)
    for n in range(len(eta)):
        m = a**2 * values
        r, a = r * (1 - eta[n] / N * m), a * (1 - gamma[n] * m)
    return r


def losses_by_context(
    values: Float[Array, "T d"], eta: Float[Array, " K"], gamma: Float[Array, " K"], tasks: Tasks
) -> Float[Array, " T"]:
    """Half the expected squared error given each context, over weights, query and noise.

        (m s/2) Σ_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i)

    Example:
        >>> losses_by_context(jnp.ones((1, 3)), jnp.zeros(1), jnp.zeros(1), Tasks(dim=3)).round(3).tolist()
        [0.125]
    """
    r = residual(values, eta, gamma, tasks.context)
    c, v, s = tasks.weight_scale, tasks.noise**2, tasks.variance
    positive = values > 0  # where λ = 0, 1 - r = 0
    noise = jnp.where(positive, (1 - r) ** 2 / jnp.where(positive, values, 1), 0)
    return tasks.outputs * s / 2 * jnp.sum(c**2 * r**2 + v * noise, axis=1)


def optimal_polynomial(
    values: Float[np.ndarray, "T d"],
    tasks: Tasks,
    *,
    layers: int,
    tied: bool,
    plus_plus: bool = True,
    guard: float = 0.0,
    starts: int = 24,
    seed: int = 0,
) -> Polynomial:
    """The best K layers of GD or GD++, by L-BFGS from several starting points.

    A guard adds the mean of `max(r(λ)² - 1, 0)²` over 0 < λ <= guard max λ_i, times the loss of predicting zero.

    Args:
        values: [T, d] of `context_eigenvalues`.
        tasks: their distribution.
        layers: K.
        tied: whether all layers share η and γ, as recurrent layers do.
        plus_plus: GD++; False for GD, γ = 0.
        guard: errors should not grow up to this multiple of the largest eigenvalue; 0 for no guard. GD++ needs one from K = 3.
        starts: number of random starting points; GD++ with rates per layer has local minima from K = 3 on.
        seed: of the starting points.

    Raises:
        ValueError: numbers below 1, a negative guard, or eigenvalues of another dimension.

    Example:
        >>> tasks = Tasks(dim=10, context=10)
        >>> found = optimal_polynomial(context_eigenvalues(jax.random.key(0), tasks, 500), tasks, layers=1, tied=True, starts=1)
        >>> 5 < float(found.eta[0]) < 7
        True

    Source: this package; GD++ as in von Oswald et al. 2023, App. A.10.
    """
    if min(layers, starts) < 1 or values.ndim != 2 or values.shape[1] != tasks.dim:
        raise ValueError(f"{layers} layers, {starts} starts, eigenvalues {values.shape}: wanted >= 1, >= 1, [T, {tasks.dim}]")
    if not 0 <= guard < np.inf:
        raise ValueError(f"guard {guard}: use a multiple of the largest eigenvalue, or 0 for none")
    free = 1 if tied else layers
    has_gamma = plus_plus and layers > 1
    rng = np.random.default_rng(seed)
    # in units of 1/s and 1/(N s), where good rates are of order 1
    eta0 = np.exp(rng.uniform(np.log(0.2), np.log(8), (starts, free)))
    gamma0 = np.exp(rng.uniform(np.log(0.03), np.log(1), (starts, free * has_gamma)))
    begin = np.concatenate([eta0, gamma0], axis=1)

    with jax.enable_x64(True):  # the loss is flat at its optimum; in float32 the search stops early
        guarded = jnp.linspace(0, guard * values.max(), _guard_points + 1)[1:]

        def minimise(theta: np.ndarray, values: Array) -> Any:
            def loss(theta: np.ndarray) -> tuple[Array, Array]:
                (value, _), slope = _log_loss(theta, values, guarded, tasks, layers=layers, tied=tied)
                return value, slope

            return scipy.optimize.minimize(loss, theta, jac=True, method="L-BFGS-B", options={"maxiter": 400})

        full = jnp.asarray(values, jnp.float64)
        coarse = [minimise(theta, full[:_coarse]) for theta in begin]
        ranked = sorted((found for found in coarse if np.isfinite(found.fun)), key=lambda found: found.fun)
        best = min((minimise(found.x, full) for found in ranked[:_finalists]), key=lambda found: found.fun)
        (_, (eta, gamma, by_context)), _ = _log_loss(best.x, full, guarded, tasks, layers=layers, tied=tied)
        return _summary(np.asarray(eta), np.asarray(gamma), np.asarray(by_context))


@functools.partial(jax.jit, static_argnames=("layers", "tied"))
@functools.partial(jax.value_and_grad, has_aux=True)
def _log_loss(
    theta: Array, values: Array, guarded: Array, tasks: Tasks, *, layers: int, tied: bool
) -> tuple[Array, tuple[Array, Array, Array]]:
    """The log of the objective at rates `(η s, γ N s)`, with η, γ and the loss of every context.

    The log, since starting points lie many orders of magnitude above the optimum. Compiled once for all calls of a size.
    """
    s, free = tasks.variance, 1 if tied else layers
    eta, gamma = theta[:free] / s, theta[free:] / (tasks.context * s)
    gamma = gamma if len(gamma) else jnp.zeros_like(eta)
    if tied:
        eta, gamma = jnp.repeat(eta, layers), jnp.repeat(gamma, layers)
    by_context = losses_by_context(values, eta, gamma, tasks)
    zero_loss = tasks.outputs * s / 2 * tasks.dim * tasks.weight_scale**2
    above = jnp.maximum(residual(guarded, eta, gamma, tasks.context) ** 2 - 1, 0)
    penalty = zero_loss * jnp.mean(above**2)  # squared: a kink would stop the search early
    return jnp.log(jnp.mean(by_context) + penalty), (eta, gamma, by_context)


def evaluate_polynomial(values: Float[np.ndarray, "T d"], polynomial: Polynomial, tasks: Tasks) -> Polynomial:
    """The same layers on other contexts, to see whether the optimum was one of the sample alone."""
    with jax.enable_x64(True):
        rates = jnp.asarray(polynomial.eta, jnp.float64), jnp.asarray(polynomial.gamma, jnp.float64)
        by_context = losses_by_context(jnp.asarray(values, jnp.float64), *rates, tasks)
        return _summary(polynomial.eta, polynomial.gamma, np.asarray(by_context))


def _summary(eta: np.ndarray, gamma: np.ndarray, by_context: np.ndarray) -> Polynomial:
    error = float(by_context.std() / np.sqrt(len(by_context)))
    quantiles = tuple(float(q) for q in np.quantile(by_context, QUANTILES))
    return Polynomial(eta, gamma, float(by_context.mean()), error, quantiles)
