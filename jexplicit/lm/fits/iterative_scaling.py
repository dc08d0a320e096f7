"""Generalised iterative scaling of a language model (Darroch & Ratcliff 1972).

    U[j, i] += (1/K) log(F[j, i] / E[j, i]),    E = HᵀP,    P = softmax(H U);    with noise Ũ += (1/K) N log(NᵀF / NᵀE)

`discount=D` minimises `L(U) + D ||U - U0||_1`: F - D above U0, F + D below, else U0. At the minimum `|E - F| <= D`.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jexplicit.counts import Counts, merge_offsets
from jexplicit.data.streams import contexts, distinct_contexts
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import Noise, counts_of_counts, discounts_of, noise_model, noisy_counts, noisy_rows
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.gradient import decoder_model, initial_state, text_gradient
from jexplicit.lm.fits.log_linear import exponents_held_out, log_linear_model, rows_of_text
from jexplicit.lm.rows import explicit_language_model, token_counts, with_targets
from jexplicit.lm.training_text import FitResult, Options, TrainingText, Watch, written_for
from jexplicit.runs.devices import check_memory
from jexplicit.solvers.sweeps import run_sweeps


class SweepResult(NamedTuple):
    """A model, the losses of its sweeps, and the last penalty."""

    model: LanguageModel
    losses: np.ndarray
    penalty: float


def sweep_tables(
    model: LanguageModel,
    text: TrainingText,
    *,
    sweeps: int,
    noise: bool = True,
    discount: float = 0.0,
    weights: Float[np.ndarray, "K N"] | None = None,
    chunk: int = 1 << 18,
    known: Mapping[str, Any] | None = None,
    on_sweep: Callable[[int, float, LanguageModel], bool | None] | None = None,
    **options: Any,
) -> SweepResult:
    """Lower the training loss by sweeps `U += (1/K) log(F / HᵀP)`.

    noise: whether the parameters are those of the noisy features; without, pairs that never occur stay as they are. discount: D
    of the prior around the start, in counts. weights: [K, N] w of Sum with attention. Both need `noise=False`. chunk: contexts
    at a time. on_sweep: called with (sweeps done, loss without penalty, model), from 0 sweeps on; where it returns True, they
    end.

    Source: Darroch & Ratcliff 1972; Goodman 2004 for the prior (its upper half); paper, Eq. 1 and 4.
    """
    K, N, mesh, eos = model.radius, model.vocab_size, text.mesh, model.eos
    if not 0 <= discount < np.inf or (noise and (discount or weights is not None)):
        raise ValueError(f"a discount of {discount} with noise={noise}: use a finite one >= 0; it and weights need noise=False")
    if text.vocab_size != N:
        raise ValueError(f"a text of vocabulary {text.vocab_size} and a model of {N}: use the model's own tokenizer")
    X, Y = contexts(text.in_memory, K, eos=eos)
    if not len(Y):
        raise ValueError("no position to predict: the text has no tokens")
    features = model.features if weights is None else "cat"
    F = _blocks(text.counts(K), features, K, eos)
    distinct, n = distinct_contexts(X, ordered=features == "cat")
    tables = model.tables if weights is not None else model.tables[: len(F)]
    check_memory(mesh, 10 * len(tables) * tables[0].nbytes // mesh.size, "tables and their co-occurrences")
    if discount and not all(bool(jnp.isfinite(U).all()) for U in tables):
        raise ValueError("a prior around infinite logits: start from tables that are finite, such as log-linear ones")
    of_start = initial_state(tables, optax.identity(), mesh).params
    observed = initial_state(tuple(jnp.asarray(F_b, tables[0].dtype) for F_b in F), optax.identity(), mesh).params
    start, norm, read, gather = of_start, jnp.asarray(K, tables[0].dtype), lambda moving: moving, lambda blocks: blocks
    if weights is not None:  # one table V, from 0: offset k reads its row j with the weight w_k(j), on top of where it started
        norm = jnp.asarray(np.sum([w[x] for w, x in zip(weights, X.T, strict=True)], axis=0).max(), tables[0].dtype)
        start, w = (jnp.zeros_like(of_start[0]),), jnp.asarray(weights, tables[0].dtype)
        read, gather = functools.partial(_read_weighted, w, of_start), functools.partial(_gather_weighted, w)
    F_moving, of_noise = gather(observed), noise_model(token_counts(text.counts(K))) if noise else None
    as_model = functools.partial(decoder_model, features=model.features, radius=K, eos=eos, noise=None)

    def penalty(moving: tuple[Array, ...]) -> float:
        return discount * _total(_moved_by, moving, start) / len(Y) if discount else 0.0

    def sweep(moving: tuple[Array, ...], problem: Any) -> tuple[tuple[Array, ...], Any]:
        tables = read(moving)
        log_Z, E = text_gradient(tables, distinct, n, X[:0], Y[:0], features=features, mesh=mesh, chunk=chunk)
        loss = (log_Z - _total(_matched_logits, observed, tables)) / len(Y) + penalty(moving)
        parts = zip(moving, F_moving, gather(E), start, strict=True)
        return tuple(_moved(*part, of_noise, discount, norm) for part in parts), np.asarray(loss)

    def met(sweep: int, loss: float, moving: tuple[Array, ...]) -> bool | None:
        return on_sweep and on_sweep(sweep, loss - penalty(moving), as_model(read(moving)))

    problem = {**(known or {}), "text": text.in_memory, "noise": noise, "discount": discount, "tables": (tables, weights)}
    moved, losses = run_sweeps(sweep, start, problem, sweeps=sweeps, on_sweep=met, **options)
    return SweepResult(as_model(read(moved)), losses, penalty(moved))


@jax.jit
def _read_weighted(weights: Array, tables: tuple[Array, ...], moving: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(U + w[:, None] * moving[0] for U, w in zip(tables, weights, strict=True))


@jax.jit
def _gather_weighted(weights: Array, blocks: tuple[Array, ...]) -> tuple[Array, ...]:
    gathered = [w[:, None] * jnp.maximum(block, 0) for block, w in zip(blocks, weights, strict=True)]
    return (functools.reduce(jnp.add, gathered),)


# Sums of every row: the distance from the start (columns that fill the mesh stay at -inf), and logits of pairs that occur
_moved_by = jax.jit(lambda U, U0: jnp.where(U == U0, 0, jnp.abs(U - U0)).sum(axis=1))
_matched_logits = jax.jit(lambda F, U: jnp.where(F > 0, F * U, 0).sum(axis=1))


def _blocks(counts: Counts, features: Features, K: int, eos: bool) -> Counts:
    """F of every table: Sum's offsets share one, and add up in it."""
    F = tuple(with_targets(C, eos=eos) for C in counts[:K])
    return merge_offsets(F) if features == "sum" else F


