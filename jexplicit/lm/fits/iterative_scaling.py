"""Generalised iterative scaling of a language model, without autodiff or a learning rate.

The K tokens of a context are features of L1 norm K, which is the condition of Darroch & Ratcliff (1972). A sweep moves every
parameter by how far the model's co-occurrences are from those of the text,

    U[j, i] += (1/K) log(F[j, i] / E[j, i]),    E = HᵀP,    P = softmax(H U),

where Sum's offsets share a table and add up in F and in E. *Why it never raises the loss.* Let the step be d. With
`log z <= z - 1`, and Jensen's inequality for the average over the K tokens of a context,

    L(U + d) - L(U) = sum_m log sum_i P[m, i] exp((H d)[m, i]) - <F, d>
                   <= sum_{j,i} (E[j, i] exp(K d[j, i]) - E[j, i]) / K - F[j, i] d[j, i].

Every pair has a term of its own, convex in its d and lowest at the step above. So the loss falls by at least
`(1/K) sum F log(F/E) - F + E >= 0`, *any* pairs may be left where they are (d = 0 adds nothing), and a shorter step in the same
direction helps too. That settles what to do with pairs that never occur, whose optimum is at minus infinity:

* `noise=False`: they stay where they start, and the sweeps go to the best model that has these logits there. A start without
  noise has them at minus infinity, where they belong.
* `noise=True`: the parameters are those of the noisy features `H̃ = H E_noise`, whose rows have norm K
  as well. Noise is a linear map of both co-occurrences, so that with E_noise = diag(q) + (1 - q) ⊗ p a sweep of the tables that
  are read by token ids is `Ũ += (1/K) E_noise log(E_noiseᵀ F / E_noiseᵀ E)`: finite, as no noisy co-occurrence is zero. The
  guarantee is that of the training loss itself, because F and E belong to the same features; smoothing F alone would void it.

An output that never occurs (`<pad>`, where ends of documents are not predicted) stays where it starts in both.

Both fit the training text alone, ever closer. `discount=D` stays near the start `U0` instead: it minimises
`L(U) + D ||U - U0||_1`, a Laplace prior, of which Goodman's exponential one (2004) is the upper half. Its term is one more of
each pair's own, and the lowest point is

    U + (1/K) log((F - D)/E)  where that is above U0,    U + (1/K) log((F + D)/E)  where that is below,    else U0.

So every sweep lowers the loss with its penalty. At the minimum `|E - F| <= D`: expected co-occurrences are right up to the D
that Kneser-Ney discounts from every count, so sweeps change the smoothed tables only where offsets disagree.

Sum with attention reads one table V with a weight of its own for every offset and token, `U_k[j] = w_k(j) V[j] + ...`. Its
features are these weights, of norm `sum_k w_k(x_k)`; with the largest of the norms in the place of K all of the above holds
for V, as a shorter step helps too.
"""

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jexplicit.counts.merging import Counts, merge_offsets
from jexplicit.data.contexts import contexts, distinct_contexts
from jexplicit.lm.core.model import LanguageModel
from jexplicit.lm.core.names import Features
from jexplicit.lm.core.smoothing import Noise, counts_of_counts, discounts_of, noise_model, noisy_counts, noisy_rows
from jexplicit.lm.evaluation import evaluate
from jexplicit.lm.fits.gradient import decoder_model, initial_state, text_gradient
from jexplicit.lm.fits.log_linear import OffsetRows, exponents_held_out, log_linear_model, offset_rows
from jexplicit.lm.rows.explicit import explicit_language_model, token_counts, with_targets
from jexplicit.lm.training_text import Options, TrainingText, Watch, written_for
from jexplicit.runs.devices import check_memory, default_mesh
from jexplicit.runs.iterate import History, iterate


class SweepResult(NamedTuple):
    """A language model and how it came about.

    losses: nats per training position at the start and after each sweep.
    penalties: what the prior adds to them, in the same unit; 0 without one.
    """

    model: LanguageModel
    losses: list[float]
    penalties: list[float]


