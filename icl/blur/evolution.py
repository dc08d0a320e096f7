"""Meta-training by evolution: CMA-ES on the flattened genome. The fitness is accuracy, which has no gradient.

A generation draws genomes `Θ ~ N(mean, σ² C)`, runs learners of each for T updates on the same minibatches, and moves the mean,
step size and covariance towards the genomes with higher accuracy (Hansen & Ostermeier 2001). Nothing is differentiated, so
memory does not grow with T.

A genome whose learners' losses are not all finite has fitness 0, and is counted. The search is a function of its seed and the
fitness values. A checkpoint stores these; an interrupted run is replayed from them and continues exactly.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4.4.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from icl.blur.data import Examples
from icl.blur.design import Rules
from icl.blur.episodes import Family, make_source, mean_scores
from icl.blur.genome import Genome
from icl.blur.meta import SearchOptions, SearchResult, choose_best, search
from jexplicit.runs.iterate import History

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cmaes import CMA


class EvolutionRecipe(NamedTuple):
    """Hyperparameters of evolution.

    hidden: widths of the learners' hidden layers.
    population: genomes per generation.
    sigma: standard deviation of the first generation, in every entry of the genome.
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
    start: Genome, rules: Rules, recipe: EvolutionRecipe, generations: int, train: Examples, dev: Examples, **options: Any
) -> SearchResult:
    """Evolve a genome, and return the best of the means of the evaluated generations.

    Args:
        start: mean of the first generation.
        rules: the design.
        recipe: hyperparameters.
        generations: in total.
        train: examples of the learners' minibatches and queries.
        dev: examples for selecting among the means.
        options: see `SearchOptions`; steps are generations, `every` is 10 unless given.

    Raises:
        ValueError: fewer than one generation, a population below 4, or a checkpoint of another run.

    Example::

        train, dev, test, _ = image_sets(jexplicit.read_images("digits"))
        found = evolve(backprop_genome(4), Rules(), EvolutionRecipe(population=8), 20, train, dev)
        found.best, found.score  # the genome, and the accuracy of its learners on dev
    """
    search_options = SearchOptions(**{"every": 10, **options})
    seed, every, episodes, progress = (getattr(search_options, name) for name in ("seed", "every", "episodes", "progress"))
    if generations < 1 or recipe.population < 4 or every < 1:
        raise ValueError(
            f"{generations} generations of {recipe.population} genomes, evaluated every {every}: at least 1, 4 and 1"
        )
    flat, unravel = ravel_pytree(start)
    cma = CMA(mean=np.asarray(flat, np.float64), sigma=recipe.sigma, population_size=recipe.population, seed=seed)
    train_key, dev_key = jax.random.split(jax.random.key(seed))
    source, dev = make_source(train, mixed=False), Examples(*map(jnp.asarray, dev))
    learners: Any = {"rules": rules, "family": Family(recipe.hidden, recipe.batch_size), "unroll": recipe.unroll}
    sizes: Any = {"query_size": recipe.query_size, "learners": recipe.learners}

    def mean() -> Genome:
        return jax.tree.map(lambda leaf: leaf[None], unravel(jnp.asarray(cma.mean, flat.dtype)))

    def replay(fitness: np.ndarray) -> None:
        for values in fitness.reshape(-1, recipe.population)[cma.generation :]:
            cma.tell([(cma.ask(), -value) for value in values.tolist()])

    def step(state: tuple[np.ndarray, Genome], history: History) -> tuple[tuple[np.ndarray, Genome], dict[str, Any]]:
        fitness, best = state
        last = history[-1] if history else {"step": 0, "best": -1.0, "skipped": 0}
        replay(fitness)
        done, skipped, values = min(last["step"] // every * every + every, generations), last["skipped"], np.zeros(0)
        for generation in range(last["step"], done):
            points = [cma.ask() for _ in range(recipe.population)]
            genomes = jax.vmap(unravel)(jnp.asarray(np.stack(points), flat.dtype))
            key = jax.random.fold_in(train_key, generation)
            losses, accuracy = map(np.asarray, mean_scores(genomes, key, source, **learners, **sizes))
            values = np.where(np.isfinite(losses), accuracy, 0.0)
            cma.tell([(point, -value) for point, value in zip(points, values.tolist(), strict=True)])
            fitness = np.concatenate([fitness, values.astype(np.float64)])
            skipped += int(np.sum(~np.isfinite(losses)))
            if progress:
                progress(generation + 1, generations)
        scores = map(np.asarray, mean_scores(mean(), dev_key, source, dev, **learners, learners=episodes))
        best, entry = choose_best(best, last["best"], mean(), *scores)
        found = {"fitness": float(values.mean()), "best_fitness": float(values.max()), "skipped": skipped}
        return (fitness, best), {"step": done, "unroll": recipe.unroll, **found, **entry}

    (fitness, best), history = search(step, (np.zeros(0), start), generations, search_options)
    replay(fitness)
    return SearchResult(best, history[-1]["best"], mean(), history)
