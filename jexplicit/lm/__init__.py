"""Language models: one interface, many ways to fit."""

from typing import TYPE_CHECKING

from jexplicit.runs.api import public_names

if TYPE_CHECKING:
    from jexplicit.lm.attribution import Attribution as Attribution
    from jexplicit.lm.attribution import explain as explain
    from jexplicit.lm.checkpoints import export_model as export_model
    from jexplicit.lm.checkpoints import import_model as import_model
    from jexplicit.lm.checkpoints import load_model as load_model
    from jexplicit.lm.core.model import LanguageModel as LanguageModel
    from jexplicit.lm.core.model import token_model as token_model
    from jexplicit.lm.core.smoothing import Noise as Noise
    from jexplicit.lm.core.smoothing import kneser_ney as kneser_ney
    from jexplicit.lm.core.smoothing import noise_model as noise_model
    from jexplicit.lm.core.smoothing import noisy_counts as noisy_counts
    from jexplicit.lm.core.smoothing import noisy_rows as noisy_rows
    from jexplicit.lm.core.softmax import logits as logits
    from jexplicit.lm.core.softmax import negative_log_likelihood as negative_log_likelihood
    from jexplicit.lm.counted.combine import combine as combine
    from jexplicit.lm.evaluation import Evaluation as Evaluation
    from jexplicit.lm.evaluation import evaluate as evaluate
    from jexplicit.lm.evaluation import log_probabilities as log_probabilities
    from jexplicit.lm.evaluation import score as score
    from jexplicit.lm.fits.fit import METHODS as METHODS
    from jexplicit.lm.fits.fit import FitResult as FitResult
    from jexplicit.lm.fits.fit import fit as fit
    from jexplicit.lm.fits.fit import fit_model as fit_model
    from jexplicit.lm.fits.iterative_scaling import sweep_tables as sweep_tables
    from jexplicit.lm.fits.log_linear import fit_exponents as fit_exponents
    from jexplicit.lm.fits.log_linear import log_linear_model as log_linear_model
    from jexplicit.lm.fits.log_linear import offset_rows as offset_rows
    from jexplicit.lm.generation import generate as generate
    from jexplicit.lm.generation import generate_text as generate_text
    from jexplicit.lm.generation import next_token as next_token
    from jexplicit.lm.model_files import save_model as save_model
    from jexplicit.lm.rows.explicit import bigram_model as bigram_model
    from jexplicit.lm.rows.explicit import explicit_language_model as explicit_language_model
    from jexplicit.lm.rows.explicit import unigram_model as unigram_model
    from jexplicit.lm.rows.network import network_model as network_model
    from jexplicit.lm.rows.ngrams import ngram_model as ngram_model
    from jexplicit.lm.rows.ngrams import smoothed_ngrams as smoothed_ngrams
    from jexplicit.lm.rows.sparse import sparse_language_model as sparse_language_model
    from jexplicit.lm.text_model import TextModel as TextModel
    from jexplicit.lm.training_text import Options as Options
    from jexplicit.lm.training_text import TrainingText as TrainingText
    from jexplicit.lm.training_text import Watch as Watch

__getattr__, __dir__ = public_names(__name__)