def _total(rows: Callable[..., Array], *blocks: tuple[Array, ...]) -> float:
    """The sum of `rows(...)` over blocks and rows, in float64."""
    return sum(float(np.asarray(rows(*block), np.float64).sum()) for block in zip(*blocks, strict=True))


@functools.partial(jax.jit, static_argnames="D")
def _moved(U: Array, F: Array, E: Array, U0: Array, noise: Noise | None, D: float, K: Array) -> Array:
    """The tables after a sweep; with D of a prior around U0."""
    F = jnp.maximum(F, 0)  # columns that only fill the mesh
    if noise is not None:
        return U + noisy_rows(_log_ratio(noisy_counts(F, noise), noisy_counts(E, noise)), noise) / K
    if not D:
        return U + _log_ratio(F, E) / K
    above = jnp.where(F > D, U + _log_ratio(F - D, E) / K, -jnp.inf)
    below = jnp.where(E > 0, U + _log_ratio(F + D, E) / K, jnp.inf)
    return jnp.where(above > U0, above, jnp.where(below < U0, below, U0))


def _log_ratio(F: Array, E: Array) -> Array:
    """`log(F/E)`, 0 where F is 0; an underflow of E shortens the step."""
    return jnp.where(F > 0, jnp.log(jnp.where(F > 0, F, 1) / jnp.maximum(E, jnp.finfo(E.dtype).tiny)), 0)


def fit_iterative_scaling(method: str, text: TrainingText, options: Options, watch: Watch) -> FitResult:
    """Sweeps from the log-linear model, or without discount from the explicit solution."""
    K, features = options.radius, options.features
    mine = {"features": features, "radius": K}
    exponents = None if options.discount == 0 else exponents_held_out(text, options, watch).exponents
    start, how = _start(text, options, exponents)
    info = {"sweeps": options.sweeps, "scalars": 0}
    if exponents is not None:
        info = {"scalars": len(exponents), **_held_out_sweeps(text, options, watch, exponents)}
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

    known = written_for(method, text, options, watch)
    with watch.stage(f"iterative-scaling, {features}, K = {K}", "sweeps") as progress:
        how |= {"checkpoints": watch.checkpoints, "known": known, "on_sweep": on_sweep, "progress": progress}
        swept = sweep_tables(start, text, sweeps=info["sweeps"], **how)
    seconds = before + time.perf_counter() - begin - measuring
    return FitResult(swept.model, {**info, "discount": how["discount"], "penalty": swept.penalty, "solve_seconds": seconds})


def _start(text: TrainingText, options: Options, exponents: np.ndarray | None) -> tuple[LanguageModel, dict[str, Any]]:
    """The initial tables of sweeps, their discount, and weights of Sum's offsets."""
    K, features, eos = options.radius, options.features, text.eos
    if exponents is None:
        start = explicit_language_model(text.counts(K), features=features, radius=K, eos=eos)
        return start, {"noise": True, "discount": 0.0, "weights": None}
    rows, weights, D = rows_of_text(text, options), None, options.discount
    if rows.attention is not None:  # at most that of the nearest offset: rare tokens with a large one would shorten every step
        weights = np.maximum(exponents[1:, None], 0) * np.minimum(np.asarray(rows.attention), 1)
    if D is None:
        n = sum(map(counts_of_counts, _blocks(text.counts(K), features, K, eos)))
        D = float(discounts_of(n, modified=False)[0])
    return log_linear_model(rows, exponents), {"noise": False, "discount": D, "weights": weights}


def _held_out_sweeps(text: TrainingText, options: Options, watch: Watch, exponents: np.ndarray) -> dict[str, Any]:
    """The best number of sweeps on held-out documents, and their perplexity."""
    mine = {"features": options.features, "radius": options.radius}
    if chosen := [e for e in watch.events("held_out_sweeps") if {**e, **mine} == e]:
        return {name: chosen[-1][name] for name in ("sweeps", "held_out_perplexity")}
    (rest, held), losses = text.parts(options.calibration_positions), []
    start, how = _start(rest, options, exponents)

    def on_sweep(sweep: int, loss: float, model: LanguageModel) -> bool:
        losses.append(evaluate(model, held, mesh=text.mesh).loss)
        return losses[-1] > min(losses)

    with watch.stage(f"held-out sweeps, {options.features}, K = {options.radius}", "sweeps") as progress:
        sweep_tables(start, rest, sweeps=options.sweeps, **how, on_sweep=on_sweep, progress=progress)
    best = {"sweeps": int(np.argmin(losses)), "held_out_perplexity": float(np.exp(min(losses)))}
    watch.log(event="held_out_sweeps", **mine, **best, perplexities=[float(np.exp(loss)) for loss in losses])
    return best
