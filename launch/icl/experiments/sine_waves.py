"""The experiment of launch.icl on sine waves: attention on learned features, a control, and ridge regression on the same."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import difference, predictions
from icl.problems.sine_waves import Network, NonlinearRegression, init_network, predict_waves, ridge_on_features
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.config import effort
from launch.icl.job import TEST, VALIDATION, WAVES, Job, add_rows, has_rows, random_key, wave_model
from launch.icl.recipes import make_waves
from launch.icl.training import Measure, split_seeds, train_or_load, training_rows

_penalties = 10.0 ** np.arange(-8, 3)
_plotted = 3  # waves in the figure


def nonlinear(job: Job) -> None:
    """Sine waves: attention on learned features, a control that descends on them, and ridge regression on the same."""
    for layers in job.config.wave_layers:
        if not has_rows(job, "nonlinear", layers=layers):
            _nonlinear(job, layers)


def _nonlinear(job: Job, layers: int) -> None:
    """Layers of attention, and a control of as many steps."""
    config, runs = job.config, effort(job.config, "nonlinear")
    problem = NonlinearRegression(make_waves(config), depth=layers)
    # the rates of the paper's code; a larger one for attention, which starts close to zero
    recipes = {"trained": Recipe(config.batch_size, 1e-3, gradient_clip=100.0)}
    recipes["control"] = Recipe(config.batch_size, 3e-4, b2=0.999, gradient_clip=100.0)
    validation = problem.sample(random_key(config, VALIDATION), config.validation_tasks)
    params = {}
    for name, recipe in recipes.items():

        def init(key: jax.Array, layers: int = layers if name == "trained" else 0) -> Network:
            return init_network(key, layers=layers)

        def evaluation() -> Measure:
            return lambda network: _losses(problem, network, validation)

        every = max(1, min(500, runs.steps // 20))
        model = wave_model(name, layers)
        params[name] = train_or_load(job, model, init, problem, recipe, evaluation, effort=runs, every=every)
    with stage("testing nonlinear"):
        _measure(job, problem, params, validation)
        _save_waves(job, problem, {name: split_seeds(seeds)[0] for name, seeds in params.items()})


@functools.partial(jax.jit, static_argnums=0)
def _losses(problem: NonlinearRegression, network: Network, batch: Sequence) -> Mapping[str, jax.Array]:
    """The losses after and before the layer."""
    y = predict_waves(network, batch, eta=problem.eta, depth=problem.depth)
    return {"loss": half_mse(y.final, batch.y_q), "initial_loss": half_mse(y.initial, batch.y_q)}


def _measure(job: Job, problem: NonlinearRegression, params: dict[str, Network], validation: Sequence) -> None:
    batch = problem.sample(random_key(job.config, TEST), min(job.config.test_tasks, 10_000))
    predicted = jax.jit(lambda network, batch: predictions(lambda b: problem.predict(network, b), batch))
    ridge_loss = jax.jit(
        lambda network, batch, penalty: half_mse(ridge_on_features(network.encoder, batch, penalty), batch.y_q)
    )
    runs = {name: training_rows(job, wave_model(name, problem.depth)) for name in params}
    rows: list[dict[str, Any]] = [{"predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}]
    for n in range(len(runs["trained"])):
        networks = {name: split_seeds(seeds)[n] for name, seeds in params.items()}
        y = {name: predicted(network, batch) for name, network in networks.items()}
        for name, network in networks.items():
            run = runs[name][n]
            measures = _losses(problem, network, batch) | (
                difference(y[name], y["control"])._asdict() if name == "trained" else {}
            )
            rows.append({"predictor": name, **{what: float(value) for what, value in measures.items()}, **run})
            # in float32 the smallest penalties may give NaN
            tried = [float(ridge_loss(network, validation, jnp.asarray(penalty))) for penalty in _penalties]
            penalty = float(_penalties[int(np.nanargmin(tried))])
            loss = float(ridge_loss(network, batch, jnp.asarray(penalty)))
            rows.append({"predictor": "ridge", "start": name, "loss": loss, "penalty": penalty, **run})
    about = {"experiment": "nonlinear", "task": "sine", "test_tasks": batch.y_q.shape[1]}
    add_rows(job, rows, **about, layers=problem.depth, recurrent=problem.depth == 1, dim=1, context=job.config.context)


def _save_waves(job: Job, problem: NonlinearRegression, networks: dict[str, Network]) -> None:
    """The predictions of both networks over all x, for a few tasks."""
    tasks = problem.sample(jax.random.fold_in(random_key(job.config, TEST), 1), _plotted)
    reach = problem.tasks.input_range / 2
    grid = jnp.linspace(-reach, reach, 100)
    predicted = jax.jit(lambda network, batch: predict_waves(network, batch, eta=problem.eta, depth=problem.depth))
    arrays: dict[str, Any] = {"x": grid, "X": tasks.X[:, 0], "Y": tasks.Y[:, 0]}
    for n in range(_plotted):
        X, Y = (jnp.repeat(leaf[..., n : n + 1], len(grid), axis=-1) for leaf in (tasks.X, tasks.Y))
        batch = Sequence(X, Y, grid[None], jnp.zeros((1, len(grid)), grid.dtype))
        for name, network in networks.items():
            y = predicted(network, batch)
            arrays |= {f"{name} initial {n}": y.initial[0], f"{name} final {n}": y.final[0]}
    np.savez_compressed(job.folder.path / WAVES.format(layers=problem.depth), **jax.device_get(arrays))
