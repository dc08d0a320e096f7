"""Closed-form ("explicit") solutions of softmax layers from co-occurrence counts: networks solved instead of trained.

import jexplicit

model = jexplicit.fit(documents)  # a list of texts, or pathlib.Paths of files; the mixture, the model of the lowest perplexity
model.perplexity(more_documents)
model.next_token("Return the")
model.generate("Return the", 20)
model.save("model.safetensors")  # jexplicit.load_model reads it
"""

from typing import TYPE_CHECKING

from jexplicit.runs.api import public_names

if TYPE_CHECKING:
    from jexplicit.api import *  # noqa: F403

__getattr__, __dir__ = public_names(__name__)
