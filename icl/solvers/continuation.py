"""The best K layers of GD and GD++ without training: K = 1, 2, .. in turn, each from the best K - 1.

The loss is a sum of squares over a spectrum, a function of one to 2 K - 1 rates, which a least squares solver minimises in a
fraction of a second. Rates are in units of the Chebyshev rates (`chebyshev_rates`), which grow nine-fold from layer to layer,
so that good rates are of order 1 at any depth.

With separate rates, K layers contain K - 1 layers: a layer with rates 0 is the identity. The search starts there and from
Chebyshev's rates. With shared η and γ the loss has a single valley, and the best rates of K - 1 layers are a start inside it.

From K = 7 on a polynomial of degree 3^K has more oscillations than the spectrum has values, and a fit would overfit them, so
deeper layers are not searched for: they take Chebyshev's rates, or the best K - 1 layers and an idle one. Without noise the
optimum is hardly better there.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array

from icl.solvers.polynomials import Polynomial, chebyshev_rates, spectral_errors
from icl.solvers.spectrum import Spectrum
from icl.tasks import Tasks

_most_fitted = 6  # layers of GD++ with separate rates
_random_depth = 3  # up to this depth also from random rates: local minima matter only for few layers
_random_starts = 12
_added = ((0.0, 1.0), (0.3, 0.3), (1.0, 1.0), (2.0, 2.0))  # rates of one more layer, in units of Chebyshev's


def optimal_polynomials(
    law: Spectrum, tasks: Tasks, *, layers: int, tied: bool, plus_plus: bool = True, seed: int = 0
) -> list[Polynomial]:
    """The best 1, 2, .. K layers of GD or GD++. With separate rates, more layers are never worse.

    Layers of GD++ with separate rates are searched for up to K = 6; deeper ones take Chebyshev's rates.

    Args:
        law: eigenvalues of the contexts, from `spectral_law`.
        tasks: the contexts' distribution.
        layers: K.
        tied: whether all layers share η and γ, as in recurrent layers.
        plus_plus: GD++; False for GD, γ = 0.
        seed: of random starting points.

    Raises:
        ValueError: no layer, or a law without eigenvalues.

    Example:
        >>> from icl.solvers.spectrum import spectral_law
        >>> tasks = Tasks(dim=10, context=10)
        >>> one, two = optimal_polynomials(spectral_law(jax.random.key(0), tasks, 2000), tasks, layers=2, tied=True)
        >>> bool(5 < one.eta[0] < 7), bool(two.loss < one.loss)
        (True, True)

    Source: this package; GD++ as in von Oswald et al. 2023, App. A.10.
    """
    if layers < 1 or not law.values.size:
        raise ValueError(f"{layers} layers, {law.values.size} eigenvalues: use at least one of each")
    with jax.enable_x64(True):  # in float32 the search stops early
        fitted = layers if tied or not plus_plus else min(layers, _most_fitted)
        found = _fit(law, tasks, fitted, tied, plus_plus, np.random.default_rng(seed))
        for K in range(fitted + 1, layers + 1):
            found.append(_deepen(found[-1], law, tasks, K))
    return found


def optimal_polynomial(
    law: Spectrum, tasks: Tasks, *, layers: int, tied: bool, plus_plus: bool = True, seed: int = 0
) -> Polynomial:
    """The best K layers of GD or GD++: the last of `optimal_polynomials`.

    Example:
        >>> from icl.solvers.spectrum import spectral_law
        >>> tasks = Tasks(dim=10, context=10)
        >>> found = optimal_polynomial(spectral_law(jax.random.key(0), tasks, 500), tasks, layers=1, tied=True)
        >>> 5 < float(found.eta[0]) < 7
        True
    """
    return optimal_polynomials(law, tasks, layers=layers, tied=tied, plus_plus=plus_plus, seed=seed)[-1]


def _fit(law: Spectrum, tasks: Tasks, layers: int, tied: bool, plus_plus: bool, rng: np.random.Generator) -> list[Polynomial]:
    """The best 1 .. K layers, by least squares over rates [2, layers], or [2, 1] where tied: η and γ in Chebyshev's units."""
    errors = functools.partial(_errors, tied=tied, plus_plus=plus_plus, layers=layers)
    slopes = functools.partial(_slopes, tied=tied, plus_plus=plus_plus, layers=layers)
    best, found = np.ones((2, 1 if tied else layers)), []
    for K in range(1, layers + 1):
        free = np.zeros(best.shape, bool)  # the last γ has no effect
        free[0, :K] = True
        free[1, : K - 1] = plus_plus
        minimise = functools.partial(_minimise, free=free, errors=lambda rates, K=K: errors(rates, K, law, tasks))
        solved = [minimise(start, slopes=lambda rates, K=K: slopes(rates, K, law, tasks)) for start in _starts(best, K, rng)]
        loss, best = min(solved, key=lambda pair: pair[0])
        eta, gamma = (np.asarray(rate)[:K] for rate in _per_layer(best, K, law, tasks, tied, plus_plus, layers))
        found.append(Polynomial(eta, gamma, loss))
    return found


