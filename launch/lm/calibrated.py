"""The models of launch.lm whose exponents are fitted on held-out documents: calibrated, joint, joint+cache."""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jexplicit.counts.dense import Counts, count
from jexplicit.data.contexts import contexts
from jexplicit.data.held_out import hold_out
from jexplicit.lm.calibration import Calibration, fit_exponents
from jexplicit.lm.checkpoints import save_tables
from jexplicit.lm.explicit import Features
from jexplicit.lm.log_linear import (
    OffsetRows,
    calibrated_language_model,
    first_exponents,
    implied_slope,
    left_out_rows,
    offset_positions,
    offset_rows,
    own_rows,
)
from jexplicit.runs.progress import console, stage
from launch.lm.models import Job, add_row, has_row

_held_out_share, _held_out_tokens = 0.02, 50_000  # of the training text: the larger of the two, but at most a tenth


class HeldOut(NamedTuple):
    """The training text in two parts, and the counts of the larger one."""

    rest: np.ndarray
    held: np.ndarray
    rest_counts: Counts


def split(job: Job) -> HeldOut:
    """Hold out documents; the counts of the rest are those of the whole less theirs, so nothing is counted twice."""
    train = job.text.train[:]
    rest, held = hold_out(train, positions=max(_held_out_tokens, int(_held_out_share * len(train))))
    held_counts = count(held, radius=len(job.counts), vocab_size=len(job.counts[0]), mesh=job.mesh)
    return HeldOut(rest, held, tuple(C - H for C, H in zip(job.counts, held_counts, strict=True)))


def measure_calibrated(job: Job, held_out: Callable[[], HeldOut], features: Features, radius: int) -> None:
    """Fit the exponents of one model of single tokens, solve it on all of the training text, and add its row."""
    method = "calibrated"
    if has_row(job, method, features, radius):
        return
    config = job.config
    begin = time.perf_counter()
    rows = offset_rows(job.counts, features=features, radius=radius, eos=config.eos, smoothing=config.smoothing)
    if config.calibration == "leave-one-out":
        fitted = fit_left_out(job, rows)
    else:
        fitted = fit_held_out(job, held_out(), rows, functools.partial(offset_rows, features=features))
    model = calibrated_language_model(rows, fitted.exponents)
    seconds = time.perf_counter() - begin
    save_tables(job.folder.path, method, model)
    more = {
        "solve_seconds": seconds,
        "exponents": [float(a) for a in fitted.exponents],
        "implied_slope": implied_slope(fitted.exponents),
        "held_out_perplexity": float(np.exp(fitted.loss)),
        "calibration": config.calibration,
        "smoothing": config.smoothing,
        "scalars": len(fitted.exponents),
    }
    add_row(job, method, features, radius, model, more)


def fit_held_out(job: Job, held_out: HeldOut, rows: OffsetRows, solve: Callable[..., OffsetRows]) -> Calibration:
    """The exponents of rows of this kind, from documents that the rows `solve` makes have not seen."""
    config, K = job.config, len(rows.tables)
    X, Y = contexts(held_out.held, K, eos=config.eos)
    m = drawn(job, len(Y))
    rest = solve(held_out.rest_counts, radius=K, eos=config.eos, smoothing=config.smoothing)
    positions = offset_positions(rest, X[m].astype(np.int64))
    with stage(f"exponents, {rows.features}, K = {K}") as progress:
        return fit_exponents(rest.log_tables, positions, Y[m], first_exponents(rest), progress=progress)


def fit_left_out(job: Job, rows: OffsetRows) -> Calibration:
    """The exponents of Cat from counted positions, each left out of its own rows."""
    config, K = job.config, len(rows.tables)
    X, Y = contexts(job.text.train[:], K, eos=config.eos)
    m = drawn(job, len(Y))
    with stage(f"exponents, {rows.features}, K = {K}, one left out") as progress:
        own = left_out_rows(job.counts, X[m], Y[m], eos=config.eos, smoothing=config.smoothing)
        return fit_exponents(own.log_tables, own_rows(len(m), K), Y[m], first_exponents(rows), progress=progress)


def drawn(job: Job, positions: int) -> np.ndarray:
    """Which held-out positions the exponents are fitted on."""
    if positions < job.config.calibration_positions:
        console.print(f"  [dim]{positions:,} held-out positions, fewer than --calibration-positions[/]")
    size = min(job.config.calibration_positions, positions)
    return np.sort(np.random.default_rng(job.config.seed).choice(positions, size, replace=False))
