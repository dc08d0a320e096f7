"""Exponents that go on being fitted as a text is read, by Newton's method in blocks of the text.

    H <- H + sum_m H_m(a),        a <- a - H⁻¹ sum_m g_m(a)        after every block of positions m,

with g and H the slopes and the curvature of the loss of `jexplicit.lm.tables.moments`, H from every fourth place. H begins
as that of the fit, so that the held-out positions count as a text that was read before. A block is predicted with the exponents
before it.

Source: Hazan, Agarwal & Kale 2007 (online Newton step), here with exact Hessians and no forgetting.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int, Integer
from scipy.linalg import cho_factor, cho_solve

from jexplicit.lm.tables.moments import block_slopes, block_sums, place_rows
from jexplicit.lm.tables.placing import Positions, prune_rows
from jexplicit.lm.tables.reader import sum_positions

BLOCK = 1000  # places of a text that share their exponents
_of_hessian = 4  # one place in so many


class Online(NamedTuple):
    """Exponents after a part of a text.

    exponents: [S] of the block that is being read.
    hessian: [S, S] sum over all positions so far, those of the fit first.
    gradient: [S] sum over the positions of the block.
    block: its number.
    """

    exponents: Float[np.ndarray, " S"]
    hessian: Float[np.ndarray, "S S"]
    gradient: Float[np.ndarray, " S"]
    block: int


def begin_online(exponents: Float[np.ndarray, " S"], hessian: Float[np.ndarray, "S S"]) -> Online:
    """Of a text that has not begun."""
    a, H = np.asarray(exponents), np.asarray(hessian, np.float64)
    return Online(a, H, np.zeros(len(a)), 0)


def by_block(places: Int[np.ndarray, " M"]) -> list[slice]:
    """The parts of some places, in order, that lie in one block each.

    Example:
        >>> by_block(np.array([998, 999, 1000, 2400]))
        [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    edges = [0, *(np.flatnonzero(np.diff(places // BLOCK)) + 1).tolist(), len(places)]
    return [slice(*edge) for edge in pairwise(edges)]


def exponents_at(online: Online, place: int) -> Online:
    """The exponents for a place of the text: one step after the block before it."""
    if place // BLOCK == online.block:
        return online
    step = cho_solve(cho_factor(online.hessian), online.gradient)
    exponents = (online.exponents - step).astype(online.exponents.dtype)
    return Online(exponents, online.hessian, np.zeros_like(step), place // BLOCK)


def fit_on(
    fit: Online,
    tables: Any,
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    places: Int[np.ndarray, " M"],
    mesh: Mesh | None = None,
) -> Iterator[tuple[slice, np.ndarray, Online]]:
    """The positions of each block with the exponents [S] that they share, and the state after them."""
    for some in by_block(places):
        fit = exponents_at(fit, int(places[some][0]))
        after = learn(fit, tables, positions.take(some), Y[some], places[some], mesh)
        yield some, fit.exponents, after
        fit = after


def learn(
    online: Online,
    tables: Any,
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    places: Int[np.ndarray, " M"],
    mesh: Mesh | None = None,
) -> Online:
    """After positions of the block, at some places of the text, and what follows them."""
    a, S, hessian = online.exponents, len(online.exponents), online.hessian
    slopes = sum_positions(block_slopes, place_rows(tables, positions, Y, S, mesh), a)[1:]
    if len(m := np.flatnonzero(places % _of_hessian == 0)):
        curved = place_rows(*prune_rows(tables, positions.take(m)), Y[m], S, mesh)
        hessian = hessian + _of_hessian * sum_positions(block_sums, curved, a)[1 + S :].reshape(S, S)
    return online._replace(hessian=hessian, gradient=online.gradient + slopes)
