"""Experiments of launch.icl that train layers, and compare them with constructed and solved ones."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from icl import attention, closed_form, problems
from icl.attention import Predictions, Regression, descent_layers, init_layers, predictions, ridge, softmax_layers
from icl.closed_form import FiniteTasks, diversity_curve, exact_moments, optimal_solution, solution_loss
from icl.problems import Chain, Chains, bigram_posterior, cross_entropy, divergence, next_outputs
from icl.rates import Polynomial, context_eigenvalues, evaluate_polynomial, optimal_polynomials
from icl.tasks import Sequence, Tasks, half_mse, sample_tasks, vmap_tasks
from icl.training import Recipe, TrainingProblem, train_layers
from jexplicit.runs.devices import full_precision, key_of_seed
from jexplicit.runs.progress import stage
from launch.icl import config as configs
from launch.icl.config import LayerFlags, MultiStepConfig, TaskDiversityConfig, TaskFlags, TrainingFlags
from launch.icl.solved import LOSS, SPECTRUM, TEST, VALIDATION, Model, experiment, make_model, random_key, spectrum
from launch.kit.experiment import RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, figure, groups, means, pivot, where

_init_scale = 0.002  # of the random weights of a single layer: variance times fan-in, as in the paper's code
_warm_clip = 1e3  # of tokens: solved layers stay below, and training that leaves them stays finite
_block = 10_000  # test tasks per evaluation
_piece = 500  # of these at a time: what deep models keep of 10,000 tasks for their sensitivities takes gigabytes
_deepest = 10  # layers of their own in float32: of more, rounding errors push eigenvalues beyond the bound of the spectrum
Predict = Callable[[Any, Any], Array]  # weights and a batch -> [m, B]


class Predictor(NamedTuple):
    """A function of weights and a batch, and fields of its row."""

    name: str
    predict: Predict
    weights: Any
    about: Row


# Training, from random weights and from constructed ones, and tests on fresh tasks.


@functools.cache  # so that equal problems have one function of predictions, compiled once
def _make_regression(model: Model, **options: Any) -> Regression:
    """The layers as a problem, with the token clip of the paper's code."""
    return Regression(model.tasks, model.layers, **{"clip": 10.0 if model.layers > 3 else None, **options})


def train(
    config: TrainingFlags,
    folder: RunFolder,
    name: str,
    init: Callable[[Array], Any],
    problem: TrainingProblem,
    measure: Callable[[Any], Row] | None = None,
    references: Mapping[str, Any] | None = None,
    *,
    steps: int | None = None,
    every: int = 100,
    **recipe: float,
) -> list[tuple[Any, Row]]:
    """The parameters of every seed, with row fields; earlier training continues, or is read.

    name: of the model, in files and events. init: `key -> parameters`. measure: of the parameters of a seed, on validation
    tasks. references: losses on these by predictor, which are events. recipe: further fields of `Recipe`.
    """
    steps, numbers = steps or config.steps, [config.seed + n for n in range(config.seeds)]
    for predictor, level in (references or {}).items():
        folder.log(event="reference", model=name, predictor=predictor, loss=float(level))

    def seeds_of(params: Any) -> list[Any]:
        return [jax.tree.map(lambda leaf, n=n: jnp.asarray(np.asarray(leaf)[n]), params) for n in range(len(numbers))]

    def evaluate(params: Any) -> Row:
        entries = [measure(one) if measure else {} for one in seeds_of(params)]
        return {what: [float(entry[what]) for entry in entries] for what in entries[0]}

    first = [init(jax.random.fold_in(key_of_seed(seed), 0)) for seed in numbers]
    params = jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *first)
    rates = Recipe(config.batch_size, config.learning_rate, cooling=config.cooling)._replace(**recipe)
    options: Any = {"steps": steps, "seeds": numbers, "every": every, "devices": config.devices, "evaluate": evaluate}
    options |= {"checkpoints": folder.path / "checkpoints" / name}
    options |= {"on_evaluation": lambda entry: folder.log(event="evaluation", model=name, **entry)}
    with stage(f"training {name}, {len(numbers)} seed{'s' * (len(numbers) > 1)}", "steps") as progress:
        trained = train_layers(params, problem, rates, progress=progress, **options)
    about = {"steps": steps, "seconds": trained.seconds}
    return [(one, {"seed": seed, **about}) for one, seed in zip(seeds_of(trained.params), numbers, strict=True)]


