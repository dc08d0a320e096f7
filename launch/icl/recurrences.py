"""Layers that estimate a regression online (Wang et al. 2025)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax

from icl import recurrences
from icl.recurrences import (
    Dynamics,
    Stream,
    Streams,
    delta_losses,
    delta_rule,
    hebbian_losses,
    kalman_filter,
    linear_attention,
    mesa_recursion,
    prefix_ridge,
    ridge_losses,
)
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.base import LOSS
from launch.icl.config import MesaConfig
from launch.kit.views import Column, Lines, Results, Row, pivot_table, points

RECURSION, GRADIENTS, TEXTBOOK = "mesa, recursion", "mesa, conjugate gradients", "mesa, Sherman-Morrison"
STREAMS = ("regression", "ill-conditioned", "drift", "dynamics")
INPUTS = ("white", "ill-conditioned", "half of the directions")  # kinds of keys
GAMMAS = (1.0, 0.99)  # forgetting
_forgetting = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85, 0.8)  # searched where maps drift
_rates = tuple(np.geomspace(0.1, 1.5, 12).tolist())  # over ||k||²: searched where there is no closed form
_searched = 400  # sequences, at most, for the searches
_at_a_time = 100
_penalty = 1.0  # where rounding is measured
_large = 0.1  # relative error above which an estimator has failed
_points = 80  # of a curve of errors

Layer = Callable[..., jax.Array]  # of a stream and settings
Batch = tuple[Stream, jax.Array]  # streams with their targets


class Estimator(NamedTuple):
    """A layer with its settings, output factors, and expected loss if known."""

    layer: Layer
    settings: dict[str, Any]
    factor: Any = 1.0
    expected: Any = None
    steps: int = 0


def _make_streams(task: str, d: int) -> Streams | Dynamics:
    """The streams of a task, and the law of their keys and maps."""
    still, decaying = Streams(dim=d, tokens=20 * d, outputs=d), 1 / np.arange(1, d + 1) ** 2
    return {
        "regression": still,
        "ill-conditioned": replace(still, variances=tuple((d * decaying / decaying.sum()).tolist())),
        "drift": replace(still, memory=1 - 1 / (10 * d)),
        "dynamics": Dynamics(dim=d, tokens=20 * d),
    }[task]


def measure(job: base.Job[MesaConfig]) -> Iterator[base.Part]:
    """Parts for the losses by kind of stream, and for rounding errors."""
    yield from (({"task": task}, partial(losses, job, task)) for task in STREAMS)
    for inputs in INPUTS:
        yield {"task": "rounding", "inputs": inputs}, partial(rounding, job, inputs)


def losses(job: base.Job[MesaConfig], task: str) -> Iterator[Row]:
    """The loss of each estimator at the end; those at every position are events."""
    config, streams = job.config, _make_streams(task, job.config.dim)

    def sample(stream: int, number: int) -> Batch:
        return jax.jit(jax.vmap(streams.sample))(jax.random.split(base.random_key(config, stream), number))

    searched, batch = sample(base.VALIDATION, min(config.test_tasks, _searched)), sample(base.TEST, config.test_tasks)
    found = _on_dynamics(streams, searched) if isinstance(streams, Dynamics) else _on_streams(streams, searched)
    about = {"layers": 1, "recurrent": True, "dim": config.dim, "context": streams.tokens, "test_tasks": config.test_tasks}
    with stage(f"estimators, {task}"):
        for name, one in found:
            by_token = np.asarray(_losses_by_token(one.layer, one.steps, one.settings, one.factor, *batch))
            expected = None if one.expected is None else np.asarray(one.expected).tolist()
            job.folder.log(event="positions", task=task, predictor=name, losses=by_token.tolist(), expected=expected)
            settings = {what: value for what, value in one.settings.items() if isinstance(value, float)}
            ends = {"loss": float(by_token[-1]), "population_loss": expected[-1] if expected else None}
            ends |= {"mean_loss": float(by_token.mean()), "gradient_steps": one.steps}
            yield about | {"predictor": name} | settings | ends


@partial(jax.jit, static_argnums=(0, 1))
def outputs(layer: Layer, steps: int, settings: dict[str, Any], stream: Stream) -> jax.Array:
    """The outputs of a layer, compiled once per size."""
    return layer(stream, **settings, **({"steps": steps} if steps else {}))


@partial(jax.jit, static_argnums=(0, 1))
def _losses_by_token(
    layer: Layer, steps: int, settings: dict[str, Any], factor: Any, batch: Stream, targets: jax.Array
) -> jax.Array:
    """Half the mean squared error of an output at every position."""
    factors = jnp.broadcast_to(jnp.asarray(factor, targets.dtype), targets.shape[1])[:, None]

    def squares(one: Batch) -> jax.Array:
        stream, targets = one
        return jnp.mean((factors * outputs(layer, steps, settings, stream) - targets) ** 2, axis=1)

    return jnp.mean(lax.map(squares, (batch, targets), batch_size=_at_a_time), axis=0) / 2


def lowest(values: Iterable[float], loss: Callable[[float], Any]) -> float:
    """The value with the lowest mean loss over positions."""
    return min(values, key=lambda value: float(jnp.mean(loss(value))))


def forgets(gamma: float) -> dict[str, float]:
    """The forgetting setting, left out at 1 for speed."""
    return {} if gamma == 1 else {"forgetting": gamma}


def _on_streams(streams: Streams, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """Layers at their best factors, rates and forgetting."""
    a, penalty, gammas = streams.memory, streams.penalty, (1.0,) if streams.memory == 1 else _forgetting
    gamma = lowest(gammas, jax.jit(lambda gamma: hebbian_losses(streams, forgetting=gamma)[1]))
    yield "linear attention", Estimator(linear_attention, forgets(gamma), *hebbian_losses(streams, forgetting=gamma))
    for name, rate in (("delta rule", _best_rate(streams)), ("delta rule, best rates", None)):
        rates, expected = delta_losses(streams, rate)
        yield name, Estimator(delta_rule, {"rate": rate or rates} | forgets(a), a, expected)
    expected = ridge_losses(streams) if a == 1 else None
    if a < 1:
        settings = {"penalty": penalty}
        gamma = lowest(gammas, lambda g: _losses_by_token(mesa_recursion, 0, settings | {"forgetting": g}, a, *searched))
    yield from _mesa_layers(streams.dim, {"penalty": penalty} | forgets(gamma), a, expected).items()
    yield "ridge", Estimator(prefix_ridge, {"penalty": penalty}, 1.0, expected)
    if a < 1:
        yield "Kalman filter", Estimator(kalman_filter, {"noise": streams.noise, "memory": a})


def _on_dynamics(streams: Dynamics, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """The same with searched factors and rates, as keys are dependent."""
    found = jax.vmap(partial(outputs, linear_attention, 0, {}))(searched[0])
    factors = jnp.sum(found * searched[1], axis=(0, 2)) / jnp.sum(found**2, axis=(0, 2))
    yield "linear attention", Estimator(linear_attention, {}, factors)
    rate = lowest(_rates, lambda rate: _losses_by_token(_normalised_delta_rule, 0, {"rate": rate}, 1.0, *searched))
    yield "delta rule", Estimator(_normalised_delta_rule, {"rate": rate})
    yield from _mesa_layers(streams.dim, {"penalty": streams.penalty}).items()
    yield "ridge", Estimator(prefix_ridge, {"penalty": streams.penalty})


def _mesa_layers(d: int, settings: dict[str, float], *more: Any) -> dict[str, Estimator]:
    """Both forms of the mesa layer."""
    exact = Estimator(mesa_recursion, settings, *more)
    return {RECURSION: exact, GRADIENTS: exact._replace(layer=recurrences.mesa_conjugate_gradients, steps=4 * d)}


def _normalised_delta_rule(stream: Stream, rate: Any) -> jax.Array:
    """The delta rule with rates β / ||k||², stable for β < 2."""
    return delta_rule(stream, rate / jnp.sum(stream.K**2, axis=1))


def _best_rate(streams: Streams) -> float:
    """The β with the lowest expected loss, a mean over positions."""
    mean_loss = jax.jit(lambda rate: jnp.mean(delta_losses(streams, rate)[1]))
    highest = np.log(2 / (max(streams.spectrum) * (streams.dim + 2)))  # beyond it descent diverges
    found = scipy.optimize.minimize_scalar(
        lambda log: float(mean_loss(np.exp(log))), bounds=(highest - 7, highest), method="bounded"
    )
    return float(np.exp(found.x))


def rounding(job: base.Job[MesaConfig], inputs: str) -> Iterator[Row]:
    """Errors of float32 against float64 on one long sequence, without forgetting and with.

    Relative to the root mean square of the outputs. Mesa layers are compared with ridge regression, others with themselves.
    """
    T, d, stream = job.config.tokens, job.config.dim, long_stream(job.config, inputs)
    at = np.unique(np.geomspace(1, T, _points).astype(int))
    for gamma in GAMMAS:
        settings, others = {"penalty": _penalty} | forgets(gamma), {}
        exact = computed(Estimator(mesa_recursion, settings), stream, np.float64)
        if inputs == "white" and gamma == 1:
            others["linear attention"] = Estimator(linear_attention, {})
            others["delta rule"] = Estimator(delta_rule, {"rate": 0.5 / (d + 2)})
        others[TEXTBOOK] = Estimator(recurrences.sherman_morrison, settings)
        for name, one in (others | _mesa_layers(d, settings)).items():
            with stage(f"rounding over {T} tokens, {inputs}, {name}"):
                found = computed(one, stream, np.float32)
                theirs = computed(one, stream, np.float64) if name in others else exact
            size = np.sqrt(np.mean(np.sum((exact if "mesa" in name else theirs) ** 2, axis=1)))
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.linalg.norm(found - theirs, axis=1) / size
            failed = np.flatnonzero(~(error <= _large))
            errors = [float(e) if np.isfinite(e) else None for e in np.maximum.accumulate(error)[at - 1]]
            about = {"predictor": name, "forgetting": gamma}
            job.folder.log(event="rounding", inputs=inputs, **about, tokens=at.tolist(), errors=errors)
            about |= {"layers": 1, "recurrent": True, "dim": d, "context": T, "gradient_steps": one.steps, "penalty": _penalty}
            fails_at = int(failed[0]) + 1 if len(failed) else None
            yield about | {"float32_error": errors[-1], "fails_at": fails_at}


def long_stream(config: MesaConfig, inputs: str) -> Stream:
    """One float32 sequence: white, ill-conditioned, or rank-deficient keys."""
    T, d = config.tokens, config.dim
    scales = {
        "white": np.ones(d),
        "ill-conditioned": 1e-3 ** (np.arange(d) / max(d - 1, 1)),
        "half of the directions": (np.arange(d) < (d + 1) // 2) * 1.0,
    }[inputs]
    key_stream, key_rotation = jax.random.split(base.random_key(config, base.SWEEP))
    (K, V, Q), _ = Streams(dim=d, tokens=T).sample(key_stream, np.float32)
    rotation = np.linalg.qr(np.asarray(jax.random.normal(key_rotation, (d, d), np.float32), np.float64))[0]
    K, Q = ((np.asarray(X, np.float64) * scales @ rotation).astype(np.float32) for X in (K, Q))
    return Stream(K, np.asarray(V), Q)  # pyright: ignore[reportArgumentType]


def computed(one: Estimator, stream: Stream, dtype: Any) -> np.ndarray:
    """The outputs of a layer in a precision."""
    with jax.enable_x64(True):
        arrays = Stream(*(jnp.asarray(leaf, dtype) for leaf in stream))
        return np.asarray(outputs(one.layer, one.steps, one.settings, arrays), np.float64)


def _with_expectation(row: Row) -> str:
    """A loss, and in brackets its closed form where there is one."""
    expected = row.get("population_loss")
    return f"{row['loss']:#.3g}" + (f" ({expected:#.3g})" if expected else "")


def float32_error(row: Row) -> str:
    """The largest error, or the token of failure if outputs become NaN."""
    error = row.get("float32_error")
    return f"{error:.1e}" if error is not None else f"above 10 % after {row['fails_at']} tokens, then NaN"


def figure_rows(results: Results) -> Iterator[Row]:
    """Losses by token, then rounding errors, by forgetting."""
    for e in results.events("positions", "task", "predictor"):
        at = range(1, len(e["losses"]) + 1)
        yield from points(at, e["losses"], predictor=e["predictor"], row="losses", panel=e["task"])
    for e in results.events("rounding", "inputs", "forgetting", "predictor"):
        about = {"row": e["forgetting"], "panel": f"{e['inputs']}, γ = {e['forgetting']:g}"}
        yield from points(e["tokens"], e["errors"], predictor=e["predictor"], **about)


_styles = {"ridge": {"color": "black", "linestyle": ":"}, GRADIENTS: {"linestyle": ":", "linewidth": 2.5}}
AXES = {"xlabel": "tokens", "xscale": "log", "yscale": "log"}
_errors = {f"{inputs}, γ = {gamma:g}": {"ylim": (1e-8, 1e3)} for inputs in INPUTS for gamma in GAMMAS}
_labels = {f"white, γ = {gamma:g}": {"ylim": (1e-8, 1e3), "ylabel": "largest float32 error"} for gamma in GAMMAS}
BY_PANEL = {"regression": {"ylabel": LOSS}, **_errors, **_labels}
FIGURE = Lines(
    "mesa", "x", "y", "predictor", "panel", figure_rows, _styles, AXES, BY_PANEL, (2.8, 2.6), row="row", legend="below"
)
LOSSES = pivot_table([Column("stream", "task")], "predictor", _with_expectation, rows={"task": STREAMS})
KEYS = [Column("keys", "inputs"), Column("γ", "forgetting", "g")]
ROUNDING = pivot_table(KEYS, "predictor", float32_error, rows={"task": "rounding"})
NOTE = """Above, half the mean squared error of an output after the last pair, in brackets its expectation in closed form.
Below, the largest errors of float32 over all tokens of one long sequence, relative to the outputs."""
VIEWS = [LOSSES._replace(note=NOTE), ROUNDING, FIGURE]
MESA = base.experiment("mesa", measure, VIEWS, title="Layers as online estimators")
