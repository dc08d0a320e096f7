"""Sine waves: attention on learned features, a control, and ridge regression."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from icl.descent import difference, predictions
from icl.problems import Network, NonlinearRegression, Waves, init_network, predict_waves, ridge_on_features
from icl.tasks import Sequence, half_mse
from icl.training import Recipe
from launch.icl import base
from launch.icl.config import NonlinearConfig
from launch.icl.tables import loss_by_step, measures
from launch.kit.views import Results, Row

_penalties = 10.0 ** np.arange(-8, 3)
# as in the paper's code, whose rate of attention, which starts close to zero, is larger
RECIPES = {
    "trained": Recipe(learning_rate=1e-3, gradient_clip=100.0),
    "control": Recipe(learning_rate=3e-4, b2=0.999, gradient_clip=100.0),
}


def measure(job: base.Job[NonlinearConfig]) -> Iterator[base.Part]:
    """A part for each number of layers."""
    yield from (({"layers": layers}, partial(fit_waves, job, layers)) for layers in job.config.wave_layers)


def fit_waves(job: base.Job[NonlinearConfig], layers: int) -> Iterator[Row]:
    """Attention and control of every seed, and ridge on their features."""
    config = job.config
    problem, every = NonlinearRegression(Waves(context=config.context), depth=layers), max(1, min(500, config.steps // 20))
    validation = problem.sample(base.random_key(config, base.VALIDATION), config.validation_tasks)
    batch = problem.sample(base.random_key(config, base.TEST), config.test_tasks)

    def evaluation() -> base.Measure:
        return lambda network: losses(problem, network, validation)

    trained = {}
    for name, recipe in RECIPES.items():
        init = partial(init_network, layers=layers if name == "trained" else 0)
        options = recipe._replace(batch_size=config.batch_size)
        trained[name] = base.train_or_load(job, f"nonlinear_{name}_K{layers}", init, problem, options, evaluation, every=every)
    about = {"task": "sine", "recurrent": layers == 1, "dim": 1, "context": config.context, "test_tasks": config.test_tasks}
    yield {**about, "predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}
    predicted = jax.jit(lambda network, batch: predictions(lambda b: problem.predict(network, b), batch))
    for n, (control, _) in enumerate(trained["control"]):
        for name, members in trained.items():
            network, entry = members[n]
            found = losses(problem, network, batch)
            if name == "trained":
                found |= difference(predicted(network, batch), predicted(control, batch))._asdict()
            yield {**about, "predictor": name, **jax.tree.map(float, found), **entry}
            # in float32 the smallest penalties may give NaN
            tried = [float(ridge_loss(network, validation, jnp.asarray(penalty))) for penalty in _penalties]
            penalty = float(_penalties[int(np.nanargmin(tried))])
            loss = float(ridge_loss(network, batch, jnp.asarray(penalty)))
            yield {**about, "predictor": "ridge", "start": name, "loss": loss, "penalty": penalty, **entry}


@partial(jax.jit, static_argnums=0)
def losses(problem: NonlinearRegression, network: Network, batch: Sequence) -> dict[str, jax.Array]:
    """The losses after and before the layers."""
    y = predict_waves(network, batch, eta=problem.eta, depth=problem.depth)
    return {"loss": half_mse(y.final, batch.y_q), "initial_loss": half_mse(y.initial, batch.y_q)}


@jax.jit
def ridge_loss(network: Network, batch: Sequence, penalty: jax.Array) -> jax.Array:
    """The loss of ridge regression on the features of a network."""
    return half_mse(ridge_on_features(network.encoder, batch, penalty), batch.y_q)


def models(results: Results) -> dict[str, str]:
    """The names of models in files and events, by label."""
    depths = sorted({row["layers"] for row in results.rows})
    return {f"{name}, K = {K}": f"nonlinear_{name}_K{K}" for K in depths for name in RECIPES}


NOTE = "von Oswald et al. 2023, Fig. 4 (20,000 steps, five seeds): attention and the control predict the same."
VIEWS = [measures(note=NOTE), loss_by_step("nonlinear", models)]
EXPERIMENT = base.experiment("nonlinear", measure, VIEWS, title="Nonlinear regression")