@functools.lru_cache(maxsize=64)
def _solved(config: TaskFlags, tasks: Tasks, layers: int, tied: bool, plus_plus: bool) -> tuple[Polynomial, float]:
    """The best rates of K layers of GD or GD++, with seconds."""
    start, depth = time.perf_counter(), layers if tied else min(layers, _deepest)
    if layers == 1:  # GD and GD++ alike, exactly, from moments
        rates = Polynomial(np.array([closed_form.optimal_rate(tasks)]), np.zeros(1), np.nan)
    else:
        with stage(f"best rates of {layers} layers, N = {tasks.context}"):
            law = spectrum(config, tasks)
            rates = optimal_polynomials(law, tasks, layers=depth, tied=tied, plus_plus=plus_plus, seed=config.seed)[-1]
    idle = np.zeros(layers - depth)  # further layers that change nothing
    rates = rates._replace(eta=np.append(rates.eta, idle), gamma=np.append(rates.gamma, idle))
    return rates, time.perf_counter() - start


def descents(config: TaskFlags, model: Model) -> dict[str, Predictor]:
    """K steps of GD, GD++ and of the closed form.

    GD has one rate, GD++ rates that are tied as the layers are, the closed form rates of its own per layer.
    """
    found, dtype = {}, jnp.zeros(()).dtype
    for name in ("gd", *["gd++"] * (model.layers > 1), "closed_form"):
        tied = {"gd": True, "gd++": model.recurrent, "closed_form": model.layers == 1}[name]
        rates, seconds = _solved(config, model.tasks, model.layers, tied, name != "gd")
        # one number where all layers share it
        eta, gamma = (float(rate[0]) if np.ptp(rate) == 0 else rate.tolist() for rate in rates[:2])
        about = {"eta": eta, "gamma": gamma if name != "gd" and model.layers > 1 else None, "seconds": seconds}
        found[name] = Predictor(name, _descend, tuple(jnp.asarray(rate, dtype) for rate in rates[:2]), about)
    return found


def _constructed_layers(config: TaskFlags, model: Model) -> attention.AttentionLayer:
    """The weights that perform GD++ (GD if K = 1)."""
    eta, gamma = (rate[: 1 if model.recurrent else None] for rate in descents(config, model)[model.reference].weights)
    return descent_layers(model.tasks.dim, model.tasks.context, eta, gamma=gamma)


def _descend(rates: tuple[Array, Array], batch: Sequence) -> Array:
    return vmap_tasks(lambda s: attention.gd_plus_plus(s, *rates, steps=len(rates[0]))[-1])(batch)  # with γ = 0 GD


def _by_ridge(penalty: Any, batch: Sequence) -> Array:
    return vmap_tasks(lambda s: ridge(s, penalty))(batch)


