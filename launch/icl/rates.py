"""Experiments of launch.icl without training: solved layers by depth, Newton's steps, and online estimators."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax

from icl import rates, recurrences
from icl.rates import Polynomial, evaluate_polynomial, optimal_polynomials
from icl.recurrences import Dynamics, Stream, Streams, delta_losses, hebbian_losses, mesa_recursion
from jexplicit.runs.progress import stage
from launch.icl.config import DepthsConfig, MesaConfig, NewtonConfig
from launch.icl.training import LOSS, TEST, VALIDATION, Model, experiment, make_model, random_key, spectrum
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, cell, pivot, pivot_table, points

# How the loss of solved layers of GD++ falls with their number.

_bound = "any polynomial of the degree"
_series = {
    ("gd", True): "GD, one rate",
    ("gd++", True): "GD++, recurrent",
    ("gd++", False): "GD++, separate rates",
    ("chebyshev", False): "Chebyshev rates",
}
_deepest_bound = 5  # layers: of degree 121


def _depths(config: DepthsConfig, folder: RunFolder) -> Iterator[Row]:
    """A row for each depth of each series, and each degree bounded."""
    with stage("spectrum of the contexts"):
        law = spectrum(config, tasks := make_model(config).tasks)
        fresh = rates.context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
    solved, K = {}, config.depths
    for name, tied in _series:
        with stage(f"1 to {K} layers of {_series[name, tied]}"):
            if name == "chebyshev":
                found = [Polynomial(*rates.chebyshev_rates(law.bound, tasks.context, n), np.nan) for n in range(1, K + 1)]
            else:
                found = optimal_polynomials(law, tasks, layers=K, tied=tied, plus_plus=name != "gd", seed=config.seed)
        solved[name, tied] = found
        for one in found:  # the expectation of the loss over weights and queries
            about = {"eta": one.eta.tolist(), "gamma": one.gamma.tolist(), "test_tasks": config.test_tasks}
            yield Model(tasks, len(one.eta), tied).row(name, **about, **evaluate_polynomial(fresh, one, tasks)._asdict())
    for n, one in enumerate(solved["gd++", False][:_deepest_bound], 1):  # on the law that the rates were fitted to
        least = rates.least_loss(law, tasks, (3**n - 1) // 2)
        yield Model(tasks, n, False).row("bound", loss=least, above_bound=one.loss / least - 1)


def _depth_series(row: Row) -> str:
    return _bound if row["predictor"] == "bound" else _series[row["predictor"], row["recurrent"]]


DEPTHS_TABLE = Table(
    [
        Column("K", "layers"),
        *(Column(name, cell(name, "loss"), "#.3g") for name in (*_series.values(), _bound)),
        Column("solved GD++ above it, %", cell(_bound, "above_bound"), ".1f", 100),
    ],
    lambda results: pivot(results.rows, ["layers"], _depth_series),
    note="From K = 7 on no separate rates are searched for: they are Chebyshev's. No layers whose residual is a polynomial of "
    "the degree of GD++, (3^K - 1)/2, are below the bound. It and the distance to it are of the law that rates are fitted to, "
    "with its extrapolated tails; the other losses are of fresh contexts.",
)
_styles = {"Chebyshev rates": {"color": "black", "marker": "x", "linestyle": ":"}, _bound: {"color": "grey", "linestyle": "--"}}
_depths_axes = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
_depths_figure = Lines("depths", "layers", "loss", _depth_series, styles=_styles, axes=_depths_axes)
DEPTHS = experiment("depths", _depths, [DEPTHS_TABLE, _depths_figure], title="Depth")


# Newton's steps that a solved layer of GD++ replaces (Fu et al. 2023).

_condition = {"well-conditioned": 1.0, "ill-conditioned": 100.0}  # of the covariance of inputs, the latter as in Fu et al.
_steps = 70  # most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def _newton(config: NewtonConfig, folder: RunFolder, task: str) -> Iterator[Row]:
    """Losses of 1, 2, .. solved layers, with equivalent Newton's steps."""
    tasks, powers = replace(make_model(config).tasks, inputs="normal"), _condition[task] ** -0.5
    if powers < 1:
        tasks = replace(tasks, scales=tuple(np.geomspace(1, powers, config.dim).tolist()))
    N, number = tasks.context, min(config.test_tasks, _contexts)
    with stage(f"{task} inputs: layers and Newton's steps"):
        solved = optimal_polynomials(spectrum(config, tasks), tasks, layers=config.depths, tied=False, seed=config.seed)
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, rates.weighted_eigenvalues(random_key(config, TEST), tasks, number))
            each = [(jnp.asarray(p.eta), jnp.asarray(p.gamma)) for p in solved]
            of_layers = jax.jit(lambda values, w, eta, gamma: loss_of(w, rates.residual(values, eta, gamma, N)))
            of_newton = jax.jit(lambda values, w, k: loss_of(w, rates.newton_residual(values, k)))
            layers = [float(of_layers(values, weights, *one)) for one in each]
            steps = [float(of_newton(values, weights, float(k))) for k in range(_steps)]
    folder.log(event="newton", task=task, layers=layers, from_identity=steps)
    for one, loss in zip(solved, layers, strict=True):
        about = {"loss": loss, "eta": one.eta.tolist(), "gamma": one.gamma.tolist(), "test_tasks": number}
        about |= {"newton_steps_identity": rates.equivalent_steps(np.array(steps), loss)}
        yield Model(tasks, len(one.eta), False).row("gd++", **about)


