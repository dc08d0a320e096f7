"""The distribution of the eigenvalues of XᵀX over contexts.

A sample of contexts covers the body of the distribution but not its two ends, which matter for deep layers: the smallest
eigenvalues are fitted last, and a polynomial of degree 3^K may explode just above the largest. Both ends have known forms. For
inputs of a smooth density, `P(λ < l)` of the smallest eigenvalue falls as `l^((|N - d| + 1)/2)`. The upper tail is modelled as
exponential, as for Gaussian inputs; this is conservative for uniform ones. Each end is extrapolated from its last sampled
eigenvalues, the upper one to the bound that one context in a billion exceeds.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from icl.tasks import Tasks, sample_tasks

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


def context_eigenvalues(key: Array, tasks: Tasks, number: int) -> Float[np.ndarray, "number d"]:
    """The eigenvalues of XᵀX of fresh contexts, smallest first, in float64.

    Args:
        tasks: their distribution, with independent symmetric coordinates.

    Raises:
        ValueError: other inputs, or fewer than one context.

    Example:
        >>> context_eigenvalues(jax.random.key(0), Tasks(dim=3, context=5), 2).shape
        (2, 3)
    """
    _check(tasks, number)
    parts = (np.linalg.eigvalsh(_gram(key, tasks, block, number)) for block in range(-(-number // _block)))
    return np.maximum(np.concatenate(list(parts)), 0)


def weighted_eigenvalues(key: Array, tasks: Tasks, contexts: int) -> tuple[Float[np.ndarray, "T d"], Float[np.ndarray, "T d"]]:
    """The eigenvalues of XᵀX of fresh contexts, and `u_iᵀ L u_i`."""
    if tasks.scales is None:
        values = context_eigenvalues(key, tasks, contexts)
        return values, np.full_like(values, tasks.variance)
    _check(tasks, contexts)
    L = np.array([float(std) ** 2 for std in tasks.input_stds])
    pairs = [np.linalg.eigh(_gram(key, tasks, block, contexts)) for block in range(-(-contexts // _block))]
    values = np.concatenate([found.eigenvalues for found in pairs])
    weights = np.concatenate([np.einsum("a,tai->ti", L, found.eigenvectors**2) for found in pairs])
    return np.maximum(values, 0), weights


def spectral_law(key: Array, tasks: Tasks, contexts: int) -> Spectrum:
    """The eigenvalues of many contexts as a few thousand weighted values, with extrapolated tails.

    Args:
        tasks: their distribution, with independent symmetric coordinates, of one scale or several.
        contexts: number to sample, at about 10,000 per second.

    Raises:
        ValueError: other inputs, or fewer than one context.

    Example:
        >>> law = spectral_law(jax.random.key(0), Tasks(dim=3, context=5), 1000)
        >>> round(float(law.weights.sum()), 6), bool(abs(law.weights @ law.values - 5 * 3 / 12**2) < 0.01)  # tr L, N tr L²
        (0.25, True)

    Source: this package; the lower end as in Edelman 1988 for Gaussian inputs.
    """
    values, weights = weighted_eigenvalues(key, tasks, contexts)
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
        parts.append(_lower_end(values[few], weights[:few].sum(), (abs(tasks.context - tasks.dim) + 1) / 2))
        parts.append(_upper_end(last, mean, weights[-few:].sum(), bound))
    values, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    weights *= sum(float(std) ** 2 for std in tasks.input_stds) / weights.sum()
    return Spectrum(values[weights > 0], weights[weights > 0], float(bound))


def _check(tasks: Tasks, contexts: int) -> None:
    _ = tasks.kurtosis  # refuses other inputs
    if contexts < 1:
        raise ValueError(f"{contexts} contexts: draw at least one")


def _gram(key: Array, tasks: Tasks, block: int, contexts: int) -> Float[np.ndarray, "T d d"]:
    """XᵀX of a block of contexts, in float64 for small eigenvalues."""
    size = min(_block, contexts - block * _block)
    X = np.moveaxis(np.asarray(sample_tasks(jax.random.fold_in(key, block), tasks, size).X, np.float64), -1, 0)
    return X.swapaxes(1, 2) @ X


def _cells_of(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weighted mean eigenvalue of each cell of a grid, and weight."""
    grids = (np.geomspace(values[0], values[-1], _cells), np.linspace(values[0], values[-1], _cells))
    starts = np.unique(np.searchsorted(values, np.unique(np.concatenate(grids))[:-1]))
    total = np.add.reduceat(weights, starts)
    return np.add.reduceat(weights * values, starts) / total, total


def _lower_end(first: float, weight: float, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    """The weight below the body, `P(λ < l) = weight (l / first)^exponent`."""
    shares = np.concatenate([[0.0], np.geomspace(1e-8, 1, 400)])
    values = first * shares ** (1 / exponent)
    return (values[1:] + values[:-1]) / 2, weight * np.diff(shares)


def _upper_end(last: float, mean: float, weight: float, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """The weight above the body, by an exponential distribution up to the bound."""
    values = np.linspace(last, bound, 200)
    above = weight * np.exp(-(values - last) / (mean - last))
    return (values[1:] + values[:-1]) / 2, -np.diff(above)
