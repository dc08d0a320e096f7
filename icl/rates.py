"""The best rates of GD and GD++, on the host, from eigenvalues of contexts."""

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from jaxtyping import Array, Float

from icl.tasks import Tasks, sample_tasks

# The distribution of the eigenvalues of XᵀX over contexts.
#
# A sample of contexts covers the body of the distribution but not its two ends, which matter for deep layers: the smallest
# eigenvalues are fitted last, and a polynomial of degree 3^K may explode just above the largest. Both ends have known forms.
# For inputs of a smooth density, `P(λ < l)` of the smallest eigenvalue falls as `l^((|N - d| + 1)/2)`. The upper tail is
# modelled as exponential, as for Gaussian inputs; this is conservative for uniform ones. Each end is extrapolated from its last
# sampled eigenvalues, the upper one to the bound that one context in a billion exceeds.

_block = 10_000  # contexts at a time
_cells = 1000  # of the body, evenly spaced, and as many log-spaced
_end = 2000  # 1/_end of the eigenvalues is at the lower end, and as many at the upper
_fewest = 50  # eigenvalues at an end
_rare = 1e-9  # share of contexts with an eigenvalue above the bound


class Spectrum(NamedTuple):
    """Eigenvalues of XᵀX and the variance of x_q along their eigenvectors.
    `Σ_j weights_j f(values_j) = E tr(L f(XᵀX))`.

    values, weights: [n]; the weights add up to `tr L`, `L = E[x_q x_qᵀ]`.
    bound: one context in a billion has an eigenvalue above it.
    """

    values: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    bound: float


