"""In-context learning by gradient descent: constructed, solved, and trained.

from icl import Tasks, descent_layers, optimal_rate, predict, sample_tasks, sequences

tasks = Tasks(dim=10, context=10)
layers = descent_layers(10, 10, optimal_rate(tasks))  # one linear self-attention layer that is one step of gradient descent
batch = sample_tasks(jax.random.key(0), tasks, 1000)
y = jax.vmap(lambda sequence: predict(layers, sequence))(sequences(batch))

Source: von Oswald et al., Transformers Learn In-Context by Gradient Descent, ICML 2023.
"""

from typing import TYPE_CHECKING

from jexplicit.runs import lazy_names

if TYPE_CHECKING:
    from icl.models.attention import Regression as Regression
    from icl.models.attention import attend as attend
    from icl.models.attention import head_maps as head_maps
    from icl.models.attention import init_layers as init_layers
    from icl.models.attention import predict as predict
    from icl.models.attention import predict_batch as predict_batch
    from icl.models.attention import roll_out as roll_out
    from icl.models.constructions import descent_layers as descent_layers
    from icl.models.constructions import head_layer as head_layer
    from icl.models.constructions import head_tensor as head_tensor
    from icl.models.constructions import softmax_descent_layer as softmax_descent_layer
    from icl.models.constructions import softmax_layers as softmax_layers
    from icl.models.recurrences import delta_rule as delta_rule
    from icl.models.recurrences import linear_attention as linear_attention
    from icl.models.recurrences import mesa_conjugate_gradients as mesa_conjugate_gradients
    from icl.models.recurrences import mesa_recursion as mesa_recursion
    from icl.models.recurrences import sherman_morrison as sherman_morrison
    from icl.models.streams import Streams as Streams
    from icl.problems.comparison import difference as difference
    from icl.problems.comparison import interpolate as interpolate
    from icl.problems.comparison import predictions as predictions
    from icl.problems.task_diversity import FiniteTasks as FiniteTasks
    from icl.problems.task_diversity import discrete_mmse as discrete_mmse
    from icl.problems.task_diversity import diversity_curve as diversity_curve
    from icl.problems.task_diversity import diversity_threshold as diversity_threshold
    from icl.solvers.closed_form import exact_moments as exact_moments
    from icl.solvers.closed_form import one_step_loss as one_step_loss
    from icl.solvers.closed_form import optimal_rate as optimal_rate
    from icl.solvers.closed_form import optimal_solution as optimal_solution
    from icl.solvers.closed_form import sampled_moments as sampled_moments
    from icl.solvers.descent import gd_plus_plus as gd_plus_plus
    from icl.solvers.descent import gradient_descent as gradient_descent
    from icl.solvers.descent import ridge as ridge
    from icl.solvers.descent import squared_error as squared_error
    from icl.solvers.online import delta_losses as delta_losses
    from icl.solvers.online import hebbian_losses as hebbian_losses
    from icl.solvers.online import kalman_filter as kalman_filter
    from icl.solvers.online import prefix_ridge as prefix_ridge
    from icl.solvers.online import ridge_losses as ridge_losses
    from icl.solvers.polynomials import Polynomial as Polynomial
    from icl.solvers.polynomials import chebyshev_rates as chebyshev_rates
    from icl.solvers.polynomials import evaluate_polynomial as evaluate_polynomial
    from icl.solvers.polynomials import optimal_polynomials as optimal_polynomials
    from icl.solvers.single_layer import all_heads_solution as all_heads_solution
    from icl.solvers.single_layer import heads_loss as heads_loss
    from icl.solvers.single_layer import one_head_solution as one_head_solution
    from icl.solvers.single_layer import token_moments as token_moments
    from icl.solvers.spectrum import context_eigenvalues as context_eigenvalues
    from icl.solvers.spectrum import spectral_law as spectral_law
    from icl.tasks import Sequence as Sequence
    from icl.tasks import Tasks as Tasks
    from icl.tasks import half_mse as half_mse
    from icl.tasks import sample_tasks as sample_tasks
    from icl.tasks import sequences as sequences
    from icl.tasks import tokens as tokens
    from icl.tasks import vmap_tasks as vmap_tasks
    from icl.training import Recipe as Recipe
    from icl.training import train_layers as train_layers

_names = {
    "models.attention": "Regression attend head_maps init_layers predict predict_batch roll_out",
    "models.constructions": "descent_layers head_layer head_tensor softmax_descent_layer softmax_layers",
    "models.recurrences": "delta_rule linear_attention mesa_conjugate_gradients mesa_recursion sherman_morrison",
    "models.streams": "Streams",
    "problems.comparison": "difference interpolate predictions",
    "problems.task_diversity": "FiniteTasks discrete_mmse diversity_curve diversity_threshold",
    "solvers.closed_form": "exact_moments one_step_loss optimal_rate optimal_solution sampled_moments",
    "solvers.descent": "gd_plus_plus gradient_descent ridge squared_error",
    "solvers.online": "delta_losses hebbian_losses kalman_filter prefix_ridge ridge_losses",
    "solvers.polynomials": "Polynomial chebyshev_rates evaluate_polynomial optimal_polynomials",
    "solvers.single_layer": "all_heads_solution heads_loss one_head_solution token_moments",
    "solvers.spectrum": "context_eigenvalues spectral_law",
    "tasks": "Sequence Tasks half_mse sample_tasks sequences tokens vmap_tasks",
    "training": "Recipe train_layers",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
