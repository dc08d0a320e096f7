"""What accelerators run all at once is what a CPU runs in turn, to rounding. Both are run on this CPU.

Tolerances: the same float32 operations in another order, a few hundred of them one after the other, each with a relative
rounding of 6e-8: 1e-4. Accuracies are shares of whole predictions: one more is a
larger difference.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import two_classes

from icl.attention import Regression, init_layers
from icl.blur import MetaRecipe, Rules, Stage, descent_curves, learning_curves, random_genome
from icl.blur.search import Family, MetaState, make_source, mean_scores, meta_optimizer, meta_steps
from icl.tasks import Tasks, contract
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit.runs.devices import data_mesh

RULES = Rules(states=2, synapse_norm=True)
HIDDEN = (4,)


@functools.cache
def examples():
    return jax.tree.map(jnp.asarray, two_classes())


@functools.cache
def genomes():
    return jax.vmap(lambda key: random_genome(key, 2))(jax.random.split(jax.random.key(0), 3))


def contractions():
    """In float64: 7 products of numbers of size 1, whose sum rounds by less than 1e-14."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(7, 3, 5)), rng.normal(size=(7, 2, 5))
    return jax.jit(jax.value_and_grad(lambda A, B: jnp.sum(jnp.sin(contract(A, B))), (0, 1)))(A, B)


def scores_of_genomes():
    learners = {"rules": RULES, "family": Family(HIDDEN, 8), "unroll": 3, "query_size": 10, "learners": 2}
    return mean_scores(genomes(), jax.random.key(1), make_source(examples()), **learners)


def curves_of_a_rule_and_of_descent():
    shared = {"steps": 3, "batch_size": 8, "seeds": (0, 1)}
    genome, data = jax.tree.map(lambda leaf: leaf[0], genomes()), examples()
    descent = descent_curves("sgd", (0.1, 0.5), HIDDEN, data, data, normalised=True, **shared)
    return learning_curves(genome, RULES, HIDDEN, data, data, **shared), descent


def losses_of_meta_steps():
    recipe, stage = MetaRecipe(hidden=HIDDEN, batch_size=8, query_size=10), Stage(2, 10)
    moments = jax.vmap(meta_optimizer(recipe, 10).init)(genomes())
    state = MetaState(jax.tree.map(jnp.copy, genomes()), moments, jnp.zeros(3, int))
    run = meta_steps(RULES, recipe, recipe.tasks[0], stage, 2, data_mesh(1))
    return run(state, jnp.arange(3), jax.random.key(1), jnp.asarray(0), make_source(examples()))[1]


def losses_of_training_steps():
    problem, recipe = Regression(Tasks(dim=2, context=3), 2), Recipe(batch_size=256)

    @jax.jit
    def start(key):
        params = jax.vmap(lambda key: init_layers(key, 3))(jax.random.split(key, 2))
        return TrainingState(params, jax.vmap(make_optimizer(recipe, 3).init)(params)), jax.random.split(key)

    state, keys = start(jax.random.key(0))
    return training_steps(problem, recipe, 3, data_mesh(1))(state, keys, jax.device_put(np.array(0)))[1]


@pytest.mark.parametrize(
    "compute, rounding",
    [
        (contractions, 1e-13),
        (losses_of_training_steps, 1e-4),
        pytest.param(scores_of_genomes, 1e-4, marks=pytest.mark.slow),
        pytest.param(curves_of_a_rule_and_of_descent, 1e-4, marks=pytest.mark.slow),
        pytest.param(losses_of_meta_steps, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_accelerators_compute_what_a_cpu_does(compute, rounding, elsewhere):
    for ours, theirs in zip(*map(jax.tree.leaves, (compute(), elsewhere(compute))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rounding, atol=1e-13)
