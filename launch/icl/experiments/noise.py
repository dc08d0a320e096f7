"""The experiment of launch.icl on noise: other covariances and noisy labels, and noise levels that differ by task."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import difference, predictions
from icl.models.attention import AttentionLayer, init_layers
from icl.models.batched import Regression
from icl.models.constructions import descent_layers, diagonal_layers
from icl.problems import mixed_noise
from icl.solvers.closed_form import exact_moments, optimal_solution, solution_loss
from icl.solvers.descent import gradient_descent, ridge
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from jexplicit.runs.progress import stage
from launch.icl.config import effort
from launch.icl.job import SPECTRUM, TEST, VALIDATION, Job, add_rows, has_rows, random_key
from launch.icl.recipes import init_scale, make_noise, make_recipe
from launch.icl.training import split_seeds, train_or_load, training_rows, validation_loss

_label_noise = 1.0  # standard deviation; that of the labels is about sqrt(d)
_fit_tasks, _coarse_tasks = 20_000, 2000
_block = 10_000  # test tasks per evaluation


def noisy(job: Job) -> None:
    """Covariances and label noise; then noise levels that differ by task."""
    if not has_rows(job, "noisy", task="anisotropic, noisy"):
        _anisotropic(job)
    if not has_rows(job, "noisy", task="mixed noise"):
        _mixed_noise(job)


def _anisotropic(job: Job) -> None:
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
    problem, recipe, runs = Regression(tasks), make_recipe(config, 1), effort(config, "noisy")
    evaluation = validation_loss(job, problem, config.validation_tasks)

    def init(key: jax.Array) -> AttentionLayer:
        return init_layers(key, d + 1, scale=init_scale(config, 1, d + 1))

    params = train_or_load(job, "anisotropic", init, problem, recipe, evaluation, effort=runs)
    constructed = descent_layers(d, N, 1.0, preconditioner=G.T)
    trained = zip(training_rows(job, "anisotropic"), split_seeds(params), strict=True)
    predictors: list[tuple[str, dict[str, Any], Callable[[Sequence], jax.Array]]] = [
        ("zero", {}, lambda b: jnp.zeros_like(b.y_q)),
        ("gd", {"eta": eta}, vmap_tasks(lambda s: gradient_descent(s, eta)[-1])),
        ("closed_form", {}, vmap_tasks(lambda s: gradient_descent(s, 1.0, preconditioner=G.T)[-1])),
        ("constructed", {}, lambda b: problem.predict(constructed, b)),
        ("ridge", {}, vmap_tasks(lambda s: ridge(s, _label_noise**2))),
        *(("trained", entry | {"start": "cold"}, lambda b, one=one: problem.predict(one, b)) for entry, one in trained),
    ]
    batch = sample_tasks(random_key(config, TEST), tasks, min(config.test_tasks, 100_000))
    rows = []
    with stage("testing other covariances"):
        found = [jax.jit(lambda b, predict=predict: predictions(predict, b))(batch) for _, _, predict in predictors]
        theirs = next(f for f, (name, _, _) in zip(found, predictors, strict=True) if name == "closed_form")
        for ours, (name, entry, _) in zip(found, predictors, strict=True):
            measures = {what: float(value) for what, value in difference(ours, theirs)._asdict().items()}
            measures |= {"loss": float(jnp.mean(ours.loss)), "population_loss": exact.get(name)}
            rows.append({"predictor": name, **measures, **entry})
    about = {"experiment": "noisy", "task": "anisotropic, noisy", "reference": "closed_form"}
    add_rows(job, rows, **about, layers=1, recurrent=True, dim=d, context=N, test_tasks=batch.y_q.shape[1])


def _mixed_noise(job: Job) -> None:
    """Fitted layers of two and of four scalars, and ridge regressions, all less ridge regression that knows the noise."""
    config, distribution = job.config, make_noise(job.config)
    size = min(_fit_tasks, 2 * config.validation_tasks)
    fitted, _ = mixed_noise.sample_mixed_noise(random_key(config, VALIDATION), distribution, size)
    few = jax.tree.map(lambda leaf: leaf[..., :_coarse_tasks], fitted)
    with stage("fitting ridge regressions"):
        predictors: dict[tuple[str, int], Callable[[Sequence], Any]] = {
            (name, 0): predict for name, predict in mixed_noise.ridge_baselines(fitted, distribution).items()
        }
    entries: dict[tuple[str, int], dict[str, Any]] = {}
    best: dict[tuple[str, int], np.ndarray] = {}
    for K in sorted(config.diagonal_layers):
        with stage(f"fitting diagonal layers, K = {K}"):
            contexts = min(5000, config.solver_contexts)
            start = mixed_noise.gd_plus_plus_rates(random_key(config, SPECTRUM), distribution, K, contexts=contexts)
            for name in ("gd++", "diagonal"):
                starts = [best.get(("gd++", K), start)]
                # rates of fewer layers, then layers that do nothing or little: from exactly zero the search may stall
                fewer = [rates for (other, _), rates in best.items() if other == name]
                starts += [np.vstack([r, *[scale * r[-1:]] * (K - len(r))]) for r in fewer for scale in (0.0, 0.1)]
                fit_rates = functools.partial(mixed_noise.fit_diagonal, plus_plus=name == "gd++")
                coarse = min((fit_rates(few, s) for s in starts), key=lambda fit: fit.loss)
                fit = fit_rates(fitted, coarse.rates, steps=60)
                best[name, K] = fit.rates
                rates = jnp.asarray(fit.rates, fitted.X.dtype)
                predictors[name, K] = lambda batch, rates=rates: mixed_noise.predict_diagonal(rates, batch)
                entries[name, K] = {"rates": fit.rates.tolist(), "fitted_loss": fit.loss}
    K = max(config.diagonal_layers)
    layers = diagonal_layers(best["diagonal", K], distribution.dim)  # the same as attention
    predictors["constructed", K] = lambda batch: Regression(distribution.tasks, K).predict(layers, batch)
    losses = _test_losses(job, predictors)
    rows = []
    for (name, K), loss in losses.items():
        heads = 2 if name in ("diagonal", "constructed") else 1
        one = {"predictor": name, "layers": K, "heads": heads, "loss": loss, "adjusted_loss": loss - losses["oracle", 0]}
        rows.append(one | entries.get((name, K), {}))
    about = {"experiment": "noisy", "task": "mixed noise", "reference": "oracle", "recurrent": False}
    add_rows(job, rows, **about, dim=distribution.dim, context=distribution.context)


def _test_losses(job: Job, predictors: dict[tuple[str, int], Callable[[Sequence], Any]]) -> dict[tuple[str, int], float]:
    """Mean losses on the same fresh tasks, first that of ridge regression that knows the noise."""
    config, distribution, names = job.config, make_noise(job.config), [("oracle", 0), *predictors]
    size = min(_block, config.test_tasks)
    blocks = -(-min(config.test_tasks, 100_000) // size)

    @jax.jit
    def block_losses(key: jax.Array) -> list[jax.Array]:
        batch, sigma = mixed_noise.sample_mixed_noise(key, distribution, size)
        y = [mixed_noise.ridge_batch(batch, sigma**2), *(predict(batch) for predict in predictors.values())]
        return [half_mse(one, batch.y_q) for one in y]

    losses = []
    with stage("testing mixed noise", "tasks") as progress:
        for block in range(blocks):
            losses.append([float(x) for x in block_losses(jax.random.fold_in(random_key(config, TEST), 1000 + block))])
            progress((block + 1) * size, blocks * size)
    return dict(zip(names, np.mean(losses, axis=0).tolist(), strict=True))
