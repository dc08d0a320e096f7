"""The experiment of launch.icl on noise: other covariances and noisy labels in closed form, and noise that differs by task."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl.comparison import answers, batched, difference
from icl.models.attention import Layer, init_layers
from icl.models.batched import Regression, half_square
from icl.models.constructions import descent_layers, diagonal_layers
from icl.problems.mixed_noise import baselines, diagonal_answer, fit_diagonal, plus_plus_start, ridge_answer, sample_mixed
from icl.solvers.closed_form import exact_moments, optimal_solution, solution_loss
from icl.solvers.descent import gradient_descent, ridge
from icl.tasks import Sequence, Tasks, sample_tasks
from jexplicit.runs.progress import stage
from launch.icl.config import effort, init_scale, make_noise, make_recipe
from launch.icl.models import SPECTRUM, TEST, VALIDATION, Job, add_rows, each, has_rows, random_key, trained_in
from launch.icl.training import load_trained, train_and_save

_label_noise = 1.0  # standard deviation, of labels whose own is of the order of sqrt(d)
_fitted_tasks, _coarse_tasks = 20_000, 2000
_block = 10_000  # test tasks at a time


def noisy(job: Job) -> None:
    """Covariances and label noise; then noise that differs by task."""
    if not has_rows(job, "noisy", task="anisotropic, noisy"):
        _anisotropic(job)
    if not has_rows(job, "noisy", task="mixed noise"):
        _mixed(job)


def _anisotropic(job: Job) -> None:
    """x ~ N(0, Λ) with eigenvalues 1/k and noisy labels: one layer, descent with and without the best preconditioner."""
    config, d, N = job.config, job.config.dim, job.config.context
    scales = tuple(float(k**-0.5) for k in range(1, d + 1))
    tasks = Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, scales=scales, noise=_label_noise)
    moments = exact_moments(tasks)
    G = optimal_solution(moments)
    eta = _best_rate(lambda eta: float(solution_loss(eta * jnp.eye(d), moments)))
    problem, name, about = Regression(tasks), "anisotropic", {"experiment": "noisy", "task": "anisotropic, noisy"}
    steps, seeds = effort(config, "noisy")
    numbers = list(range(config.seed, config.seed + seeds))

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> Layer:
        return init_layers(jax.random.fold_in(key, 0), d + 1, scale=init_scale(config, 1, d + 1))

    start = draw(jnp.stack([jax.random.key(seed) for seed in numbers]))
    if (params := load_trained(job.folder, name, jax.tree.structure(start))) is None:
        validation = problem.sample(random_key(job, VALIDATION), config.validation_tasks)
        validated = jax.jit(lambda one: problem.loss(one, validation))

        def evaluate(params: Layer) -> dict[str, list[float]]:
            return {"loss": [float(validated(one)) for one in each(params)]}

        more = {"steps": steps, "seeds": numbers, "evaluate": evaluate, "devices": config.devices}
        params = train_and_save(job.folder, name, start, problem, make_recipe(config, 1), **more)

    built = descent_layers(d, N, 1.0, preconditioner=G.T)
    trained = zip(numbers, each(params), strict=True)
    named: list[tuple[str, int | None, Callable[[Sequence], jax.Array]]] = [
        ("zero", None, lambda b: jnp.zeros_like(b.y_q)),
        ("gd", None, batched(lambda s: gradient_descent(s, eta)[-1])),
        ("closed_form", None, batched(lambda s: gradient_descent(s, 1.0, preconditioner=G.T)[-1])),
        ("constructed", None, lambda b: problem.predict(built, b)),
        ("ridge", None, batched(lambda s: ridge(s, _label_noise**2))),
        *(("trained", seed, lambda b, one=one: problem.predict(one, b)) for seed, one in trained),
    ]
    batch = sample_tasks(random_key(job, TEST), tasks, min(config.test_tasks, 100_000))
    theirs = jax.jit(lambda b: answers(dict((n, f) for n, _, f in named)["closed_form"], b))(batch)
    exact = {"gd": float(solution_loss(eta * jnp.eye(d), moments)), "closed_form": float(solution_loss(G, moments))}
    rows: list[dict[str, Any]] = []
    with stage("testing other covariances"):
        for predictor, seed, predict in named:
            ours = jax.jit(lambda b, predict=predict: answers(predict, b))(batch)
            apart = {what: float(value) for what, value in difference(ours, theirs)._asdict().items()}
            more: dict[str, Any] = {"eta": eta} if predictor == "gd" else {}
            more |= {**trained_in(job, name), "start": "cold"} if predictor == "trained" else {}
            sizes = {"layers": 1, "recurrent": True, "dim": d, "context": N, "test_tasks": batch.y_q.shape[1]}
            loss = float(jnp.mean(ours.loss))
            more |= {"population_loss": exact.get(predictor), "reference": "closed_form"}
            rows.append({**about, **sizes, "predictor": predictor, "seed": seed, "loss": loss, **apart, **more})
    add_rows(job, rows)


def _best_rate(loss: Callable[[float], float]) -> float:
    """The η with the lowest loss, a parabola of it."""
    above, at, below = loss(1.0), loss(0.0), loss(-1.0)
    return (below - above) / (2 * (above + below - 2 * at))


def _mixed(job: Job) -> None:
    """Layers of two and of four scalars, fitted, and ridge regression of four kinds, all less the one that knows the noise."""
    law = make_noise(job.config)
    fitted, _ = sample_mixed(random_key(job, VALIDATION), law, min(_fitted_tasks, 2 * job.config.validation_tasks))
    few = jax.tree.map(lambda leaf: leaf[..., :_coarse_tasks], fitted)
    predictors: dict[tuple[str, int], Callable[[Sequence], Any]] = {}
    numbers: dict[tuple[str, int], dict[str, Any]] = {}
    with stage("fitting ridge regressions"):
        predictors |= {(name, 0): predict for name, predict in baselines(fitted, law).items()}
    best: dict[tuple[str, int], np.ndarray] = {}
    for K in sorted(job.config.diagonal_layers):
        with stage(f"fitting diagonal layers, K = {K}"):
            start = plus_plus_start(random_key(job, SPECTRUM), law, K, contexts=min(5000, job.config.solver_contexts))
            for name, plus_plus in (("gd++", True), ("diagonal", False)):
                starts = [best["gd++", K] if ("gd++", K) in best else start]
                # fewer layers and more that do nothing, or little: from nothing at all the search may not find away
                fewer = [rates for (n, _), rates in best.items() if n == name]
                starts += [np.vstack([r, *[scale * r[-1:]] * (K - len(r))]) for r in fewer for scale in (0.0, 0.1)]
                coarse = min((fit_diagonal(few, s, plus_plus=plus_plus) for s in starts), key=lambda found: found.loss)
                found = fit_diagonal(fitted, coarse.rates, plus_plus=plus_plus, steps=60)
                best[name, K] = found.rates
                rates = jnp.asarray(found.rates, fitted.X.dtype)
                predictors[name, K] = lambda batch, rates=rates: diagonal_answer(rates, batch)
                numbers[name, K] = {"rates": found.rates.tolist(), "fitted_loss": found.loss}
        if K == max(job.config.diagonal_layers):  # and as attention
            heads = diagonal_layers(best["diagonal", K], law.dim)
            predictors["constructed", K] = lambda batch, K=K, heads=heads: Regression(law.tasks, K).predict(heads, batch)
    with stage("testing mixed noise", "tasks") as progress:
        losses = _mixed_losses(job, law, predictors, progress)
    oracle = losses.pop(("oracle", 0))
    about = {"experiment": "noisy", "task": "mixed noise", "recurrent": False, "dim": law.dim, "context": law.context}
    rows: list[dict[str, Any]] = []
    for (name, K), loss in {("oracle", 0): oracle, **losses}.items():
        more = numbers.get((name, K), {}) | {"heads": 2 if name in ("diagonal", "constructed") else 1, "reference": "oracle"}
        more |= {"predictor": name, "layers": K, "loss": loss, "adjusted_loss": loss - oracle}
        rows.append({**about, **more})
    add_rows(job, rows)


def _mixed_losses(job: Job, law: Any, predictors: dict[tuple[str, int], Any], progress: Any) -> dict[tuple[str, int], float]:
    """Mean losses on the same fresh tasks, that of the ridge regression that knows the noise among them."""
    size = min(_block, job.config.test_tasks)
    blocks = -(-min(job.config.test_tasks, 100_000) // size)

    @jax.jit
    def of_block(key: jax.Array) -> dict[str, jax.Array]:
        batch, sigma = sample_mixed(key, law, size)
        told = {"oracle 0": ridge_answer(batch, sigma**2)}
        told |= {f"{name} {K}": predict(batch) for (name, K), predict in predictors.items()}
        return {name: half_square(y, batch.y_q) for name, y in told.items()}

    sums: dict[str, list[float]] = {}
    for block in range(blocks):
        for name, loss in of_block(jax.random.fold_in(random_key(job, TEST), 1000 + block)).items():
            sums.setdefault(name, []).append(float(loss))
        progress((block + 1) * size, blocks * size)
    split = {name: name.rsplit(" ", 1) for name in sums}
    return {(split[name][0], int(split[name][1])): float(np.mean(values)) for name, values in sums.items()}
