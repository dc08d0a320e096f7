"""Meta-training by evolution: CMA-ES on the flat genome. Fitness is accuracy, which has no gradient.

A generation draws genomes `Θ ~ N(mean, σ² C)`, lets learners of each learn for T steps on the same minibatches, and moves
the mean, step size and covariance towards those whose learners were right more often (Hansen & Ostermeier 2001). Nothing is
differentiated, so that memory does not grow with T.

A genome whose learners end with numbers that are not finite has fitness 0, and is counted. The search is a function of its seed
and of the fitness of every genome, which is what a checkpoint keeps: an interrupted run is replayed, and goes on exactly.

Source: Sandler et al., Meta-Learning Bidirectional Update Rules, ICML 2021, Sec. 4.4.
"""

import functools
import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from icl.blur.data import Part
from icl.blur.genome import Genome
from icl.blur.meta import draw_episode, meta_loss, scores
from icl.blur.rules import Rules
from jexplicit.runs.checkpoints import load_latest, save_latest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cmaes import CMA


class EvolutionRecipe(NamedTuple):
    """How genomes evolve.

    population: genomes per generation.
    sigma: standard deviation of the first generation, of every number of the genome.
    unroll: T, updates per learner.
    batch_size: examples per update; query_size: examples that each learner is asked.
    learners: per genome.
    """

    hidden: tuple[int, ...] = (32,)
    population: int = 32
    sigma: float = 0.3
    unroll: int = 10
    batch_size: int = 64
    query_size: int = 200
    learners: int = 2


class Evolved(NamedTuple):
    """The outcome of `evolve`.

    best: of the means of the evaluated generations, the one with the highest dev accuracy.
    score: that accuracy.
    history: an entry per evaluation with `step` (generations), `seconds`, `fitness` (mean of the generation), `best_fitness`,
        `accuracy` (of the mean genome on dev) and `skipped`.
    """

    best: Genome
    score: float
    history: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """Seconds of evolution, evaluation and compilation included."""
        return self.history[-1]["seconds"]

    @property
    def skipped(self) -> int:
        """Genomes that were not finite."""
        return self.history[-1]["skipped"]


@functools.lru_cache(maxsize=16)
def fitness(rules: Rules, recipe: EvolutionRecipe) -> Callable[[Genome, Array, Part], tuple[Array, Array]]:
    """The compiled call `(genomes, key, data) -> (accuracy [P], whether it is finite [P])`."""

    def of_one(genome: Genome, key: Array, data: Part) -> tuple[Array, Array]:
        def learner(key: Array) -> tuple[Array, Array]:
            drawn, made = jax.random.split(key)
            episode = draw_episode(
                drawn, data, unroll=recipe.unroll, batch_size=recipe.batch_size, query_size=recipe.query_size
            )
            return meta_loss(genome, rules, recipe.hidden, made, episode)

        losses, right = lax.map(learner, jax.random.split(key, recipe.learners))
        finite = jnp.all(jnp.isfinite(losses))
        return jnp.where(finite, jnp.mean(right), 0), finite

    return jax.jit(lambda genomes, key, data: lax.map(lambda genome: of_one(genome, key, data), genomes))


def evolve(
    start: Genome,
    rules: Rules,
    recipe: EvolutionRecipe,
    generations: int,
    train: Part,
    dev: Part,
    *,
    seed: int = 0,
    every: int = 10,
    episodes: int = 8,
    checkpoints: Path | None = None,
    checkpoint_seconds: float = 30.0,
    on_evaluation: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evolved:
    """Evolve a genome.

    Args:
        start: the first mean.
        rules: the design.
        recipe: how.
        generations: in all.
        train: what learners learn from and are asked about.
        dev: what means are chosen by.
        seed: of genomes, first synapses and minibatches.
        every: generations between two evaluations of the mean on dev.
        episodes: learners in an evaluation.
        checkpoints, checkpoint_seconds, on_evaluation, progress: as in `icl.blur.meta_train`.

    Raises:
        ValueError: fewer than one generation, a population below 4, or a checkpoint of another run.
    """
    if generations < 1 or recipe.population < 4 or every < 1:
        raise ValueError(
            f"{generations} generations of {recipe.population} genomes, evaluated every {every}: at least 1, 4 and 1"
        )
    flat, unravel = ravel_pytree(start)
    search = CMA(mean=np.asarray(flat, np.float64), sigma=recipe.sigma, population_size=recipe.population, seed=seed)
    key, asked = jax.random.split(jax.random.key(seed))
    best, score, history, done, before, skipped = start, -1.0, [], 0, 0.0, 0
    known = np.zeros((0, recipe.population))  # fitness by generation
    if checkpoints is not None and (found := load_latest(checkpoints, _saved(best, known, {}))):
        best, known, note = found["best"], found["fitness"].reshape(-1, recipe.population), json.loads(found["note"].tobytes())
        done, history, before, score, skipped = (note[name] for name in ("done", "history", "seconds", "score", "skipped"))
    for found in known:
        search.tell([(search.ask(), -right) for right in found.tolist()])
    begun = saved = time.perf_counter()
    parts = [Part(*map(jnp.asarray, part)) for part in (train, dev)]
    call, grade = fitness(rules, recipe), scores(rules, recipe.hidden, recipe.unroll, recipe.batch_size, episodes)
    while done < generations:
        drawn = [search.ask() for _ in range(recipe.population)]
        genomes = jax.vmap(unravel)(jnp.asarray(np.stack(drawn), flat.dtype))
        found, finite = (np.asarray(part) for part in call(genomes, jax.random.fold_in(key, done), parts[0]))
        known = np.concatenate([known, found[None].astype(np.float64)])
        search.tell([(x, -right) for x, right in zip(drawn, known[-1].tolist(), strict=True)])
        skipped += int((~finite).sum())
        done += 1
        if progress:
            progress(done, generations)
        if done % every and done < generations:
            continue
        mean = unravel(jnp.asarray(search.mean, flat.dtype))
        losses, right = grade(jax.tree.map(lambda leaf: leaf[None], mean), asked, *parts)
        accuracy = float(right[0]) if np.isfinite(losses[0]) else 0.0
        if accuracy > score:
            best, score = mean, accuracy
        seconds = before + time.perf_counter() - begun
        entry = {
            "step": done,
            "unroll": recipe.unroll,
            "seconds": seconds,
            "fitness": float(found.mean()),
            "best_fitness": float(found.max()),
            "accuracy": [accuracy],
            "best": score,
            "skipped": skipped,
        }
        history.append(entry)
        if on_evaluation:
            on_evaluation(entry)
        if checkpoints is not None and time.perf_counter() - saved > checkpoint_seconds and done < generations:
            note = {"done": done, "history": history, "seconds": seconds, "score": score, "skipped": skipped}
            save_latest(checkpoints, done, _saved(best, known, note))
            saved = time.perf_counter()
    return Evolved(best, score, history)


def _saved(best: Genome, known: np.ndarray, note: dict[str, Any]) -> dict[str, Any]:
    text = np.frombuffer(json.dumps(note).encode() if note else b"", np.uint8)
    return {"best": best, "fitness": known.ravel(), "note": text}
