"""The experiment of launch.icl on layers that estimate a regression online: their losses by position, and their rounding."""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import lax

from icl.models.mesa_chunks import mesa_conjugate_gradients
from icl.models.recurrences import Stream, delta_rule, linear_attention, mesa_recursion, sherman_morrison
from icl.solvers.online import delta_losses, hebbian_losses, kalman_filter, prefix_ridge, ridge_losses
from icl.streams import Dynamics, Streams
from jexplicit.runs.progress import stage
from launch.icl.job import SWEEP, TEST, VALIDATION, Job, add_rows, has_rows, random_key

_forgetting = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85, 0.8)  # searched where maps drift
_rates = tuple(np.geomspace(0.1, 1.5, 12).tolist())  # over ||k||²: searched where there is no closed form
_sequences = 2000  # of the test, at most; and for the searches
_searched = 400
_at_a_time = 100
_penalty = 1.0  # where rounding is measured
_large = 0.1  # relative error above which an estimator has failed
_points = 80  # of a curve of errors

Layer = Callable[..., jax.Array]  # of a stream and settings


class Estimator(NamedTuple):
    """A layer with its settings and steps, a factor on its output at each position, and its expected loss where it is known."""

    layer: Layer
    settings: dict[str, Any]
    factor: Any = 1.0
    expected: Any = None
    steps: int = 0


def mesa(job: Job) -> None:
    """Losses by position on regression, ill-conditioned, drifting and dynamical streams, then errors of float32."""
    for task, streams in _streams(job).items():
        if has_rows(job, "mesa", task=task):
            continue
        with stage(f"estimators, {task}"):
            _compare(job, task, streams)
    for inputs in ("white", "ill-conditioned", "half of the directions"):
        if not has_rows(job, "mesa", task="rounding", inputs=inputs):
            with stage(f"rounding over {job.config.tokens} tokens, {inputs}"):
                _measure_rounding(job, inputs)


def _streams(job: Job) -> dict[str, Streams | Dynamics]:
    d = job.config.dim
    decaying = 1 / np.arange(1, d + 1) ** 2
    still = Streams(dim=d, tokens=20 * d, outputs=d)
    return {
        "regression": still,
        "ill-conditioned": dataclasses.replace(still, variances=tuple((d * decaying / decaying.sum()).tolist())),
        "drift": dataclasses.replace(still, memory=1 - 1 / (10 * d)),
        "dynamics": Dynamics(dim=d, tokens=20 * d),
    }


def _sample(job: Job, stream: int, streams: Streams | Dynamics, number: int) -> tuple[Stream, jax.Array]:
    return jax.jit(jax.vmap(streams.sample))(jax.random.split(random_key(job.config, stream), number))


def _compare(job: Job, task: str, streams: Streams | Dynamics) -> None:
    """A row for each estimator with its loss at the end, and an event with its losses at every position."""
    searched = _sample(job, VALIDATION, streams, min(job.config.validation_tasks, _searched))
    batch = _sample(job, TEST, streams, number := min(job.config.test_tasks, _sequences))
    found = _of_dynamics(streams, searched) if isinstance(streams, Dynamics) else _of_streams(streams, searched)
    rows = []
    for name, one in found:
        losses = np.asarray(_losses(one.layer, one.steps, one.settings, one.factor, *batch))
        expected = None if one.expected is None else np.asarray(one.expected).tolist()
        job.folder.log(event="positions", task=task, predictor=name, losses=losses.tolist(), expected=expected)
        about = {what: value for what, value in one.settings.items() if isinstance(value, float)}
        ends = {"loss": float(losses[-1]), "population_loss": expected[-1] if expected else None}
        rows.append({"predictor": name, **about, **ends, "mean_loss": float(losses.mean()), "gradient_steps": one.steps})
    add_rows(job, rows, **_shared(job), task=task, context=streams.tokens, test_tasks=number)


