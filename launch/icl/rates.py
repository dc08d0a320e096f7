"""Runs of launch.icl, solved layers by depth, and Newton's steps.

An experiment is a config and a line of COMMANDS in launch.icl.config, and its rows, views and `experiment` in a file here.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from icl.rates import (
    Polynomial,
    Spectrum,
    chebyshev_rates,
    context_eigenvalues,
    equivalent_steps,
    evaluate_polynomial,
    least_loss,
    newton_residual,
    optimal_polynomials,
    residual,
    spectral_law,
    weighted_eigenvalues,
)
from icl.tasks import Tasks
from jexplicit.runs.devices import compile_quickly, use_devices
from jexplicit.runs.files import host_bytes
from jexplicit.runs.progress import stage
from launch.icl.config import COMMANDS, DepthsConfig, Flags, InputFlags, LayerFlags, NewtonConfig, TaskFlags
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, cell, pivot, points

# Streams of random numbers that depend on --seed; none of them is a training seed's own.
VALIDATION, TEST, SPECTRUM, SWEEP = 101, 102, 103, 104
_short = 1 << 20  # tasks of a training: fewer take longer to compile than to train on
_copies = 8  # of a float32 batch and of the weights, while a step is computed


C_co = TypeVar("C_co", bound=Flags, covariant=True)


class Job(NamedTuple, Generic[C_co]):
    """A run: its flags and its folder."""

    config: C_co
    folder: RunFolder


def experiment(
    name: str,
    rows: Callable[..., Iterable[Row]],
    views: list[View],
    *,
    title: str,
    keys: Callable[[Any], Iterable[dict[str, Any]]] = lambda config: [{}],
) -> Experiment:
    """An experiment of parts `rows(job, **key)`.

    keys: of the parts, from the config; rows have the fields of their key.
    """

    def parts(config: Any, folder: RunFolder) -> Iterator[Part]:
        about, job = {"task": "linear", "heads": 1, "steps": 0}, Job(config, folder)
        for key in keys(config):
            yield {"experiment": name, **key}, lambda key=key: [{**about, **row} for row in rows(job, **key)]

    def checked(config: Flags) -> None:
        check_flags(config)
        use_devices(config.devices)

    return Experiment(f"icl {name}", COMMANDS[name].config, parts, views, COMMANDS[name].presets, checked, title=title)


def check_flags(config: Flags) -> None:
    """Refuse flags without values, and sizes beyond memory; set compilation effort."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) == ():
            flag, default = field.name.replace("_", "-"), " ".join(map(str, field.default))  # pyright: ignore[reportArgumentType]
            raise ValueError(f"--{flag} without a value: leave the flag out, or give some, such as {default}")
    if isinstance(config, LayerFlags):
        d, layers = config.dim + 1, getattr(config, "layers", 1)
        numbers = config.batch_size * (config.context + 1) * d + layers * d**2
        flags = f"--dim {config.dim} --context {config.context} --batch-size {config.batch_size}"
        if (needed := _copies * 4 * numbers) > (present := host_bytes()):
            takes = f"tokens and weights take {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB"
            raise ValueError(f"{flags}: {takes}: use smaller values")
        if config.batch_size * config.steps <= _short:
            compile_quickly()


