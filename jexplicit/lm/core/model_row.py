"""The prediction of a model as a row of another one."""

from typing import Any

import jax
import numpy as np

from jexplicit.lm.core.model import HISTORY, LanguageModel, pytree


@pytree
class ModelRow:
    """log p of a language model, as one row.

    model: of any kind.
    """

    model: LanguageModel

    names = ("model",)
    tokens = property(lambda self: (HISTORY if self.model.history else None,))
    radius = property(lambda self: self.model.radius)
    history = property(lambda self: self.model.history)
    vocab_size = property(lambda self: self.model.vocab_size)
    counted = property(lambda self: self.model.rows)

    def read(self, context, history=None):
        history = history[: self.history] if history is not None else None
        return [jax.nn.log_softmax(self.model.logits(context[: self.radius], history))]


@pytree
class GivenRow:
    """log p of a model from elsewhere, as one row at every place of one text.

    log_p: [L, N] by the place of the predicted token in the text; what stands at places that are not predicted is not read.
    """

    log_p: Any

    names = ("model",)
    tokens = (HISTORY,)
    radius = 1
    history = 1
    vocab_size = property(lambda self: self.log_p.shape[1])

    def read(self, context, history=None):
        raise ValueError("log-probabilities that are given for one text have no row of a context alone: score that text")

    def log_tables(self, X: np.ndarray, past: Any) -> list[tuple[Any, np.ndarray, None]]:
        """The rows of some places."""
        L = len(self.log_p)
        if len(past.stream) != L:
            raise ValueError(f"log-probabilities of {L} places for a text of {len(past.stream)}: give those of this text")
        return [(np.asarray(self.log_p)[past.places], np.arange(len(X)), None)]
