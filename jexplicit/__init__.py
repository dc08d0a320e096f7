"""Closed-form ("explicit") solutions of softmax layers from co-occurrence counts: networks solved instead of trained.

from jexplicit import count, encode_documents, evaluate, explicit_language_model, train_tokenizer

tokenizer = train_tokenizer(documents)
counts = count(encode_documents(tokenizer, documents), radius=2, vocab_size=tokenizer.vocab_size)
model = explicit_language_model(counts, features="cat")
evaluate(model, encode_documents(tokenizer, held_out)).perplexity
"""

from jexplicit.bitcipher import bit_cipher as bit_cipher
from jexplicit.bitcipher import coded_language_model as coded_language_model
from jexplicit.bitcipher import evaluate_coded as evaluate_coded
from jexplicit.calibrated import calibrated_language_model as calibrated_language_model
from jexplicit.calibrated import offset_rows as offset_rows
from jexplicit.calibration import fit_exponents as fit_exponents
from jexplicit.calibration import hold_out as hold_out
from jexplicit.contexts import PAD as PAD
from jexplicit.contexts import contexts as contexts
from jexplicit.contexts import distinct_contexts as distinct_contexts
from jexplicit.cooccurrence import Counts as Counts
from jexplicit.cooccurrence import count as count
from jexplicit.cooccurrence import dense_cooccurrence as dense_cooccurrence
from jexplicit.cooccurrence import merge_counts as merge_counts
from jexplicit.data.images import Images as Images
from jexplicit.data.images import one_hot as one_hot
from jexplicit.data.images import pixel_features as pixel_features
from jexplicit.data.images import read_images as read_images
from jexplicit.data.tokenizers import Tokenizer as Tokenizer
from jexplicit.data.tokenizers import encode_documents as encode_documents
from jexplicit.data.tokenizers import train_tokenizer as train_tokenizer
from jexplicit.evaluation import attribute as attribute
from jexplicit.evaluation import evaluate as evaluate
from jexplicit.evaluation import log_probabilities as log_probabilities
from jexplicit.features import patch_features as patch_features
from jexplicit.features import patch_filters as patch_filters
from jexplicit.features import positive_parts as positive_parts
from jexplicit.features import random_directions as random_directions
from jexplicit.features import random_features as random_features
from jexplicit.features import unit_rows as unit_rows
from jexplicit.generation import generate as generate
from jexplicit.generation import generate_text as generate_text
from jexplicit.joint_model import fit_joint as fit_joint
from jexplicit.joint_model import joint_log_probabilities as joint_log_probabilities
from jexplicit.joint_model import joint_tables as joint_tables
from jexplicit.joint_model import joint_text as joint_text
from jexplicit.language_model import TokenTables as TokenTables
from jexplicit.language_model import bigram_model as bigram_model
from jexplicit.language_model import explicit_language_model as explicit_language_model
from jexplicit.language_model import unigram_model as unigram_model
from jexplicit.multilayer import Layer as Layer
from jexplicit.multilayer import accuracy as accuracy
from jexplicit.multilayer import solve_layers as solve_layers
from jexplicit.multilayer import stack_logits as stack_logits
from jexplicit.priming import priming_scan as priming_scan
from jexplicit.quadratic import quadratic_sweeps as quadratic_sweeps
from jexplicit.runs.mesh import data_mesh as data_mesh
from jexplicit.saving import LanguageModel as LanguageModel
from jexplicit.saving import export_model as export_model
from jexplicit.saving import load_model as load_model
from jexplicit.scaling import Scaled as Scaled
from jexplicit.scaling import scaling_sweeps as scaling_sweeps
from jexplicit.smoothing import Noise as Noise
from jexplicit.smoothing import kneser_ney as kneser_ney
from jexplicit.smoothing import noise_model as noise_model
from jexplicit.smoothing import noisy_counts as noisy_counts
from jexplicit.smoothing import noisy_rows as noisy_rows
from jexplicit.softmax import logits as logits
from jexplicit.softmax import negative_log_likelihood as negative_log_likelihood
from jexplicit.solution import explicit_solution as explicit_solution
from jexplicit.solution import priming_number as priming_number
from jexplicit.token_scaling import token_scaling_sweeps as token_scaling_sweeps