def sweep_tables(
    model: LanguageModel,
    counts: Counts,
    stream: np.ndarray,
    *,
    sweeps: int,
    noise: bool = True,
    discount: float = 0.0,
    weights: Float[np.ndarray, "K N"] | None = None,
    mesh: Mesh | None = None,
    chunk: int = 1 << 18,
    checkpoints: str | os.PathLike | None = None,
    checkpoint_seconds: float = 60.0,
    known: Mapping[str, Any] | None = None,
    on_sweep: Callable[[int, float, LanguageModel], bool | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Lower the training loss by sweeps `U += (1/K) log(F / HᵀP)`.

    A sweep takes one partition function per different context. The number of devices changes the speed, and the result by
    rounding only.

    Args:
        model: where to start: the explicit solution, for one. Features, radius, eos and dtype are its own.
        counts: C_1 .. C_K' of the stream, K' >= K (jexplicit.counts.dense.count).
        stream: [L] token ids, `<pad> d_1 <pad> ... d_n <pad>`.
        sweeps: how many; 0 measures the start.
        noise: whether the parameters are those of the noisy features; without, pairs that never occur stay as they are.
        discount: D, the rate of the prior around the start, in counts; needs `noise=False`. What falls is then the loss with
            its penalty. `kneser_ney_discount` estimates it.
        weights: [K, N] w of Sum with attention: the tables move as one, `dU_k[j] = w_k(j) dV[j]`; needs `noise=False`.
        chunk: contexts at a time; it changes the memory, not the result.
        checkpoints: folder for checkpoints; where it holds one, the sweeps continue from it.
        checkpoint_seconds: time between two checkpoints.
        known: what else the checkpoints are of, see `jexplicit.runs.iterate`.
        on_sweep: called with (sweeps done, loss, model), from 0 sweeps on; where it returns True, they end.

    Raises:
        ValueError: fewer than 0 sweeps; a negative discount, or one together with noise or infinite logits; weights that are
            negative, of another shape, or with noise; counts of another stream, radius or vocabulary; no position to predict.
        FloatingPointError: a start that gives no chance to a pair that occurs.

    Example:
        >>> from jexplicit import count
        >>> from jexplicit.lm import explicit_language_model
        >>> stream = np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0])
        >>> counts = count(stream, radius=2, vocab_size=3)
        >>> start = explicit_language_model(counts, features="cat")
        >>> [round(loss, 2) for loss in sweep_tables(start, counts, stream, sweeps=2).losses]
        [0.61, 0.54, 0.5]

    Source: Darroch & Ratcliff 1972; Goodman 2004 for the prior; paper, Eq. 1 and 4.
    """
    K, tables, mesh = model.radius, model.tables, mesh or default_mesh()
    if sweeps < 0 or chunk < 1:
        raise ValueError(f"{sweeps} sweeps of {chunk} contexts at a time: use at least 0 and 1")
    if not 0 <= discount < np.inf or discount and noise:
        raise ValueError(
            f"a discount of {discount} with noise={noise}: use a finite one >= 0, and noise=False with one above 0"
        )
    _check_weights(weights, model, noise)
    features = model.features if weights is None else "cat"
    F, positions = _observed(model, counts, features)
    X, Y = contexts(stream, K, eos=model.eos)
    _check_stream(counts, X, Y, model)
    distinct, n = distinct_contexts(X, ordered=features == "cat")
    blocks = tables if weights is not None else tables[: len(F)]
    check_memory(mesh, 10 * len(blocks) * blocks[0].nbytes // mesh.size, "tables and their co-occurrences")
    params = initial_state(blocks, optax.identity(), mesh).params
    observed = initial_state(tuple(jnp.asarray(F_b, blocks[0].dtype) for F_b in F), optax.identity(), mesh).params
    of_tables = _Moving(params, jnp.asarray(K, params[0].dtype), lambda moving: moving, lambda blocks: blocks)
    if weights is not None:
        of_tables = _one_table(params, jnp.asarray(weights, blocks[0].dtype), distinct)
    F_moving = of_tables.gather(observed)
    if discount and not all(bool(jnp.isfinite(U).all()) for U in blocks):
        raise ValueError("a prior around infinite logits: start from tables that are finite, such as log-linear ones")
    of_noise = noise_model(token_counts(counts)) if noise else None
    as_model = functools.partial(decoder_model, features=model.features, radius=K, eos=model.eos, noise=None)

    def sweep(moving: tuple[Array, ...], history: History) -> tuple[tuple[Array, ...], dict[str, Any]]:
        params, swept = of_tables.read(moving), len(history)
        log_Z, expected = text_gradient(params, distinct, n, X[:0], Y[:0], features=features, mesh=mesh, chunk=chunk)
        loss = (log_Z - _total(_matched_logits, observed, params)) / positions
        penalty = discount * _total(_moved_by, moving, of_tables.start) / positions if discount else 0.0
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"loss {loss} after {swept} sweeps: the start gives no chance to a pair that occurs; start from tables of the "
                "same stream (jexplicit.lm.explicit_language_model)"
            )
        last = bool(on_sweep and on_sweep(swept, loss, as_model(params))) or swept == sweeps
        if progress and sweeps:
            progress(swept, sweeps)
        if not last:  # the last pass only measures
            E, start = of_tables.gather(expected), of_tables.start
            parts = zip(moving, F_moving, E, start, strict=True)
            moving = tuple(_moved(*part, of_noise, discount, of_tables.norm) for part in parts)
        return moving, {"loss": loss, "penalty": penalty, "last": last}

    moving, history = iterate(
        sweep,
        of_tables.start,
        done=lambda history: bool(history) and history[-1]["last"],
        checkpoints=checkpoints,
        checkpoint_seconds=checkpoint_seconds,
        known={**(known or {}), "text": stream, "noise": noise, "discount": discount, "start": (of_tables.start, weights)},
    )
    losses, penalties = ([entry[name] for entry in history] for name in ("loss", "penalty"))
    return SweepResult(as_model(of_tables.read(moving)), losses, penalties)


def kneser_ney_discount(counts: Counts, *, features: Features, radius: int, eos: bool = False) -> float:
    """`D = n_1/(n_1 + 2 n_2)`, n_c the number of pairs with count c.

    Example:
        >>> from jexplicit import count
        >>> counts = count(np.array([0, 1, 2, 1, 1, 2, 0, 2, 1, 0]), radius=2, vocab_size=3)
        >>> round(kneser_ney_discount(counts, features="cat", radius=2, eos=True), 2)
        0.56

    Source: Chen & Goodman 1999, Eq. 17.
    """
    n = sum(counts_of_counts(F) for F in _blocks(counts, features, radius, eos))
    return float(discounts_of(n, modified=False)[0])


class _Moving(NamedTuple):
    """The moving tables of a sweep: their features, co-occurrences and norm."""

    start: tuple[Array, ...]
    norm: Array
    read: Callable[[tuple[Array, ...]], tuple[Array, ...]]
    gather: Callable[[tuple[Array, ...]], tuple[Array, ...]]


def _one_table(tables: tuple[Array, ...], weights: Float[Array, "K N"], X: np.ndarray) -> _Moving:
    """One table V, from 0: offset k adds its row j times w_k(j)."""
    norm = np.sum([np.asarray(w)[x] for w, x in zip(weights, X.T, strict=True)], axis=0).max()
    start = (jnp.zeros_like(tables[0]),)
    read, gather = (functools.partial(f, weights) for f in (_read_weighted, _gather_weighted))
    return _Moving(start, jnp.asarray(norm, weights.dtype), functools.partial(read, tables), gather)


@jax.jit
def _read_weighted(weights: Array, tables: tuple[Array, ...], moving: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(U + w[:, None] * moving[0] for U, w in zip(tables, weights, strict=True))


@jax.jit
def _gather_weighted(weights: Array, blocks: tuple[Array, ...]) -> tuple[Array, ...]:
    gathered = [w[:, None] * jnp.maximum(block, 0) for block, w in zip(blocks, weights, strict=True)]
    return (functools.reduce(jnp.add, gathered),)


def _check_weights(weights: np.ndarray | None, model: LanguageModel, noise: bool) -> None:
    if weights is None:
        return
    shape = (model.radius, model.vocab_size)
    if noise or model.features != "sum" or weights.shape != shape or not 0 <= weights.min() <= weights.max() < np.inf:
        raise ValueError(
            f"weights of shape {weights.shape} between {weights.min():g} and {weights.max():g}, noise={noise}, for features "
            f"{model.features!r}: use finite weights >= 0 of shape {shape}, Sum, and noise=False"
        )


def _observed(model: LanguageModel, counts: Counts, features: Features) -> tuple[tuple[np.ndarray, ...], int]:
    """F as the model's blocks, and the number of positions."""
    K, N = model.radius, model.vocab_size
    if len(counts) < K or counts[0].shape != (N, N):
        raise ValueError(
            f"counts of {len(counts)} offsets and vocabulary {len(counts[0])} for radius {K} and vocabulary {N}: count with "
            "the model's own radius and tokenizer"
        )
    if not (positions := int(with_targets(counts[0], eos=model.eos).sum(dtype=np.int64))):
        raise ValueError("no position to predict: the text has no tokens")
    return _blocks(counts, features, K, model.eos), positions


