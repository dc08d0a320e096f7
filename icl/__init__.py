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
    from icl.attention import Regression as Regression
    from icl.attention import attend as attend
    from icl.attention import descent_layers as descent_layers
    from icl.attention import head_layer as head_layer
    from icl.attention import head_maps as head_maps
    from icl.attention import head_tensor as head_tensor
    from icl.attention import init_layers as init_layers
    from icl.attention import predict as predict
    from icl.attention import predict_batch as predict_batch
    from icl.attention import roll_out as roll_out
    from icl.attention import softmax_descent_layer as softmax_descent_layer
    from icl.attention import softmax_layers as softmax_layers
    from icl.closed_form import all_heads_solution as all_heads_solution
    from icl.closed_form import exact_moments as exact_moments
    from icl.closed_form import heads_loss as heads_loss
    from icl.closed_form import one_head_solution as one_head_solution
    from icl.closed_form import one_step_loss as one_step_loss
    from icl.closed_form import optimal_rate as optimal_rate
    from icl.closed_form import optimal_solution as optimal_solution
    from icl.closed_form import sampled_moments as sampled_moments
    from icl.closed_form import token_moments as token_moments
    from icl.descent import difference as difference
    from icl.descent import gd_plus_plus as gd_plus_plus
    from icl.descent import gradient_descent as gradient_descent
    from icl.descent import interpolate as interpolate
    from icl.descent import predictions as predictions
    from icl.descent import ridge as ridge
    from icl.descent import squared_error as squared_error
    from icl.diversity import FiniteTasks as FiniteTasks
    from icl.diversity import discrete_mmse as discrete_mmse
    from icl.diversity import diversity_curve as diversity_curve
    from icl.diversity import diversity_threshold as diversity_threshold
    from icl.rates import Polynomial as Polynomial
    from icl.rates import chebyshev_rates as chebyshev_rates
    from icl.rates import context_eigenvalues as context_eigenvalues
    from icl.rates import evaluate_polynomial as evaluate_polynomial
    from icl.rates import optimal_polynomials as optimal_polynomials
    from icl.rates import spectral_law as spectral_law
    from icl.recurrences import Streams as Streams
    from icl.recurrences import delta_losses as delta_losses
    from icl.recurrences import delta_rule as delta_rule
    from icl.recurrences import hebbian_losses as hebbian_losses
    from icl.recurrences import kalman_filter as kalman_filter
    from icl.recurrences import linear_attention as linear_attention
    from icl.recurrences import mesa_conjugate_gradients as mesa_conjugate_gradients
    from icl.recurrences import mesa_recursion as mesa_recursion
    from icl.recurrences import prefix_ridge as prefix_ridge
    from icl.recurrences import ridge_losses as ridge_losses
    from icl.recurrences import sherman_morrison as sherman_morrison
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
    "attention": "Regression attend descent_layers head_layer head_maps head_tensor init_layers predict predict_batch roll_out"
    " softmax_descent_layer softmax_layers",
    "closed_form": "all_heads_solution exact_moments heads_loss one_head_solution one_step_loss optimal_rate optimal_solution"
    " sampled_moments token_moments",
    "descent": "difference gd_plus_plus gradient_descent interpolate predictions ridge squared_error",
    "diversity": "FiniteTasks discrete_mmse diversity_curve diversity_threshold",
    "rates": "Polynomial chebyshev_rates context_eigenvalues evaluate_polynomial optimal_polynomials spectral_law",
    "recurrences": "Streams delta_losses delta_rule hebbian_losses kalman_filter linear_attention mesa_conjugate_gradients"
    " mesa_recursion prefix_ridge ridge_losses sherman_morrison",
    "tasks": "Sequence Tasks half_mse sample_tasks sequences tokens vmap_tasks",
    "training": "Recipe train_layers",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
