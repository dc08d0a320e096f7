"""Which kinds of rows help a text: exponents of one half of the held-out text say what they are worth on the other half.

From the exponents a of both halves, those of one half A, with slopes g and curvature H, are a step of Newton's method away,

    a_A = a - H_A⁻¹ (g_A - g_B)/2,        and without some kinds        a_A,kept + (H_A)_kept⁻¹ (H_A a_A,absent)_kept,

to second order, as the slopes of both halves and of the penalty add up to 0 at a.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from jexplicit.data.tokenizers import Progress
from jexplicit.lm.fits.mixtures.ablation import lowest_of_kinds
from jexplicit.lm.fits.mixtures.ngram_mixture import HeldOutRows, ridge_of
from jexplicit.lm.tables.moments import moments_of
from jexplicit.lm.tables.reader import log_probabilities

_positions_of_hessian, _positions_of_loss = 10_000, 5_000  # of a half


class KindChoice(NamedTuple):
    """The kinds of rows that a model keeps.

    kept: those that help, and those that are not to be left out.
    worth: of every other kind, nats per position by which it lowers the loss of text that it was not fitted on; at most 0 of
        those that are left out.
    """

    kept: tuple[str, ...]
    worth: dict[str, float]


def choose_kinds(
    read: HeldOutRows,
    exponents: Float[np.ndarray, " S"],
    always: Sequence[str],
    *,
    mesh: Mesh | None = None,
    progress: Progress | None = None,
) -> KindChoice:
    """Leave out kinds of rows, the worst first, while that does not raise the loss of the half that was not fitted on.

    Args:
        read: the rows at held-out positions, in the order of the text.
        exponents: fitted on them.
        always: kinds that are kept.
        mesh: devices to spread the positions over.
        progress: called with (losses measured, most of them).
    """
    half, S = len(read.Y) // 2, len(exponents)
    halves = [read.take(slice(begin, begin + half)) for begin in (0, len(read.Y) - half)]
    most: Any = {"mesh": mesh, "most_of_hessian": _positions_of_hessian}
    moments = [moments_of(one.tables, one.positions, one.Y, S, **most)(exponents) for one in halves]
    slope = (moments[0].gradient - moments[1].gradient) / 2
    curvatures = [one.hessian + ridge_of(read) * np.eye(S) for one in moments]
    fits = [exponents - np.linalg.solve(H, sign * slope) for H, sign in zip(curvatures, (1, -1), strict=True)]
    halves = [one.take(slice(None, None, -(-half // _positions_of_loss))) for one in halves]
    kept, worth, measured = tuple(read.kinds), {}, 0
    free = len([kind for kind in kept if kind not in always])

    def loss(kinds: tuple[str, ...]) -> float:
        """Nats per position of one half by the exponents of the other."""
        nonlocal measured
        found = []
        for fitted, H, other in zip(fits, curvatures, halves[::-1], strict=True):
            a, some = lowest_of_kinds(read, fitted, kinds, H).astype(np.float32), other.of_kinds(kinds)
            found.append(-log_probabilities(some.tables, a, some.positions, some.Y, mesh).mean(dtype=float))
        measured += 1
        if progress:
            progress(measured, 1 + free * (free + 1) // 2)
        return float(np.mean(found))

    whole = loss(kept)
    while rest := [kind for kind in kept if kind not in always]:
        losses = {kind: loss(tuple(other for other in kept if other != kind)) for kind in rest}
        worth |= {kind: losses[kind] - whole for kind in rest}
        worst = min(rest, key=worth.__getitem__)
        if worth[worst] > 0:
            break
        kept, whole = tuple(other for other in kept if other != worst), losses[worst]
    return KindChoice(kept, worth)
