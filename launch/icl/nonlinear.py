"""Sine waves: attention on learned features, a control that descends on them, and ridge regression on the same."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.problems.comparison import difference, predictions
from icl.problems.sine_waves import Network, NonlinearRegression, Waves, init_network, predict_waves, ridge_on_features
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    COLOURS,
    LOSS,
    TEST,
    VALIDATION,
    Job,
    effort,
    parts,
    random_key,
    train_or_load,
)
from launch.icl.shared.config import Config
from launch.icl.shared.tables import curve, measures
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row, points, where
from launch.kit.views import Lines

_penalties = 10.0 ** np.arange(-8, 3)
_plotted = 3  # waves in the figure
_styles = {
    f"{name}, {when}": {"color": COLOURS[colour], "linestyle": line}
    for name, colour in (("trained", "trained"), ("control", "gd"))
    for when, line in (("after", "-"), ("before", ":"))
} | {"context": {"color": "black", "linestyle": "", "marker": "o", "markersize": 4}}


@parts(lambda config: [{"layers": layers} for layers in config.wave_layers])
def measure(job: Job, layers: int) -> list[Row]:
    """Sine waves, with an embedding and an MLP.

    Layers of attention, a control of as many steps, and ridge regression on the features of both.
    """
    config = job.config
    paper, runs = config.waves == "paper", effort(config, 4000, 2)
    waves = Waves(context=config.context, amplitude=(0.1, 5.0) if paper else (0.1, 0.5), independent=paper)
    problem, every = NonlinearRegression(waves, depth=layers), max(1, min(500, runs.steps // 20))
    validation = problem.sample(random_key(config, VALIDATION), config.validation_tasks)
    batch = problem.sample(random_key(config, TEST), min(config.test_tasks, 10_000))
    # the rates of the paper's code; a larger one for attention, which starts close to zero
    recipes = {"trained": Recipe(config.batch_size, 1e-3, gradient_clip=100.0)}
    recipes["control"] = Recipe(config.batch_size, 3e-4, b2=0.999, gradient_clip=100.0)
    trained = {}
    for name, recipe in recipes.items():
        init = functools.partial(init_network, layers=layers if name == "trained" else 0)
        model, evaluation = f"nonlinear_{name}_K{layers}", lambda: lambda network: losses(problem, network, validation)
        trained[name] = train_or_load(job, model, init, problem, recipe, evaluation, runs, every)
    about = {"task": "sine", "recurrent": layers == 1, "dim": 1, "context": config.context, "test_tasks": batch.y_q.shape[1]}
    rows: list[Row] = [{**about, "predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}]
    with stage("testing nonlinear"):
        save_waves(job, problem, {name: members[0][0] for name, members in trained.items()})
        predicted = jax.jit(lambda network, batch: predictions(lambda b: problem.predict(network, b), batch))
        for n in range(runs.seeds):
            control = predicted(trained["control"][n][0], batch)
            for name, members in trained.items():
                network, entry = members[n][0], about | members[n][1]
                found = losses(problem, network, batch)
                if name == "trained":
                    found |= difference(predicted(network, batch), control)._asdict()
                rows.append({"predictor": name, **jax.tree.map(float, found), **entry})
                # in float32 the smallest penalties may give NaN
                tried = [float(ridge_loss(network, validation, jnp.asarray(penalty))) for penalty in _penalties]
                penalty = float(_penalties[int(np.nanargmin(tried))])
                loss = float(ridge_loss(network, batch, jnp.asarray(penalty)))
                rows.append({"predictor": "ridge", "start": name, "loss": loss, "penalty": penalty, **entry})
    return rows


@functools.partial(jax.jit, static_argnums=0)
def losses(problem: NonlinearRegression, network: Network, batch: Sequence) -> dict[str, jax.Array]:
    """The losses after and before the layers."""
    y = predict_waves(network, batch, eta=problem.eta, depth=problem.depth)
    return {"loss": half_mse(y.final, batch.y_q), "initial_loss": half_mse(y.initial, batch.y_q)}


@jax.jit
def ridge_loss(network: Network, batch: Sequence, penalty: jax.Array) -> jax.Array:
    """The loss of ridge regression on the features of a network."""
    return half_mse(ridge_on_features(network.encoder, batch, penalty), batch.y_q)


def save_waves(job: Job, problem: NonlinearRegression, networks: Mapping[str, Network]) -> None:
    """The predictions of networks over all x, for a few tasks."""
    tasks = problem.sample(jax.random.fold_in(random_key(job.config, TEST), 1), _plotted)
    grid = jnp.linspace(-0.5, 0.5, 100) * problem.tasks.input_range
    X, Y = (jnp.repeat(leaf, len(grid), axis=-1) for leaf in (tasks.X, tasks.Y))
    batch = Sequence(X, Y, jnp.tile(grid, _plotted)[None], jnp.zeros((1, _plotted * len(grid))))
    arrays: dict[str, Any] = {"x": grid, "X": tasks.X[:, 0], "Y": tasks.Y[:, 0]}
    for name, network in networks.items():
        y = jax.jit(lambda n, b: predict_waves(n, b, eta=problem.eta, depth=problem.depth))(network, batch)
        waves = {what: one.reshape(_plotted, -1) for what, one in (("final", y.final), ("initial", y.initial))}
        arrays |= {f"{name} {what} {n}": wave for what, of_all in waves.items() for n, wave in enumerate(of_all)}
    np.savez_compressed(job.folder.path / f"waves_K{problem.depth}.npz", **jax.device_get(arrays))


def figure_rows(results: Results, layers: int) -> Iterator[Row]:
    """Losses by step, and the predictions for a few waves before and after attention (paper, Fig. 4)."""
    waves, zero = results.arrays(f"waves_K{layers}.npz"), where(results.rows, predictor="zero")[0]["loss"]
    for name in ("trained", "control"):
        evaluations = curve(results, f"nonlinear_{name}_K{layers}")
        for when, loss, what in (("after", "loss", "final"), ("before", "initial_loss", "initial")):
            steps, values = [entry["step"] for entry in evaluations], [entry[loss] for entry in evaluations]
            yield from points(steps, values, series=f"{name}, {when}", panel="loss")
            for n in range(_plotted):
                x, y = waves["x"].tolist(), waves[f"{name} {what} {n}"].tolist()
                yield from points(x, y, series=f"{name}, {when}", panel=f"wave {n + 1}")
    for n in range(_plotted):
        yield from points(waves["X"][:, n].tolist(), waves["Y"][:, n].tolist(), series="context", panel=f"wave {n + 1}")
    yield {"series": "zero", "panel": "loss", "y": zero}


def figures(results: Results) -> list[str]:
    """A figure for each number of layers."""
    panels, lines = {"loss": {"xlabel": "training step", "ylabel": LOSS, "yscale": "log"}}, []
    for K in sorted({row["layers"] for row in results.rows}):
        rows = functools.partial(figure_rows, layers=K)
        figure = Lines(f"nonlinear_K{K}", "x", "y", "series", "panel", rows, _styles, by_panel=panels, legend="below")
        lines += figure(results)
    return lines


NOTE = "von Oswald et al. 2023, Fig. 4 (20,000 steps, five seeds): attention and the control predict the same."
VIEWS = [measures()._replace(note=NOTE), figures]
EXPERIMENT = Experiment("nonlinear", Config, measure, VIEWS, title="Nonlinear regression")
