"""The exponents of a mixture fitted on minimal pairs, so that of two sentences the good one is likelier.

With `D_n(a) = log p(good) - log p(bad)`, sums over the tokens of each sentence, what is minimised is

    1/n sum_n log(1 + exp(-D_n(a))) + ridge/2 ||a - start||²,    dD_n/da_g = sum_m ± (r_g[y_m] - E_p[r_g]),

by Gauss-Newton with halved steps: for the Hessian stands `J^T diag(s (1 - s)) J / n + ridge I`, where J = dD/da and
s = 1 / (1 + exp(D)). The positions that both sentences have cancel, and are not read.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from scipy.special import expit

from jexplicit.data.contexts import PAD
from jexplicit.data.pairs import MinimalPair, corrupt_sentences
from jexplicit.data.tokenizers import Progress, Tokenizer, encode_documents
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.evaluation import read_tables, read_text
from jexplicit.lm.fits.mixtures.calibration import Calibration
from jexplicit.lm.minimal_pairs import judgement
from jexplicit.lm.tables.moments import place_rows, position_slopes
from jexplicit.lm.tables.placing import Positions
from jexplicit.lm.tables.reader import log_probabilities
from jexplicit.lm.training_text import TrainingText

_fewest_pairs = 10
_prior_pairs = 10  # that the penalty is worth
_held_out_part = 5  # one pair in so many is not fitted on


class PairPositions(NamedTuple):
    """Where the sentences of some pairs differ.

    tables, positions: what these positions read.
    Y: [M] targets.
    pair: [M] which pair each is of.
    sign: [M] 1 in a good sentence and -1 in a bad one; more where a sentence has the same position several times.
    """

    tables: tuple[Any, ...]
    positions: Positions
    Y: Integer[np.ndarray, " M"]
    pair: Integer[np.ndarray, " M"]
    sign: Float[np.ndarray, " M"]

    def differences(self, exponents: Float[np.ndarray, " S"], pairs: int) -> Float[np.ndarray, " n"]:
        """`log p(good) - log p(bad)` of so many pairs, in nats."""
        if not len(self.Y):
            return np.zeros(pairs)
        log_p = log_probabilities(self.tables, exponents, self.positions, self.Y).astype(np.float64)
        return np.bincount(self.pair, self.sign * log_p, minlength=pairs)


def fit_pair_exponents(
    tables: Sequence[Any],
    positions: Positions,
    Y: Integer[np.ndarray, " M"],
    pair_of_position: Integer[np.ndarray, " M"],
    sign_of_position: Float[np.ndarray, " M"],
    start: Float[np.ndarray, " S"],
    *,
    ridge: float | None = None,
    gain: float = 1e-6,
    iterations: int = 30,
    progress: Progress | None = None,
) -> Calibration:
    """The exponents with the lowest logistic loss on minimal pairs.

    Args:
        tables: for each feature a table of jexplicit.lm.tables.storage, or an array [R, N].
        positions: which rows and which exponents each position reads.
        Y: [M] targets.
        pair_of_position: [M] number of the pair that each is of.
        sign_of_position: [M] 1 in a good sentence, -1 in a bad one.
        start: [S] first exponents.
        ridge: strength of the penalty on the distance from the start, nats per pair; default, 10 in all.
        gain: the iterations end where the next step would lower the loss by less, in nats per pair.
        iterations: at most; every one is a pass over the positions.
        progress: called with (passes done, most passes).

    Raises:
        ValueError: no positions; exponents that the start does not have.

    Example:
        >>> import jax.numpy as jnp
        >>> tables = [jnp.log(jnp.array([[0.8, 0.2]]))]  # p(good) / p(bad) = 4^a
        >>> two = Positions(np.zeros((2, 1), int), np.zeros((2, 1), int))
        >>> one_pair = np.zeros(2, int), np.array([1.0, -1.0])
        >>> fit_pair_exponents(tables, two, np.array([0, 1]), *one_pair, np.zeros(1), ridge=0.5).exponents.round(3).tolist()
        [0.735]

    Source: Bradley & Terry 1952 for the loss; Gauss-Newton with halved steps.
    """
    if not len(Y):
        raise ValueError("no positions in which minimal pairs differ: give other pairs")
    placed = place_rows(tables, positions, Y, len(start))
    start, S, n = np.asarray(start, np.float64), len(start), int(pair_of_position.max()) + 1
    ridge = _prior_pairs / n if ridge is None else ridge
    cells = (pair_of_position.astype(np.int64)[:, None, None] * S + positions.parts).ravel()
    a, step, share, passes = start, np.zeros(S), 1.0, 0
    value, loss, gradient, hessian = np.inf, np.inf, np.zeros(S), np.eye(S)
    for passes in range(1, iterations + 1):
        there = a + share * step
        log_p, slopes, _ = position_slopes(placed, there)
        D = np.bincount(pair_of_position, sign_of_position * log_p, minlength=n)
        there_loss = float(np.logaddexp(0, -D).mean())
        there_value = there_loss + ridge / 2 * float((there - start) @ (there - start))
        if progress:
            progress(passes, iterations)
        if there_value > value + 1e-7:  # rounding of float32 log-probabilities aside, a short enough step lowers it
            share /= 2
            continue
        a, value, loss, share = there, there_value, there_loss, min(1.0, 2 * share)
        J = np.bincount(
            cells, np.repeat(sign_of_position[:, None] * slopes, positions.parts.shape[2]), minlength=n * S
        ).reshape(n, S)
        s = expit(-D)
        gradient = ridge * (a - start) - J.T @ s / n
        hessian = (J * (s * (1 - s))[:, None]).T @ J / n + ridge * np.eye(S)
        step = -np.linalg.lstsq(hessian, gradient, rcond=1e-10)[0]
        if -step @ gradient / 2 < gain:
            break
    return Calibration(a, loss, float(np.abs(gradient).max()), passes)


def pair_positions(model: LanguageModel, tokenizer: Tokenizer, pairs: Sequence[MinimalPair]) -> PairPositions:
    """The positions in which the sentences of each pair differ, every sentence as the only text that the model sees.

    Args:
        model: of kinds that are tables or have `log_tables`.
        tokenizer: the model's own.
        pairs: sentences.
    """
    stream = encode_documents(tokenizer, [sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    X, Y, past = read_text(stream, model.radius, eos=model.eos)
    past = past.within_documents()
    sentence = np.searchsorted(np.flatnonzero(stream == PAD), past.places) - 1
    pair, sign, m = sentence // 2, 1.0 - 2.0 * (sentence % 2), np.arange(len(Y))
    if not model.history:  # positions of the same context and target are the same
        _, m, which = np.unique(np.column_stack([pair, X, Y]), axis=0, return_index=True, return_inverse=True)
        sign = np.bincount(which.ravel(), sign)
        m, sign = m[sign != 0], sign[sign != 0]
    tables, positions, _ = read_tables(model, X[m], past.take(m))
    return PairPositions(tables, positions, Y[m], pair[m], sign)


def pairs_of_text(text: TrainingText, held: np.ndarray, *, most: int | None = None, seed: int = 0) -> list[MinimalPair]:
    """Minimal pairs made from the held-out part of a text: its sentences, and the same spoiled.

    Args:
        text: the whole text, with its tokenizer.
        held: [L] the held-out part.
        most: pairs.
        seed: of what is drawn.

    Raises:
        ValueError: no tokenizer, or too few sentences.
    """
    if text.tokenizer is None:
        raise ValueError("calibration 'pairs' and a text without a tokenizer: give TrainingText(..., tokenizer=...)")
    pairs = corrupt_sentences(_documents(held, text.tokenizer), most=most, seed=seed)
    if len(pairs) < _fewest_pairs:
        raise ValueError(
            f"calibration 'pairs' and {len(pairs)} minimal pairs of held-out text: give more text, in sentences of four words "
            "or more, or use calibration 'held-out'"
        )
    return pairs


def _documents(stream: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    pads = np.flatnonzero(stream == PAD)
    return [tokenizer.decode(stream[first + 1 : end]) for first, end in pairwise(pads)]


def fit_to_pairs(
    model: LanguageModel, tokenizer: Tokenizer, pairs: Sequence[MinimalPair], *, progress: Progress | None = None
) -> tuple[Calibration, dict[str, Any]]:
    """The exponents of a model fitted on four fifths of some pairs, from those that it has.

    Args:
        model: fitted on text; its exponents are where the fit begins, and what it is tied to.
        tokenizer: the model's own.
        pairs: at least two.
        progress: called with (passes done, most passes).

    Returns:
        the fit; `pairs`, and of the other fifth `pair_accuracy_before` and `pair_accuracy`.
    """
    some = max(1, len(pairs) // _held_out_part)
    held, start = pair_positions(model, tokenizer, pairs[:some]), np.asarray(model.exponents)
    fitted = fit_pair_exponents(*pair_positions(model, tokenizer, pairs[some:]), start, progress=progress)
    before, after = (judgement(held.differences(a, some)).accuracy for a in (start, fitted.exponents))
    return fitted, {"pairs": len(pairs), "pair_accuracy_before": before, "pair_accuracy": after}
