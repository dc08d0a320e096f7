"""Layers on other problems: copying, sine waves, Markov chains, noise and few pretraining tasks."""

import itertools
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icl import attention, closed_form, problems
from icl.attention import AttentionLayer, Regression, descent_layers, difference, init_layers, predictions, ridge
from icl.closed_form import FiniteTasks, diversity_curve, exact_moments, optimal_solution, solution_loss
from icl.problems import Chain, Chains, Network, NonlinearRegression, bigram_posterior
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from icl.training import Recipe
from jexplicit.runs.progress import stage
from launch.icl import training
from launch.icl.config import CopyConfig, MarkovConfig, NoisyConfig, NonlinearConfig, TaskDiversityConfig
from launch.icl.training import BY_NAME, BY_STEP, COLOURS, LOSS, TEST, VALIDATION, curves, experiment, measures, random_key
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, means, where

# Copying: a first layer joins x and y, a second descends.

_copy_models = {"softmax": "copy", "linear": "copy_linear"}  # names in files and events, by the first layer


def _copy(config: CopyConfig, folder: RunFolder, attention: str | None) -> Iterator[Row]:
    """Untrained rows, or layers trained from every seed, linear ones from one."""
    sizes = {"recurrent": False, "dim": config.dim, "context": config.context}
    about: Row = {"task": "tokens apart", **sizes, "test_tasks": config.test_tasks}
    gd = training.descent_family(config, model := training.make_model(config), "gd")
    weights, eta = gd.members[0][0], gd.members[0][1]["eta"]

    def levels(batch: Sequence) -> dict[str, float]:
        """The losses of zero and of a step of descent."""
        loss = float(half_mse(jax.jit(gd.predict)(weights, batch), batch.y_q))
        return {"zero": 0.5 * float(jnp.mean(batch.y_q**2)), "gd": loss}

    @jax.jit
    def constructed(batch: Sequence) -> jax.Array:
        tokens = problems.add_codes(problems.separate_tokens(batch), problems.unit_codes(config.context))
        return half_mse(problems.read_out(problems.copying_layers(config.dim, config.context, eta), tokens), batch.y_q)

    if attention is None:
        batch = model.tasks.sample(random_key(config, TEST), config.test_tasks)
        zero, loss = levels(batch).values()
        yield {**about, "layers": 0, "predictor": "zero", "loss": zero}
        yield {**about, "layers": 1, "predictor": "gd", "loss": loss, "eta": eta}
        yield {**about, "layers": 2, "heads": 2, "predictor": "constructed", "loss": float(constructed(batch)), "eta": eta}
        return
    name, softmax = _copy_models[attention], attention == "softmax"
    problem = problems.Copying(model.tasks, softmax=(softmax, False))
    validation = problem.sample(random_key(config, VALIDATION), config.validation_tasks)
    few = jax.tree.map(lambda leaf: leaf[..., :500], validation)

    @jax.jit
    def measured(layers: AttentionLayer, batch: Sequence) -> dict[str, jax.Array]:
        found = problems.copy_sensitivity(layers, problem.tokens(few), softmax=softmax)._asdict()
        return {"loss": problem.loss(layers, batch)} | {f"sensitivity_{what}": x for what, x in found.items()}

    init = partial(init_layers, width=problem.width, layers=2, scale=0.02 / 2)
    recipe, every = Recipe(config.batch_size, config.learning_rate, gradient_clip=10.0), max(1, min(500, config.steps // 20))
    options: Any = {"seeds": config.seeds if softmax else 1, "every": every}
    options |= {"measure": partial(measured, batch=validation), "references": levels(validation)}
    batch = problem.sample(random_key(config, TEST), config.test_tasks)
    for layers, entry in training.train(config, folder, name, init, problem, recipe, **options):
        yield {**about, "layers": 2, "predictor": "trained", **jax.tree.map(float, measured(layers, batch)), **entry}


def _copy_curves(results: Results) -> list[Row]:
    """Losses of both, and sensitivities of the first layer with softmax."""
    names = {"own": "same token", "next": "next token", "other": "other tokens"}
    return curves(results, {f"{first} first layer": model for first, model in _copy_models.items()}) + [
        {"step": entry["step"], "loss": entry[f"sensitivity_{what}"], "series": name, "label": "sensitivity"}
        for what, name in names.items()
        for entry in training.curve(results, _copy_models["softmax"])
    ]


_copy_axes = {**BY_STEP, "yscale": "linear"}
_sensitivity_axes = {"sensitivity": {"ylabel": "sensitivity of the first layer", "yscale": "log"}}
_copy_note = (
    "von Oswald et al. 2023, Fig. 5 (10,000 steps): the loss drops just after the first layer attends to the next token."
)
_copy_figure = Lines("copy", "step", "loss", "series", "label", _copy_curves, BY_NAME, {}, _copy_axes, _sensitivity_axes)
_copy_views = [measures(Column("first layer", "attention"), note=_copy_note), _copy_figure]
_by_first_layer = lambda config: [{"attention": first} for first in (None, *_copy_models)]  # noqa: E731
COPY = experiment("copy", _copy, _copy_views, title="Copying", keys=_by_first_layer)


# Sine waves: attention on learned features, and a control.

# as in the paper's code, whose rate of attention, which starts close to zero, is larger
_recipes = {
    "trained": Recipe(learning_rate=1e-3, gradient_clip=100.0),
    "control": Recipe(learning_rate=3e-4, b2=0.999, gradient_clip=100.0),
}
_waves = {name: f"nonlinear_{name}_K1" for name in _recipes}  # names in files and events


def _nonlinear(config: NonlinearConfig, folder: RunFolder) -> Iterator[Row]:
    """Attention and control of every seed."""
    problem, every = NonlinearRegression(problems.Waves(context=config.context)), max(1, min(500, config.steps // 20))
    validation = problem.sample(random_key(config, VALIDATION), config.validation_tasks)
    batch = problem.sample(random_key(config, TEST), config.test_tasks)
    trained = {}
    for name, recipe in _recipes.items():
        init = partial(problems.init_network, layers=1 if name == "trained" else 0)
        options = recipe._replace(batch_size=config.batch_size)
        measure = partial(_wave_losses, problem, batch=validation)
        trained[name] = training.train(config, folder, _waves[name], init, problem, options, measure, every=every)
    about = {"task": "sine", "layers": 1, "recurrent": True, "dim": 1, "context": config.context}
    about |= {"test_tasks": config.test_tasks}
    yield {**about, "predictor": "zero", "loss": float(jnp.mean(batch.y_q**2) / 2)}
    predicted = jax.jit(lambda network, batch: predictions(lambda b: problem.predict(network, b), batch))
    for n, (control, _) in enumerate(trained["control"]):
        for name, members in trained.items():
            network, entry = members[n]
            found = _wave_losses(problem, network, batch)
            if name == "trained":
                found |= difference(predicted(network, batch), predicted(control, batch))._asdict()
            yield {**about, "predictor": name, **jax.tree.map(float, found), **entry}


@partial(jax.jit, static_argnums=0)
def _wave_losses(problem: NonlinearRegression, network: Network, batch: Sequence) -> dict[str, jax.Array]:
    """The losses after and before the layers."""
    y = problems.predict_waves(network, batch, eta=problem.eta)
    return {"loss": half_mse(y.final, batch.y_q), "initial_loss": half_mse(y.initial, batch.y_q)}


_wave_note = "von Oswald et al. 2023, Fig. 4 (20,000 steps, five seeds): attention and the control predict the same."
_wave_views = [measures(note=_wave_note), training.loss_by_step("nonlinear", _waves)]
NONLINEAR = experiment("nonlinear", _nonlinear, _wave_views, title="Nonlinear regression")


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
        if weights:
            found = [of_batch | _roles(*weights, batch) for of_batch, batch in zip(found, tests, strict=True)]
        averages = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        sizes = {"predictor": name, "layers": 2 if weights else 0, "test_tasks": len(tests) * size}
        return {**about, **sizes, **averages, **fields}

    def distance(x: jax.Array) -> jax.Array:
        """The largest difference of the constructed layers from the posterior mean."""
        outputs = problems.next_outputs(problems.induction_model(k, T, chains.alpha), x)
        return jnp.max(jnp.abs(outputs - bigram_posterior(x, chains.alpha, k)))

    yield from (test(name, predict) for name, predict in _strategies(chains).items())
    with jax.enable_x64(True):
        exact = float(jnp.max(jax.jit(jax.vmap(distance))(chains.sample(random_key(config, TEST), _exact_sequences).x.T)))
    constructed = jax.jit(problems.induction_model, static_argnums=(0, 1))(k, T, chains.alpha)
    of_construction = lambda model, x: jnp.log(problems.next_outputs(model, x))  # noqa: E731  (whose outputs are probabilities)
    yield test("constructed", of_construction, constructed, symbols_before=k, max_difference=exact)
    for before, name in enumerate(_markov_models.values()):
        fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
        models = _train_chains(config, folder, chains, name)
        yield from (test("trained", _of_logits, model, **fields, **entry) for model, entry in models)


def _train_chains(config: MarkovConfig, folder: RunFolder, chains: Chains, name: str) -> list[training.Member]:
    """Two-layer models, one per seed, with or without a start symbol."""

    validation = chains.sample(random_key(config, VALIDATION), config.validation_tasks)
    measure = lambda model: _chain_measures(_of_logits, chains, validation, model) | _roles(model, validation)  # noqa: E731
    measured = {which: _chain_measures(predict, chains, validation) for which, predict in _strategies(chains).items()}
    references = {strategy: float(found["loss"]) for strategy, found in measured.items()}
    recipe = Recipe(config.batch_size, config.learning_rate, b2=0.999, gradient_clip=1.0)
    init = jax.jit(partial(problems.init_model, states=chains.states, length=chains.length, start=name == "markov_start"))
    every = max(1, min(50, config.steps // 20))
    return training.train(config, folder, name, init, chains, recipe, measure, references, every=every)


@cache
def _strategies(chains: Chains) -> dict[str, Predict]:
    """The closed forms, by name."""
    k, alpha = chains.states, chains.alpha
    return {
        "uniform": lambda x: jnp.full((len(x), k), -np.log(k)),
        "unigram": lambda x: jnp.log(problems.unigram_posterior(x, alpha, k)),
        "bigram": lambda x: jnp.log(bigram_posterior(x, alpha, k)),
    }


def _of_logits(model: problems.CausalModel, x: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(problems.next_outputs(model, x))


@partial(jax.jit, static_argnums=(0, 1))
def _chain_measures(predict: Predict, chains: Chains, batch: Chain, *weights: Any) -> dict[str, jax.Array]:
    """The loss of predictions, and their divergences in nats."""

    def of_sequence(x: jax.Array) -> dict[str, jax.Array]:
        log_p = predict(*weights, x)
        closed = _strategies(chains).items()
        divergences = {f"kl_{name}": problems.divergence(jnp.exp(form(x)), log_p) for name, form in closed}
        return {"loss": problems.cross_entropy(log_p, x), **divergences}

    found = jax.tree.map(jnp.mean, jax.vmap(of_sequence, in_axes=-1)(batch.x))
    return {what: jnp.maximum(mean, 0) for what, mean in found.items()}  # a divergence of 0 is rounded to either side


@jax.jit
def _roles(model: problems.CausalModel, batch: Chain) -> dict[str, jax.Array]:
    """How far the layers are a previous-token head and an induction head."""
    return jax.tree.map(jnp.mean, jax.vmap(lambda x: problems.head_roles(model, x), in_axes=-1)(batch.x))._asdict()


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
NOISY = experiment("noisy", _noisy, [measures(note=_noise_note)], title="Noise")


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
