"""K layers of GD and GD++ as polynomials in the eigenvalues of the context, and Chebyshev rates.

GD and GD++ act on each eigenvalue λ of XᵀX separately. Starting from a = r = 1, a layer is

    m = a² λ,    r <- r (1 - (η/N) m),    a <- a (1 - γ m),

and after K layers the error of the prediction is `wᵀ r(XᵀX) x_q`. Given the contexts, the expected loss is

    loss = (m/2) E Σ_i u_iᵀ L u_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i).

With `η/N = γ = 4/(3 Λ) 9^l` in layer l, every eigenvalue λ = Λ sin² θ up to Λ is treated as θ -> 3 θ, since
`sin² 3θ = 9 sin² θ (1 - (4/3) sin² θ)²`, and the residual after K layers is a Chebyshev polynomial of degree 3^K - 1 in cos θ:

    r(λ) = a(λ) = sin(3^K θ) / (3^K sin θ).

A layer thus fits eigenvalues nine times as small as the layer before; a step of Newton's iteration, two times. These rates are
the best only as depth grows: for d = N = 10 and uniform inputs their loss is 45, 32, 11 and 2 % above the least at K = 1 to 4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from icl.solvers.spectrum import Spectrum
from icl.tasks import Tasks

QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Polynomial(NamedTuple):
    """The rates of K layers of GD or GD++, and their loss.

    eta, gamma: [K], one number per layer, K equal numbers where tied; the last γ has no effect.
    loss: half the mean squared error over the spectrum used for the fit.
    """

    eta: np.ndarray
    gamma: np.ndarray
    loss: float


class ContextLosses(NamedTuple):
    """Half the expected squared error over contexts: mean (of a heavy-tailed distribution), standard error and QUANTILES."""

    loss: float
    standard_error: float
    quantiles: tuple[float, ...]


def residual(values: Array, eta: Float[Array, " K"], gamma: Float[Array, " K"], N: int) -> Array:
    """`r(λ)` after K layers, for any number of eigenvalues."""

    def layer(state: tuple[Array, Array], rates: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        (a, r), (eta, gamma) = state, rates
        m = a**2 * values
        return (a * (1 - gamma * m), r * (1 - eta / N * m)), None

    return lax.scan(layer, (jnp.ones_like(values), jnp.ones_like(values)), (eta, gamma))[0][1]


def chebyshev_rates(bound: Any, N: int, layers: int) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """The rates η and γ of K layers of GD++ with residual `sin(3^K θ) / (3^K sin θ)` at an eigenvalue `λ = bound sin² θ`.

        η_l / N = γ_l = 4/(3 bound) 9^l,    l = 0 .. K - 1

    Args:
        bound: the largest eigenvalue of XᵀX. Above it errors grow with the power of 3^K.
        N: pairs in the context.
        layers: K.

    Raises:
        ValueError: a bound that is not positive, or no layer.

    Example:
        >>> eta, gamma = chebyshev_rates(4.0, 10, 2)
        >>> r = residual(jnp.array([4.0, 3.0, 0.0]), jnp.asarray(eta), jnp.asarray(gamma), 10)
        >>> gamma.tolist(), [abs(round(float(left), 6)) for left in r]
        ([0.333..., 3.0], [0.111111, 0.0, 1.0])

    Source: this package.
    """
    if not bound > 0 or layers < 1:
        raise ValueError(f"bound {bound}, {layers} layers: use a positive eigenvalue and at least one layer")
    gamma = 4 / (3 * bound) * 9.0 ** np.arange(layers)
    return N * gamma, gamma


def least_loss(law: Spectrum, tasks: Tasks, degree: int) -> float:
    """The least loss of any residual polynomial of a degree with r(0) = 1: K layers of GD++ have degree (3^K - 1)/2.

        min_r (c² m/2) Σ_j w_j r(λ_j)² = (c² m/2) / Σ_k p_k(0)²,    k = 0 .. degree,

    p_k the polynomials that are orthonormal for the weights w, by Lanczos' recurrence (Christoffel's function at 0).

    Args:
        law: of the contexts' eigenvalues.
        tasks: their distribution, without noise.
        degree: of r.

    Raises:
        ValueError: tasks with noise, or a negative degree.

    Example:
        >>> law = Spectrum(np.array([1.0, 2.0]), np.array([1.0, 1.0]), 2.0)
        >>> round(least_loss(law, Tasks(dim=2), 1), 6)  # r = 1 - 0.6 λ: 0.4² + 0.2² = 0.2
        0.1

    Source: Szegő, Orthogonal polynomials, Sec. 3.1.
    """
    if degree < 0 or not (isinstance(tasks.noise, float | int) and tasks.noise == 0):
        raise ValueError(f"degree {degree}, noise {tasks.noise}: the bound is of degrees from 0 on, without noise")
    x, total = law.values / law.bound, law.weights.sum()
    Q, b, p, p_before = [np.sqrt(law.weights / total)], 0.0, 1 / np.sqrt(total), 0.0
    kernel = p**2
    for _ in range(degree):
        v = x * Q[-1]
        a = Q[-1] @ v
        for q in (*Q, *Q):  # twice, as rounding grows
            v = v - (q @ v) * q
        after = np.linalg.norm(v)
        if after < 1e-13:  # as many polynomials as eigenvalues
            break
        p, p_before, b = (-a * p - b * p_before) / after, p, after
        Q.append(v / after)
        kernel += p**2
    return float(tasks.weight_scale**2 * tasks.outputs / 2 / kernel)


def losses_by_context(
    values: Float[Array, "T d"], eta: Float[Array, " K"], gamma: Float[Array, " K"], tasks: Tasks
) -> Float[Array, " T"]:
    """Half the expected squared error given each context, over weights, query and noise, for inputs of one scale.

    (m s/2) Σ_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i)
    """
    errors = _errors(values, residual(values, eta, gamma, tasks.context), tasks.variance, tasks)
    return jnp.sum(errors**2, axis=(0, 2))


def spectral_errors(law: Spectrum, eta: Float[Array, " K"], gamma: Float[Array, " K"], tasks: Tasks) -> Float[Array, " n"]:
    """Residuals whose squares add up to the loss: the unfitted signal of each eigenvalue, and the fitted noise."""
    values = jnp.asarray(law.values)
    return _errors(values, residual(values, eta, gamma, tasks.context), jnp.asarray(law.weights), tasks).ravel()


def _errors(values: Array, r: Array, weights: Any, tasks: Tasks) -> Array:
    """`c r` and, with noise, `σ (1 - r)/sqrt(λ)` of each eigenvalue, times the root of m/2 its weight: [1 or 2, ..]."""
    scale = jnp.sqrt(tasks.outputs / 2 * weights)
    parts = [tasks.weight_scale * scale * r]
    if not (isinstance(tasks.noise, float | int) and tasks.noise == 0):
        positive = values > 0  # where λ = 0, 1 - r = 0
        parts.append(tasks.noise * scale * jnp.where(positive, (1 - r) / jnp.sqrt(jnp.where(positive, values, 1)), 0))
    return jnp.stack(parts)


def evaluate_polynomial(values: Float[np.ndarray, "T d"], polynomial: Polynomial, tasks: Tasks) -> ContextLosses:
    """The losses of layers on contexts, in float64.

    Args:
        values: [T, d] of `context_eigenvalues`, from contexts not used to fit the rates.
        polynomial: the layers.
        tasks: the contexts' distribution.

    Example:
        >>> zero = Polynomial(np.zeros(1), np.zeros(1), 0.125)
        >>> round(evaluate_polynomial(np.ones((4, 3)), zero, Tasks(dim=3)).loss, 3)
        0.125
    """
    with jax.enable_x64(True):
        rates = jnp.asarray(polynomial.eta, jnp.float64), jnp.asarray(polynomial.gamma, jnp.float64)
        by_context = np.asarray(jax.jit(losses_by_context)(jnp.asarray(values, jnp.float64), *rates, tasks))
    error = float(by_context.std() / np.sqrt(len(by_context)))
    return ContextLosses(float(by_context.mean()), error, tuple(float(q) for q in np.quantile(by_context, QUANTILES)))
