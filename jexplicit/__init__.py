"""Closed-form ("explicit") solutions of softmax layers from co-occurrence counts: networks solved instead of trained.

import jexplicit

model = jexplicit.fit(documents)  # a list of texts, or pathlib.Paths of files; the mixture, the model of the lowest perplexity
model.perplexity(more_documents)
model.next_token("Return the")
model.generate("Return the", 20)
model.save("model.safetensors")  # jexplicit.load_model reads it
"""

from jexplicit.counts.dense import Counts as Counts
from jexplicit.counts.dense import count as count
from jexplicit.counts.dense import merge_counts as merge_counts
from jexplicit.counts.sparse import count_sparse as count_sparse
from jexplicit.data.contexts import PAD as PAD
from jexplicit.data.contexts import contexts as contexts
from jexplicit.data.contexts import distinct_contexts as distinct_contexts
from jexplicit.data.held_out import hold_out as hold_out
from jexplicit.data.images import Images as Images
from jexplicit.data.images import one_hot as one_hot
from jexplicit.data.images import pixel_features as pixel_features
from jexplicit.data.images import read_images as read_images
from jexplicit.data.tokenizers import Tokenizer as Tokenizer
from jexplicit.data.tokenizers import encode_documents as encode_documents
from jexplicit.data.tokenizers import train_tokenizer as train_tokenizer
from jexplicit.lm.attribution import Attribution as Attribution
from jexplicit.lm.attribution import explain as explain
from jexplicit.lm.checkpoints import export_model as export_model
from jexplicit.lm.checkpoints import import_model as import_model
from jexplicit.lm.checkpoints import load_model as load_model
from jexplicit.lm.evaluation import Evaluation as Evaluation
from jexplicit.lm.evaluation import evaluate as evaluate
from jexplicit.lm.evaluation import log_probabilities as log_probabilities
from jexplicit.lm.evaluation import score as score
from jexplicit.lm.fits.calibration import fit_exponents as fit_exponents
from jexplicit.lm.fits.estimator import fit as fit
from jexplicit.lm.fits.fit import METHODS as METHODS
from jexplicit.lm.fits.fit import FitResult as FitResult
from jexplicit.lm.fits.fit import fit_model as fit_model
from jexplicit.lm.fits.iterative_scaling import sweep_tables as sweep_tables
from jexplicit.lm.fits.log_linear import log_linear_model as log_linear_model
from jexplicit.lm.fits.log_linear import offset_rows as offset_rows
from jexplicit.lm.fits.mixture_rows import mixture_rows as mixture_rows
from jexplicit.lm.fits.ngram_mixture import fit_mixture as fit_mixture
from jexplicit.lm.fits.ngram_mixture import ngram_model as ngram_model
from jexplicit.lm.fits.training_text import Options as Options
from jexplicit.lm.fits.training_text import TrainingText as TrainingText
from jexplicit.lm.fits.training_text import Watch as Watch
from jexplicit.lm.generation import generate as generate
from jexplicit.lm.generation import generate_text as generate_text
from jexplicit.lm.generation import next_token as next_token
from jexplicit.lm.model import LanguageModel as LanguageModel
from jexplicit.lm.model import token_model as token_model
from jexplicit.lm.model_files import save_model as save_model
from jexplicit.lm.rows.bitcipher import bit_cipher as bit_cipher
from jexplicit.lm.rows.bitcipher import coded_language_model as coded_language_model
from jexplicit.lm.rows.explicit import bigram_model as bigram_model
from jexplicit.lm.rows.explicit import explicit_language_model as explicit_language_model
from jexplicit.lm.rows.explicit import unigram_model as unigram_model
from jexplicit.lm.rows.network import network_model as network_model
from jexplicit.lm.rows.ngrams import smoothed_ngrams as smoothed_ngrams
from jexplicit.lm.rows.sparse import sparse_language_model as sparse_language_model
from jexplicit.lm.smoothing import Noise as Noise
from jexplicit.lm.smoothing import kneser_ney as kneser_ney
from jexplicit.lm.smoothing import noise_model as noise_model
from jexplicit.lm.smoothing import noisy_counts as noisy_counts
from jexplicit.lm.smoothing import noisy_rows as noisy_rows
from jexplicit.lm.softmax import logits as logits
from jexplicit.lm.softmax import negative_log_likelihood as negative_log_likelihood
from jexplicit.lm.text_model import TextModel as TextModel
from jexplicit.runs.devices import data_mesh as data_mesh
from jexplicit.solvers.curvature_bound import curvature_bound_sweeps as curvature_bound_sweeps
from jexplicit.solvers.explicit import dense_cooccurrence as dense_cooccurrence
from jexplicit.solvers.explicit import explicit_solution as explicit_solution
from jexplicit.solvers.explicit import priming_number as priming_number
from jexplicit.solvers.features import patch_features as patch_features
from jexplicit.solvers.features import patch_filters as patch_filters
from jexplicit.solvers.features import positive_parts as positive_parts
from jexplicit.solvers.features import random_directions as random_directions
from jexplicit.solvers.features import random_features as random_features
from jexplicit.solvers.features import unit_rows as unit_rows
from jexplicit.solvers.iterative_scaling import iterative_scaling_sweeps as iterative_scaling_sweeps
from jexplicit.solvers.layerwise import SoftmaxLayer as SoftmaxLayer
from jexplicit.solvers.layerwise import solve_layers as solve_layers
from jexplicit.solvers.layerwise import stack_logits as stack_logits
from jexplicit.solvers.metrics import accuracy as accuracy
from jexplicit.solvers.metrics import mean_loss as mean_loss
from jexplicit.solvers.priming import priming_scan as priming_scan
from jexplicit.solvers.sweeps import SoftmaxFit as SoftmaxFit


def __getattr__(name: str) -> str:
    if name == "__version__":  # read when it is asked for
        from importlib import metadata

        return metadata.version("jexplicit")
    raise AttributeError(f"module 'jexplicit' has no attribute {name!r}")
