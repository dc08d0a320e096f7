"""Experiments of launch.icl without training: deep layers, Newton's steps, and estimators that learn online.

An experiment is a config in launch.icl.config, and here or in trained.py its rows and views.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import Array

from icl import rates, recurrences
from icl.rates import Polynomial, context_eigenvalues, evaluate_polynomial, optimal_polynomials
from icl.recurrences import Dynamics, Stream, Streams, delta_losses, hebbian_losses, mesa_recursion
from icl.tasks import Tasks
from jexplicit.runs.devices import key_of_seed, use_devices
from jexplicit.runs.progress import stage
from launch.icl.config import COMMANDS, DepthsConfig, Flags, MesaConfig, NewtonConfig, TaskFlags
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, pivot, pivot_table

VALIDATION, TEST, SPECTRUM = 101, 102, 103  # streams of random numbers that depend on --seed; none is a training seed's own
LOSS = "loss (half mean square)"


def experiment(name: str, rows: Callable[[Any, RunFolder], Iterable[Row]], *views: View) -> Experiment:
    """An experiment with the rows `rows(config, folder)`."""

    def parts(config: Any, folder: RunFolder) -> Iterator[Part]:
        about = {"task": "linear", "heads": 1, "steps": 0}
        yield {"experiment": name}, lambda: [{**about, **row} for row in rows(config, folder)]

    return Experiment(f"icl {name}", COMMANDS[name].config, parts, views, check=_check)


def _check(config: Flags) -> None:
    """Refuse flags without values, and set the devices."""
    if empty := [name for name, value in vars(config).items() if value == ()]:
        raise ValueError(f"--{empty[0].replace('_', '-')} without a value: leave the flag out, or give some")
    use_devices(config.devices)


def random_key(config: Flags, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(key_of_seed(config.seed), stream)


class Model(NamedTuple):
    """K layers on some tasks, with shared weights (recurrent) or separate ones."""

    tasks: Tasks
    layers: int
    recurrent: bool

    @property
    def reference(self) -> str:
        """The descent that K layers are expected to perform."""
        return "gd" if self.layers == 1 else "gd++"

    def row(self, predictor: str, **more: Any) -> Row:
        """A row about these tasks of linear regression."""
        sizes = {"layers": self.layers, "recurrent": self.recurrent, "dim": self.tasks.dim, "context": self.tasks.context}
        return {"predictor": predictor, "inputs": self.tasks.inputs} | sizes | more


def make_model(config: TaskFlags) -> Model:
    """The layers of flags, by default one, on their tasks."""
    K, recurrent = getattr(config, "layers", 1), getattr(config, "recurrent", True)
    inputs = getattr(config, "inputs", "uniform")
    return Model(Tasks(dim=config.dim, context=config.context, inputs=inputs), K, recurrent or K == 1)


@functools.lru_cache(maxsize=16)
def spectrum(config: TaskFlags, tasks: Tasks) -> rates.Spectrum:
    """The law of the eigenvalues that layers are solved for."""
    return rates.spectral_law(random_key(config, SPECTRUM), tasks, config.test_tasks)


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
    tasks, K, solved = make_model(config).tasks, config.depths, {}
    law = spectrum(config, tasks)
    fresh, _ = context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
    for (name, tied), label in _series.items():
        with stage(f"1 to {K} layers of {label}"):
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
        *(Column(name, f"{name} loss", "#.3g") for name in (*_series.values(), _bound)),
        Column("solved GD++ above it, %", f"{_bound} above_bound", ".1f", 100),
    ],
    lambda results: pivot(results.rows, "layers", _depth_series),
    note="From K = 7 on separate rates are Chebyshev's. Any polynomial of GD++'s degree, (3^K - 1)/2, stays above the bound as "
    "the residual of layers. The bound uses the fitted distribution with extrapolated tails; the other losses are measured on "
    "fresh contexts.",
)
_dashes: Any = {"dashes": {"Chebyshev rates": (1, 1), _bound: (4, 2)}}
_depths_axes = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
_depths_figure = Lines("depths", "layers", "loss", _depth_series, axes=_depths_axes, **_dashes)
DEPTHS = experiment("depths", _depths, DEPTHS_TABLE, _depths_figure)


# Newton's steps that a solved layer of GD++ replaces (Fu et al. 2023).

_condition = 100.0  # of the covariance of ill-conditioned inputs, as in Fu et al.
_steps = 70  # most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def _newton(config: NewtonConfig, folder: RunFolder) -> Iterator[Row]:
    """Losses of 1, 2, .. solved layers, with equivalent Newton's steps."""
    plain, number = replace(make_model(config).tasks, inputs="normal"), min(config.test_tasks, _contexts)
    scaled = replace(plain, scales=tuple(np.geomspace(1, _condition**-0.5, config.dim).tolist()))
    for task, tasks in (("well-conditioned", plain), ("ill-conditioned", scaled)):
        with stage(f"{task} inputs: layers and Newton's steps"):
            law = spectrum(config, tasks)
            solved = optimal_polynomials(law, tasks, layers=config.depths, tied=False, seed=config.seed)
            values, weights = context_eigenvalues(random_key(config, TEST), tasks, number)
            layers = [loss_of(weights, rates.residual(values, p.eta, p.gamma, tasks.context)) for p in solved]
            steps = [loss_of(weights, rates.newton_residual(values, k)) for k in range(_steps)]
        folder.log(event="newton", task=task, layers=layers, from_identity=steps)
        for one, loss in zip(solved, layers, strict=True):
            about = {"task": task, "loss": loss, "eta": one.eta.tolist(), "gamma": one.gamma.tolist(), "test_tasks": number}
            about |= {"newton_steps_identity": rates.equivalent_steps(np.array(steps), loss)}
            yield Model(tasks, len(one.eta), False).row("gd++", **about)


