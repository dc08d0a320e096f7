"""Closed-form ("explicit") solutions of softmax layers from co-occurrence counts: networks solved instead of trained.

from jexplicit import count, encode_documents, evaluate, explicit_language_model, train_tokenizer

tokenizer = train_tokenizer(documents)
counts = count(encode_documents(tokenizer, documents), radius=2, vocab_size=tokenizer.vocab_size)
model = explicit_language_model(counts, features="cat")
evaluate(model, encode_documents(tokenizer, held_out)).perplexity
"""

from jexplicit.counts.dense import Counts as Counts
from jexplicit.counts.dense import count as count
from jexplicit.counts.dense import dense_cooccurrence as dense_cooccurrence
from jexplicit.counts.dense import merge_counts as merge_counts
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
from jexplicit.lm.bitcipher import bit_cipher as bit_cipher
from jexplicit.lm.bitcipher import coded_language_model as coded_language_model
from jexplicit.lm.bitcipher import evaluate_coded as evaluate_coded
from jexplicit.lm.calibration import fit_exponents as fit_exponents
from jexplicit.lm.checkpoints import LanguageModel as LanguageModel
from jexplicit.lm.checkpoints import export_model as export_model
from jexplicit.lm.checkpoints import load_model as load_model
from jexplicit.lm.evaluation import attribute as attribute
from jexplicit.lm.evaluation import evaluate as evaluate
from jexplicit.lm.evaluation import log_probabilities as log_probabilities
from jexplicit.lm.explicit import TokenTables as TokenTables
from jexplicit.lm.explicit import bigram_model as bigram_model
from jexplicit.lm.explicit import explicit_language_model as explicit_language_model
from jexplicit.lm.explicit import unigram_model as unigram_model
from jexplicit.lm.generation import generate as generate
from jexplicit.lm.generation import generate_text as generate_text
from jexplicit.lm.iterative_scaling import token_scaling_sweeps as token_scaling_sweeps
from jexplicit.lm.log_linear import calibrated_language_model as calibrated_language_model
from jexplicit.lm.log_linear import offset_rows as offset_rows
from jexplicit.lm.ngram_mixture import fit_joint as fit_joint
from jexplicit.lm.ngram_mixture import joint_log_probabilities as joint_log_probabilities
from jexplicit.lm.ngram_mixture import joint_tables as joint_tables
from jexplicit.lm.ngram_mixture import joint_text as joint_text
from jexplicit.lm.smoothing import Noise as Noise
from jexplicit.lm.smoothing import kneser_ney as kneser_ney
from jexplicit.lm.smoothing import noise_model as noise_model
from jexplicit.lm.smoothing import noisy_counts as noisy_counts
from jexplicit.lm.smoothing import noisy_rows as noisy_rows
from jexplicit.lm.softmax import logits as logits
from jexplicit.lm.softmax import negative_log_likelihood as negative_log_likelihood
from jexplicit.runs.devices import data_mesh as data_mesh
from jexplicit.solvers.curvature_bound import quadratic_sweeps as quadratic_sweeps
from jexplicit.solvers.explicit import explicit_solution as explicit_solution
from jexplicit.solvers.explicit import priming_number as priming_number
from jexplicit.solvers.features import patch_features as patch_features
from jexplicit.solvers.features import patch_filters as patch_filters
from jexplicit.solvers.features import positive_parts as positive_parts
from jexplicit.solvers.features import random_directions as random_directions
from jexplicit.solvers.features import random_features as random_features
from jexplicit.solvers.features import unit_rows as unit_rows
from jexplicit.solvers.iterative_scaling import Scaled as Scaled
from jexplicit.solvers.iterative_scaling import scaling_sweeps as scaling_sweeps
from jexplicit.solvers.layerwise import Layer as Layer
from jexplicit.solvers.layerwise import accuracy as accuracy
from jexplicit.solvers.layerwise import solve_layers as solve_layers
from jexplicit.solvers.layerwise import stack_logits as stack_logits
from jexplicit.solvers.priming import priming_scan as priming_scan
