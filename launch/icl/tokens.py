"""The experiments of launch.icl on other tokens: sine waves through an embedding and an MLP, and x and y apart."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import Answers, answers, difference
from icl.models.attention import Layer, init_layers
from icl.models.batched import half_square
from icl.problems.copying import Copying, CopySensitivity, apart, coded, copy_sensitivity, copying_layers, read_out, unit_codes
from icl.problems.sine_waves import Network, NonlinearRegression, init_network, ridge_on_features, sample_waves
from icl.tasks import Sequence
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl.config import effort, make_waves
from launch.icl.models import (
    TEST,
    VALIDATION,
    Job,
    Model,
    add_rows,
    descent,
    each,
    families,
    has_rows,
    random_key,
    trained_in,
)
from launch.icl.reading import WAVES
from launch.icl.training import load_trained, train_and_save

_evaluations = 20  # of a run
_penalties = 10.0 ** np.arange(-8, 3)
_shown = 3  # waves in the figure


def nonlinear(job: Job) -> None:
    """Sine waves: attention on learned features, a control that descends on them, and ridge regression on the same."""
    if has_rows(job, "nonlinear"):
        return
    config = job.config
    problem = NonlinearRegression(make_waves(config))
    steps, seeds = effort(config, "nonlinear")
    numbers = list(range(config.seed, config.seed + seeds))
    # the rates of the paper's code; a larger one for what starts all but at zero
    recipes = {"trained": Recipe(config.batch_size, 1e-3, gradient_clip=100.0)}
    recipes["control"] = Recipe(config.batch_size, 3e-4, b2=0.999, gradient_clip=100.0)
    validation = problem.sample(random_key(job, VALIDATION), config.validation_tasks)
    params = {}
    for name, recipe in recipes.items():

        @jax.jit
        def losses(one: Network) -> tuple[jax.Array, jax.Array]:
            said = problem.answer(one, validation)
            return half_square(said.final, validation.y_q), half_square(said.initial, validation.y_q)

        def evaluate(params: Network, losses: Any = losses) -> Mapping[str, Any]:
            both = [losses(one) for one in each(params)]
            return {"loss": [float(final) for final, _ in both], "initial_loss": [float(initial) for _, initial in both]}

        params[name] = _trained(
            job, f"nonlinear_{name}", _networks(name == "trained"), problem, recipe, steps, numbers, evaluate
        )
    with stage("testing nonlinear"):
        _measure_waves(job, problem, params, numbers, validation)


def _networks(attention: bool) -> Callable[[jax.Array], Network]:
    """Random networks of many keys."""
    return jax.jit(jax.vmap(lambda key: init_network(jax.random.fold_in(key, 0), attention=attention)))


def _measure_waves(
    job: Job, problem: NonlinearRegression, params: dict[str, Network], seeds: list[int], validation: Sequence
) -> None:
    number = min(job.config.test_tasks, 10_000)
    batch = problem.sample(random_key(job, TEST), number)
    said = jax.jit(lambda one: answers(lambda b: problem.answer(one, b).final, batch))
    before = jax.jit(lambda one: half_square(problem.answer(one, batch).initial, batch.y_q))
    by_ridge = jax.jit(lambda one, batch, penalty: half_square(ridge_on_features(one.encoder, batch, penalty), batch.y_q))
    about = {"experiment": "nonlinear", "task": "sine", "layers": 1, "recurrent": True, "dim": 1}
    about |= {"context": job.config.context, "test_tasks": number}
    rows: list[dict[str, Any]] = [{**about, "predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}]
    for n, seed in enumerate(seeds):
        models = {name: each(of_seeds)[n] for name, of_seeds in params.items()}
        told = {name: said(one) for name, one in models.items()}
        for name, one in models.items():
            more: dict[str, Any] = {"seed": seed, **trained_in(job, f"nonlinear_{name}")}
            apart = _difference(told[name], told["control"]) if name == "trained" else {}
            initial = float(before(one))
            loss = float(jnp.mean(told[name].loss))
            rows.append({**about, "predictor": name, "loss": loss, "initial_loss": initial, **apart, **more})
            # the smallest penalties leave float32 without an answer
            tried = [float(by_ridge(one, validation, jnp.asarray(penalty))) for penalty in _penalties]
            penalty = _penalties[int(np.nanargmin(tried))]
            loss = float(by_ridge(one, batch, jnp.asarray(penalty)))
            rows.append({**about, "predictor": "ridge", "start": name, "loss": loss, "penalty": float(penalty), **more})
    _save_waves(job, problem, {name: each(of_seeds)[0] for name, of_seeds in params.items()})
    add_rows(job, rows)


def _save_waves(job: Job, problem: NonlinearRegression, models: dict[str, Network]) -> None:
    """What both say over all x for a few tasks."""
    tasks = sample_waves(jax.random.fold_in(random_key(job, TEST), 1), problem.tasks, _shown)
    reach = problem.tasks.input_range / 2
    grid = jnp.linspace(-reach, reach, 100)
    said_of = jax.jit(problem.answer)
    kept: dict[str, Any] = {"x": grid, "X": tasks.X[:, 0], "Y": tasks.Y[:, 0]}
    for n in range(_shown):
        X, Y = (jnp.repeat(leaf[..., n : n + 1], len(grid), axis=-1) for leaf in (tasks.X, tasks.Y))
        batch = Sequence(X, Y, grid[None], jnp.zeros((1, len(grid)), grid.dtype))
        for name, one in models.items():
            said = said_of(one, batch)
            kept |= {f"{name} initial {n}": said.initial[0], f"{name} final {n}": said.final[0]}
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in kept.items()}
    np.savez_compressed(job.folder.path / WAVES, **arrays)


def copy(job: Job) -> None:
    """Tokens that hold x and y apart: two layers that learn to copy and then descend, and weights that do it exactly."""
    if has_rows(job, "copy"):
        return
    config, tasks = job.config, job.tasks
    problem = Copying(tasks)
    steps, seeds = effort(config, "copy")
    numbers = list(range(config.seed, config.seed + seeds))
    number = min(config.validation_tasks, 10_000)
    validation = problem.sample(random_key(job, VALIDATION), number)

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> Layer:
        return init_layers(jax.random.fold_in(key, 0), problem.width, layers=2, scale=0.02 / 2)

    @jax.jit
    def measured(layers: Layer) -> tuple[jax.Array, CopySensitivity]:
        few = jax.tree.map(lambda leaf: leaf[..., :500], validation)
        return problem.loss(layers, validation), copy_sensitivity(layers, problem.tokens(few))

    def evaluate(params: Layer) -> Mapping[str, Any]:
        told = [measured(one) for one in each(params)]
        sensitivities = {f"sensitivity_{what}": [float(getattr(s, what)) for _, s in told] for what in CopySensitivity._fields}
        return {"loss": [float(loss) for loss, _ in told], **sensitivities}

    model = Model(tasks, 1, True)
    step = families(job, model)["gd", None]
    levels = {"zero": 0.5 * float(jnp.mean(validation.y_q**2))}
    levels["gd"] = float(half_square(step.predict(each(step.weights)[0], validation), validation.y_q))
    for name, loss in levels.items():
        job.folder.log(event="reference", model="copy", predictor=name, loss=loss)
    recipe = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0)
    params = _trained(job, "copy", draw, problem, recipe, steps, numbers, evaluate)

    batch = problem.sample(random_key(job, TEST), min(config.test_tasks, 100_000))
    about = {"experiment": "copy", "task": "tokens apart", "recurrent": False, "dim": tasks.dim, "context": tasks.context}
    about |= {"test_tasks": batch.y_q.shape[1]}
    eta = float(descent(job, model, "gd").rates.eta[0])
    by_hand = copying_layers(tasks.dim, tasks.context, eta)
    codes = jnp.asarray(unit_codes(tasks.context), batch.X.dtype)
    rows: list[dict[str, Any]] = [{"layers": 0, "predictor": "zero", "loss": 0.5 * float(jnp.mean(batch.y_q**2))}]
    gd = half_square(step.predict(each(step.weights)[0], batch), batch.y_q)
    rows.append({"layers": 1, "predictor": "gd", "loss": float(gd), "eta": eta})
    built = half_square(jax.jit(lambda batch: read_out(by_hand, coded(apart(batch), codes)))(batch), batch.y_q)
    rows.append({"layers": 2, "heads": 2, "predictor": "constructed", "loss": float(built), "eta": eta})
    for n, one in enumerate(each(params)):
        _, sensitivity = measured(one)
        told = {f"sensitivity_{what}": float(value) for what, value in sensitivity._asdict().items()}
        more = {"seed": numbers[n], **trained_in(job, "copy"), **told}
        rows.append({"layers": 2, "predictor": "trained", "loss": float(problem.loss(one, batch)), **more})
    add_rows(job, [about | row for row in rows])


def _trained(job: Job, name: str, draw: Any, problem: Any, recipe: Recipe, steps: int, seeds: list[int], evaluate: Any) -> Any:
    """Parameters of every seed, from random ones."""
    start = draw(jnp.stack([jax.random.key(seed) for seed in seeds]))
    if (done := load_trained(job.folder, name, jax.tree.structure(start))) is not None:
        return done
    every = max(1, min(500, steps // _evaluations))
    more = {"steps": steps, "seeds": seeds, "evaluate": evaluate, "every": every, "devices": job.config.devices}
    return train_and_save(job.folder, name, start, problem, recipe, **more)


def _difference(ours: Answers, theirs: Answers) -> dict[str, float]:
    return {what: float(value) for what, value in difference(ours, theirs)._asdict().items()}
