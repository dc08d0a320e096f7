"""Which of two sentences a language model finds likelier: accuracy on minimal pairs.

A pair is right where `log p(good) > log p(bad)`, sums over all tokens of a sentence, whatever their lengths. Models of few
tokens often give both sentences the same probability; such a tie counts half. Every sentence is scored as the only text there
is: a model that reads the past sees its own sentence alone, so neither the order nor the choice of pairs changes a score.

Source: Warstadt et al. 2020, BLiMP, Sec. 4.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jexplicit.data.records import MinimalPair
from jexplicit.data.tokenizers import Progress, Tokenizer
from jexplicit.lm.counted.use import AnyModel
from jexplicit.lm.measures import score_documents

_tie = 1e-4  # nats: log-probabilities are float32, and sums of the same numbers in another order differ by some 1e-5


class Judgement(NamedTuple):
    """How often a model is right.

    accuracy: share of pairs where the acceptable sentence is likelier, ties as halves.
    ties: their share.
    pairs: how many.
    """

    accuracy: float
    ties: float
    pairs: int


def preferences(
    model: AnyModel, tokenizer: Tokenizer, pairs: Sequence[MinimalPair], *, progress: Progress | None = None
) -> Float[np.ndarray, " n"]:
    """`log p(good) - log p(bad)` of every pair, in nats; all sentences are scored in one call.

    Args:
        model: of any kind.
        tokenizer: the model's own.
        pairs: sentences.
        progress: called with (positions done, positions in all).
    """
    sentences = [sentence for pair in pairs for sentence in (pair.good, pair.bad)]
    log_p = score_documents(model, tokenizer, sentences, separate=True, progress=progress)
    return log_p[::2] - log_p[1::2]


def judgement(differences: Float[np.ndarray, " n"]) -> Judgement:
    """Accuracy and ties of some pairs, from their `preferences`.

    Raises:
        ValueError: no pairs, or a difference that is NaN.

    Example:
        >>> judgement(np.array([1.0, -0.5, 0.0, 2.0]))
        Judgement(accuracy=0.625, ties=0.25, pairs=4)
    """
    if not len(differences) or np.isnan(differences).any():
        raise ValueError(
            f"{len(differences)} differences, of which some may be NaN: give at least one pair that a model can score"
        )
    ties = np.abs(differences) < _tie
    right = (differences > 0) & ~ties
    return Judgement(float(np.mean(right + ties / 2)), float(ties.mean()), len(differences))