def _shared(job: Job) -> dict[str, Any]:
    return {"experiment": "mesa", "layers": 1, "recurrent": True, "dim": job.config.dim}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(layer: Layer, steps: int, settings: dict[str, Any], stream: Stream) -> jax.Array:
    """The outputs of a layer, compiled once for all settings and all streams of a size."""
    return layer(stream, **settings, **({"steps": steps} if steps else {}))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _losses(layer: Layer, steps: int, settings: dict[str, Any], factor: Any, batch: Stream, targets: jax.Array) -> jax.Array:
    """Half the mean squared error of an output at every position."""
    factors = jnp.broadcast_to(jnp.asarray(factor, targets.dtype), targets.shape[1])[:, None]

    def squares(one: tuple[Stream, jax.Array]) -> jax.Array:
        stream, targets = one
        return jnp.mean((factors * _outputs(layer, steps, settings, stream) - targets) ** 2, axis=1)

    return jnp.mean(lax.map(squares, (batch, targets), batch_size=_at_a_time), axis=0) / 2


def _lowest(values: Iterable[float], loss: Callable[[float], Any]) -> float:
    """The value with the lowest mean loss over positions."""
    return min(values, key=lambda value: float(jnp.mean(loss(value))))


def _forgets(gamma: float) -> dict[str, float]:
    """The setting of forgetting, which is left out where nothing is forgotten: layers are faster without it."""
    return {} if gamma == 1 else {"forgetting": gamma}


def _of_streams(streams: Streams, searched: tuple[Stream, jax.Array]) -> Iterator[tuple[str, Estimator]]:
    """Each at its best: factors and rates by closed forms, the forgetting of mesa layers by a search."""
    a, penalty, gammas = streams.memory, streams.penalty, (1.0,) if streams.memory == 1 else _forgetting
    gamma = _lowest(gammas, jax.jit(lambda gamma: hebbian_losses(streams, forgetting=gamma)[1]))
    yield "linear attention", Estimator(linear_attention, _forgets(gamma), *hebbian_losses(streams, forgetting=gamma))
    for name, rate in (("delta rule", _best_rate(streams)), ("delta rule, best rates", None)):
        rates, expected = delta_losses(streams, rate)
        yield name, Estimator(delta_rule, {"rate": rate or rates} | _forgets(a), a, expected)
    expected = ridge_losses(streams) if a == 1 else None
    if a < 1:
        gamma = _lowest(gammas, lambda g: _losses(mesa_recursion, 0, {"penalty": penalty, "forgetting": g}, a, *searched))
    yield from _mesa_layers(streams.dim, {"penalty": penalty} | _forgets(gamma), a, expected)
    yield "ridge", Estimator(prefix_ridge, {"penalty": penalty}, 1.0, expected)
    if a < 1:
        yield "Kalman filter", Estimator(kalman_filter, {"noise": streams.noise, "memory": a})


def _of_dynamics(streams: Dynamics, searched: tuple[Stream, jax.Array]) -> Iterator[tuple[str, Estimator]]:
    """Factors and rates are searched, too: keys are neither independent nor Gaussian given the past."""
    outputs = jax.vmap(functools.partial(_outputs, linear_attention, 0, {}))(searched[0])
    factors = jnp.sum(outputs * searched[1], axis=(0, 2)) / jnp.sum(outputs**2, axis=(0, 2))
    yield "linear attention", Estimator(linear_attention, {}, factors)
    rate = _lowest(_rates, lambda rate: _losses(_normalised_delta_rule, 0, {"rate": rate}, 1.0, *searched))
    yield "delta rule", Estimator(_normalised_delta_rule, {"rate": rate})
    yield from _mesa_layers(streams.dim, {"penalty": streams.penalty}, 1.0, None)
    yield "ridge", Estimator(prefix_ridge, {"penalty": streams.penalty})


def _mesa_layers(d: int, settings: dict[str, float], factor: float, expected: Any) -> Iterator[tuple[str, Estimator]]:
    yield "mesa, recursion", Estimator(mesa_recursion, settings, factor, expected)
    yield "mesa, conjugate gradients", Estimator(mesa_conjugate_gradients, settings, factor, expected, _gradient_steps(d))


def _normalised_delta_rule(stream: Stream, rate: Any) -> jax.Array:
    """The delta rule with rates β / ||k||², which is stable for all keys where β < 2."""
    return delta_rule(stream, rate / jnp.sum(stream.K**2, axis=1))


def _gradient_steps(d: int) -> int:
    """d are exact but for rounding, which ill-conditioned keys pay for with more."""
    return 4 * d