def loss_of(weights: jax.Array, r: jax.Array) -> jax.Array:
    """Half the mean of `sum_i w_i r(λ_i)²` over contexts."""
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2


def steps_per_layer(rows: Iterable[Row]) -> float:
    """The slope of Newton's steps by layers, from two layers on; NaN for fewer."""
    fields = ((row["layers"], row["newton_steps_identity"]) for row in rows)
    known = np.array([(K, steps) for K, steps in fields if K > 1 and steps is not None])
    return float(np.polyfit(known[:, 0], known[:, 1], 1)[0]) if len(known) > 1 else np.nan


def _newton_curves(results: Results) -> Iterator[Row]:
    names = {"layers": "layers of GD++, solved", "from_identity": "Newton's steps"}
    for event in results.events("newton", "task"):
        for name, label in names.items():
            drawn = [(step, loss) for step, loss in enumerate(event[name], name == "layers") if loss > _lowest]
            yield from points(*zip(*drawn, strict=True), series=label, inputs=f"{event['task']} inputs")


STEPS = Table(
    [
        Column("inputs", "task"),
        Column("layers K", "layers"),
        Column("loss", "loss", ".3g"),
        Column("Newton's steps", "newton_steps_identity", ".1f"),
    ],
    note="A layer of a trained transformer does the work of about three steps of Newton's iteration, on ill-conditioned inputs "
    "too (Fu et al. 2023); Chebyshev rates predict log₂ 9 = 3.17 steps.",
)
_newton_axes = {"xlabel": "layers or steps", "yscale": "log", "ylabel": LOSS}
_newton_styles = {"layers of GD++, solved": {"marker": "o"}}
_newton_figure = Lines("newton", "x", "y", "series", "inputs", _newton_curves, _newton_styles, _newton_axes, sharey=True)
_by_condition = lambda config: [{"task": task} for task in _condition]  # noqa: E731
NEWTON = experiment("newton", _newton, [STEPS, _newton_figure], title="Newton's iteration", keys=_by_condition)


# Layers that estimate a regression online (Wang et al. 2025).

_recursion, _gradients = "mesa, recursion", "mesa, conjugate gradients"
_streams = ("regression", "ill-conditioned", "drift", "dynamics")
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


def _mesa(config: MesaConfig, folder: RunFolder, task: str) -> Iterator[Row]:
    """The loss of each estimator at the end; those at every position are events."""
    d, decaying = config.dim, 1 / np.arange(1, config.dim + 1) ** 2
    still = Streams(dim=d, tokens=20 * d, outputs=d)
    streams: Streams | Dynamics = {
        "regression": still,
        "ill-conditioned": replace(still, variances=tuple((d * decaying / decaying.sum()).tolist())),
        "drift": replace(still, memory=1 - 1 / (10 * d)),
        "dynamics": Dynamics(dim=d, tokens=20 * d),
    }[task]

    def sample(stream: int, number: int) -> Batch:
        return jax.jit(jax.vmap(streams.sample))(jax.random.split(random_key(config, stream), number))

    searched, batch = sample(VALIDATION, min(config.test_tasks, _searched)), sample(TEST, config.test_tasks)
    found = _on_dynamics(streams, searched) if isinstance(streams, Dynamics) else _on_streams(streams, searched)
    about = {"layers": 1, "recurrent": True, "dim": config.dim, "context": streams.tokens, "test_tasks": config.test_tasks}
    with stage(f"estimators, {task}"):
        for name, one in found:
            by_token = np.asarray(_losses_by_token(one.layer, one.settings, one.factor, *batch))
            expected = None if one.expected is None else np.asarray(one.expected).tolist()
            folder.log(event="positions", task=task, predictor=name, losses=by_token.tolist(), expected=expected)
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


def _best(values: Iterable[float], loss: Callable[[float], Any]) -> float:
    """The value with the lowest mean loss over positions."""
    return min(values, key=lambda value: float(jnp.mean(loss(value))))


def _forgets(gamma: float) -> dict[str, float]:
    """The forgetting setting, left out at 1 for speed."""
    return {} if gamma == 1 else {"forgetting": gamma}


