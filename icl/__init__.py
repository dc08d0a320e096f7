"""In-context learning by gradient descent: constructed, solved, and trained.

from icl import Tasks, descent_layers, optimal_rate, predict, sample_tasks, sequences

tasks = Tasks(dim=10, context=10)
layers = descent_layers(10, 10, optimal_rate(tasks))  # one linear self-attention layer that is one step of gradient descent
batch = sample_tasks(jax.random.key(0), tasks, 1000)
y = jax.vmap(lambda sequence: predict(layers, sequence))(sequences(batch))

Source: von Oswald et al., Transformers Learn In-Context by Gradient Descent, ICML 2023.
"""

from typing import TYPE_CHECKING

from jexplicit.runs.files import lazy_names

if TYPE_CHECKING:
    from icl.attention import *  # noqa: F403
    from icl.closed_form import *  # noqa: F403
    from icl.rates import *  # noqa: F403
    from icl.recurrences import *  # noqa: F403
    from icl.tasks import *  # noqa: F403
    from icl.training import *  # noqa: F403

_names = {
    "attention": "Regression descent_layers difference gd_plus_plus gradient_descent head_layer head_maps head_tensor"
    " init_layers interpolate predict predict_batch predictions ridge roll_out softmax_descent_layer softmax_layers"
    " squared_error",
    "closed_form": "FiniteTasks all_heads_solution discrete_mmse diversity_curve diversity_threshold exact_moments heads_loss"
    " one_head_solution one_step_loss optimal_rate optimal_solution sampled_moments token_moments",
    "rates": "Polynomial chebyshev_rates context_eigenvalues evaluate_polynomial optimal_polynomials spectral_law",
    "recurrences": "Streams delta_losses delta_rule hebbian_losses kalman_filter linear_attention mesa_conjugate_gradients"
    " mesa_recursion ridge_losses",
    "tasks": "Sequence Tasks half_mse sample_tasks sequences tokens vmap_tasks",
    "training": "Recipe train_layers",
}
__getattr__, __dir__ = lazy_names(__name__, _names)
