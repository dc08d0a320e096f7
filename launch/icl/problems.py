"""Layers on other problems: Markov chains, noise and few pretraining tasks."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl import attention, closed_form, problems
from icl.attention import Regression, descent_layers, init_layers, ridge
from icl.closed_form import FiniteTasks, diversity_curve, exact_moments, optimal_solution, solution_loss
from icl.problems import Chain, Chains, bigram_posterior
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl import training
from launch.icl.config import MarkovConfig, NoisyConfig, TaskDiversityConfig
from launch.icl.training import COLOURS, LOSS, MEASURES, TEST, VALIDATION, experiment, random_key
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, means, where

# Markov chains: two layers that count transitions (Edelman et al. 2024).

_markov_models = {"no symbol at the start": "markov", "a symbol at the start": "markov_start"}  # names in files, by label
_exact_sequences = 100  # on which constructions are compared in float64
Predict = Callable[..., jax.Array]  # (weights, if any, and a sequence x) -> logarithms of predictions [T, k]


def _markov(config: MarkovConfig, folder: RunFolder) -> Iterator[Row]:
    """Losses of closed forms, constructed and trained models."""
    chains = Chains(3, config.length, 1.0)
    k, T, size = chains.states, chains.length, min(config.validation_tasks, config.test_tasks)
    keys = [jax.random.fold_in(random_key(config, TEST), block) for block in range(config.test_tasks // size)]
    tests = [chains.sample(key, size) for key in keys]
    about = {"task": "markov chains", "recurrent": False, "alpha": chains.alpha, "dim": k, "context": T}

    def test(name: str, predict: Predict, *weights: Any, **fields: Any) -> Row:
        found = [_chain_measures(predict, chains, batch, *weights) for batch in tests]
        averages = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        sizes = {"predictor": name, "layers": 2 if weights else 0, "test_tasks": len(tests) * size}
        return {**about, **sizes, **averages, **fields}

    def distance(x: jax.Array) -> jax.Array:
        """The largest difference of the constructed layers from the posterior mean."""
        return jnp.max(jnp.abs(problems.next_outputs(constructed, x) - bigram_posterior(x, chains.alpha, k)))

    constructed = jax.jit(problems.induction_model, static_argnums=(0, 1))(k, T, chains.alpha)
    exact = {}
    if constructed.read_out.dtype == np.float64:  # as with JAX_ENABLE_X64=1
        few = chains.sample(random_key(config, TEST), _exact_sequences).x.T
        exact = {"max_difference": float(jnp.max(jax.jit(jax.vmap(distance))(few)))}
    yield from (test(name, predict) for name, predict in _strategies(chains).items())
    yield test("constructed", _of_probabilities, constructed, symbols_before=k, **exact)

    validation = chains.sample(random_key(config, VALIDATION), config.validation_tasks)
    measured = {which: _chain_measures(predict, chains, validation) for which, predict in _strategies(chains).items()}
    references = {strategy: float(found["loss"]) for strategy, found in measured.items()}
    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    measure, every = partial(_chain_measures, _of_logits, chains, validation), max(1, min(50, config.steps // 20))
    for before, name in enumerate(_markov_models.values()):
        fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
        init = jax.jit(partial(problems.init_model, states=k, length=T, start=bool(before)))
        for model, entry in training.train(config, folder, name, init, chains, recipe, measure, references, every=every):
            yield test("trained", _of_logits, model, **fields, **entry)


@cache
def _strategies(chains: Chains) -> dict[str, Predict]:
    """The closed forms, by name."""
    k, alpha = chains.states, chains.alpha
    return {
        "uniform": lambda x: jnp.full((len(x), k), -np.log(k)),
        "unigram": lambda x: jnp.log(problems.unigram_posterior(x, alpha, k)),
        "bigram": lambda x: jnp.log(bigram_posterior(x, alpha, k)),
    }


def _of_probabilities(model: problems.CausalModel, x: jax.Array) -> jax.Array:
    return jnp.log(problems.next_outputs(model, x))


def _of_logits(model: problems.CausalModel, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(problems.next_outputs(model, x))


@partial(jax.jit, static_argnums=(0, 1))
def _chain_measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
    """The loss of predictions, their divergences in nats, and the roles of the layers."""

    def of_sequence(x: jax.Array) -> dict[str, jax.Array]:
        log_p = predict(*weights, x)
        closed = _strategies(chains).items()
        divergences = {f"kl_{name}": problems.divergence(jnp.exp(form(x)), log_p) for name, form in closed}
        return {"loss": problems.cross_entropy(log_p, x), **divergences}

    # a divergence of 0 is rounded to either side
    found = {what: jnp.maximum(jnp.mean(x), 0) for what, x in jax.vmap(of_sequence, in_axes=-1)(batch.x).items()}
    roles = [jax.vmap(lambda x, model=model: problems.head_roles(model, x), in_axes=-1)(batch.x) for model in weights]
    return found | {what: jnp.mean(x) for of_model in roles for what, x in of_model._asdict().items()}


CHAINS = Table(
    [
        Column("prediction", "predictor"),
        Column("symbols before the sequence", "symbols_before"),
        Column("loss, nats", "loss", ".4f"),
        Column("KL from the posterior mean", "kl_bigram", ".4f"),
        Column("attention of layer 2 to what followed the same state", "matches", ".2f"),
        Column("largest difference in float64", "max_difference", ".1e"),
    ],
    lambda results: means(results.rows, ["predictor", "symbols_before"]),
)
_markov_note = """Edelman et al. 2024: predictions are uniform first, then those of unigrams, then suddenly those of bigrams, by
a head that attends to what followed the same state."""
_markov_figure = training.loss_by_step("markov", _markov_models)._replace(
    colours={}, axes={"xlabel": "training step", "ylabel": "nats"}
)
MARKOV = experiment("markov", _markov, [CHAINS._replace(note=_markov_note), _markov_figure], title="Markov chains")


# Regression with unequal inputs and noisy labels.

_label_noise = 1.0  # standard deviation; that of the labels is about sqrt(d)


def _noisy(config: NoisyConfig, folder: RunFolder) -> Iterator[Row]:
    """x ~ N(0, Λ), noisy labels: one layer, and preconditioned descent."""
    d, N = config.dim, config.context
    scales = tuple(float(k**-0.5) for k in range(1, d + 1))
    tasks = Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, scales=scales, noise=_label_noise)
    moments, eye = exact_moments(tasks), jnp.eye(d)
    G = optimal_solution(moments)
    # the loss is a parabola of η
    below, at, above = (float(solution_loss(eta * eye, moments)) for eta in (-1.0, 0.0, 1.0))
    eta = (below - above) / (2 * (above + below - 2 * at))
    exact = {"gd": float(solution_loss(eta * eye, moments)), "closed_form": float(solution_loss(G, moments))}
    problem, init = Regression(tasks), partial(init_layers, width=d + 1, scale=training.INIT_SCALE)
    trained = training.train(config, folder, "anisotropic", init, problem, training.make_recipe(config))
    constructed = descent_layers(d, N, 1.0, preconditioner=G.T)
    predictors: list[tuple[Row, Callable[[Sequence], Any]]] = [
        ({"predictor": "zero"}, lambda b: jnp.zeros_like(b.y_q)),
        ({"predictor": "gd", "eta": eta}, vmap_tasks(lambda s: attention.gradient_descent(s, eta)[-1])),
        ({"predictor": "closed_form"}, vmap_tasks(lambda s: attention.gradient_descent(s, 1.0, preconditioner=G.T)[-1])),
        ({"predictor": "constructed"}, partial(problem.predict, constructed)),
        ({"predictor": "ridge"}, vmap_tasks(lambda s: ridge(s, _label_noise**2))),
        *(({"predictor": "trained", **e, "start": "cold"}, partial(problem.predict, one)) for one, e in trained),
    ]
    batch = sample_tasks(random_key(config, TEST), tasks, config.test_tasks)
    about = {"task": "anisotropic, noisy", "reference": "closed_form", "layers": 1, "recurrent": True}
    about |= {"dim": d, "context": N, "test_tasks": config.test_tasks}
    with stage("testing other covariances"):
        found = [training.predictions_of(lambda _, b, predict=predict: predict(b), None, batch) for _, predict in predictors]
    for ours, (entry, _) in zip(found, predictors, strict=True):
        compared = jax.tree.map(float, training.compare(ours, found[2]))
        yield {**about, **compared, "population_loss": exact.get(entry["predictor"]), **entry}


_noise_note = "The best single layer is preconditioned descent (Ahn et al. 2023)."
NOISY = experiment("noisy", _noisy, [MEASURES._replace(note=_noise_note)], title="Noise")


# A layer after few and many pretraining tasks (Raventós et al. 2023).

_noise = 0.5  # standard deviation, of Raventós et al.
_draws = 8  # of tasks, over which the excess loss is averaged
_tolerance = 0.05


def _task_diversity(
    config: TaskDiversityConfig,
    folder: RunFolder,
    start: None = None,
    predictor: str = "",
    training_tasks: int = 0,
    heads: int = 1,
) -> Iterator[Row]:
    """Untrained rows and thresholds, or layers trained on some tasks."""
    tasks = _make_tasks(config.dim, config.context)
    if predictor == "trained":
        few, name = FiniteTasks(tasks, training_tasks, config.seed), f"diversity_{training_tasks}_{heads}_heads"
        init = partial(init_layers, width=config.dim + 1, heads=heads, scale=training.INIT_SCALE)
        for layer, entry in training.train(config, folder, name, init, Regression(few), training.make_recipe(config)):
            loss, train_loss = closed_form.layer_losses(layer, few)
            yield _row(tasks, "trained", few.number, start="cold", loss=loss, train_loss=train_loss, **entry)
        return
    yield from _untrained(config, tasks)
    numbers, names = sorted(set(config.pretraining_tasks)), ("descent", "one_head", "all_heads")
    for d in dict.fromkeys((config.dim, *config.dims)):  # mean excess losses on fresh tasks, and numbers within tolerance
        tasks, found = _make_tasks(d, config.context if d == config.dim else d), []
        with stage(f"threshold, d = {d}", "draws") as progress:
            for draw in range(_draws):
                W = FiniteTasks(tasks, max(numbers), config.seed + draw).weights()
                found.append(diversity_curve(tasks, W, numbers))
                progress(draw + 1, _draws)
        excess = {name: np.mean([getattr(c, name).fresh for c in found], axis=0) / found[0].limit - 1 for name in names}
        thresholds = {name: closed_form.crossing(numbers, of_name, _tolerance) for name, of_name in excess.items()}
        thresholds["limit"] = closed_form.diversity_threshold(tasks, tolerance=_tolerance)
        folder.log(event="threshold", dim=d, context=tasks.context, thresholds=thresholds)


def _diversity_keys(config: TaskDiversityConfig) -> list[dict[str, Any]]:
    """A part without training, and one for each number of tasks and heads."""
    pairs = itertools.product(config.diversity_points, (1, config.dim + 1))
    return [{"start": None}, *({"predictor": "trained", "training_tasks": M, "heads": heads} for M, heads in pairs)]


def _make_tasks(d: int, N: int) -> Tasks:
    """x ~ N(0, I), w ~ N(0, I), and noise."""
    return Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, noise=_noise)


def _row(tasks: Tasks, predictor: str, M: int | None, **more: Any) -> Row:
    about = {"task": "finite tasks", "layers": 1, "recurrent": True, "dim": tasks.dim, "context": tasks.context}
    return about | {"predictor": predictor, "training_tasks": M} | more


def _untrained(config: TaskDiversityConfig, tasks: Tasks) -> Iterator[Row]:
    """Exact losses of the best layers, and the Bayes optima.

    A row without a number of tasks is of the best layer for all of them.
    """
    numbers = sorted({*config.pretraining_tasks, *config.diversity_points})
    W = FiniteTasks(tasks, max(numbers), config.seed).weights()
    curve = diversity_curve(tasks, W, numbers)
    yield _row(tasks, "closed_form", None, loss=float(curve.limit))
    solved = ("closed_form", 1, curve.descent), ("solved", 1, curve.one_head), ("solved", tasks.dim + 1, curve.all_heads)
    for name, heads, losses in solved:
        for M, loss, train_loss in zip(numbers, losses.fresh, losses.pretraining, strict=True):
            yield _row(tasks, name, M, heads=heads, loss=float(loss), train_loss=float(train_loss))
    size, key = config.test_tasks, random_key(config, TEST)
    fresh = tasks.sample(key, size)
    with stage("Bayes-optimal predictions", "numbers of tasks") as progress:
        for n, M in enumerate(numbers):
            own = FiniteTasks(tasks, M, config.seed).sample(key, size)
            on_own, on_fresh = (closed_form.bayes_predictions(batch, W[:M], tasks.noise**2) for batch in (own, fresh))
            for name, y in on_fresh.items():
                losses = {"loss": half_mse(y, fresh.y_q), "train_loss": half_mse(on_own[name], own.y_q)}
                yield _row(tasks, name, M, test_tasks=size, **{what: float(value) for what, value in losses.items()})
            progress(n + 1, len(numbers))


_series_of = {"closed_form": "closed form without XᵀX and yᵀy", "dmmse": "dMMSE", "ridge": "ridge"}
_on = {"train_loss": "the M tasks", "loss": "fresh tasks"}


def _series(row: Row) -> str:
    """The predictor, and its heads where these matter."""
    return _series_of.get(row["predictor"]) or f"{'one head' if row['heads'] == 1 else 'all heads'}, {row['predictor']}"


def _diversity_curves(results: Results) -> list[Row]:
    """All losses but those far above the Bayes optimum's."""
    highest = 1.5 * max(row["loss"] for row in where(results.rows, predictor="dmmse"))
    return [row for row in results.rows if row["loss"] <= highest]


