"""Meta-training by evolution: CMA-ES on the flattened genome. Its fitness is accuracy, which has no gradient.

A generation draws genomes `Θ ~ N(mean, σ² C)`, runs learners of each for T updates on the same minibatches, and moves the mean,
step size and covariance towards the genomes with higher accuracy (Hansen & Ostermeier 2001). Nothing is differentiated, so
memory does not grow with T.

A genome whose learners' losses are not all finite has fitness 0, and is counted. The search is a function of its seed and the
fitness values, which are what a checkpoint stores: an interrupted run is replayed from them, and continues exactly.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4.4.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from icl.blur.data import Examples
from icl.blur.episodes import mean_scores
from icl.blur.families import Family, make_source
from icl.blur.genome import Genome
from icl.blur.rules import Rules
from icl.blur.search import Search, SearchOptions, SearchResult

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cmaes import CMA


class EvolutionRecipe(NamedTuple):
    """Hyperparameters of evolution.

    hidden: widths of the learners' hidden layers.
    population: genomes per generation.
    sigma: standard deviation of the first generation, in every number of the genome.
    unroll: T, updates per learner.
    batch_size: examples per update; query_size: examples for the accuracy of each learner.
    learners: per genome.
    """

    hidden: tuple[int, ...] = (32,)
    population: int = 32
    sigma: float = 0.3
    unroll: int = 10
    batch_size: int = 64
    query_size: int = 200
    learners: int = 2


def evolve(
    start: Genome,
    rules: Rules,
    recipe: EvolutionRecipe,
    generations: int,
    train: Examples,
    dev: Examples,
    **options: Any,
) -> SearchResult:
    """Evolve a genome, and return the best of the means of the evaluated generations.

    Args:
        start: mean of the first generation.
        rules: the design.
        recipe: hyperparameters.
        generations: in total.
        train: examples of the learners' minibatches and queries.
        dev: examples that the means are selected on.
        options: see `SearchOptions`; steps are generations, `every` is 10 unless given.

    Raises:
        ValueError: fewer than one generation, a population below 4, or a checkpoint of another run.

    Example::

        train, dev, test, _ = image_sets(jexplicit.read_images("digits"))
        found = evolve(backprop_genome(4), Rules(), EvolutionRecipe(population=8), 20, train, dev)
        found.best, found.score  # the genome, and the accuracy of its learners on dev
    """
    search = Search(start, SearchOptions(**{"every": 10, **options}))
    seed, every, progress = search.options.seed, search.options.every, search.options.progress
    if generations < 1 or recipe.population < 4 or every < 1:
        raise ValueError(
            f"{generations} generations of {recipe.population} genomes, evaluated every {every}: at least 1, 4 and 1"
        )
    flat, unravel = ravel_pytree(start)
    cma = CMA(mean=np.asarray(flat, np.float64), sigma=recipe.sigma, population_size=recipe.population, seed=seed)
    train_key, dev_key = jax.random.split(jax.random.key(seed))
    fitness = search.restore(np.zeros(0)).reshape(-1, recipe.population)  # by generation
    skipped = search.history[-1]["skipped"] if search.history else 0
    for values in fitness:  # replay
        cma.tell([(cma.ask(), -value) for value in values.tolist()])
    source, dev = make_source(train, mixed=False), Examples(*map(jnp.asarray, dev))
    learners: Any = {"rules": rules, "family": Family(recipe.hidden, recipe.batch_size), "unroll": recipe.unroll}
    mean = jax.tree.map(lambda leaf: leaf[None], start)
    for done in range(search.done + 1, generations + 1):
        points = [cma.ask() for _ in range(recipe.population)]
        genomes = jax.vmap(unravel)(jnp.asarray(np.stack(points), flat.dtype))
        key, sizes = jax.random.fold_in(train_key, done - 1), {"query_size": recipe.query_size, "learners": recipe.learners}
        losses, accuracy = map(np.asarray, mean_scores(genomes, key, source, **learners, **sizes))
        values = np.where(np.isfinite(losses), accuracy, 0.0)
        fitness = np.concatenate([fitness, values[None].astype(np.float64)])
        cma.tell([(point, -value) for point, value in zip(points, fitness[-1].tolist(), strict=True)])
        skipped += int(np.sum(~np.isfinite(losses)))
        if progress:
            progress(done, generations)
        if done % every == 0 or done == generations:
            mean = jax.tree.map(lambda leaf: leaf[None], unravel(jnp.asarray(cma.mean, flat.dtype)))
            scores = mean_scores(mean, dev_key, source, dev, **learners, learners=search.options.episodes)
            entry = {"unroll": recipe.unroll, "fitness": float(values.mean()), "best_fitness": float(values.max())}
            search.record(done, generations, fitness.ravel(), mean, *map(np.asarray, scores), **entry, skipped=skipped)
    return SearchResult(search.best, search.score, mean, search.history)
