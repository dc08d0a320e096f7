"""One layer, solved or trained for some number of loops and run for fewer and for more (Gatmiry et al. 2024)."""

from typing import Any

import jax
import numpy as np

from icl.models.attention import AttentionLayer, roll_out
from icl.problems.comparison import path_losses
from icl.solvers.continuation import optimal_polynomials
from icl.solvers.polynomials import Polynomial, evaluate_polynomial
from icl.solvers.spectrum import context_eigenvalues
from icl.tasks import Sequence, sample_tasks
from jexplicit.runs.progress import stage
from launch.icl.shared.base import LOSS, TEST, Job, Model, first_layer, make_tasks, parts, random_key
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import spectrum, trained_family
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row, cell, means, pivot
from launch.kit.tables import Column
from launch.kit.views import Lines, Table

SOLVED_FOR = (1, 2, 5, 10)
LOOPS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_trained_for = 2  # loops of the layer that is trained: the recurrent one of multi-step
_path_tasks = 20_000  # tasks that it is run on, at most


@parts()
def measure(job: Job) -> list[Row]:
    """A recurrent layer, run for fewer and for more loops than it was solved or trained for.

    GD and GD++ with one rate for all loops, solved for K of them, and a trained layer.
    """
    config, tasks, rows = job.config, make_tasks(job.config), []
    most: Any = {"layers": max(SOLVED_FOR), "tied": True, "seed": config.seed}
    with stage("looped layers, solved"):
        law, fresh = spectrum(config, tasks), context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
        for name in ("gd", "gd++"):
            solved = optimal_polynomials(law, tasks, plus_plus=name == "gd++", **most)
            for K in SOLVED_FOR[name == "gd++" :]:  # one layer of GD++ is GD
                eta, gamma = float(solved[K - 1].eta[0]), float(solved[K - 1].gamma[0])
                about: Any = {"eta": eta, "gamma": gamma if name == "gd++" else None}
                for loops in LOOPS:
                    run = Polynomial(np.full(loops, eta), np.full(loops, gamma), np.nan)
                    losses = evaluate_polynomial(fresh, run, tasks)
                    rows.append(Model(tasks, K, True).row(name, loops=loops, **about, **losses._asdict()))
    model = Model(tasks, _trained_for, True)
    batch = sample_tasks(random_key(config, TEST), tasks, min(config.test_tasks, _path_tasks))
    for layers, entry in trained_family(job, model).members:
        losses = np.asarray(_losses_by_loop(first_layer(layers), batch))
        finite = [float(loss) if np.isfinite(loss) else None for loss in losses]
        rows += [model.row("trained", loops=loops, loss=finite[loops - 1], **entry) for loops in LOOPS]
    return [{**row, "test_tasks": config.test_tasks} for row in rows]


@jax.jit
def _losses_by_loop(layer: AttentionLayer, batch: Sequence) -> jax.Array:
    return path_losses(lambda sequence: roll_out(layer, sequence, steps=max(LOOPS)), batch)


def _layer(row: Row) -> str:
    return {"gd": "GD, solved", "gd++": "GD++, solved", "trained": "GD++, trained"}[row["predictor"]] + f" for {row['layers']}"


def _by_loops(results: Results) -> list[Row]:
    rows = means(results.rows, ["predictor", "layers", "loops"])
    return pivot([{**row, "layer": _layer(row)} for row in rows], ["layer"], "loops")


LOOPED = Table(
    [Column("layer", "layer"), *(Column(f"{n} loops", cell(n, "loss"), ".3g") for n in (2, 5, 10, 20, 50))], _by_loops
)
AXES = {"xscale": "log", "yscale": "log", "xlabel": "loops run", "ylabel": LOSS, "ylim": (5e-3, 10)}
FIGURE = Lines("looped", "loops", "loss", _layer, lambda row: _layer(row).split(",")[0], axes=AXES, sharey=True)
EXPERIMENT = Experiment("looped", Config, measure, [LOOPED, FIGURE], title="Looped layers")
