"""The experiment of launch.icl on looped layers: one layer, solved for K loops, run for fewer and for many more."""

from typing import Any

import jax
import numpy as np

from icl.comparison import path_losses
from icl.models.attention import AttentionLayer, roll_out
from icl.solvers.continuation import optimal_polynomials
from icl.solvers.polynomials import Polynomial, evaluate_polynomial
from icl.solvers.spectrum import context_eigenvalues
from icl.tasks import Sequence, sample_tasks
from jexplicit.runs.progress import stage
from launch.icl.experiments.predictors import Model, row_of, spectrum, trained_family
from launch.icl.job import TEST, Job, add_rows, has_rows, random_key
from launch.icl.training import split_seeds

SOLVED_FOR = (1, 2, 5, 10)
LOOPS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_trained_for = 2  # loops of the layer that is trained: the recurrent one of multi-step
_path_tasks = 20_000  # tasks that it is run on, at most


def looped(job: Job) -> None:
    """GD and GD++ with one rate for all loops, solved for K of them; a trained layer; and the loss of each by loops run."""
    if has_rows(job, "looped"):
        return
    config, tasks = job.config, job.tasks
    with stage("looped layers, solved"):
        law, fresh = spectrum(config, tasks), context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
        rows = []
        for name in ("gd", "gd++"):
            solved = optimal_polynomials(
                law, tasks, layers=max(SOLVED_FOR), tied=True, plus_plus=name == "gd++", seed=config.seed
            )
            for K in SOLVED_FOR:
                if name == "gd++" and K == 1:
                    continue  # one layer of GD++ is GD
                rows += [_solved_row(job, name, K, solved[K - 1], loops, fresh) for loops in LOOPS]
    add_rows(job, [*rows, *_trained_rows(job)], test_tasks=config.test_tasks)


def _solved_row(job: Job, name: str, K: int, solved: Polynomial, loops: int, fresh: np.ndarray) -> dict[str, Any]:
    eta, gamma = float(solved.eta[0]), float(solved.gamma[0])
    run = Polynomial(np.full(loops, eta), np.full(loops, gamma), np.nan)
    losses = evaluate_polynomial(fresh, run, job.tasks)
    rates = {"eta": eta, "gamma": gamma if name == "gd++" else None}
    return row_of("looped", Model(job.tasks, K, True), name, loops=loops, **losses._asdict(), **rates)


def _trained_rows(job: Job) -> list[dict[str, Any]]:
    """The layer that multi-step trains for two loops, run for any number."""
    model = Model(job.tasks, _trained_for, True)
    trained = trained_family(job, model)
    batch = sample_tasks(random_key(job.config, TEST), job.tasks, min(job.config.test_tasks, _path_tasks))
    rows = []
    for layers, entry in zip(split_seeds(trained.weights), trained.entries, strict=True):
        losses = np.asarray(_losses_by_loop(jax.tree.map(lambda leaf: leaf[0], layers), batch))
        finite = [float(loss) if np.isfinite(loss) else None for loss in losses]
        rows += [row_of("looped", model, "trained", loops=loops, loss=finite[loops - 1], **entry) for loops in LOOPS]
    return rows


@jax.jit
def _losses_by_loop(layer: AttentionLayer, batch: Sequence) -> jax.Array:
    return path_losses(lambda sequence: roll_out(layer, sequence, steps=max(LOOPS)), batch)