def _blocks(counts: Counts, features: Features, K: int, eos: bool) -> Counts:
    """F of every table: Sum's offsets share one, and add up in it."""
    F = tuple(with_targets(C, eos=eos) for C in counts[:K])
    return merge_offsets(F) if features == "sum" else F


def _check_stream(counts: Counts, X: np.ndarray, Y: np.ndarray, model: LanguageModel) -> None:
    """Refuse a stream whose token frequencies differ from the counts."""
    N = model.vocab_size
    f = with_targets(counts[0].sum(axis=0, dtype=np.int64)[None, :], eos=model.eos)[0]
    n = [with_targets(C, eos=model.eos).sum(axis=1, dtype=np.int64) for C in counts[: model.radius]]
    seen = [Y, *X.T]
    if not all(int(ids.max(initial=0)) < N for ids in seen) or not all(
        np.array_equal(np.bincount(ids, minlength=N), wanted) for ids, wanted in zip(seen, [f, *n], strict=True)
    ):
        raise ValueError(
            f"a stream of {len(Y)} positions and counts of {int(f.sum())} that do not belong together: pass the counted stream"
        )


def _total(rows: Callable[..., Array], *blocks: tuple[Array, ...]) -> float:
    """The sum of `rows(...)` over blocks and rows, in float64."""
    return sum(float(np.asarray(rows(*block), np.float64).sum()) for block in zip(*blocks, strict=True))