def _trained_layers(
    config: LayerFlags,
    folder: RunFolder,
    model: Model,
    *,
    name: str = "",
    problem: Regression | None = None,
    start: attention.AttentionLayer | None = None,
    heads: int = 1,
    steps: int | None = None,
) -> list[Predictor]:
    """Layers of every seed, trained now or earlier in this run.

    start: the weights of a warm start; default, random ones. problem: default, that of the flags, where recurrent layers have
    the rates of the nearest descent. Evaluations are 100 steps apart, or 1/200 of a longer training.
    """
    tasks, begin = model.tasks, "cold" if start is None else "warm"
    sizes: Any = {"width": tasks.dim + 1, "layers": 1 if model.recurrent else model.layers, "heads": heads}
    cold = partial(init_layers, scale=_init_scale / model.layers, **sizes)
    trained = problem or _make_regression(model, **{} if start is None else {"clip": _warm_clip})
    validation = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks)
    known = descents(config, model)
    theirs = {what: _predictions_of(_descend, known[what].weights, validation) for what in sorted({"gd", model.reference})}

    def evaluate(layers: Any) -> Row:
        measured = compare(_predictions_of(trained.predict, layers, validation), theirs[model.reference])
        return {what: measured[what] for what in ("loss", *attention.PredictorDifference._fields)}

    references = {what: np.mean(found.loss) for what, found in theirs.items()}
    init, every = cold if start is None else lambda key: start, max(100, (steps or config.steps) // 200)
    # clipped as in the paper's code
    options: Any = {"steps": steps, "every": every, "gradient_clip": 1e-3 if model.layers <= 2 else 10.0}
    members = train(config, folder, name or begin, init, trained, evaluate, references, **options)
    rates, found = jax.jit(partial(attention.descent_rates, dim=tasks.dim, context=tasks.context)), []
    for layers, entry in members:
        about = {**entry, "start": begin, "heads": heads}
        if problem is None and model.recurrent:
            eta, gamma = map(float, rates(jax.tree.map(lambda leaf: leaf[0], layers)))
            about |= {"eta": eta, "gamma": gamma if model.layers > 1 else None}
        found.append(Predictor("trained", trained.predict, layers, about))
    return found


def measure(config: TaskFlags, model: Model, predictors: list[Predictor], reference: Predictor | None = None) -> list[Row]:
    """A row for each predictor on fresh test tasks, compared with a reference."""
    size, found = min(_block, config.test_tasks), []
    blocks = -(-config.test_tasks // size)
    against = reference or descents(config, model)[model.reference]
    with stage("testing", "tasks") as progress:
        for block in range(blocks):
            batch = sample_tasks(jax.random.fold_in(random_key(config, TEST), block), model.tasks, size)
            theirs = _predictions_of(against.predict, against.weights, batch)
            ours = [compare(_predictions_of(one.predict, one.weights, batch), theirs) for one in predictors]
            found.append(jax.tree.map(float, ours))
            progress((block + 1) * size, blocks * size)
    rows, averages = [], jax.tree.map(lambda *of_blocks: float(np.mean(of_blocks)), *found)
    for one, mean in zip(predictors, averages, strict=True):
        variance = max(mean.pop("square") - mean["loss"] ** 2, 0)
        mean |= {"standard_error": float(np.sqrt(variance / (blocks * size))), "test_tasks": blocks * size}
        rows.append(model.row(one.name, reference=against.name, **mean, **one.about))
    return rows


@partial(jax.jit, static_argnums=0)
def _predictions_of(predict: Predict, weights: Any, batch: Sequence) -> Predictions:
    """The predictions for a batch, in pieces."""
    size = batch.y_q.shape[-1]
    piece = max(n for n in range(1, min(size, _piece) + 1) if size % n == 0)
    pieces = jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(*leaf.shape[:-1], -1, piece), -2, 0), batch)
    found = jax.lax.map(lambda part: predictions(lambda b: predict(weights, b), part), pieces)
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -2).reshape(*leaf.shape[1:-1], size), found)


@jax.jit  # apart from the predictions, so that it is compiled once for all predictors
def compare(ours: Predictions, theirs: Predictions) -> dict[str, Array]:
    """Mean loss and mean squared loss, and differences from other predictions."""
    averages = {"loss": ours.loss, "square": ours.loss**2, "above_reference": ours.loss - theirs.loss}
    return {**jax.tree.map(jnp.mean, averages), **attention.difference(ours, theirs)._asdict()}


# The table and the figure of these experiments.

_names = {"gd": "GD", "gd++": "GD++", "closed_form": "closed form"}
_identity = ("experiment", "task", "layers", "heads", "recurrent", "dim", "context", "predictor", "start")


def _summaries(results: Results) -> Iterator[Row]:
    """Means over seeds as the texts of the table."""
    for own in groups(results.rows, _identity).values():
        (row,), losses, K = means(own, _identity), [one["loss"] for one in own], own[0]["layers"]
        name = "GD++, separate rates" if row["predictor"] == "closed_form" and K > 1 else row["predictor"]
        name = _names.get(name, name) + " from the solution" * (row.get("start") == "warm")
        spread = f" ({min(losses):#.5g} to {max(losses):#.5g})" if len(own) > 1 else ""
        eta, gamma = (np.ravel([] if row.get(rate) is None else row[rate]) for rate in ("eta", "gamma"))
        yield {
            **row,
            "K": f"{K}" + ("" if K < 2 else " recurrent" if row["recurrent"] else " separate"),
            "name": name + f", {len(own)} seeds" * (len(own) > 1),
            "loss": f"{row['loss']:#.5g}{spread}",
            "eta": ", ".join(f"{rate / row['context']:.4g}" for rate in eta),
            "gamma": ", ".join(f"{rate:.3g}" for rate in gamma[: max(1, len(gamma) - 1)]),  # of several the last has no effect
        }