def random_key(config: Flags, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(jax.random.key(config.seed), stream)


class Model(NamedTuple):
    """K layers on some tasks, with shared weights (recurrent) or separate ones."""

    tasks: Tasks
    layers: int
    recurrent: bool

    @property
    def sizes(self) -> dict[str, Any]:
        """Its sizes, as rows have them."""
        tasks = self.tasks
        return {"layers": self.layers, "recurrent": self.recurrent, "dim": tasks.dim, "context": tasks.context}

    @property
    def reference(self) -> str:
        """The descent that K layers are expected to perform."""
        return "gd" if self.layers == 1 else "gd++"

    def row(self, predictor: str, **more: Any) -> dict[str, Any]:
        """A row about these tasks of linear regression."""
        return {"predictor": predictor, "reference": self.reference, "inputs": self.tasks.inputs} | self.sizes | more


def make_model(config: TaskFlags, layers: int = 1, *, recurrent: bool = True) -> Model:
    """K layers on the flags' tasks, by default of inputs U(-1/2, 1/2)."""
    inputs = config.inputs if isinstance(config, InputFlags) else "uniform"
    return Model(Tasks(dim=config.dim, context=config.context, inputs=inputs), layers, recurrent or layers == 1)


def model_name(row: Row) -> str:
    """The name of K layers in files and events, such as K2_recurrent_d10_N25."""
    kind = "" if row["layers"] == 1 else "_recurrent" if row["recurrent"] else "_layers"
    return f"K{row['layers']}{kind}_d{row['dim']}_N{row['context']}"


@functools.lru_cache(maxsize=16)
def spectrum(config: TaskFlags, tasks: Tasks) -> Spectrum:
    """The law of the eigenvalues that layers are solved for."""
    return spectral_law(random_key(config, SPECTRUM), tasks, config.test_tasks)


COLOURS = {  # distinguishable for colour-blind readers too
    "gd": "#e69f00",
    "gd++": "#009e73",
    "closed_form": "#000000",
    "constructed": "#56b4e9",
    "trained": "#0072b2",
    "warm": "#cc79a7",
    "interpolated": "#d55e00",
    "ridge": "#999999",
}
LOSS = "loss (half mean square)"


# How the loss of solved layers of GD++ falls with their number.

BOUND = "any polynomial of the degree"
SERIES = {
    ("gd", True): "GD, one rate",
    ("gd++", True): "GD++, recurrent",
    ("gd++", False): "GD++, separate rates",
    ("chebyshev", False): "Chebyshev rates",
}
_deepest_bound = 5  # layers: of degree 121


def depths(job: Job[DepthsConfig]) -> Iterator[Row]:
    """A row for each depth of each series, and each degree bounded."""
    config = job.config
    with stage("spectrum of the contexts"):
        law = spectrum(config, tasks := make_model(config).tasks)
        fresh = context_eigenvalues(random_key(config, TEST), tasks, config.test_tasks)
    solved, K = {}, config.depths
    for name, tied in SERIES:
        with stage(f"1 to {K} layers of {SERIES[name, tied]}"):
            if name == "chebyshev":
                found = [Polynomial(*chebyshev_rates(law.bound, tasks.context, n), np.nan) for n in range(1, K + 1)]
            else:
                found = optimal_polynomials(law, tasks, layers=K, tied=tied, plus_plus=name != "gd", seed=config.seed)
        solved[name, tied] = found
        for rates in found:  # the expectation of the loss over weights and queries
            about = {"eta": rates.eta.tolist(), "gamma": rates.gamma.tolist(), "test_tasks": config.test_tasks}
            yield Model(tasks, len(rates.eta), tied).row(name, **about, **evaluate_polynomial(fresh, rates, tasks)._asdict())
    for n, rates in enumerate(solved["gd++", False][:_deepest_bound], 1):  # on the law that the rates were fitted to
        least = least_loss(law, tasks, (3**n - 1) // 2)
        yield Model(tasks, n, False).row("bound", loss=least, above_bound=rates.loss / least - 1)


def _depth_series(row: Row) -> str:
    return BOUND if row["predictor"] == "bound" else SERIES[row["predictor"], row["recurrent"]]


DEPTHS_TABLE = Table(
    [
        Column("K", "layers"),
        *(Column(name, cell(name, "loss"), "#.3g") for name in (*SERIES.values(), BOUND)),
        Column("solved GD++ above it, %", cell(BOUND, "above_bound"), ".1f", 100),
    ],
    lambda results: pivot(results.rows, ["layers"], _depth_series),
    note="From K = 7 on no separate rates are searched for: they are Chebyshev's. No layers whose residual is a polynomial of "
    "the degree of GD++, (3^K - 1)/2, are below the bound. It and the distance to it are of the law that rates are fitted to, "
    "with its extrapolated tails; the other losses are of fresh contexts.",
)
_marker = {"marker": "o", "markersize": 4}
_styles = {name: {"color": COLOURS[c], **_marker} for name, c in zip(SERIES.values(), ("gd", "gd++", "trained"), strict=False)}
_styles |= {"Chebyshev rates": {"color": "black", "marker": "x", "linestyle": ":"}, BOUND: {"color": "grey", "linestyle": "--"}}
DEPTHS_AXES = {"xlabel": "layers K", "ylabel": LOSS, "yscale": "log"}
DEPTHS_FIGURE = Lines("depths", "layers", "loss", _depth_series, styles=_styles, axes=DEPTHS_AXES)
DEPTHS = experiment("depths", depths, [DEPTHS_TABLE, DEPTHS_FIGURE], title="Depth")


# Newton's steps that a solved layer of GD++ replaces (Fu et al. 2023).

CONDITION = {"well-conditioned": 1.0, "ill-conditioned": 100.0}  # of the covariance of inputs, the latter as in Fu et al.
_steps = 70  # most steps of Newton's iteration
_contexts = 50_000  # fresh ones, at most: each step is evaluated on all
_lowest = 1e-9  # of the losses in the figure


def newton(job: Job[NewtonConfig], task: str) -> Iterator[Row]:
    """Losses of 1, 2, .. solved layers, with equivalent Newton's steps."""
    config, powers = job.config, CONDITION[task] ** -0.5
    tasks = replace(make_model(config).tasks, inputs="normal")
    if powers < 1:
        tasks = replace(tasks, scales=tuple(np.geomspace(1, powers, config.dim).tolist()))
    number = min(config.test_tasks, _contexts)
    with stage(f"{task} inputs: layers and Newton's steps"):
        solved = optimal_polynomials(spectrum(config, tasks), tasks, layers=config.depths, tied=False, seed=config.seed)
        with jax.enable_x64(True):
            values, weights = map(jnp.asarray, weighted_eigenvalues(random_key(config, TEST), tasks, number))
            rates = [(jnp.asarray(p.eta), jnp.asarray(p.gamma)) for p in solved]
            layers = [float(layers_loss(values, weights, eta, gamma, tasks)) for eta, gamma in rates]
            steps = [float(newton_loss(values, weights, float(k))) for k in range(_steps)]
    job.folder.log(event="newton", task=task, layers=layers, from_identity=steps)
    for rates, loss in zip(solved, layers, strict=True):
        about = {"loss": loss, "eta": rates.eta.tolist(), "gamma": rates.gamma.tolist(), "test_tasks": number}
        about |= {"newton_steps_identity": equivalent_steps(np.array(steps), loss)}
        yield Model(tasks, len(rates.eta), False).row("gd++", **about)


def loss_of(weights: jax.Array, r: jax.Array) -> jax.Array:
    """Half the mean of `sum_i w_i r(λ_i)²` over contexts."""
    return jnp.mean(jnp.sum(weights * r**2, axis=1)) / 2


layers_loss = jax.jit(lambda values, weights, eta, gamma, tasks: loss_of(weights, residual(values, eta, gamma, tasks.context)))
newton_loss = jax.jit(lambda values, weights, k: loss_of(weights, newton_residual(values, k)))


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
NEWTON_FIGURE = Lines("newton", "x", "y", "series", "inputs", _newton_curves, _newton_styles, _newton_axes, sharey=True)
NEWTON = experiment(
    "newton", newton, [STEPS, NEWTON_FIGURE], title="Newton's iteration", keys=lambda _: [{"task": task} for task in CONDITION]
)
