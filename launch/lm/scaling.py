"""The model of launch.lm that sweeps towards an optimum without gradients: scaling."""

import functools
import shutil
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jexplicit.lm.checkpoints import save_tables
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.explicit import Features, TokenTables, explicit_language_model
from jexplicit.lm.iterative_scaling import kneser_ney_discount, token_scaling_sweeps
from jexplicit.lm.log_linear import calibrated_language_model, offset_rows, shared_rows
from jexplicit.runs.progress import console, stage
from launch.lm.calibrated import HeldOut, fit_held_out
from launch.lm.models import Job, add_row, has_row, label


class Start(NamedTuple):
    """Tables to sweep, and how many numbers were fitted to make them."""

    model: TokenTables
    scalars: int


def measure_swept(job: Job, held_out: Callable[[], HeldOut], features: Features, radius: int) -> None:
    """Sweep one model near its calibrated tables, or from the explicit solution where the discount is 0, and add its row."""
    method, config = "scaling", job.config
    if has_row(job, method, features, radius):
        return
    name, begin, measuring = label(method, features, radius), time.perf_counter(), 0.0
    mine = {"features": features, "radius": radius}
    earlier = [e["seconds"] for e in job.folder.events("sweep") if {**e, **mine} == e]  # of the run that is resumed
    before = earlier[-1] if earlier else 0.0
    start = starting_tables(job, held_out, features, radius)
    discount = config.discount
    if discount is None:
        discount = kneser_ney_discount(job.counts, features=features, radius=radius, eos=config.eos)
    checkpoints = job.folder.path / "checkpoints" / "sweeps" / f"{features}_{radius}"

    def on_sweep(sweep: int, loss: float, model: TokenTables) -> None:
        nonlocal measuring
        paused = time.perf_counter()
        dev = evaluate(model, job.text.dev, mesh=job.mesh).perplexity
        seconds, perplexity = before + paused - begin - measuring, float(np.exp(loss))
        job.folder.log(event="sweep", **mine, sweep=sweep, train_perplexity=perplexity, dev_perplexity=dev, seconds=seconds)
        console.print(f"    {name}: sweep {sweep}, perplexity train {perplexity:.1f}, dev {dev:.1f}, {seconds:.0f} s")
        measuring += time.perf_counter() - paused  # no part of the sweeps

    with stage(name, "sweeps") as progress:
        swept = token_scaling_sweeps(
            start.model,
            job.counts,
            job.text.train[:],
            sweeps=config.sweeps,
            noise=not discount,
            discount=discount,
            mesh=job.mesh,
            checkpoints=checkpoints,
            on_sweep=on_sweep,
            progress=progress,
        )
    seconds = before + time.perf_counter() - begin - measuring
    save_tables(job.folder.path, method, swept.model)
    more: dict[str, Any] = {
        "solve_seconds": seconds,
        "sweeps": config.sweeps,
        "discount": discount,
        "penalty": swept.penalties[-1],
        "scalars": start.scalars,
    }
    add_row(job, method, features, radius, swept.model, more)
    shutil.rmtree(checkpoints, ignore_errors=True)  # the model is saved; a quick run had no need of them


def starting_tables(job: Job, held_out: Callable[[], HeldOut], features: Features, radius: int) -> Start:
    """The calibrated model (of Sum, the plain one: a single table to sweep); without a discount, the explicit solution."""
    config = job.config
    options: Any = {"radius": radius, "eos": config.eos}
    if config.discount == 0:
        return Start(explicit_language_model(job.counts, features=features, **options), 0)
    solve = shared_rows if features == "sum" else functools.partial(offset_rows, features=features)
    rows = solve(job.counts, smoothing=config.smoothing, **options)
    exponents = fit_held_out(job, held_out(), rows, solve).exponents
    return Start(calibrated_language_model(rows, exponents), len(exponents))