_differences = ("cosine", "model_difference", "prediction_difference")
COMPARISON = Table(
    [
        Column("K", "K"), Column("heads", "heads"), Column("predictor", "name"), Column("loss", "loss"),
        Column("population loss", "population_loss", ".5g"),
        *(Column(name.replace("_", " "), name, ".4f") for name in _differences),
        Column("η/N", "eta"), Column("γ", "gamma"),
        Column("steps", lambda row: row["steps"] or None), Column("seconds", "seconds", ".0f"),
    ],
    _summaries,
    note="Half mean squared errors, means over seeds with their range. *Constructed* are attention weights that perform the "
    "reference, GD for one layer and GD++ for more, which differences compare with; *interpolated* is the mean of both.",
)  # fmt: skip
_panels = {
    "loss": "validation loss", "cosine": "cosine of sensitivities", "kl_bigram": "KL from the posterior mean",
    "prediction_difference": "distance of predictions", "model_difference": "distance of sensitivities",
}  # fmt: skip


def _curves(results: Results) -> Iterator[Row]:
    """The evaluations of trained models, and the losses that they are compared with."""
    yield from ({"series": event["model"], **event} for event in results.events("evaluation", "model", "step"))
    for event in results.events("reference", "model", "predictor"):
        yield {"series": _names.get(event["predictor"], event["predictor"]), "loss": event["loss"]}


_distances = {_panels[f"{what}_difference"]: {"ylim": (1e-3, None)} for what in ("prediction", "model")}  # 0 at a warm start
_shown: Any = {"by_panel": {_panels["cosine"]: {"yscale": "linear"}, **_distances}, "size": (3.4, 3.2)}
_axes = {"xlabel": "training step", "ylabel": "", "yscale": "log"}
TRAINING = Lines("training", "step", _panels, "series", "measure", _curves, axes=_axes, **_shown)


# Linear attention on linear regression compared with gradient descent (von Oswald 2023).

_penalty = 1e-6  # of ridge regression on tasks without noise


def _regression(config: configs.OneStepConfig | MultiStepConfig, folder: RunFolder) -> list[Row]:
    """Untrained, trained and interpolated predictors; several layers are also trained from the solution."""
    model, warm_steps = make_model(config), config.warm_steps if isinstance(config, MultiStepConfig) else 0
    known, constructed, predict = descents(config, model), _constructed_layers(config, model), _make_regression(model).predict
    untrained = [Predictor("constructed", predict, constructed, known[model.reference].about)]
    untrained.append(Predictor("ridge", _by_ridge, _penalty, {}))
    cold = _trained_layers(config, folder, model)
    warm = _trained_layers(config, folder, model, start=constructed, steps=warm_steps) if warm_steps else []
    between = []
    for one in cold:  # whose own rates are not those of the mean
        about = {what: value for what, value in one.about.items() if what not in ("eta", "gamma")}
        weights = attention.interpolate(one.weights, constructed, dim=model.tasks.dim)
        between.append(Predictor("interpolated", predict, weights, about))
    return measure(config, model, [*known.values(), *untrained, *cold, *between, *warm])


ONE_STEP = experiment("one-step", _regression, COMPARISON, TRAINING)
MULTI_STEP = experiment("multi-step", _regression, COMPARISON, TRAINING)


# Softmax attention, in one layer and in several.

_sharpness = 0.3  # of the scores of the first layer, which are below 1