def _on_streams(streams: Streams, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """Layers at their best factors, rates and forgetting."""
    a, penalty, gammas = streams.memory, streams.penalty, (1.0,) if streams.memory == 1 else _forgetting
    gamma = _best(gammas, jax.jit(lambda gamma: hebbian_losses(streams, forgetting=gamma)[1]))
    factors_and_loss = hebbian_losses(streams, forgetting=gamma)
    yield "linear attention", Estimator(recurrences.linear_attention, _forgets(gamma), *factors_and_loss)
    mean_loss = jax.jit(lambda rate: jnp.mean(delta_losses(streams, rate)[1]))
    highest = np.log(2 / (max(streams.spectrum) * (streams.dim + 2)))  # beyond it descent diverges
    found = scipy.optimize.minimize_scalar(
        lambda log: float(mean_loss(np.exp(log))), bounds=(highest - 7, highest), method="bounded"
    )
    for name, rate in (("delta rule", float(np.exp(found.x))), ("delta rule, best rates", None)):
        best_rates, expected = delta_losses(streams, rate)
        yield name, Estimator(recurrences.delta_rule, {"rate": rate or best_rates} | _forgets(a), a, expected)
    expected = recurrences.ridge_losses(streams) if a == 1 else None
    if a < 1:
        settings = {"penalty": penalty}
        gamma = _best(gammas, lambda g: _losses_by_token(mesa_recursion, settings | {"forgetting": g}, a, *searched))
    yield from _mesa_layers(streams.dim, {"penalty": penalty} | _forgets(gamma), a, expected).items()
    yield "ridge", Estimator(mesa_recursion, {"penalty": penalty}, 1.0, expected)
    if a < 1:
        yield "Kalman filter", Estimator(recurrences.kalman_filter, {"noise": streams.noise, "memory": a})


def _on_dynamics(streams: Dynamics, searched: Batch) -> Iterator[tuple[str, Estimator]]:
    """The same with searched factors and rates, as keys are dependent."""
    found = jax.jit(jax.vmap(recurrences.linear_attention))(searched[0])
    factors = jnp.sum(found * searched[1], axis=(0, 2)) / jnp.sum(found**2, axis=(0, 2))
    yield "linear attention", Estimator(recurrences.linear_attention, {}, factors)
    rate = _best(_rates, lambda rate: _losses_by_token(_normalised_delta_rule, {"rate": rate}, 1.0, *searched))
    yield "delta rule", Estimator(_normalised_delta_rule, {"rate": rate})
    yield from _mesa_layers(streams.dim, {"penalty": streams.penalty}).items()
    yield "ridge", Estimator(mesa_recursion, {"penalty": streams.penalty})


def _mesa_layers(d: int, settings: dict[str, float], *more: Any) -> dict[str, Estimator]:
    """Both forms of the mesa layer."""
    by_gradients = partial(recurrences.mesa_conjugate_gradients, steps=4 * d)
    return {_recursion: Estimator(mesa_recursion, settings, *more), _gradients: Estimator(by_gradients, settings, *more)}


def _normalised_delta_rule(stream: Stream, rate: Any) -> jax.Array:
    """The delta rule with rates β / ||k||², stable for β < 2."""
    return recurrences.delta_rule(stream, rate / jnp.sum(stream.K**2, axis=1))


def _with_expectation(row: Row) -> str:
    """A loss, and in brackets its closed form where there is one."""
    expected = row.get("population_loss")
    return f"{row['loss']:#.3g}" + (f" ({expected:#.3g})" if expected else "")


_mesa_styles = {"ridge": {"color": "black", "linestyle": ":"}, _gradients: {"linestyle": ":", "linewidth": 2.5}}
_mesa_axes = {"xlabel": "tokens", "xscale": "log", "yscale": "log", "ylabel": LOSS}
_by_token = lambda results: [  # noqa: E731
    row
    for e in results.events("positions", "task", "predictor")
    for row in points(range(1, len(e["losses"]) + 1), e["losses"], predictor=e["predictor"], task=e["task"])
]
_mesa_panels: Any = {"rows": _by_token, "styles": _mesa_styles, "axes": _mesa_axes, "size": (2.8, 2.6), "legend": "below"}
_mesa_figure = Lines("mesa", "x", "y", "predictor", "task", **_mesa_panels)
LOSSES = pivot_table([Column("stream", "task")], "predictor", _with_expectation, rows={"task": _streams})
_mesa_note = "Half the mean squared error of an output after the last pair, in brackets its expectation in closed form."
_mesa_views = [LOSSES._replace(note=_mesa_note), _mesa_figure]
_by_stream = lambda config: [{"task": task} for task in _streams]  # noqa: E731
MESA = experiment("mesa", _mesa, _mesa_views, title="Layers as online estimators", keys=_by_stream)