def _starts(best: np.ndarray, K: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Starting rates of K layers: the best K - 1 and one more layer, Chebyshev's, and for few layers random ones."""
    starts = [np.ones_like(best)]
    if best.shape[1] == 1:
        starts += [best]
    elif K > 1:
        for eta, gamma in _added:
            start = best.copy()
            start[0, K - 1], start[1, K - 2] = eta, gamma
            starts.append(start)
    if K <= _random_depth:
        starts += [np.exp(rng.normal(0, 1.2, best.shape)) for _ in range(_random_starts)]
    return starts


def _minimise(
    start: np.ndarray, *, free: np.ndarray, errors: Callable[..., Array], slopes: Callable[..., Array]
) -> tuple[float, np.ndarray]:
    """The least sum of squares found from a start, over the free rates, and the rates there."""

    def rates(theta: np.ndarray) -> np.ndarray:
        full = start.copy()
        full[free] = theta
        return full

    if not np.isfinite(np.asarray(errors(start))).all():
        return np.inf, start
    jac: Any = lambda theta: np.asarray(slopes(rates(theta)))[:, free]  # noqa: E731
    fun: Any = lambda theta: np.asarray(errors(rates(theta)))  # noqa: E731
    with np.errstate(over="ignore", invalid="ignore"):  # of steps that the solver rejects
        found = scipy.optimize.least_squares(fun, start[free], jac, ftol=1e-7, xtol=1e-9, max_nfev=60)
    return 2 * float(found.cost), rates(found.x)


def _per_layer(
    rates: Any, K: Any, law: Spectrum, tasks: Tasks, tied: bool, plus_plus: bool, layers: int
) -> tuple[Array, Array]:
    """η and γ of each layer, zero from layer K on."""
    n = np.arange(layers)
    eta, gamma = jnp.broadcast_to(jnp.asarray(rates), (2, layers))
    unit = 4 / (3 * law.bound) * (9.0**n if plus_plus and not tied else np.ones(layers))
    return jnp.where(n < K, tasks.context * unit * eta, 0), jnp.where((n < K - 1) & plus_plus, unit * gamma, 0)


_static = ("tied", "plus_plus", "layers")


@functools.partial(jax.jit, static_argnames=_static)
def _errors(rates: Array, K: Array, law: Spectrum, tasks: Tasks, *, tied: bool, plus_plus: bool, layers: int) -> Array:
    """The residuals, whose squares add up to the loss; K is traced, so that all depths compile once."""
    return spectral_errors(law, *_per_layer(rates, K, law, tasks, tied, plus_plus, layers), tasks)


_slopes = jax.jit(jax.jacfwd(_errors), static_argnames=_static)


def _deepen(best: Polynomial, law: Spectrum, tasks: Tasks, K: int) -> Polynomial:
    """K layers of separate rates, from the best K - 1: one more identity layer, or Chebyshev's rates."""
    same = best._replace(eta=np.append(best.eta, 0.0), gamma=np.append(best.gamma, 0.0))
    eta, gamma = chebyshev_rates(law.bound, tasks.context, K)
    gamma[-1] = 0
    loss = float(jnp.sum(spectral_errors(law, jnp.asarray(eta), jnp.asarray(gamma), tasks) ** 2))
    return min(same, Polynomial(eta, gamma, loss), key=lambda found: found.loss)
