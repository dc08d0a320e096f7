"""Regression with unequal inputs and noisy labels, also by task."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.models.attention import Regression, init_layers
from icl.models.constructions import descent_layers, diagonal_layers
from icl.problems import mixed_noise
from icl.solvers.closed_form import exact_moments, optimal_solution, solution_loss
from icl.solvers.descent import gradient_descent, ridge
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from jexplicit.runs.progress import stage
from launch.icl import base
from launch.icl.config import NoisyConfig
from launch.icl.tables import measures

ANISOTROPIC, MIXED = "anisotropic, noisy", "mixed noise"
_label_noise = 1.0  # standard deviation; that of the labels is about sqrt(d)
_fit_tasks, _coarse_tasks, _contexts = 20_000, 2000, 5000
_block = 10_000  # test tasks per evaluation

Predict = Callable[[Sequence], Any]


def measure(job: base.Job[NoisyConfig]) -> Iterator[base.Part]:
    """A part for each kind of tasks."""
    yield {"task": ANISOTROPIC}, partial(anisotropic, job)
    yield {"task": MIXED}, partial(mixed, job.config)


def anisotropic(job: base.Job[NoisyConfig]) -> Iterator[base.Row]:
    """x ~ N(0, Λ), noisy labels: one layer, and preconditioned descent."""
    config, d, N = job.config, job.config.dim, job.config.context
    scales = tuple(float(k**-0.5) for k in range(1, d + 1))
    tasks = Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, scales=scales, noise=_label_noise)
    moments, eye = exact_moments(tasks), jnp.eye(d)
    G = optimal_solution(moments)
    # the loss is a parabola of η
    below, at, above = (float(solution_loss(eta * eye, moments)) for eta in (-1.0, 0.0, 1.0))
    eta = (below - above) / (2 * (above + below - 2 * at))
    exact = {"gd": float(solution_loss(eta * eye, moments)), "closed_form": float(solution_loss(G, moments))}
    problem, init = Regression(tasks), partial(init_layers, width=d + 1, scale=base.INIT_SCALE)
    evaluation = base.validation_loss(config, problem)
    trained = base.train_or_load(job, "anisotropic", init, problem, base.make_recipe(config), evaluation)
    constructed = descent_layers(d, N, 1.0, preconditioner=G.T)
    predictors: list[tuple[base.Row, Predict]] = [
        ({"predictor": "zero"}, lambda b: jnp.zeros_like(b.y_q)),
        ({"predictor": "gd", "eta": eta}, vmap_tasks(lambda s: gradient_descent(s, eta)[-1])),
        ({"predictor": "closed_form"}, vmap_tasks(lambda s: gradient_descent(s, 1.0, preconditioner=G.T)[-1])),
        ({"predictor": "constructed"}, partial(problem.predict, constructed)),
        ({"predictor": "ridge"}, vmap_tasks(lambda s: ridge(s, _label_noise**2))),
        *(({"predictor": "trained", **e, "start": "cold"}, partial(problem.predict, one)) for one, e in trained),
    ]
    batch = sample_tasks(base.random_key(config, base.TEST), tasks, config.test_tasks)
    about = {"reference": "closed_form", "layers": 1, "recurrent": True}
    about |= {"dim": d, "context": N, "test_tasks": config.test_tasks}
    with stage("testing other covariances"):
        found = [base.predictions_of(lambda _, b, predict=predict: predict(b), None, batch) for _, predict in predictors]
    for ours, (entry, _) in zip(found, predictors, strict=True):
        compared = jax.tree.map(float, base.compare(ours, found[2]))
        yield {**about, **compared, "population_loss": exact.get(entry["predictor"]), **entry}


def mixed(config: NoisyConfig) -> Iterator[base.Row]:
    """Fitted layers and ridge regressions, less ridge that knows the noise."""
    levels = config.noise_levels[0] if len(config.noise_levels) == 1 else config.noise_levels
    distribution = mixed_noise.MixedNoise(dim=config.dim, context=2 * config.dim, levels=levels)
    size = min(_fit_tasks, 2 * config.validation_tasks)
    fitted, _ = mixed_noise.sample_mixed_noise(base.random_key(config, base.VALIDATION), distribution, size)
    with stage("fitting ridge regressions"):
        baselines = mixed_noise.ridge_baselines(fitted, distribution)
    fits = fit_layers(config, distribution, fitted)
    predictors: dict[tuple[str, int], Predict] = {(name, 0): predict for name, predict in baselines.items()}
    for which, fit in fits.items():
        predictors[which] = partial(mixed_noise.predict_diagonal, jnp.asarray(fit.rates, fitted.X.dtype))
    K = max(config.diagonal_layers)
    layers = diagonal_layers(fits["diagonal", K].rates, distribution.dim)  # the same as attention
    predictors["constructed", K] = partial(Regression(distribution.tasks, K).predict, layers)
    losses = mean_losses(config, distribution, predictors)
    about = {"reference": "oracle", "recurrent": False, "dim": distribution.dim, "context": distribution.context}
    for (name, K), loss in losses.items():
        row = {**about, "predictor": name, "layers": K, "heads": 2 if name in ("diagonal", "constructed") else 1}
        fit = {"rates": f.rates.tolist(), "fitted_loss": f.loss} if (f := fits.get((name, K))) else {}
        yield {**row, "loss": loss, "adjusted_loss": loss - losses["oracle", 0], **fit}


def fit_layers(
    config: NoisyConfig, distribution: mixed_noise.MixedNoise, fitted: Sequence
) -> dict[tuple[str, int], mixed_noise.DiagonalFit]:
    """The rates of layers with two and four scalars, by depth."""
    few, found = jax.tree.map(lambda leaf: leaf[..., :_coarse_tasks], fitted), {}
    key, contexts = base.random_key(config, base.SPECTRUM), min(_contexts, config.test_tasks)
    for K in sorted(config.diagonal_layers):
        with stage(f"fitting diagonal layers, K = {K}"):
            start = mixed_noise.gd_plus_plus_rates(key, distribution, K, contexts=contexts)
            for name in ("gd++", "diagonal"):
                starts = [found["gd++", K].rates if name == "diagonal" else start]
                # rates of fewer layers, then layers that do nothing or little: from exactly zero the search may stall
                fewer = [fit.rates for (other, _), fit in found.items() if other == name]
                starts += [np.vstack([r, *[scale * r[-1:]] * (K - len(r))]) for r in fewer for scale in (0.0, 0.1)]
                fit_rates = partial(mixed_noise.fit_diagonal, plus_plus=name == "gd++")
                coarse = min((fit_rates(few, s) for s in starts), key=lambda fit: fit.loss)
                found[name, K] = fit_rates(fitted, coarse.rates, steps=60)
    return found


def mean_losses(
    config: NoisyConfig, distribution: mixed_noise.MixedNoise, predictors: Mapping[Any, Predict]
) -> dict[Any, float]:
    """Mean losses on the same fresh tasks, ridge that knows noise first."""
    size = min(_block, config.test_tasks)
    blocks = 1000 + jnp.arange(-(-config.test_tasks // size))

    def block_losses(block: jax.Array) -> list[jax.Array]:
        key = jax.random.fold_in(base.random_key(config, base.TEST), block)
        batch, sigma = mixed_noise.sample_mixed_noise(key, distribution, size)
        y = [mixed_noise.ridge_batch(batch, sigma**2), *(predict(batch) for predict in predictors.values())]
        return [half_mse(one, batch.y_q) for one in y]

    with stage("testing mixed noise"):
        losses = jax.jit(lambda blocks: jax.lax.map(block_losses, blocks))(blocks)
    return dict(zip([("oracle", 0), *predictors], (float(jnp.mean(loss)) for loss in losses), strict=True))


NOTE = """Adjusted losses are less that of ridge regression that knows each task's noise. The best single layer is
preconditioned descent (Ahn et al. 2023); GD++ is as good as ridge regression with one penalty (Vladymyrov et al. 2024)."""
VIEWS = [measures(tasks=[ANISOTROPIC]), measures(tasks=[MIXED], note=NOTE)]
EXPERIMENT = base.experiment("noisy", measure, VIEWS, title="Noise")