def loss_of(weights: np.ndarray, r: np.ndarray) -> float:
    """Half the mean of `sum_i w_i r(λ_i)²` over contexts."""
    return float(np.mean(np.sum(weights * r**2, axis=1)) / 2)


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
            x, y = zip(*drawn, strict=True)
            yield {"series": label, "inputs": f"{event['task']} inputs", "x": x, "y": y}


STEPS = Table(
    [
        Column("inputs", "task"),
        Column("layers K", "layers"),
        Column("loss", "loss", ".3g"),
        Column("Newton's steps", "newton_steps_identity", ".1f"),
    ],
    note="A layer of a trained transformer does the work of about three of Newton's steps (Fu et al. 2023).",
)
_newton_axes = {"xlabel": "layers or steps", "yscale": "log", "ylabel": LOSS}
_newton_figure = Lines("newton", "x", "y", "series", "inputs", _newton_curves, axes=_newton_axes, sharey=True)
NEWTON = experiment("newton", _newton, STEPS, _newton_figure)


# Layers that estimate a regression online (Wang et al. 2025).

_streams = ("regression", "ill-conditioned", "drift", "dynamics")
_forgetting = (0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.93, 0.92, 0.9, 0.88, 0.85, 0.8)  # searched where maps drift
_rates = tuple(np.geomspace(0.1, 1.5, 12).tolist())  # over ||k||²: searched where there is no closed form
_searched = 400  # sequences, at most, for the searches
_at_a_time = 100
Layer = Callable[..., Array]  # of a stream and settings
Batch = tuple[Stream, Array]  # streams with their targets


class _Estimator(NamedTuple):
    """A layer with its settings, output factors, and expected loss if known."""

    name: str
    layer: Layer
    settings: dict[str, Any]
    factor: Any = 1.0
    expected: Any = None


def _mesa(config: MesaConfig, folder: RunFolder) -> Iterator[Row]:
    """The loss of each estimator at the end; those at every position are events."""
    d, T, decaying = config.dim, 20 * config.dim, 1 / np.arange(1, config.dim + 1) ** 2
    still = Streams(dim=d, tokens=T, outputs=d)
    uneven = replace(still, variances=tuple((d * decaying / decaying.sum()).tolist()))
    drifting, dynamics = replace(still, memory=1 - 1 / (10 * d)), Dynamics(dim=d, tokens=T)
    about = {"layers": 1, "recurrent": True, "dim": d, "context": T, "test_tasks": config.test_tasks}
    for task, streams in zip(_streams, (still, uneven, drifting, dynamics), strict=True):
        draw = jax.jit(jax.vmap(streams.sample))
        keys = ((VALIDATION, min(config.test_tasks, _searched)), (TEST, config.test_tasks))
        searched, batch = (draw(jax.random.split(random_key(config, stream), number)) for stream, number in keys)
        with stage(f"estimators, {task}"):
            for one in _estimators(streams, searched):
                by_token = np.asarray(_losses_by_token(one.layer, one.settings, one.factor, *batch))
                expected = None if one.expected is None else np.asarray(one.expected).tolist()
                folder.log(event="positions", task=task, predictor=one.name, losses=by_token.tolist(), expected=expected)
                settings = {what: value for what, value in one.settings.items() if isinstance(value, float)}
                ends = {"loss": float(by_token[-1]), "population_loss": expected[-1] if expected else None}
                yield about | {"task": task, "predictor": one.name} | settings | ends