def _softmax(config: configs.SoftmaxConfig, folder: RunFolder) -> list[Row]:
    """One softmax layer; the products of its heads are events."""
    model, N = make_model(config), config.context
    problem = _make_regression(model, softmax=True)
    layer = softmax_layers(descent_layers(config.dim, N, _centred_rate(config, model.tasks)), N)
    train = partial(_trained_layers, config, folder, model, problem=problem)
    found = [*train(name="1_head", heads=1), *train(name="2_heads", heads=2)]
    found.append(Predictor("constructed", problem.predict, layer, {"heads": 2}))
    for label, (one, *_) in groups(found, lambda one: f"{one.name}, heads: {one.about['heads']}").items():
        M, R = attention.head_maps(one.weights)  # [1, heads, width, width]
        folder.log(event="heads", label=label, products=(M[0] * R[0, :, -1:, -1:]).tolist())
    return measure(config, model, [*descents(config, model).values(), *found])


@full_precision
def _centred_rate(config: LayerFlags, tasks: Tasks) -> float:
    """The best η on centred inputs, `E tr S / E tr S²`."""
    X = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks).X
    centred = X - jnp.mean(X, axis=0, keepdims=True)
    S = jnp.einsum("nib,njb->bij", centred, centred) / tasks.context
    return float(jnp.mean(jnp.trace(S, axis1=1, axis2=2)) / jnp.mean(jnp.sum(S**2, axis=(1, 2))))


def _deep_softmax(config: configs.DeepSoftmaxConfig, folder: RunFolder) -> list[Row]:
    """Layers with two heads: constructed, and trained from random weights and from these."""
    model = make_model(config)
    clipped = _make_regression(model, softmax=True)
    free = _make_regression(model, softmax=True, clip=_warm_clip)  # constructed layers stay below
    linear, (eta, _) = _constructed_layers(config, model), descents(config, model)[model.reference].weights
    sharpness = (_sharpness * eta / eta[0])[: len(linear.P)]  # inputs shrink from layer to layer, as rates grow
    layers = softmax_layers(linear, model.tasks.context, sharpness=sharpness)
    train = partial(_trained_layers, config, folder, model, heads=2)
    found = [Predictor("constructed", free.predict, layers, {"heads": 2}), *train(problem=clipped)]
    if config.warm_steps:
        found += train(problem=free, start=layers, steps=config.warm_steps)
    return measure(config, model, [*descents(config, model).values(), *found])


def _head_products(results: Results) -> list[str]:
    """The products of heads and their sums, red and blue around 0 (Fig. 12)."""
    found = {event["label"]: np.array(event["products"]) for event in results.events("heads")}
    if not found:
        return []
    with figure(results.path / "figures" / "heads.png", len(found), 3, size=(7.8, 2.6 * len(found))) as axes:
        for row, (label, heads) in zip(axes, found.items(), strict=True):
            titles = [*(f"head {n + 1}" for n in range(len(heads))), "sum"]
            for ax, title, product in zip(row, titles, [*heads, heads.sum(axis=0)], strict=False):
                limit = max(1e-12, float(np.abs(product).max()))
                image = ax.imshow(product, cmap="RdBu_r", vmin=-limit, vmax=limit)
                ax.figure.colorbar(image, ax=ax, shrink=0.75)
                ax.grid(False)
                ax.set(xticks=[], yticks=[], title=title)
            row[0].set_ylabel(label)
    return ["![heads](figures/heads.png)", ""]


SOFTMAX = experiment("softmax", _softmax, COMPARISON, TRAINING, _head_products)
DEEP_SOFTMAX = experiment("deep-softmax", _deep_softmax, COMPARISON, TRAINING)


# GD++ lowers the largest eigenvalues of XᵀX (von Oswald 2023, App. A.10).

_paper_gamma = {10: 0.179, 25: 0.099, 50: 0.056, 100: 0.029}  # of its trained transformers, by N
_most = 10_000  # whose eigenvalues are measured, at most


