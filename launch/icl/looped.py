"""One layer run for fewer and more loops (Gatmiry et al. 2024)."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from icl.attention import AttentionLayer, roll_out
from icl.descent import path_losses
from icl.rates import Polynomial, context_eigenvalues, evaluate_polynomial, optimal_polynomials
from icl.tasks import Sequence, sample_tasks
from launch.icl import base
from launch.icl.config import LoopedConfig
from launch.icl.tables import LOSS
from launch.kit.views import Column, Lines, Row, Table, cell, means, pivot

SOLVED_FOR = (1, 2, 5, 10)
LOOPS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_trained_for, _path_tasks = 2, 20_000  # loops of the layer that is trained, and tasks that it is run on, at most


def measure(job: base.Job[LoopedConfig]) -> Iterator[base.Part]:
    """GD and GD++ solved for K loops, and a layer trained for two."""
    yield {"start": None}, lambda: solved_rows(job.config)
    yield {"start": "cold"}, lambda: trained_rows(job)


def solved_rows(config: LoopedConfig) -> Iterator[Row]:
    """Losses of solved rates by loops, from the eigenvalues of fresh contexts."""
    tasks = base.make_model(config).tasks
    law, fresh = base.spectrum(config, tasks), context_eigenvalues(base.random_key(config, base.TEST), tasks, config.test_tasks)
    most: Any = {"layers": max(SOLVED_FOR), "tied": True, "seed": config.seed}
    for name in ("gd", "gd++"):
        found = optimal_polynomials(law, tasks, plus_plus=name == "gd++", **most)
        for K in SOLVED_FOR[name == "gd++" :]:  # one layer of GD++ is GD
            eta, gamma = float(found[K - 1].eta[0]), float(found[K - 1].gamma[0])
            about: Any = {"eta": eta, "gamma": gamma if name == "gd++" else None, "test_tasks": config.test_tasks}
            for loops in LOOPS:
                run = Polynomial(np.full(loops, eta), np.full(loops, gamma), np.nan)
                losses = evaluate_polynomial(fresh, run, tasks)._asdict()
                yield base.Model(tasks, K, True).row(name, loops=loops, **about, **losses)


def trained_rows(job: base.Job[LoopedConfig]) -> Iterator[Row]:
    """Losses of every seed's layer by loops; one that diverges has none."""
    config, model = job.config, base.make_model(job.config, _trained_for)
    number = min(config.test_tasks, _path_tasks)
    batch = sample_tasks(base.random_key(config, base.TEST), model.tasks, number)
    for layers, entry in base.trained_family(job, model).members:
        losses = [float(x) if np.isfinite(x) else None for x in np.asarray(_by_loop(base.first_layer(layers), batch))]
        yield from (model.row("trained", loops=n, loss=losses[n - 1], **entry, test_tasks=number) for n in LOOPS)


@jax.jit
def _by_loop(layer: AttentionLayer, batch: Sequence) -> jax.Array:
    return path_losses(lambda sequence: roll_out(layer, sequence, steps=max(LOOPS)), batch)


def _layer(row: Row) -> str:
    return {"gd": "GD, solved", "gd++": "GD++, solved", "trained": "GD++, trained"}[row["predictor"]] + f" for {row['layers']}"


_by = ["predictor", "layers", "loops"]
_named = lambda results: [{**row, "layer": _layer(row)} for row in means(results.rows, _by)]  # noqa: E731
LOOPED = Table(
    [Column("layer", "layer"), *(Column(f"{n} loops", cell(n, "loss"), ".3g") for n in (2, 5, 10, 20, 50))],
    lambda results: pivot(_named(results), ["layer"], "loops"),
)
AXES = {"xscale": "log", "yscale": "log", "xlabel": "loops run", "ylabel": LOSS, "ylim": (5e-3, 10)}
FIGURE = Lines("looped", "loops", "loss", _layer, lambda row: _layer(row).split(",")[0], axes=AXES, sharey=True)
EXPERIMENT = base.experiment("looped", measure, [LOOPED, FIGURE], title="Looped layers")
