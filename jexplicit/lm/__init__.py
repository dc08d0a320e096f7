"""Language models: one interface, many ways to fit."""

from typing import TYPE_CHECKING

from jexplicit.runs.files import lazy_names

if TYPE_CHECKING:
    from jexplicit.lm.core.model import logits as logits
    from jexplicit.lm.core.smoothing import kneser_ney as kneser_ney
    from jexplicit.lm.core.smoothing import noise_model as noise_model
    from jexplicit.lm.core.smoothing import noisy_counts as noisy_counts
    from jexplicit.lm.core.smoothing import noisy_rows as noisy_rows
    from jexplicit.lm.fits.fit import METHODS as METHODS
    from jexplicit.lm.fits.fit import fit_model as fit_model
    from jexplicit.lm.fits.log_linear import fit_exponents as fit_exponents
    from jexplicit.lm.fits.log_linear import log_linear_model as log_linear_model
    from jexplicit.lm.fits.log_linear import offset_rows as offset_rows
    from jexplicit.lm.generation import generate_text as generate_text
    from jexplicit.lm.generation import next_token as next_token
    from jexplicit.lm.rows import explicit_language_model as explicit_language_model
    from jexplicit.lm.rows import network_model as network_model
    from jexplicit.lm.training_text import Options as Options
    from jexplicit.lm.training_text import TrainingText as TrainingText
    from jexplicit.lm.training_text import Watch as Watch

_names = {
    "core.smoothing": "kneser_ney noise_model noisy_counts noisy_rows",
    "core.model": "logits",
    "fits.fit": "METHODS fit_model",
    "fits.log_linear": "fit_exponents log_linear_model offset_rows",
    "generation": "generate_text next_token",
    "rows": "explicit_language_model network_model",
    "training_text": "Options TrainingText Watch",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