def _curvature(config: configs.CurvatureConfig, folder: RunFolder) -> Iterator[Row]:
    """The best layers and trained ones, and eigenvalues before and after a layer."""
    for N in config.contexts:
        model = make_model(replace(config, context=N))._replace(layers=2)
        rates, seconds = _solved(config, model.tasks, 2, True, True)
        values, _ = context_eigenvalues(random_key(config, SPECTRUM + 100), model.tasks, min(config.test_tasks, _most))
        found: Row = {"loss": rates.loss, "gamma": float(rates.gamma[0]), "eta": float(rates.eta[0]), "seconds": seconds}
        after = values * (1 - found["gamma"] * values) ** 2  # von Oswald et al. 2023, Eq. 23
        for name, part in (("", values), ("_after", after)):
            highest = part.max(axis=1)
            found |= {f"eigenvalue_max{name}": float(highest.max()), f"mean_eigenvalue_max{name}": float(highest.mean())}
            with np.errstate(divide="ignore"):  # fewer pairs than inputs
                found |= {f"condition{name or '_before'}": float(np.median(highest / part.min(axis=1)))}
        yield model.row("closed_form", **found)
        for one in _trained_layers(config, folder, model, name=f"N{N}"):
            tied = {name: np.full(2, one.about[name]) for name in ("eta", "gamma")}
            yield model.row("trained", **one.about, loss=evaluate_polynomial(values, rates._replace(**tied), model.tasks).loss)


def _largest(when: str) -> Callable[[Row], Any]:
    of = f"eigenvalue_max{when}"
    return lambda line: f"{line[f'closed_form {of}']:.2f} ({line[f'closed_form mean_{of}']:.2f})"


CURVATURE_TABLE = Table(
    [
        Column("N", "context"),
        Column("γ: solved", "closed_form gamma", ".4f"),
        Column("trained here", "trained gamma", ".4f"),
        Column("steps", "trained steps"),
        Column("paper, trained", lambda line: _paper_gamma.get(line["context"]), ".3f"),
        Column("largest eigenvalue before", _largest("")),
        Column("after", _largest("_after")),
        Column("median condition number before", "closed_form condition_before", ".3g"),
        Column("after", "closed_form condition_after", ".3g"),
    ],
    lambda results: pivot(means(where(results.rows, experiment="curvature"), ["context", "predictor"]), "context", "predictor"),
    note="Eigenvalues are the largest of all contexts and, in brackets, the mean of a context's largest.",
)
CURVATURE = experiment("curvature", _curvature, CURVATURE_TABLE)


# Regression with unequal inputs and noisy labels, by preconditioned descent (Ahn et al. 2023).

_label_noise = 1.0  # standard deviation; that of the labels is about sqrt(d)


def _noisy(config: configs.NoisyConfig, folder: RunFolder) -> list[Row]:
    """x ~ N(0, Λ), noisy labels: one layer, and preconditioned descent."""
    d, N = config.dim, config.context
    scales = tuple(float(k**-0.5) for k in range(1, d + 1))
    tasks = Tasks(dim=d, context=N, inputs="normal", input_range=12**0.5, scales=scales, noise=_label_noise)
    moments, eye = exact_moments(tasks), jnp.eye(d)
    G = optimal_solution(moments)
    # the loss is a parabola of η
    below, at, above = (float(solution_loss(eta * eye, moments)) for eta in (-1.0, 0.0, 1.0))
    eta = (below - above) / (2 * (above + below - 2 * at))
    known = [{"population_loss": float(solution_loss(matrix, moments))} for matrix in (eta * eye, G)]
    problem, init = Regression(tasks), partial(init_layers, width=d + 1, scale=_init_scale)
    trained = train(config, folder, "cold", init, problem)
    descend = lambda P, b: vmap_tasks(lambda s: attention.gradient_descent(s, 1.0, preconditioner=P)[-1])(b)  # noqa: E731
    best = Predictor("closed_form", descend, G.T, known[1])
    predictors = [
        Predictor("zero", lambda _, b: jnp.zeros_like(b.y_q), None, {}),
        Predictor("gd", descend, eta * eye, {"eta": eta, **known[0]}),
        best,
        Predictor("constructed", problem.predict, descent_layers(d, N, 1.0, preconditioner=G.T), {}),
        Predictor("ridge", _by_ridge, _label_noise**2, {}),
        *(Predictor("trained", problem.predict, one, {**entry, "start": "cold"}) for one, entry in trained),
    ]
    return [{**row, "task": "anisotropic, noisy"} for row in measure(config, Model(tasks, 1, True), predictors, best)]


NOISY = experiment("noisy", _noisy, COMPARISON)


# A layer after few and many pretraining tasks (Raventós et al. 2023).

