"""What each kind of row buys a mixture: added to the kinds before it, and left out of the whole.

All of these models are fitted on the same held-out positions, and drawn to the mixture's own exponents a as if these were worth
some positions more. One pass with gradient g and Hessian H at a says where each fit begins, the lowest point to second order
with the exponents of absent rows at 0,

    a_kept - H_kept⁻¹ (g - H a_absent)_kept,

so that a pass or two are left for each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from jexplicit.lm.fits.mixtures.calibration import fit_exponents, objective
from jexplicit.lm.fits.mixtures.ngram_mixture import HeldOutRows
from jexplicit.lm.tables.moments import moments_of
from jexplicit.lm.tables.reader import log_probabilities
from jexplicit.lm.training_text import Watch, no_log

KIND_NAMES = {
    "offset": "tokens at eight offsets",
    "gap": "tokens with a gap",
    "skip": "contexts without the nearest tokens",
    "word": "the part of the word, and the words before",
    "class": "contexts of classes",
    "line": "the length of the line",
    "line,": "the same, and the nearest one or two characters",
    "next": "the class of the next token",
    "repeat": "tokens of the context that come again",
    "cache": "the text before",
    "adaptive": "what followed contexts in the text before",
    "begun": "the same, with the training text",
    "indirect": "the same, after what followed last",
    "recency": "what followed contexts last",
    "observed-expected": "what was observed over what was expected",
    "selectors": "exponents by the longest context and the place in the word",
}
"""Kinds of rows, by the first word of the rows' names."""
CHAIN_KINDS = ("unigram", "context", "model")  # which every mixture keeps
_most_positions = 3_000
_prior_positions, _exponents_of_a_position = 10, 4  # what the mixture's exponents are worth: the larger of the two
_least_gain = 1e-4  # nats per position: 0.01 % of a perplexity


def kind_name(kind: str) -> str:
    """What rows of a kind are, in words.

    Example:
        >>> kind_name("gap")
        'tokens with a gap'
    """
    return KIND_NAMES.get(kind, kind)


def log_row_kinds(
    read: HeldOutRows,
    exponents: Float[np.ndarray, " S"],
    watch: Watch,
    *,
    history: str = "none",
    mesh: Mesh | None = None,
) -> None:
    """Log by how much each kind of row lowers the loss, on some thousand positions; nothing without a log.

    Events "step" add one kind after the other, up to the mixture itself, which is the only step of a mixture with a history.
    Events "ablation" leave out nothing, without None, and then one kind after the other.

    Args:
        read: the rows at held-out positions.
        exponents: of the mixture, fitted.
        watch: its callbacks.
        history: of the mixture.
        mesh: devices to spread the positions over.
    """
    if watch.log is no_log:
        return
    read = read.take(slice(None, None, -(-len(read.Y) // _most_positions)))
    chain = tuple(kind for kind in read.kinds if kind in CHAIN_KINDS)
    others = tuple(kind for kind in read.kinds if kind not in CHAIN_KINDS)
    whole = chain + others
    added = [chain + others[:n] for n in range(len(others))] if history == "none" else []
    left_out = {kind: tuple(other for other in whole if other != kind) for kind in others}
    with watch.stage(f"mixture: what each kind of row buys, history {history}", "models") as progress:
        choices = [whole, *added, *left_out.values()]
        losses = refitted_losses(read, exponents, choices, mesh=mesh, progress=progress)
        ngram = _chain_loss(read) if history == "none" and "context" in chain else None

    def log(event: str, loss: float, kinds: tuple[str, ...] = (), **what: Any) -> None:
        perplexity = float(np.exp(loss))
        more = {"scalars": read.scalars(kinds), "held_out_perplexity": perplexity, "positions": len(read.Y)}
        watch.log(event=event, history=history, **what, **more)

    if ngram is not None:
        order = 1 + len({name for name in read.names if name.startswith("context")})
        log("step", ngram, kind=None, step=f"Kneser-Ney {order}-gram")
    for kinds in added:
        new = kinds[-1] if kinds != chain else None
        step = f"and {kind_name(new)}" if new else "the unigram" if ngram is None else "its levels weighed"
        log("step", losses[kinds], kinds, kind=new, step=step)
    log("step", losses[whole], whole, kind=others[-1] if others else None, step=f"mixture, history {history}")
    for kind, kinds in ({None: whole, **left_out} if others else {}).items():
        log("ablation", losses[kinds], kinds, without=kind)


def refitted_losses(
    read: HeldOutRows,
    exponents: Float[np.ndarray, " S"],
    choices: Sequence[tuple[str, ...]],
    *,
    mesh: Mesh | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[str, ...], float]:
    """The loss of the mixture of some kinds of rows alone, fitted anew, for each choice of kinds.

    Args:
        read: the rows at the positions to fit on.
        exponents: of the mixture.
        choices: kinds of rows that a model keeps.
        mesh: devices to spread the positions over.
        progress: called with (models done, models in all).

    Returns:
        nats per position, by choice; equal choices are fitted once.
    """
    prior, choices = max(_prior_positions, len(exponents) // _exponents_of_a_position), list(dict.fromkeys(choices))
    ridge = prior / len(read.Y)
    moments = moments_of(read.tables, read.positions, read.Y, len(exponents), mesh)
    _, gradient, hessian, _ = objective(moments, exponents, exponents, ridge)
    losses = {}
    for kinds in choices:
        near, some = read.only(exponents, kinds), read.of_kinds(kinds)
        guess = lowest_of_kinds(read, exponents, kinds, hessian, gradient)
        fitted = fit_exponents(some.tables, some.positions, some.Y, near, guess=guess, ridge=ridge, gain=_least_gain, mesh=mesh)
        losses[kinds] = fitted.loss
        if progress:
            progress(len(losses), len(choices))
    return losses


def lowest_of_kinds(
    read: HeldOutRows,
    exponents: Float[np.ndarray, " S"],
    kinds: Sequence[str],
    hessian: Float[np.ndarray, "S S"],
    gradient: Float[np.ndarray, " S"] | float = 0.0,
) -> Float[np.ndarray, " S"]:
    """The lowest point with some kinds alone, to second order from the exponents of all: those of the others are 0."""
    a, kept = read.only(exponents, kinds), read.has(kinds)
    a[kept] -= np.linalg.solve(hessian[np.ix_(kept, kept)], (gradient - hessian @ (exponents - a))[kept])
    return a


def _chain_loss(read: HeldOutRows) -> float:
    """The loss of the n-gram model, which the contexts are with exponents 1."""
    chain = read.of_kinds(CHAIN_KINDS)
    ones = read.has(CHAIN_KINDS).astype(np.float32)
    return -float(log_probabilities(chain.tables, ones, chain.positions, chain.Y).mean(dtype=np.float64))
