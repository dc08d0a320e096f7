"""The models of launch.lm with contexts of several tokens: joint, joint+cache."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jexplicit.lm.evaluation import Evaluation
from jexplicit.lm.ngram_mixture import (
    CACHES,
    CHAIN,
    RADIUS,
    JointTables,
    Text,
    fit_joint,
    joint_log_probabilities,
    joint_tables,
    joint_text,
    kneser_ney_exponents,
)
from jexplicit.runs.progress import stage
from launch.lm.calibrated import HeldOut, drawn
from launch.lm.models import Job, add_evaluated_row, has_row

_train_sample = 50_000  # positions of the train perplexity: their rows are read one by one


def measure_joint(job: Job, held_out: Callable[[], HeldOut], method: str) -> None:
    """Fit and evaluate the model of joint features, with or without the caches, and add its row."""
    if has_row(job, method, "cat", RADIUS):
        return
    eos, caches = job.config.eos, CACHES if method == "joint+cache" else ()
    options: Any = {"eos": eos, "smoothing": job.config.smoothing, "caches": caches}
    begin = time.perf_counter()
    parts = held_out()
    held = joint_text(parts.held, eos=eos)
    m = drawn(job, len(held.Y))
    with stage(f"{method}: tables without held-out text", "features") as progress:
        tables = joint_tables(joint_text(parts.rest, eos=eos), parts.rest_counts, **options, progress=progress)
    start = time.perf_counter()
    with stage(f"{method}: exponents") as progress:
        fitted = fit_joint(tables, held, m, progress=progress)
    fit_seconds, paused = time.perf_counter() - start, time.perf_counter()
    if not caches:
        measure_steps(job, tables, held, m)
    log_step(job, method, len(tables.names), fitted.loss)
    names, begin = tables.names, begin + time.perf_counter() - paused
    del tables  # as large as the next ones
    text = joint_text(job.text.train[:], eos=eos)
    start = time.perf_counter()
    with stage(f"{method}: tables", "features") as progress:
        tables = joint_tables(text, job.counts, **options, progress=progress)
    table_seconds, seconds = time.perf_counter() - start, time.perf_counter() - begin
    if not caches:
        measure_kneser_ney(job, tables, text, table_seconds)
    start = time.perf_counter()
    train, dev = measured(job, method, tables, fitted.exponents, text)
    eval_seconds = time.perf_counter() - start
    more = {
        "solve_seconds": seconds,
        "table_seconds": table_seconds,
        "fit_seconds": fit_seconds,
        "eval_seconds": eval_seconds,
        "exponents": [float(a) for a in fitted.exponents],
        "tables": names,
        "held_out_perplexity": float(np.exp(fitted.loss)),
        "smoothing": job.config.smoothing,
        "bytes": tables.nbytes,
        "scalars": len(names),
    }
    add_evaluated_row(job, method, "cat", RADIUS, train, dev, more)


def measure_kneser_ney(job: Job, tables: JointTables, text: Text, seconds: float) -> None:
    """The row of the chain alone with nothing fitted: the n-gram model that joint features are measured against."""
    method, features, radius = "5-gram", "none", len(CHAIN)
    if has_row(job, method, features, radius):
        return
    start = time.perf_counter()
    train, dev = measured(job, method, tables, kneser_ney_exponents(tables), text)
    more = {
        "solve_seconds": seconds,
        "eval_seconds": time.perf_counter() - start,
        "bytes": tables.chain.nbytes,
    }
    add_evaluated_row(job, method, features, radius, train, dev, more)


def measured(job: Job, method: str, tables: JointTables, exponents: np.ndarray, text: Text) -> tuple[Evaluation, Evaluation]:
    """The loss on a sample of the training text and on all of the dev text."""
    sample = np.random.default_rng(job.config.seed).choice(len(text.Y), min(_train_sample, len(text.Y)), replace=False)
    parts = (text, np.sort(sample)), (joint_text(job.text.dev, eos=job.config.eos), None)
    losses = []
    for part, m in parts:
        with stage(f"{method}: perplexity", "positions") as progress:
            log_p = joint_log_probabilities(tables, exponents, part, m, progress=progress)
        losses.append(Evaluation(-float(log_p.sum(dtype=np.float64)), len(log_p)))
    return losses[0], losses[1]


def measure_steps(job: Job, tables: JointTables, held: Text, m: np.ndarray) -> None:
    """What each kind of table buys on the way to the joint model, on the held-out positions."""
    with stage("joint: what each step buys") as progress:
        log_p = joint_log_probabilities(tables, kneser_ney_exponents(tables), held, m)
        log_step(job, "Kneser-Ney 5-gram", 0, -float(log_p.mean(dtype=np.float64)))
        kinds = ("unigram", "context")
        log_step(job, "its five levels weighed", 5, fit_joint(tables, held, m, kinds=kinds, progress=progress).loss)
        kinds = (*kinds, "offset")
        log_step(job, "and tokens at eight offsets", 13, fit_joint(tables, held, m, kinds=kinds, progress=progress).loss)


def log_step(job: Job, step: str, scalars: int, loss: float) -> None:
    """A line of the ablation, for the report."""
    job.folder.log(event="step", step=step, scalars=scalars, held_out_perplexity=float(np.exp(loss)))
