"""The prediction of a language model as a row of another one."""

from typing import Any

import jax
import numpy as np

from jexplicit.lm.core.model import HISTORY, LanguageModel, pytree


@pytree
class ModelRow:
    """log p of a model, as the one row that others correct.

    model: any language model.
    """

    model: LanguageModel

    names = ("model",)
    tokens = property(lambda self: (HISTORY if self.model.history else None,))
    radius = property(lambda self: self.model.radius)
    history = property(lambda self: self.model.history)
    vocab_size = property(lambda self: self.model.vocab_size)
    counted = property(lambda self: self.model.rows)
    over_model = True  # log_tables takes the model's log-probabilities

    def read(self, context, history=None):
        return [jax.nn.log_softmax(self.model.logits(context[: self.radius], history))]

    def log_tables(self, X: np.ndarray, past: Any, log_p: np.ndarray) -> list[tuple[Any, np.ndarray, None]]:
        """The log-probabilities as a table of a row per position."""
        return [(log_p, np.arange(len(X)), None)]