_limits = {"limit": "limit of large d", "descent": "descent", "one_head": "one head", "all_heads": "all heads"}
THRESHOLDS = Table(
    [Column("d", "dim"), Column("N", "context"), *(Column(label, name, ".0f") for name, label in _limits.items())],
    lambda results: sorted(({**e, **e["thresholds"]} for e in results.events("threshold", "dim")), key=lambda e: e["dim"]),
    note="The M from which on the loss on fresh tasks is within 5 % of that for all tasks, in the mean over draws of tasks: "
    "proportional to d in Raventós et al. 2023.",
)
_heads = {"one head": COLOURS["trained"], "all heads": COLOURS["gd++"]}
_series_colours = {f"{heads}, {name}": colour for heads, colour in _heads.items() for name in ("solved", "trained")}
_series_dashes: Any = {**{f"{heads}, trained": (1, 1) for heads in _heads}, "dMMSE": (4, 2), "ridge": (4, 2)}
_diversity_axes = {"xscale": "log", "xlabel": "pretraining tasks M", "ylabel": LOSS}
_panels: Any = {"axes": _diversity_axes, "by_panel": {"fresh tasks": {"yscale": "log"}}, "dashes": _series_dashes}
_lines = Lines("task_diversity", "training_tasks", _on, _series, "measure", _diversity_curves, _series_colours, **_panels)
_diversity_views = [THRESHOLDS, _lines]
TASK_DIVERSITY = experiment("task-diversity", _task_diversity, _diversity_views, title="Task diversity", keys=_diversity_keys)
