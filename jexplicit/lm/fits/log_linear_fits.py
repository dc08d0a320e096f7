"""Fits of log-linear language models: exponents on held-out text, and sweeps of their tables from there."""

import time
from typing import Any

import numpy as np

from jexplicit.data.contexts import contexts
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.iterative_scaling import kneser_ney_discount, sweep_tables
from jexplicit.lm.fits.log_linear import (
    ExponentFit,
    OffsetRows,
    fit_exponents,
    implied_slope,
    log_linear_model,
    offset_rows,
)
from jexplicit.lm.rows.explicit import explicit_language_model
from jexplicit.lm.training_text import Options, TrainingText, Watch, draw_positions


def fit_log_linear(text: TrainingText, options: Options, watch: Watch) -> tuple[LanguageModel, dict[str, Any]]:
    """Smoothed rows of single tokens, with an exponent per offset that is fitted on text they have not seen."""
    rows = offset_rows(
        text.counts(options.radius), features=options.features, radius=options.radius, eos=text.eos, smoothing=options.smoothing
    )
    fitted = _exponents_held_out(text, options, watch, rows)
    info = {
        "exponents": [float(a) for a in fitted.exponents],
        "implied_slope": implied_slope(fitted.exponents),
        "held_out_perplexity": float(np.exp(fitted.loss)),
        "smoothing": options.smoothing,
        "scalars": len(fitted.exponents),
    }
    return log_linear_model(rows, fitted.exponents), info


def _exponents_held_out(text: TrainingText, options: Options, watch: Watch, rows: OffsetRows) -> ExponentFit:
    """The exponents of rows of this kind, from documents that are held out of the same rows of the rest."""
    rest, held = text.parts(options.calibration_positions)
    K = len(rows.tables)
    X, Y = contexts(held, K, eos=text.eos)
    m = draw_positions(options, len(Y))
    kept = offset_rows(rest.counts(K), features=rows.features, radius=K, eos=text.eos, smoothing=options.smoothing)
    with watch.stage(f"exponents, {rows.features}, K = {K}") as progress:
        return fit_exponents(kept, X[m], Y[m], mesh=text.mesh, progress=progress)


def fit_iterative_scaling(text: TrainingText, options: Options, watch: Watch) -> tuple[LanguageModel, dict[str, Any]]:
    """Sweeps without a learning rate, near the log-linear model; without a discount, from the explicit solution."""
    K, features = options.radius, options.features
    mine = {"features": features, "radius": K}
    if options.discount == 0:
        start = explicit_language_model(text.counts(K), features=features, radius=K, eos=text.eos)
        weights, discount, info = None, 0.0, {"sweeps": options.sweeps, "scalars": 0}
    else:
        rows = offset_rows(text.counts(K), features=features, radius=K, eos=text.eos, smoothing=options.smoothing)
        exponents = _exponents_held_out(text, options, watch, rows).exponents
        start, weights = _sweep_start(rows, exponents)
        discount, info = _sweep_discount(text, options), {"scalars": len(exponents)}
        info |= _held_out_sweeps(text, options, watch, exponents)
    begin, measuring = time.perf_counter(), 0.0
    earlier = [e["seconds"] for e in watch.events("sweep") if {**e, **mine} == e]  # of the run that is resumed
    before = earlier[-1] if earlier else 0.0

    def on_sweep(sweep: int, loss: float, model: LanguageModel) -> None:
        nonlocal measuring
        paused = time.perf_counter()
        dev = {} if watch.dev is None else {"dev_perplexity": evaluate(model, watch.dev, mesh=text.mesh).perplexity}
        seconds = before + paused - begin - measuring
        watch.log(event="sweep", **mine, sweep=sweep, train_perplexity=float(np.exp(loss)), **dev, seconds=seconds)
        measuring += time.perf_counter() - paused  # no part of the sweeps

    with watch.stage(f"iterative-scaling, {features}, K = {K}", "sweeps") as progress:
        swept = sweep_tables(
            start,
            text.counts(K),
            text.in_memory,
            sweeps=info["sweeps"],
            noise=not discount,
            discount=discount,
            weights=weights,
            mesh=text.mesh,
            checkpoints=watch.checkpoints,
            on_sweep=on_sweep,
            progress=progress,
        )
    info |= {"discount": discount, "penalty": swept.penalties[-1]}
    return swept.model, {**info, "solve_seconds": before + time.perf_counter() - begin - measuring}


def _sweep_start(rows: OffsetRows, exponents: np.ndarray) -> tuple[LanguageModel, np.ndarray | None]:
    """Where sweeps near the log-linear model start, and the weights with which Sum's offsets read its table."""
    weights = None
    if rows.attention is not None:  # at most that of the nearest offset: rare tokens with a large one would shorten every step
        weights = np.maximum(exponents[1:, None], 0) * np.minimum(np.asarray(rows.attention), 1)
    return log_linear_model(rows, exponents), weights


def _sweep_discount(text: TrainingText, options: Options) -> float:
    if options.discount is not None:
        return options.discount
    return kneser_ney_discount(text.counts(options.radius), features=options.features, radius=options.radius, eos=text.eos)


def _held_out_sweeps(text: TrainingText, options: Options, watch: Watch, exponents: np.ndarray) -> dict[str, Any]:
    """How many sweeps are best for documents that are not swept over, and the perplexity of these; it ends where that rises."""
    mine = {"features": options.features, "radius": options.radius}
    if chosen := [e for e in watch.events("held_out_sweeps") if {**e, **mine} == e]:
        return {name: chosen[-1][name] for name in ("sweeps", "held_out_perplexity")}
    rest, held = text.parts(options.calibration_positions)
    K, losses = options.radius, []
    rows = offset_rows(rest.counts(K), features=options.features, radius=K, eos=text.eos, smoothing=options.smoothing)
    start, weights = _sweep_start(rows, exponents)

    def on_sweep(sweep: int, loss: float, model: LanguageModel) -> bool:
        losses.append(evaluate(model, held, mesh=text.mesh).loss)
        return losses[-1] > min(losses)

    with watch.stage(f"held-out sweeps, {options.features}, K = {K}", "sweeps") as progress:
        sweep_tables(
            start,
            rest.counts(K),
            rest.in_memory,
            sweeps=options.sweeps,
            noise=False,
            discount=_sweep_discount(rest, options),
            weights=weights,
            mesh=text.mesh,
            on_sweep=on_sweep,
            progress=progress,
        )
    best = {"sweeps": int(np.argmin(losses)), "held_out_perplexity": float(np.exp(min(losses)))}
    watch.log(event="held_out_sweeps", **mine, **best, perplexities=[float(np.exp(loss)) for loss in losses])
    return best