_noise = 0.5  # standard deviation, of Raventós et al.
_draws = 8  # of tasks, over which the excess loss is averaged
_tolerance = 0.05


def _task_diversity(config: TaskDiversityConfig, folder: RunFolder) -> Iterator[Row]:
    """Losses of the best layers, Bayes optima and trained layers; thresholds are events."""
    tasks = Tasks(dim=config.dim, context=config.context, inputs="normal", input_range=12**0.5, noise=_noise)
    row = partial(Model(tasks, 1, True).row, task="finite tasks")
    yield from _untrained(config, tasks, row)
    numbers, names = sorted(set(config.pretraining_tasks)), ("descent", "one_head", "all_heads")
    for d in dict.fromkeys((config.dim, *config.dims)):  # mean excess losses on fresh tasks, and numbers within tolerance
        own = replace(tasks, dim=d, context=config.context if d == config.dim else d)
        with stage(f"threshold, d = {d}"):
            drawn = (FiniteTasks(own, max(numbers), config.seed + draw).weights() for draw in range(_draws))
            found = [diversity_curve(own, W, numbers) for W in drawn]
        excess = {name: np.mean([getattr(c, name).fresh for c in found], axis=0) / found[0].limit - 1 for name in names}
        thresholds = {name: closed_form.crossing(numbers, of_name, _tolerance) for name, of_name in excess.items()}
        thresholds["limit"] = closed_form.diversity_threshold(own, tolerance=_tolerance)
        folder.log(event="threshold", dim=d, context=own.context, thresholds=thresholds)
    for M, heads in itertools.product(config.diversity_points, (1, config.dim + 1)):
        few, name = FiniteTasks(tasks, M, config.seed), f"{M}_tasks_{heads}_heads"
        init = partial(init_layers, width=config.dim + 1, heads=heads, scale=_init_scale)
        for layer, entry in train(config, folder, name, init, Regression(few)):
            losses = dict(zip(("loss", "train_loss"), closed_form.layer_losses(layer, few), strict=True))
            yield row("trained", training_tasks=M, heads=heads, start="cold", **losses, **entry)


def _untrained(config: TaskDiversityConfig, tasks: Tasks, row: Callable[..., Row]) -> Iterator[Row]:
    """Exact losses of the best layers, also for all tasks, and Bayes optima."""
    numbers = sorted({*config.pretraining_tasks, *config.diversity_points})
    W = FiniteTasks(tasks, max(numbers), config.seed).weights()
    curve = diversity_curve(tasks, W, numbers)
    yield row("closed_form", training_tasks=None, loss=float(curve.limit))
    solved = ("closed_form", 1, curve.descent), ("solved", 1, curve.one_head), ("solved", tasks.dim + 1, curve.all_heads)
    for name, heads, losses in solved:
        for M, loss, train_loss in zip(numbers, losses.fresh, losses.pretraining, strict=True):
            yield row(name, training_tasks=M, heads=heads, loss=float(loss), train_loss=float(train_loss))
    size, key = config.test_tasks, random_key(config, TEST)
    fresh = tasks.sample(key, size)
    with stage("Bayes-optimal predictions"):
        for M in numbers:
            own = FiniteTasks(tasks, M, config.seed).sample(key, size)
            on_own, on_fresh = (closed_form.bayes_predictions(batch, W[:M], tasks.noise**2) for batch in (own, fresh))
            for name, y in on_fresh.items():
                losses = {"loss": float(half_mse(y, fresh.y_q)), "train_loss": float(half_mse(on_own[name], own.y_q))}
                yield row(name, training_tasks=M, test_tasks=size, **losses)


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
    note="Smallest M from which the loss on fresh tasks stays within 5 % of pretraining on all tasks, mean over draws. In "
    "Raventós et al. 2023 it is proportional to d.",
)
_diversity: Any = {
    "axes": {"xscale": "log", "xlabel": "pretraining tasks M", "ylabel": LOSS},
    "by_panel": {"fresh tasks": {"yscale": "log"}},
    "dashes": {f"{heads}, trained": (1, 1) for heads in ("one head", "all heads")},
}
_by_tasks = Lines("task_diversity", "training_tasks", _on, _series, "measure", _diversity_curves, **_diversity)
TASK_DIVERSITY = experiment("task-diversity", _task_diversity, THRESHOLDS, _by_tasks)