@jax.jit
def _moved_by(U: Float[Array, "N I"], U0: Float[Array, "N I"]) -> Float[Array, " N"]:
    """`||U - U0||_1` by row; columns that fill the mesh stay at minus infinity."""
    return jnp.where(U == U0, 0, jnp.abs(U - U0)).sum(axis=1)


@jax.jit
def _matched_logits(F: Float[Array, "N I"], U: Float[Array, "N I"]) -> Float[Array, " N"]:
    """`<F, U>` by row, also for pairs that never occur, with infinite logits."""
    return jnp.where(F > 0, F * U, 0).sum(axis=1)


@functools.partial(jax.jit, static_argnames="D")
def _moved(
    U: Float[Array, "N I"],
    F: Float[Array, "N I"],
    E: Float[Array, "N I"],
    U0: Float[Array, "N I"],
    noise: Noise | None,
    D: float,
    K: Array,
) -> Array:
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


def fit_iterative_scaling(text: TrainingText, options: Options, watch: Watch) -> tuple[LanguageModel, dict[str, Any]]:
    """Sweeps from the log-linear model, or without discount from the explicit solution."""
    K, features = options.radius, options.features
    mine = {"features": features, "radius": K}
    if options.discount == 0:
        start = explicit_language_model(text.counts(K), features=features, radius=K, eos=text.eos)
        weights, discount, info = None, 0.0, {"sweeps": options.sweeps, "scalars": 0}
    else:
        rows = offset_rows(text.counts(K), features=features, radius=K, eos=text.eos, smoothing=options.smoothing)
        exponents = exponents_held_out(text, options, watch, rows).exponents
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
            known=written_for("iterative-scaling", text, options, watch),
            on_sweep=on_sweep,
            progress=progress,
        )
    info |= {"discount": discount, "penalty": swept.penalties[-1]}
    return swept.model, {**info, "solve_seconds": before + time.perf_counter() - begin - measuring}


def _sweep_start(rows: OffsetRows, exponents: np.ndarray) -> tuple[LanguageModel, np.ndarray | None]:
    """The initial tables of sweeps, and the weights of Sum's offsets."""
    weights = None
    if rows.attention is not None:  # at most that of the nearest offset: rare tokens with a large one would shorten every step
        weights = np.maximum(exponents[1:, None], 0) * np.minimum(np.asarray(rows.attention), 1)
    return log_linear_model(rows, exponents), weights


def _sweep_discount(text: TrainingText, options: Options) -> float:
    if options.discount is not None:
        return options.discount
    return kneser_ney_discount(text.counts(options.radius), features=options.features, radius=options.radius, eos=text.eos)


def _held_out_sweeps(text: TrainingText, options: Options, watch: Watch, exponents: np.ndarray) -> dict[str, Any]:
    """The best number of sweeps on held-out documents, and their perplexity."""
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
