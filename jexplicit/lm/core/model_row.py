"""The prediction of a model as a row of another one."""

import jax

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