@functools.partial(jax.jit, static_argnums=0)
def _losses_by_token(layer: Layer, settings: dict[str, Any], factor: Any, batch: Stream, targets: Array) -> Array:
    """Half the mean squared error of an output at every position."""
    factors = jnp.broadcast_to(jnp.asarray(factor, targets.dtype), targets.shape[1])[:, None]

    def squares(one: Batch) -> Array:
        stream, targets = one
        return jnp.mean((factors * layer(stream, **settings) - targets) ** 2, axis=1)

    return jnp.mean(jax.lax.map(squares, (batch, targets), batch_size=_at_a_time), axis=0) / 2


def _best(settings: Iterable[dict[str, float]], losses: Callable[..., Any]) -> dict[str, float]:
    """The settings with the lowest mean loss over positions."""
    return min(settings, key=lambda one: float(jnp.mean(losses(**one))))


def _estimators(streams: Streams | Dynamics, searched: Batch) -> Iterator[_Estimator]:
    """Layers at their best factors, rates and forgetting, by closed forms or searches."""
    settings, a, forgets, expected = {"penalty": streams.penalty}, 1.0, {}, None
    if isinstance(streams, Dynamics):  # with dependent keys
        found = jax.jit(jax.vmap(recurrences.linear_attention))(searched[0])
        factors = jnp.sum(found * searched[1], axis=(0, 2)) / jnp.sum(found**2, axis=(0, 2))
        yield _Estimator("linear attention", recurrences.linear_attention, {}, factors)
        losses_of = lambda **one: _losses_by_token(_normalised_delta_rule, one, 1.0, *searched)  # noqa: E731
        best = _best([{"rate": rate} for rate in _rates], losses_of)
        yield _Estimator("delta rule", _normalised_delta_rule, best)
    else:
        a = streams.memory  # without forgetting layers are faster
        gammas, keeps = ([{}], {}) if a == 1 else ([{"forgetting": gamma} for gamma in _forgetting], {"forgetting": a})
        forgets = _best(gammas, jax.jit(lambda **gamma: hebbian_losses(streams, **gamma)[1]))
        yield _Estimator("linear attention", recurrences.linear_attention, forgets, *hebbian_losses(streams, **forgets))
        mean_loss = jax.jit(lambda rate: jnp.mean(delta_losses(streams, rate)[1]))
        highest = np.log(2 / (max(streams.spectrum) * (streams.dim + 2)))  # beyond it descent diverges
        found = scipy.optimize.minimize_scalar(
            lambda log: float(mean_loss(np.exp(log))), bounds=(highest - 7, highest), method="bounded"
        )
        for name, rate in (("delta rule", float(np.exp(found.x))), ("delta rule, best rates", None)):
            best_rates, losses = delta_losses(streams, rate)
            yield _Estimator(name, recurrences.delta_rule, {"rate": rate or best_rates} | keeps, a, losses)
        if a == 1:
            expected = recurrences.ridge_losses(streams)
        else:
            forgets = _best(gammas, lambda **gamma: _losses_by_token(mesa_recursion, settings | gamma, a, *searched))
    by_gradients = functools.partial(recurrences.mesa_conjugate_gradients, steps=4 * streams.dim)
    yield _Estimator("mesa, recursion", mesa_recursion, settings | forgets, a, expected)
    yield _Estimator("mesa, conjugate gradients", by_gradients, settings | forgets, a, expected)
    yield _Estimator("ridge", mesa_recursion, settings, 1.0, expected)
    if isinstance(streams, Streams) and a < 1:
        yield _Estimator("Kalman filter", recurrences.kalman_filter, {"noise": streams.noise, "memory": a})


def _normalised_delta_rule(stream: Stream, rate: Any) -> Array:
    """The delta rule with rates β / ||k||², stable for β < 2."""
    return recurrences.delta_rule(stream, rate / jnp.sum(stream.K**2, axis=1))


def _with_expectation(row: Row) -> str:
    """A loss, and in brackets its closed form where there is one."""
    expected = row.get("population_loss")
    return f"{row['loss']:#.3g}" + (f" ({expected:#.3g})" if expected else "")


_mesa_axes = {"xlabel": "tokens", "xscale": "log", "yscale": "log", "ylabel": LOSS}
_dotted: Any = {"dashes": dict.fromkeys(("ridge", "mesa, conjugate gradients"), (1, 1))}
_by_token = lambda event: range(1, len(event["losses"]) + 1)  # noqa: E731
_positions = lambda results: results.events("positions", "task", "predictor")  # noqa: E731
_mesa_figure = Lines("mesa", _by_token, "losses", "predictor", "task", _positions, axes=_mesa_axes, size=(2.8, 2.6), **_dotted)
LOSSES = pivot_table([Column("stream", "task")], "predictor", Column("", _with_expectation), {"task": _streams})
_mesa_note = "Half the mean squared error of an output after the last pair, in brackets its expectation in closed form."
MESA = experiment("mesa", _mesa, LOSSES._replace(note=_mesa_note), _mesa_figure)
