"""What accelerators run all at once is what a CPU runs in turn, to rounding. Both are run on this CPU.

Tolerances: the same float32 operations in another order, a few hundred of them one after the other, each with a relative
rounding of 6e-8: 1e-4. Accuracies are shares of whole predictions and equal.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import two_classes

from icl.blur import MetaRecipe, Rules, Stage, descent_curves, learning_curves, random_genome
from icl.blur.episodes import Family, make_source, mean_scores
from icl.blur.meta import MetaState, meta_optimizer, meta_steps
from icl.linalg import contract
from icl.models.attention import init_layers
from icl.models.batched import Regression
from icl.tasks import Tasks
from icl.training import Recipe, TrainingState, make_optimizer, training_steps
from jexplicit.runs.devices import data_mesh

RULES = Rules(states=2, synapse_norm=True)
HIDDEN = (4,)


@pytest.fixture(scope="module")
def data():
    return jax.tree.map(jnp.asarray, two_classes())


@pytest.fixture(scope="module")
def genomes():
    return jax.vmap(lambda key: random_genome(key, 2))(jax.random.split(jax.random.key(0), 3))


def test_contractions(elsewhere):
    """In float64: 7 products of numbers of size 1, whose sum rounds by less than 1e-14."""
    keys = jax.random.split(jax.random.key(0))
    A, B = jax.random.normal(keys[0], (7, 3, 5)), jax.random.normal(keys[1], (7, 2, 5))

    def value_and_gradients():
        return jax.jit(jax.value_and_grad(lambda A, B: jnp.sum(jnp.sin(contract(A, B))), (0, 1)))(A, B)

    for a, b in zip(*map(jax.tree.leaves, (value_and_gradients(), elsewhere(value_and_gradients))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


def test_scores_of_genomes(elsewhere, data, genomes):
    learners = {"rules": RULES, "family": Family(HIDDEN, 8), "unroll": 3, "query_size": 10, "learners": 2}
    arguments = genomes, jax.random.key(1), make_source(data)
    (loss, accuracy), theirs = mean_scores(*arguments, **learners), elsewhere(mean_scores, *arguments, **learners)
    np.testing.assert_allclose(loss, theirs[0], rtol=1e-4)
    np.testing.assert_array_equal(accuracy, theirs[1])


@pytest.mark.slow
def test_learning_curves_and_those_of_descent(elsewhere, data, genomes):
    shared = {"steps": 3, "batch_size": 8, "seeds": (0, 1)}
    genome = jax.tree.map(lambda leaf: leaf[0], genomes)

    def curves():
        descent = descent_curves("sgd", (0.1, 0.5), HIDDEN, data, data, normalised=True, **shared)
        return learning_curves(genome, RULES, HIDDEN, data, data, **shared), descent

    (ours, our_descent), (theirs, their_descent) = curves(), elsewhere(curves)
    np.testing.assert_array_equal(ours.accuracy, theirs.accuracy)
    np.testing.assert_allclose(ours.size, theirs.size, rtol=1e-4)
    np.testing.assert_array_equal(our_descent, their_descent)


@pytest.mark.slow
def test_meta_steps(elsewhere, data, genomes):
    recipe, stage = MetaRecipe(hidden=HIDDEN, batch_size=8, query_size=10), Stage(2, 10)

    def losses():
        moments = jax.vmap(meta_optimizer(recipe, 10).init)(genomes)
        state = MetaState(jax.tree.map(jnp.copy, genomes), moments, jnp.zeros(3, int))
        run = meta_steps(RULES, recipe, recipe.tasks[0], stage, 2, data_mesh(1))
        return np.asarray(run(state, jnp.arange(3), jax.random.key(1), jnp.asarray(0), make_source(data))[1])

    np.testing.assert_allclose(losses(), elsewhere(losses), rtol=1e-4)


def test_training_steps_of_several_seeds(elsewhere):
    problem, recipe = Regression(Tasks(dim=2, context=3), 2), Recipe(batch_size=256)

    def losses():
        params = jax.vmap(lambda key: init_layers(key, 3))(jax.random.split(jax.random.key(0), 2))
        state = TrainingState(params, jax.vmap(make_optimizer(recipe).init)(params))
        return np.asarray(
            training_steps(problem, recipe, 3, data_mesh(1))(state, jax.random.split(jax.random.key(1)), jnp.asarray(0))[1]
        )

    np.testing.assert_allclose(losses(), elsewhere(losses), rtol=1e-4)