def context_eigenvalues(key: Array, tasks: Tasks, number: int) -> tuple[Float[np.ndarray, "T d"], Float[np.ndarray, "T d"]]:
    """The eigenvalues λ_i of XᵀX of fresh contexts, ascending, and `u_iᵀ L u_i`.

    Raises:
        ValueError: fewer than one context.

    Example:
        >>> [part.shape for part in context_eigenvalues(jax.random.key(0), Tasks(dim=3, context=5), 2)]
        [(2, 3), (2, 3)]
    """
    if number < 1:
        raise ValueError(f"{number} contexts: draw at least one")
    L, parts = np.array([float(std) ** 2 for std in tasks.input_stds]), []
    for block in range(-(-number // _block)):
        batch = sample_tasks(jax.random.fold_in(key, block), tasks, min(_block, number - block * _block))
        X = np.moveaxis(np.asarray(batch.X, np.float64), -1, 0)  # for small eigenvalues
        values, U = np.linalg.eigh(X.swapaxes(1, 2) @ X)
        parts.append((np.maximum(values, 0), np.einsum("a,tai->ti", L, U**2)))
    values, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return values, weights


def spectral_law(key: Array, tasks: Tasks, contexts: int) -> Spectrum:
    """The eigenvalues of many contexts as a few thousand weighted values, with extrapolated tails.

    Args:
        contexts: number to sample, at about 10,000 per second.

    Raises:
        ValueError: fewer than one context.

    Example:
        >>> law = spectral_law(jax.random.key(0), Tasks(dim=3, context=5), 1000)
        >>> round(float(law.weights.sum()), 6), bool(abs(law.weights @ law.values - 5 * 3 / 12**2) < 0.01)  # tr L, N tr L²
        (0.25, True)

    Source: this package; the lower end as in Edelman 1988 for Gaussian inputs.
    """
    values, weights = context_eigenvalues(key, tasks, contexts)
    weights = weights / contexts
    zero = max(tasks.dim - tasks.context, 0)  # zero eigenvalues of every context: fewer pairs than inputs
    at_zero, values, weights = weights[:, :zero].sum(), values[:, zero:].ravel(), weights[:, zero:].ravel()
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    few = min(max(len(values) // _end, _fewest), len(values) // 3)
    parts = [(np.zeros(1), np.array([at_zero])), _cells_of(values[few : len(values) - few], weights[few : len(values) - few])]
    bound = values[-1]
    if few:
        last, mean = values[-few], values[-few:].mean()
        bound = last + (mean - last) * np.log(few / contexts / _rare)
        shares = np.concatenate([[0.0], np.geomspace(1e-8, 1, 400)])  # P(λ < l) = (l / first)^exponent below the body
        ends = values[few] * shares ** (2 / (abs(tasks.context - tasks.dim) + 1))
        parts.append(((ends[1:] + ends[:-1]) / 2, weights[:few].sum() * np.diff(shares)))
        ends = np.linspace(last, bound, 200)  # an exponential distribution above it
        shares = np.exp(-(ends - last) / (mean - last))
        parts.append(((ends[1:] + ends[:-1]) / 2, weights[-few:].sum() * -np.diff(shares)))
    values, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    weights *= sum(float(std) ** 2 for std in tasks.input_stds) / weights.sum()
    return Spectrum(values[weights > 0], weights[weights > 0], float(bound))


def _cells_of(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weighted mean eigenvalue of each cell of a grid, and weight."""
    grids = (np.geomspace(values[0], values[-1], _cells), np.linspace(values[0], values[-1], _cells))
    starts = np.unique(np.searchsorted(values, np.unique(np.concatenate(grids))[:-1]))
    total = np.add.reduceat(weights, starts)
    return np.add.reduceat(weights * values, starts) / total, total


# Layers of GD and GD++ as polynomials in the context's eigenvalues.
#
# GD and GD++ act on each eigenvalue λ of XᵀX separately. Starting from a = r = 1, a layer is
#
#     m = a² λ,    r <- r (1 - (η/N) m),    a <- a (1 - γ m),
#
# and after K layers the error of the prediction is `wᵀ r(XᵀX) x_q`. Given the contexts, the expected loss is
#
#     loss = (m/2) E Σ_i u_iᵀ L u_i (c² r(λ_i)² + v (1 - r(λ_i))²/λ_i).
#
# With `η/N = γ = 4/(3 Λ) 9^l` in layer l, every eigenvalue λ = Λ sin² θ up to Λ is treated as θ -> 3 θ, since `sin² 3θ = 9 sin²
# θ (1 - (4/3) sin² θ)²`, and the residual after K layers is a Chebyshev polynomial of degree 3^K - 1 in cos θ:
#
#     r(λ) = a(λ) = sin(3^K θ) / (3^K sin θ).
#
# A layer thus fits eigenvalues nine times as small as the layer before; a step of Newton's iteration, two times. These rates
# are the best only as depth grows: for d = N = 10 and uniform inputs their loss is 45, 32, 11 and 2 % above the least at K = 1
# to 4.
#
# The best rates of K = 1, 2, .. layers are found in turn, without training, each from the best of K - 1. The loss is a sum of
# squares over a spectrum, a function of one to 2 K - 1 rates, which a least squares solver minimises in a fraction of a second.
# Rates are in units of the Chebyshev rates (`chebyshev_rates`), which grow nine-fold from layer to layer, so that good rates
# are of order 1 at any depth.
#
# With separate rates, K layers contain K - 1 layers: a layer with rates 0 is the identity. The search starts there and from
# Chebyshev's rates. With shared η and γ the loss has a single valley, and the best rates of K - 1 layers are a start inside it.
#
# From K = 7 on a polynomial of degree 3^K has more oscillations than the spectrum has values, and a fit would overfit them, so
# deeper layers are not searched for: they take Chebyshev's rates, or the best K - 1 layers and an idle one. Without noise the
# optimum is hardly better there.
#
# Newton's iteration for the inverse of XᵀX is a polynomial in its eigenvalues, too:
#
#     M_0 = I/||A||,    M_{k+1} = 2 M_k - M_k A M_k,    w = M_k Xᵀ y,    A = XᵀX
#
# It squares `I - M A`, so that after k steps the error of the prediction is `wᵀ r(A) x_q` with `r(λ) = (1 - λ/||A||)^(2^k)`.
# Every step fits eigenvalues half as large, a layer of GD++ at Chebyshev's rates a ninth: log₂ 9 = 3.17 steps.

QUANTILES = (0.5, 0.9, 0.99, 0.999)
_most_fitted = 6  # layers of GD++ with separate rates
_random_depth = 3  # up to this depth also from random rates: local minima matter only for few layers
_random_starts = 12
_added = ((0.0, 1.0), (0.3, 0.3), (1.0, 1.0), (2.0, 2.0))  # rates of one more layer, in units of Chebyshev's


class Polynomial(NamedTuple):
    """The rates of K layers of GD or GD++, and their loss.

    eta, gamma: [K], one number per layer, K equal numbers where tied; the last γ has no effect.
    loss: half the mean squared error over the spectrum used for the fit.
    """

    eta: np.ndarray
    gamma: np.ndarray
    loss: float


class ContextLosses(NamedTuple):
    """Half the expected squared error over contexts: mean, standard error, QUANTILES."""

    loss: float
    standard_error: float
    quantiles: tuple[float, ...]


def residual(values: Float[np.ndarray, "*n"], eta: Any, gamma: Any, N: int) -> Float[np.ndarray, "*n"]:
    """`r(λ)` after K layers, for any number of eigenvalues."""
    a = r = np.ones_like(values)
    for eta_l, gamma_l in zip(eta, gamma, strict=True):
        m = a**2 * values
        a, r = a * (1 - gamma_l * m), r * (1 - eta_l / N * m)
    return r


def _residual_slopes(values: np.ndarray, rates: np.ndarray, directions: np.ndarray, N: int) -> Float[np.ndarray, "p n"]:
    """The derivatives of `r(λ)` along p directions of η and γ."""
    a = r = np.ones_like(values)
    da = dr = np.zeros((len(directions), len(values)))
    for (eta, gamma), (d_eta, d_gamma) in zip(rates.T, directions.T, strict=True):
        m, dm = a**2 * values, 2 * a * values * da
        dr = dr * (1 - eta / N * m) - r / N * (d_eta[:, None] * m + eta * dm)
        da = da * (1 - gamma * m) - a * (d_gamma[:, None] * m + gamma * dm)
        a, r = a * (1 - gamma * m), r * (1 - eta / N * m)
    return dr


def chebyshev_rates(bound: Any, N: int, layers: int) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """The rates η and γ of K layers of GD++ by Chebyshev.

        η_l / N = γ_l = 4/(3 bound) 9^l,    l = 0 .. K - 1

    Args:
        bound: the largest eigenvalue of XᵀX. Above it errors grow with the power of 3^K.
        N: pairs in the context.
        layers: K.

    Raises:
        ValueError: a bound that is not positive, or no layer.

    Example:
        >>> chebyshev_rates(4.0, 10, 2)[1].tolist()
        [0.333..., 3.0]

    Source: this package.
    """
    if not bound > 0 or layers < 1:
        raise ValueError(f"bound {bound}, {layers} layers: use a positive eigenvalue and at least one layer")
    gamma = 4 / (3 * bound) * 9.0 ** np.arange(layers)
    return N * gamma, gamma


def least_loss(law: Spectrum, tasks: Tasks, degree: int) -> float:
    """The least loss of a residual polynomial of a degree, r(0) = 1.

        min_r (c² m/2) Σ_j w_j r(λ_j)² = (c² m/2) / Σ_k p_k(0)²,    k = 0 .. degree,

    p_k the polynomials that are orthonormal for the weights w, by Lanczos' recurrence (Christoffel's function at 0).

    Raises:
        ValueError: tasks with noise, or a negative degree.

    Source: Szegő, Orthogonal polynomials, Sec. 3.1.
    """
    if degree < 0 or tasks.noise != 0:
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


def spectral_errors(values: Float[np.ndarray, "*n"], weights: Any, eta: Any, gamma: Any, tasks: Tasks) -> np.ndarray:
    """Weighted `c r` and `σ (1 - r)/sqrt(λ)`, whose squares sum to the loss."""
    r, (of_r, *of_noise) = residual(values, eta, gamma, tasks.context), _error_factors(values, weights, tasks)
    return np.stack([of_r * r, *(factor * (1 - r) for factor in of_noise)])


def _error_factors(values: np.ndarray, weights: Any, tasks: Tasks) -> list[Any]:
    """The factors of `r` and, with noise, of `1 - r`."""
    scale = np.sqrt(tasks.outputs / 2 * np.asarray(weights))
    positive = np.where(values > 0, values, np.inf)
    return [tasks.weight_scale * scale, *([tasks.noise * scale / np.sqrt(positive)] if tasks.noise else [])]


def evaluate_polynomial(values: Float[np.ndarray, "T d"], polynomial: Polynomial, tasks: Tasks) -> ContextLosses:
    """The losses of layers on contexts with these eigenvalues [T, d], in float64.

    Example:
        >>> zero = Polynomial(np.zeros(1), np.zeros(1), 0.125)
        >>> round(evaluate_polynomial(np.ones((4, 3)), zero, Tasks(dim=3)).loss, 3)
        0.125
    """
    errors = spectral_errors(np.asarray(values, np.float64), tasks.variance, polynomial.eta, polynomial.gamma, tasks)
    by_context = np.sum(errors**2, axis=(0, 2))
    error = float(by_context.std() / np.sqrt(len(by_context)))
    return ContextLosses(float(by_context.mean()), error, tuple(float(q) for q in np.quantile(by_context, QUANTILES)))


def optimal_polynomials(
    law: Spectrum, tasks: Tasks, *, layers: int, tied: bool, plus_plus: bool = True, seed: int = 0
) -> list[Polynomial]:
    """The best 1, 2, .. K layers of GD or GD++.

    Layers of GD++ with separate rates are searched for up to K = 6; deeper ones take Chebyshev's rates.

    Args:
        law: eigenvalues of the contexts, from `spectral_law`.
        layers: K.
        tied: whether all layers share η and γ, as in recurrent layers.
        plus_plus: GD++; False for GD, γ = 0.

    Raises:
        ValueError: no layer, or a law without eigenvalues.

    Source: this package; GD++ as in von Oswald et al. 2023, App. A.10.

    Example:
        >>> from icl.rates import spectral_law
        >>> tasks = Tasks(dim=10, context=10)
        >>> one, two = optimal_polynomials(spectral_law(jax.random.key(0), tasks, 2000), tasks, layers=2, tied=True)
        >>> bool(5 < one.eta[0] < 7), bool(two.loss < one.loss)
        (True, True)

    """
    if layers < 1 or not law.values.size:
        raise ValueError(f"{layers} layers, {law.values.size} eigenvalues: use at least one of each")
    fitted = layers if tied or not plus_plus else min(layers, _most_fitted)
    rng, rates, found = np.random.default_rng(seed), np.ones((2, 1 if tied else layers)), []
    for K in range(1, fitted + 1):
        # in Chebyshev's units; the last γ has no effect
        units = np.stack([np.full(K, float(tasks.context)), np.append(np.full(K - 1, float(plus_plus)), 0.0)])
        units *= 4 / (3 * law.bound) * (9.0 ** np.arange(K) if plus_plus and not tied else 1)
        solved = [_minimise(start, units, law, tasks) for start in _starts(rates, K, rng)]
        loss, rates = min(solved, key=lambda pair: pair[0])
        eta, gamma = units * rates[:, :K]
        found.append(Polynomial(eta, gamma, loss))
    for K in range(fitted + 1, layers + 1):
        found.append(_deepen(found[-1], law, tasks, K))
    return found


def _starts(best: np.ndarray, K: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Initial rates of K layers: the best K - 1 and one more."""
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


def _minimise(start: np.ndarray, units: np.ndarray, law: Spectrum, tasks: Tasks) -> tuple[float, np.ndarray]:
    """The least sum of squares from a start, and its rates."""
    free, K = np.zeros(start.shape, bool), units.shape[1]
    free[:, :K] = units.any(axis=1, keepdims=True) if start.shape[1] == 1 else units != 0
    directions = np.eye(start.size)[free.ravel()].reshape(-1, *start.shape)[..., :K] * units
    of_r, *of_noise = _error_factors(law.values, law.weights, tasks)

    def full(theta: np.ndarray) -> np.ndarray:
        rates = start.copy()
        rates[free] = theta
        return rates

    def errors(theta: np.ndarray) -> np.ndarray:
        eta, gamma = units * full(theta)[:, :K]
        return spectral_errors(law.values, law.weights, eta, gamma, tasks).ravel()

    def slopes(theta: np.ndarray) -> np.ndarray:
        dr = _residual_slopes(law.values, units * full(theta)[:, :K], directions, tasks.context)
        return np.concatenate([of_r * dr, *(-factor * dr for factor in of_noise)], axis=1).T

    with np.errstate(over="ignore", invalid="ignore"):  # of steps that the solver rejects
        if not np.isfinite(errors(start[free])).all():
            return np.inf, start
        found = scipy.optimize.least_squares(errors, start[free], slopes, ftol=1e-7, xtol=1e-9, max_nfev=60)
    return 2 * float(found.cost), full(found.x)


def _deepen(best: Polynomial, law: Spectrum, tasks: Tasks, K: int) -> Polynomial:
    """K layers of separate rates, from the best K - 1."""
    same = best._replace(eta=np.append(best.eta, 0.0), gamma=np.append(best.gamma, 0.0))
    eta, gamma = chebyshev_rates(law.bound, tasks.context, K)
    gamma[-1] = 0
    loss = float(np.sum(spectral_errors(law.values, law.weights, eta, gamma, tasks) ** 2))
    return min(same, Polynomial(eta, gamma, loss), key=lambda found: found.loss)


def newton_residual(values: Float[np.ndarray, "*T d"], steps: float) -> Float[np.ndarray, "*T d"]:
    """`r(λ) = (1 - λ/λ_max)^(2^steps)` of contexts (Schulz 1933; Fu et al. 2023)."""
    with np.errstate(divide="ignore"):  # where λ = λ_max
        return np.exp(2.0**steps * np.log1p(-values / np.max(values, axis=-1, keepdims=True)))


def equivalent_steps(losses: Float[np.ndarray, " k"], loss: float) -> float | None:
    """The fractional step at which falling losses reach a loss, or None."""
    if loss < losses[-1]:
        return None
    logs = np.log(np.maximum(losses, np.finfo(float).tiny))
    return float(np.interp(-np.log(loss), -logs, np.arange(len(losses))))
