"""In-context learning by gradient descent: constructed, solved in closed form, and trained.

from icl import Tasks, descent_layers, optimal_rate, predict, sample_tasks, sequences

tasks = Tasks(dim=10, context=10)
layers = descent_layers(10, 10, optimal_rate(tasks))  # one linear self-attention layer that is one step of gradient descent
batch = sample_tasks(jax.random.key(0), tasks, 1000)
y = jax.vmap(lambda sequence: predict(layers, sequence))(sequences(batch))

Source: von Oswald et al., Transformers Learn In-Context by Gradient Descent, ICML 2023.
"""

from typing import TYPE_CHECKING

from jexplicit.runs.api import public_names

if TYPE_CHECKING:
    from icl.api import *  # noqa: F403

__getattr__, __dir__ = public_names(__name__)
