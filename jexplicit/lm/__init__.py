"""Language models: one interface, many ways to fit."""

from typing import TYPE_CHECKING

from jexplicit.runs.files import lazy_names

if TYPE_CHECKING:
    from jexplicit.lm.fit import METHODS as METHODS
    from jexplicit.lm.fit import fit_model as fit_model
    from jexplicit.lm.generation import generate_text as generate_text
    from jexplicit.lm.generation import next_token as next_token
    from jexplicit.lm.layers import explicit_language_model as explicit_language_model
    from jexplicit.lm.layers import fit_weights as fit_weights
    from jexplicit.lm.layers import kneser_ney as kneser_ney
    from jexplicit.lm.layers import log_linear_model as log_linear_model
    from jexplicit.lm.layers import noise_model as noise_model
    from jexplicit.lm.layers import noisy_counts as noisy_counts
    from jexplicit.lm.layers import noisy_rows as noisy_rows
    from jexplicit.lm.layers import offset_rows as offset_rows
    from jexplicit.lm.model import logits as logits
    from jexplicit.lm.training_text import Options as Options
    from jexplicit.lm.training_text import TrainingText as TrainingText
    from jexplicit.lm.training_text import Watch as Watch

_names = {
    "fit": "METHODS fit_model",
    "generation": "generate_text next_token",
    "layers": "explicit_language_model fit_weights kneser_ney log_linear_model noise_model noisy_counts noisy_rows offset_rows",
    "model": "logits",
    "training_text": "Options TrainingText Watch",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
