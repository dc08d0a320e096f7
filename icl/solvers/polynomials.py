"""The optimal K layers of GD and GD++ without training: polynomials in the eigenvalues of the context.

GD and GD++ act on each eigenvalue λ of XᵀX alone. With a = r = 1 at first, a layer is

    m = a² λ,    r <- r (1 - (η/N) m),    a <- a (1 - γ m),

and after K layers the error of the answer is `wᵀ r(XᵀX) x_q`. So the loss is a mean over eigenvalues, of few numbers:

    loss = (m s/2) E Σ_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i).

Minimising it takes seconds. GD++ has a degree that grows as 3^K and so heavy tails on rare contexts: quantiles say how heavy.
From K = 3 on rates that are best for 20,000 contexts lose any amount on one of the next 100,000, whose largest eigenvalue is a
little larger. A guard keeps errors from growing there too, and costs the others little.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from icl.tasks import Tasks, sample_tasks

_coarse = 2000  # contexts that starting points are tried on
_finalists = 3  # of them are minimised on all contexts
_guarded = 500  # eigenvalues at which a guard looks
QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Polynomial(NamedTuple):
    """K layers of GD or GD++, and what they lose on the contexts that they were fitted to.

    eta, gamma: [K], one number per layer, the same K times where tied; the last γ changes nothing.
    loss: half the mean squared error. standard_error: of that mean.
    quantiles: of the loss by context, at QUANTILES; half a per cent of contexts can hold most of the mean.
    """

    eta: np.ndarray
    gamma: np.ndarray
    loss: float
    standard_error: float
    quantiles: tuple[float, ...]


def context_eigenvalues(key: Array, tasks: Tasks, number: int) -> Float[np.ndarray, "number d"]:
    """The eigenvalues of XᵀX of fresh contexts, smallest first, in float64.

    Args:
        key: of jax.random.
        tasks: their law, with independent symmetric coordinates.
        number: of contexts.

    Raises:
        ValueError: another law, or no context.

    Example:
        >>> context_eigenvalues(jax.random.key(0), Tasks(dim=3, context=5), 2).shape
        (2, 3)
    """
    _ = tasks.kurtosis  # refuses other laws
    if number < 1:
        raise ValueError(f"{number} contexts: draw at least one")
    X = np.moveaxis(np.asarray(sample_tasks(key, tasks, number).X), -1, 0).astype(np.float64)
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
    """Half the expected squared error given each context: over weights, query and noise.

        (m s/2) Σ_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i)

    Example:
        >>> losses_by_context(jnp.ones((1, 3)), jnp.zeros(1), jnp.zeros(1), Tasks(dim=3)).round(3).tolist()
        [0.125]
    """
    r = residual(values, eta, gamma, tasks.context)
    c, v, s = tasks.weight_scale, tasks.noise**2, tasks.variance
    seen = values > 0  # where λ = 0, 1 - r = 0
    noise = jnp.where(seen, (1 - r) ** 2 / jnp.where(seen, values, 1), 0)
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
    """The best K layers of GD or GD++, by L-BFGS on eigenvalues from several starting points.

    With a guard the mean of `max(r(λ)² - 1, 0)²` over 0 < λ <= guard max λ_i is added, times the loss of doing nothing.

    Args:
        values: [T, d] of `context_eigenvalues`.
        tasks: their law.
        layers: K.
        tied: whether all layers share η and γ, as recurrent layers do.
        plus_plus: GD++ or, with γ = 0, GD.
        guard: up to so many times the largest eigenvalue no error should grow; 0, no such care. GD++ needs it from K = 3 on.
        starts: random starting points; per-layer GD++ has local minima from K = 3 on.
        seed: of the starting points.

    Raises:
        ValueError: numbers below 1, a guard below 0, or eigenvalues of another dimension.

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
        raise ValueError(f"guard {guard}: how many times the largest eigenvalue, 0 for none")
    free = 1 if tied else layers
    moving = plus_plus and layers > 1
    rng = np.random.default_rng(seed)
    # in units of 1/s and 1/(N s), in which good rates are of order 1
    eta0 = np.exp(rng.uniform(np.log(0.2), np.log(8), (starts, free)))
    gamma0 = np.exp(rng.uniform(np.log(0.03), np.log(1), (starts, free * moving)))
    begin = np.concatenate([eta0, gamma0], axis=1)

    with jax.enable_x64(True):  # the loss is flat at its optimum; in float32 the search stops early
        beyond = jnp.linspace(0, guard * values.max(), _guarded + 1)[1:]

        def minimised(theta: np.ndarray, values: Array) -> Any:
            def loss(theta: np.ndarray) -> tuple[Array, Array]:
                (value, _), slope = _log_loss(theta, values, beyond, tasks, layers=layers, tied=tied)
                return value, slope

            return scipy.optimize.minimize(loss, theta, jac=True, method="L-BFGS-B", options={"maxiter": 400})

        full = jnp.asarray(values, jnp.float64)
        coarse = [minimised(theta, full[:_coarse]) for theta in begin]
        ranked = sorted((found for found in coarse if np.isfinite(found.fun)), key=lambda found: found.fun)
        best = min((minimised(found.x, full) for found in ranked[:_finalists]), key=lambda found: found.fun)
        (_, (eta, gamma, by_context)), _ = _log_loss(best.x, full, beyond, tasks, layers=layers, tied=tied)
        return _described(np.asarray(eta), np.asarray(gamma), np.asarray(by_context))


@functools.partial(jax.jit, static_argnames=("layers", "tied"))
@functools.partial(jax.value_and_grad, has_aux=True)
def _log_loss(
    theta: Array, values: Array, beyond: Array, tasks: Tasks, *, layers: int, tied: bool
) -> tuple[Array, tuple[Array, Array, Array]]:
    """The log of what is minimised, and η, γ and the loss of every context, of rates `(η s, γ N s)`.

    The log, as starting points lie many orders of magnitude above the optimum. Compiled once for all calls of a size.
    """
    s, free = tasks.variance, 1 if tied else layers
    eta, gamma = theta[:free] / s, theta[free:] / (tasks.context * s)
    gamma = gamma if len(gamma) else jnp.zeros_like(eta)
    if tied:
        eta, gamma = jnp.repeat(eta, layers), jnp.repeat(gamma, layers)
    by_context = losses_by_context(values, eta, gamma, tasks)
    nothing = tasks.outputs * s / 2 * tasks.dim * tasks.weight_scale**2
    above = jnp.maximum(residual(beyond, eta, gamma, tasks.context) ** 2 - 1, 0)
    grown = nothing * jnp.mean(above**2)  # squared: a kink would stop the search early
    return jnp.log(jnp.mean(by_context) + grown), (eta, gamma, by_context)


def polynomial_on(values: Float[np.ndarray, "T d"], polynomial: Polynomial, tasks: Tasks) -> Polynomial:
    """The same layers measured on other contexts: whether their optimum was one of the sample alone."""
    with jax.enable_x64(True):
        rates = jnp.asarray(polynomial.eta, jnp.float64), jnp.asarray(polynomial.gamma, jnp.float64)
        by_context = losses_by_context(jnp.asarray(values, jnp.float64), *rates, tasks)
        return _described(polynomial.eta, polynomial.gamma, np.asarray(by_context))


def _described(eta: np.ndarray, gamma: np.ndarray, by_context: np.ndarray) -> Polynomial:
    error = float(by_context.std() / np.sqrt(len(by_context)))
    quantiles = tuple(float(q) for q in np.quantile(by_context, QUANTILES))
    return Polynomial(eta, gamma, float(by_context.mean()), error, quantiles)