# Markov chains: two layers that count transitions (Edelman et al. 2024).

_exact_sequences = 100  # on which constructions are compared in float64


def _markov(config: configs.MarkovConfig, folder: RunFolder) -> Iterator[Row]:
    """Losses of closed forms, constructed and trained models."""
    chains = Chains(3, config.length, 1.0)
    k, T, alpha, size = chains.states, chains.length, chains.alpha, min(config.validation_tasks, config.test_tasks)
    keys = [jax.random.fold_in(random_key(config, TEST), block) for block in range(config.test_tasks // size)]
    tests = [chains.sample(key, size) for key in keys]
    validation = chains.sample(random_key(config, VALIDATION), config.validation_tasks)
    about = {"task": "markov chains", "recurrent": False, "alpha": alpha, "dim": k, "context": T}
    strategies: dict[str, Predict] = {
        "uniform": lambda _, x: jnp.full((len(x), k), -np.log(k)),
        "unigram": lambda _, x: jnp.log(problems.unigram_posterior(x, alpha, k)),
        "bigram": lambda _, x: jnp.log(bigram_posterior(x, alpha, k)),
    }

    def test(name: str, predict: Predict, model: Any = None, **fields: Any) -> Row:
        found = [_chain_measures(predict, alpha, model, batch) for batch in tests]
        averages = {what: float(np.mean([of_batch[what] for of_batch in found])) for what in found[0]}
        sizes = {"predictor": name, "layers": 2 if model else 0, "test_tasks": len(tests) * size}
        return {**about, **sizes, **averages, **fields}

    constructed = jax.jit(problems.induction_model, static_argnums=(0, 1))(k, T, alpha)
    exact = {}
    if constructed.read_out.dtype == np.float64:  # as with JAX_ENABLE_X64=1
        few = chains.sample(random_key(config, TEST), _exact_sequences).x.T
        distances = jax.jit(jax.vmap(lambda x: jnp.abs(next_outputs(constructed, x) - bigram_posterior(x, alpha, k))))
        exact = {"max_difference": float(jnp.max(distances(few)))}
    yield from (test(name, predict) for name, predict in strategies.items())
    yield test("constructed", lambda model, x: jnp.log(next_outputs(model, x)), constructed, symbols_before=k, **exact)

    references = {name: _chain_measures(predict, alpha, None, validation)["loss"] for name, predict in strategies.items()}
    measured = lambda model: _chain_measures(_of_logits, alpha, model, validation)  # noqa: E731
    options: Any = {"every": max(1, min(50, config.steps // 20)), "b2": 0.999, "gradient_clip": 1.0}
    for before, name in enumerate(("markov", "markov_start")):
        fields = {"task": "markov chains" + ", marked start" * before, "symbols_before": before, "start": "cold"}
        init = jax.jit(partial(problems.init_model, states=k, length=T, start=bool(before)))
        for model, entry in train(config, folder, name, init, chains, measured, references, **options):
            yield test("trained", _of_logits, model, **fields, **entry)


def _of_logits(model: problems.CausalModel, x: Array) -> Array:
    return jax.nn.log_softmax(next_outputs(model, x))


@partial(jax.jit, static_argnums=(0, 1))
def _chain_measures(predict: Predict, alpha: float, model: problems.CausalModel | None, batch: Chain) -> dict[str, Array]:
    """The loss of predictions, their divergence from the posterior, and layers' roles."""

    def of_sequence(x: Array) -> dict[str, Array]:
        log_p = predict(model, x)
        kl = divergence(bigram_posterior(x, alpha, log_p.shape[1]), log_p)
        roles = problems.head_roles(model, x)._asdict() if model else {}
        return {"loss": cross_entropy(log_p, x), "kl_bigram": kl, **roles}

    # a divergence of 0 is rounded to either side
    return {what: jnp.maximum(jnp.mean(x), 0) for what, x in jax.vmap(of_sequence, in_axes=-1)(batch.x).items()}


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
MARKOV = experiment("markov", _markov, CHAINS, TRAINING)
