"""In-context learning by gradient descent: constructed, solved in closed form, and trained.

from icl import Tasks, descent_layers, optimal_rate, predict, sample_tasks, sequences

tasks = Tasks(dim=10, context=10)
layers = descent_layers(10, 10, optimal_rate(tasks))  # one linear self-attention layer that is one step of gradient descent
batch = sample_tasks(jax.random.key(0), tasks, 1000)
y = jax.vmap(lambda sequence: predict(layers, sequence))(sequences(batch))

Source: von Oswald et al., Transformers Learn In-Context by Gradient Descent, ICML 2023.
"""

from icl.comparison import Predictions as Predictions
from icl.comparison import PredictorDifference as PredictorDifference
from icl.comparison import difference as difference
from icl.comparison import interpolate as interpolate
from icl.comparison import predictions as predictions
from icl.models.attention import AttentionLayer as AttentionLayer
from icl.models.attention import attend as attend
from icl.models.attention import head_maps as head_maps
from icl.models.attention import init_layers as init_layers
from icl.models.attention import predict as predict
from icl.models.attention import roll_out as roll_out
from icl.models.batched import Regression as Regression
from icl.models.batched import predict_batch as predict_batch
from icl.models.constructions import descent_layers as descent_layers
from icl.models.constructions import softmax_descent_layer as softmax_descent_layer
from icl.solvers.closed_form import exact_moments as exact_moments
from icl.solvers.closed_form import least_squares_solution as least_squares_solution
from icl.solvers.closed_form import one_step_loss as one_step_loss
from icl.solvers.closed_form import optimal_rate as optimal_rate
from icl.solvers.closed_form import optimal_solution as optimal_solution
from icl.solvers.closed_form import sampled_moments as sampled_moments
from icl.solvers.descent import gd_plus_plus as gd_plus_plus
from icl.solvers.descent import gradient_descent as gradient_descent
from icl.solvers.descent import line_search as line_search
from icl.solvers.descent import ridge as ridge
from icl.solvers.descent import squared_error as squared_error
from icl.solvers.polynomials import Polynomial as Polynomial
from icl.solvers.polynomials import context_eigenvalues as context_eigenvalues
from icl.solvers.polynomials import evaluate_polynomial as evaluate_polynomial
from icl.solvers.polynomials import optimal_polynomial as optimal_polynomial
from icl.tasks import Sequence as Sequence
from icl.tasks import Tasks as Tasks
from icl.tasks import half_mse as half_mse
from icl.tasks import sample_tasks as sample_tasks
from icl.tasks import sequences as sequences
from icl.tasks import tokens as tokens
from icl.tasks import vmap_tasks as vmap_tasks
from icl.training import Recipe as Recipe
from icl.training import train_layers as train_layers
