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

from icl.recurrences import (
    Dynamics,
    Stream,
    Streams,
    delta_losses,
    delta_rule,
    hebbian_losses,
    kalman_filter,
    linear_attention,
    mesa_conjugate_gradients,
    mesa_recursion,
    ridge_losses,
)
from jexplicit.runs.progress import stage
from launch.icl.config import MesaConfig
from launch.icl.rates import LOSS, TEST, VALIDATION, Job, experiment, random_key
from launch.kit.views import Column, Lines, Results, Row, pivot_table, points

RECURSION, GRADIENTS = "mesa, recursion", "mesa, conjugate gradients"
STREAMS = ("regression", "ill-conditioned", "drift", "dynamics")
_forgetting = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85, 0.8)  # searched where maps drift
_rates = tuple(np.geomspace(0.1, 1.5, 12).tolist())  # over ||k||²: searched where there is no closed form
_searched = 400  # sequences, at most, for the searches
_at_a_time = 100
Layer = Callable[..., jax.Array]  # of a stream and settings
Batch = tuple[Stream, jax.Array]  # streams with their targets


class Estimator(NamedTuple):
    """A layer with its settings, output factors, and expected loss if known."""

    layer: Layer
    settings: dict[str, Any]
    factor: Any = 1.0
    expected: Any = None


def _make_streams(task: str, d: int) -> Streams | Dynamics:
    """The streams of a task, and the law of their keys and maps."""
    still, decaying = Streams(dim=d, tokens=20 * d, outputs=d), 1 / np.arange(1, d + 1) ** 2
    return {
        "regression": still,
        "ill-conditioned": replace(still, variances=tuple((d * decaying / decaying.sum()).tolist())),
        "drift": replace(still, memory=1 - 1 / (10 * d)),
        "dynamics": Dynamics(dim=d, tokens=20 * d),
    }[task]


def losses(job: Job[MesaConfig], task: str) -> Iterator[Row]:
    """The loss of each estimator at the end; those at every position are events."""
    config, streams = job.config, _make_streams(task, job.config.dim)

    def sample(stream: int, number: int) -> Batch:
        return jax.jit(jax.vmap(streams.sample))(jax.random.split(random_key(config, stream), number))

    searched, batch = sample(VALIDATION, min(config.test_tasks, _searched)), sample(TEST, config.test_tasks)
    found = _on_dynamics(streams, searched) if isinstance(streams, Dynamics) else _on_streams(streams, searched)
    about = {"layers": 1, "recurrent": True, "dim": config.dim, "context": streams.tokens, "test_tasks": config.test_tasks}
    with stage(f"estimators, {task}"):
        for name, one in found:
            by_token = np.asarray(_losses_by_token(one.layer, one.settings, one.factor, *batch))
            expected = None if one.expected is None else np.asarray(one.expected).tolist()
            job.folder.log(event="positions", task=task, predictor=name, losses=by_token.tolist(), expected=expected)
            settings = {what: value for what, value in one.settings.items() if isinstance(value, float)}
            ends = {"loss": float(by_token[-1]), "population_loss": expected[-1] if expected else None}
            yield about | {"predictor": name} | settings | ends


@partial(jax.jit, static_argnums=0)
def _losses_by_token(layer: Layer, settings: dict[str, Any], factor: Any, batch: Stream, targets: jax.Array) -> jax.Array:
    """Half the mean squared error of an output at every position."""
    factors = jnp.broadcast_to(jnp.asarray(factor, targets.dtype), targets.shape[1])[:, None]

    def squares(one: Batch) -> jax.Array:
        stream, targets = one
        return jnp.mean((factors * layer(stream, **settings) - targets) ** 2, axis=1)

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
        gamma = lowest(gammas, lambda g: _losses_by_token(mesa_recursion, settings | {"forgetting": g}, a, *searched))
    yield from _mesa_layers(streams.dim, {"penalty": penalty} | forgets(gamma), a, expected).items()
    yield "ridge", Estimator(mesa_recursion, {"penalty": penalty}, 1.0, expected)
    if a < 1:
        yield "Kalman filter", Estimator(kalman_filter, {"noise": streams.noise, "memory": a})


def _on_dynamics(streams: Dynamics, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """The same with searched factors and rates, as keys are dependent."""
    found = jax.jit(jax.vmap(linear_attention))(searched[0])
    factors = jnp.sum(found * searched[1], axis=(0, 2)) / jnp.sum(found**2, axis=(0, 2))
    yield "linear attention", Estimator(linear_attention, {}, factors)
    rate = lowest(_rates, lambda rate: _losses_by_token(_normalised_delta_rule, {"rate": rate}, 1.0, *searched))
    yield "delta rule", Estimator(_normalised_delta_rule, {"rate": rate})
    yield from _mesa_layers(streams.dim, {"penalty": streams.penalty}).items()
    yield "ridge", Estimator(mesa_recursion, {"penalty": streams.penalty})


def _mesa_layers(d: int, settings: dict[str, float], *more: Any) -> dict[str, Estimator]:
    """Both forms of the mesa layer."""
    exact = Estimator(mesa_recursion, settings, *more)
    return {RECURSION: exact, GRADIENTS: exact._replace(layer=partial(mesa_conjugate_gradients, steps=4 * d))}


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


def _with_expectation(row: Row) -> str:
    """A loss, and in brackets its closed form where there is one."""
    expected = row.get("population_loss")
    return f"{row['loss']:#.3g}" + (f" ({expected:#.3g})" if expected else "")


def figure_rows(results: Results) -> Iterator[Row]:
    """Losses by token."""
    for e in results.events("positions", "task", "predictor"):
        yield from points(range(1, len(e["losses"]) + 1), e["losses"], predictor=e["predictor"], panel=e["task"])


_styles = {"ridge": {"color": "black", "linestyle": ":"}, GRADIENTS: {"linestyle": ":", "linewidth": 2.5}}
_axes = {"xlabel": "tokens", "xscale": "log", "yscale": "log", "ylabel": LOSS}
FIGURE = Lines("mesa", "x", "y", "predictor", "panel", figure_rows, _styles, _axes, size=(2.8, 2.6), legend="below")
LOSSES = pivot_table([Column("stream", "task")], "predictor", _with_expectation, rows={"task": STREAMS})
NOTE = "Half the mean squared error of an output after the last pair, in brackets its expectation in closed form."
MESA = experiment(
    "mesa",
    losses,
    [LOSSES._replace(note=NOTE), FIGURE],
    title="Layers as online estimators",
    keys=lambda _: [{"task": task} for task in STREAMS],
)
