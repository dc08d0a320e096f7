"""Regression with noise: inputs of unequal variance and noisy labels, and noise levels that differ by task."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.attention import init_layers
from icl.models.batched import Regression
from icl.models.constructions import descent_layers, diagonal_layers
from icl.problems.comparison import difference, predictions
from icl.problems.mixed_noise import (
    DiagonalFit,
    MixedNoise,
    fit_diagonal,
    gd_plus_plus_rates,
    predict_diagonal,
    ridge_baselines,
    ridge_batch,
    sample_mixed_noise,
)
from icl.solvers.closed_form import exact_moments, optimal_solution, solution_loss
from icl.solvers.descent import gradient_descent, ridge
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from jexplicit.runs.progress import stage
from launch.icl.shared.base import (
    COLOURS,
    SPECTRUM,
    TEST,
    VALIDATION,
    Job,
    effort,
    init_scale,
    make_recipe,
    parts,
    random_key,
    train_or_load,
    validation_loss,
)
from launch.icl.shared.config import Config
from launch.icl.shared.tables import measures, over_seeds
from launch.kit.experiment import Experiment
from launch.kit.rows import Results, Row, where
from launch.kit.tables import Column
from launch.kit.views import Lines, pivot_table

ANISOTROPIC, MIXED = "anisotropic, noisy", "mixed noise"
_label_noise = 1.0  # standard deviation; that of the labels is about sqrt(d)
_fit_tasks, _coarse_tasks = 20_000, 2000
_block = 10_000  # test tasks per evaluation

Predict = Callable[[Sequence], Any]


@parts(lambda config: [{"task": ANISOTROPIC}, {"task": MIXED}])
def measure(job: Job, task: str) -> list[Row]:
    """Other covariances, noise, and noise levels that differ by task."""
    return anisotropic(job) if task == ANISOTROPIC else mixed_noise(job.config)


def anisotropic(job: Job) -> list[Row]:
    """x ~ N(0, Λ) with eigenvalues 1/k and noisy labels: one layer, descent with and without the best preconditioner."""
    config, d, N = job.config, job.config.dim, job.config.context
    scales = tuple(float(k**-0.5) for k in range(1, d + 1))
    tasks = Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, scales=scales, noise=_label_noise)
    moments, eye = exact_moments(tasks), jnp.eye(d)
    G = optimal_solution(moments)
    # the loss is a parabola of η
    below, at, above = (float(solution_loss(eta * eye, moments)) for eta in (-1.0, 0.0, 1.0))
    eta = (below - above) / (2 * (above + below - 2 * at))
    exact = {"gd": float(solution_loss(eta * eye, moments)), "closed_form": float(solution_loss(G, moments))}
    problem, scale, recipe = Regression(tasks), init_scale(config, 1, d + 1), make_recipe(config, 1)
    init = functools.partial(init_layers, width=d + 1, scale=scale)
    evaluation = validation_loss(config, problem, config.validation_tasks)
    trained = train_or_load(job, "anisotropic", init, problem, recipe, evaluation, effort(config, seeds=1))
    constructed = descent_layers(d, N, 1.0, preconditioner=G.T)
    predictors: list[tuple[Row, Predict]] = [
        ({"predictor": "zero"}, lambda b: jnp.zeros_like(b.y_q)),
        ({"predictor": "gd", "eta": eta}, vmap_tasks(lambda s: gradient_descent(s, eta)[-1])),
        ({"predictor": "closed_form"}, vmap_tasks(lambda s: gradient_descent(s, 1.0, preconditioner=G.T)[-1])),
        ({"predictor": "constructed"}, functools.partial(problem.predict, constructed)),
        ({"predictor": "ridge"}, vmap_tasks(lambda s: ridge(s, _label_noise**2))),
        *(({"predictor": "trained", **e, "start": "cold"}, functools.partial(problem.predict, one)) for one, e in trained),
    ]
    batch = sample_tasks(random_key(config, TEST), tasks, number := min(config.test_tasks, 100_000))
    about = {"reference": "closed_form", "layers": 1, "recurrent": True, "dim": d, "context": N, "test_tasks": number}
    with stage("testing other covariances"):
        found = [jax.jit(functools.partial(predictions, predict))(batch) for _, predict in predictors]
        return [
            {**about, "loss": float(jnp.mean(ours.loss)), "population_loss": exact.get(entry["predictor"]), **entry}
            | jax.tree.map(float, difference(ours, found[2])._asdict())
            for ours, (entry, _) in zip(found, predictors, strict=True)
        ]


def mixed_noise(config: Config) -> list[Row]:
    """Fitted layers of two and of four scalars, and ridge regressions, all less ridge regression that knows the noise."""
    levels = config.noise_levels[0] if len(config.noise_levels) == 1 else config.noise_levels
    distribution = MixedNoise(dim=config.dim, context=2 * config.dim, levels=levels)
    size = min(_fit_tasks, 2 * config.validation_tasks)
    fitted, _ = sample_mixed_noise(random_key(config, VALIDATION), distribution, size)
    with stage("fitting ridge regressions"):
        baselines = ridge_baselines(fitted, distribution)
    fits = fit_layers(config, distribution, fitted)
    predictors: dict[tuple[str, int], Predict] = {(name, 0): predict for name, predict in baselines.items()}
    for which, fit in fits.items():
        predictors[which] = functools.partial(predict_diagonal, jnp.asarray(fit.rates, fitted.X.dtype))
    K = max(config.diagonal_layers)
    layers = diagonal_layers(fits["diagonal", K].rates, distribution.dim)  # the same as attention
    predictors["constructed", K] = functools.partial(Regression(distribution.tasks, K).predict, layers)
    losses = mean_losses(config, distribution, predictors)
    about = {"reference": "oracle", "recurrent": False, "dim": distribution.dim, "context": distribution.context}
    rows = []
    for (name, K), loss in losses.items():
        row = {**about, "predictor": name, "layers": K, "heads": 2 if name in ("diagonal", "constructed") else 1}
        fit = {"rates": f.rates.tolist(), "fitted_loss": f.loss} if (f := fits.get((name, K))) else {}
        rows.append({**row, "loss": loss, "adjusted_loss": loss - losses["oracle", 0], **fit})
    return rows


def fit_layers(config: Config, distribution: MixedNoise, fitted: Sequence) -> dict[tuple[str, int], DiagonalFit]:
    """The rates of layers with two scalars, gd++, and with four, diagonal, for each number of layers."""
    few, found = jax.tree.map(lambda leaf: leaf[..., :_coarse_tasks], fitted), {}
    for K in sorted(config.diagonal_layers):
        with stage(f"fitting diagonal layers, K = {K}"):
            contexts = min(5000, config.solver_contexts)
            start = gd_plus_plus_rates(random_key(config, SPECTRUM), distribution, K, contexts=contexts)
            for name in ("gd++", "diagonal"):
                starts = [found["gd++", K].rates if name == "diagonal" else start]
                # rates of fewer layers, then layers that do nothing or little: from exactly zero the search may stall
                fewer = [fit.rates for (other, _), fit in found.items() if other == name]
                starts += [np.vstack([r, *[scale * r[-1:]] * (K - len(r))]) for r in fewer for scale in (0.0, 0.1)]
                fit_rates = functools.partial(fit_diagonal, plus_plus=name == "gd++")
                coarse = min((fit_rates(few, s) for s in starts), key=lambda fit: fit.loss)
                found[name, K] = fit_rates(fitted, coarse.rates, steps=60)
    return found


def mean_losses(config: Config, distribution: MixedNoise, predictors: Mapping[Any, Predict]) -> dict[Any, float]:
    """Mean losses on the same fresh tasks, first that of ridge regression that knows the noise."""
    size = min(_block, config.test_tasks)
    blocks = -(-min(config.test_tasks, 100_000) // size)

    @jax.jit
    def block_losses(key: jax.Array) -> list[jax.Array]:
        batch, sigma = sample_mixed_noise(key, distribution, size)
        y = [ridge_batch(batch, sigma**2), *(predict(batch) for predict in predictors.values())]
        return [half_mse(one, batch.y_q) for one in y]

    losses = []
    with stage("testing mixed noise", "tasks") as progress:
        for block in range(blocks):
            losses.append([float(x) for x in block_losses(jax.random.fold_in(random_key(config, TEST), 1000 + block))])
            progress((block + 1) * size, blocks * size)
    return dict(zip([("oracle", 0), *predictors], np.mean(losses, axis=0).tolist(), strict=True))


def fitted_rows(results: Results) -> list[Row]:
    """Layers with two scalars each, and with four."""
    return where(results.rows, task=MIXED, predictor=("gd++", "diagonal"))


def by_layers(results: Results) -> list[Row]:
    """The fitted layers, and without `layers` what has none."""
    rows = [row for row in where(results.rows, task=MIXED) if row["predictor"] not in ("oracle", "constructed")]
    return [{**row, "layers": str(row["layers"]) if row["layers"] else None} for row in rows]


AXES = {"xlabel": "layers K", "ylabel": "loss above the oracle's", "yscale": "log"}
STYLES = {name: {"color": COLOURS[name]} for name in ("gd++", "ridge")}
NOISE = pivot_table([Column("layers", "predictor")], "layers", "adjusted_loss", ".3f", heading="K = {}", rows=fitted_rows)
NOTE = """Above, losses less that of ridge regression that knows each task's noise. The best single layer is preconditioned
descent (Ahn et al. 2023); GD++ is as good as ridge regression with one penalty (Vladymyrov et al. 2024)."""
VIEWS = [
    *(measures(rows=lambda results, task=task: over_seeds(results.where(task=task))) for task in (ANISOTROPIC, MIXED)),
    NOISE._replace(note=NOTE),
    Lines("noisy", "layers", "adjusted_loss", "predictor", "", by_layers, STYLES, AXES, size=(5.6, 4.2), legend="below"),
]
EXPERIMENT = Experiment("noisy", Config, measure, VIEWS, title="Noise")