def _best_rate(streams: Streams) -> float:
    """The β with the lowest expected loss, a mean over positions."""
    mean_loss = jax.jit(lambda rate: jnp.mean(delta_losses(streams, rate)[1]))
    highest = np.log(2 / (max(streams.spectrum) * (streams.dim + 2)))  # beyond it descent diverges
    found = scipy.optimize.minimize_scalar(
        lambda log: float(mean_loss(np.exp(log))), bounds=(highest - 7, highest), method="bounded"
    )
    return float(np.exp(found.x))


def _measure_rounding(job: Job, inputs: str) -> None:
    """Rows and curves of the errors of float32 against float64 on one long sequence, without forgetting and with.

    Relative to the root mean square of the outputs. Mesa layers are compared with ridge regression, others with themselves.
    """
    T, d = job.config.tokens, job.config.dim
    stream = _long_stream(job, inputs)
    rows = []
    for gamma in (1.0, 0.99):
        exact, _ = _computed(Estimator(mesa_recursion, {"penalty": _penalty} | _forgets(gamma)), stream, np.float64)
        for name, one in _rounded(d, gamma, white=inputs == "white"):
            outputs, seconds = _computed(one, stream, np.float32)
            exactly_ridge = name in ("mesa, recursion", "mesa, conjugate gradients")
            theirs = exact if exactly_ridge else _computed(one, stream, np.float64)[0]
            size = np.sqrt(np.mean(np.sum((exact if "mesa" in name else theirs) ** 2, axis=1)))
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.linalg.norm(outputs - theirs, axis=1) / size
            failed = np.flatnonzero(~(error <= _large))
            at = np.unique(np.geomspace(1, T, _points).astype(int))
            errors = [float(e) if np.isfinite(e) else None for e in np.maximum.accumulate(error)[at - 1]]
            about = {"predictor": name, "forgetting": gamma}
            job.folder.log(event="rounding", inputs=inputs, **about, tokens=at.tolist(), errors=errors)
            measured = {"float32_error": errors[-1], "fails_at": int(failed[0]) + 1 if len(failed) else None}
            rows.append(about | measured | {"penalty": _penalty, "seconds": seconds, "gradient_steps": one.steps})
    add_rows(job, rows, **_shared(job), task="rounding", inputs=inputs, context=T)


def _rounded(d: int, gamma: float, *, white: bool) -> Iterator[tuple[str, Estimator]]:
    if white and gamma == 1:
        yield "linear attention", Estimator(linear_attention, {})
        yield "delta rule", Estimator(delta_rule, {"rate": 0.5 / (d + 2)})
    settings = {"penalty": _penalty} | _forgets(gamma)
    yield "mesa, Sherman-Morrison", Estimator(sherman_morrison, settings)
    yield from _mesa_layers(d, settings, 1.0, None)


def _long_stream(job: Job, inputs: str) -> Stream:
    """One sequence in float32 whose keys, in rotated coordinates, are white, have condition number 10⁶, or have half a span."""
    T, d = job.config.tokens, job.config.dim
    scales = {
        "white": np.ones(d),
        "ill-conditioned": 1e-3 ** (np.arange(d) / max(d - 1, 1)),
        "half of the directions": (np.arange(d) < (d + 1) // 2) * 1.0,
    }[inputs]
    key_stream, key_rotation = jax.random.split(random_key(job.config, SWEEP))
    (K, V, Q), _ = Streams(dim=d, tokens=T).sample(key_stream, np.float32)
    rotation = np.linalg.qr(np.asarray(jax.random.normal(key_rotation, (d, d), np.float32), np.float64))[0]
    K, Q = ((np.asarray(X, np.float64) * scales @ rotation).astype(np.float32) for X in (K, Q))
    return Stream(K, np.asarray(V), Q)  # pyright: ignore[reportArgumentType]


def _computed(one: Estimator, stream: Stream, dtype: Any) -> tuple[np.ndarray, float]:
    """The outputs of a layer in a precision, and the CPU seconds that they took, all threads together."""
    with jax.enable_x64(True):
        arrays = Stream(*(jnp.asarray(leaf, dtype) for leaf in stream))
        run = functools.partial(_outputs, one.layer, one.steps, one.settings, arrays)
        jax.block_until_ready(run())
        start = time.process_time()
        outputs = jax.block_until_ready(run())
        return np.asarray(outputs, np.float64), time.process_time() - start
