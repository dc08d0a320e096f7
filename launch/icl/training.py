"""Shared parts of launch.icl: trained, solved and constructed layers, rows and views.

An experiment is a config and a line of COMMANDS in launch.icl.config, and its rows, views and `experiment` in a file here.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from icl import attention
from icl.attention import Predictions, Regression, predictions
from icl.closed_form import optimal_rate
from icl.rates import Polynomial, Spectrum, optimal_polynomials, spectral_law
from icl.tasks import Sequence, Tasks, sample_tasks, vmap_tasks
from icl.training import Recipe, TrainingProblem, train_layers
from jexplicit.runs.devices import key_of_seed, use_devices
from jexplicit.runs.files import host_bytes
from jexplicit.runs.progress import console, stage
from launch.icl.config import COMMANDS, Flags, InputFlags, LayerFlags, TaskFlags, TrainingFlags
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Results, Row, Table, View, groups, means, where

VALIDATION, TEST, SPECTRUM = 101, 102, 103  # streams of random numbers that depend on --seed; none is a training seed's own
INIT_SCALE = 0.002  # of the random weights of a single layer: variance times fan-in, as in the paper's code
WARM_CLIP = 1e3  # of tokens: solved layers stay below, and training that leaves them stays finite
_copies = 8  # of a float32 batch and of the weights, while a step is computed
_block = 10_000  # test tasks per evaluation
_piece = 500  # of these at a time: what deep models keep of 10,000 tasks for their sensitivities takes gigabytes
_deepest = 10  # layers of their own in float32: of more, rounding errors push eigenvalues beyond the bound of the spectrum


def experiment(
    name: str,
    rows: Callable[..., Iterable[Row]],
    views: list[View],
    *,
    title: str,
    keys: Callable[[Any], Iterable[dict[str, Any]]] = lambda config: [{}],
) -> Experiment:
    """An experiment of parts `rows(config, folder, **key)`."""

    def parts(config: Any, folder: RunFolder) -> Iterator[Part]:
        about = {"task": "linear", "heads": 1, "steps": 0}
        for key in keys(config):
            yield {"experiment": name, **key}, lambda key=key: [{**about, **row} for row in rows(config, folder, **key)]

    return Experiment(f"icl {name}", COMMANDS[name].config, parts, views, COMMANDS[name].presets, _check, title=title)


def _check(config: Flags) -> None:
    """Refuse flags without values, and sizes beyond memory; set devices and compilation effort."""
    for field in dataclasses.fields(config):
        if getattr(config, field.name) == ():
            flag, default = field.name.replace("_", "-"), " ".join(map(str, field.default))  # pyright: ignore[reportArgumentType]
            raise ValueError(f"--{flag} without a value: leave the flag out, or give some, such as {default}")
    if isinstance(config, LayerFlags):
        d, layers = config.dim + 1, getattr(config, "layers", 1)
        numbers = config.batch_size * (config.context + 1) * d + layers * d**2
        flags = f"--dim {config.dim} --context {config.context} --batch-size {config.batch_size}"
        if (needed := _copies * 4 * numbers) > (present := host_bytes()):
            takes = f"tokens and weights take {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB"
            raise ValueError(f"{flags}: {takes}: use smaller values")
    use_devices(config.devices)


def random_key(config: Flags, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(jax.random.key(config.seed), stream)


class Model(NamedTuple):
    """K layers on some tasks, with shared weights (recurrent) or separate ones."""

    tasks: Tasks
    layers: int
    recurrent: bool

    @property
    def reference(self) -> str:
        """The descent that K layers are expected to perform."""
        return "gd" if self.layers == 1 else "gd++"

    @property
    def free(self) -> int:
        """Number of layers with weights of their own."""
        return 1 if self.recurrent else self.layers

    def row(self, predictor: str, **more: Any) -> Row:
        """A row about these tasks of linear regression."""
        about = {"predictor": predictor, "reference": self.reference, "inputs": self.tasks.inputs}
        sizes = {"layers": self.layers, "recurrent": self.recurrent, "dim": self.tasks.dim, "context": self.tasks.context}
        return about | sizes | more


def make_model(config: TaskFlags, layers: int = 1, *, recurrent: bool = True) -> Model:
    """K layers on the flags' tasks, by default of inputs U(-1/2, 1/2)."""
    inputs = config.inputs if isinstance(config, InputFlags) else "uniform"
    return Model(Tasks(dim=config.dim, context=config.context, inputs=inputs), layers, recurrent or layers == 1)


def model_name(row: Row) -> str:
    """The name of K layers in files and events, such as K2_recurrent_d10_N25."""
    kind = "" if row["layers"] == 1 else "_recurrent" if row["recurrent"] else "_layers"
    return f"K{row['layers']}{kind}_d{row['dim']}_N{row['context']}"


@functools.lru_cache(maxsize=16)
def spectrum(config: TaskFlags, tasks: Tasks) -> Spectrum:
    """The law of the eigenvalues that layers are solved for."""
    return spectral_law(random_key(config, SPECTRUM), tasks, config.test_tasks)


@functools.cache  # so that equal problems have one function of predictions, compiled once
def make_regression(model: Model, **options: Any) -> Regression:
    """The layers as a problem, with the token clip of the paper's code."""
    return Regression(model.tasks, model.layers, **{"clip": 10.0 if model.layers > 3 else None, **options})


def make_recipe(config: TrainingFlags, depth: int = 1) -> Recipe:
    """The hyperparameters for K layers, as in the paper's code."""
    return Recipe(config.batch_size, config.learning_rate, gradient_clip=1e-3 if depth <= 2 else 10.0)


Predict = Callable[[Any, Sequence], Array]  # weights and a batch -> [m, B]


class Predictor(NamedTuple):
    """A function of weights and a batch, and fields of its row."""

    name: str
    predict: Predict
    weights: Any
    about: Row


def train(
    config: TrainingFlags,
    folder: RunFolder,
    name: str,
    init: Callable[[Array], Any],
    problem: TrainingProblem,
    recipe: Recipe,
    measure: Callable[[Any], Row] | None = None,
    references: Mapping[str, float] | None = None,
    *,
    steps: int | None = None,
    every: int = 100,
) -> list[tuple[Any, Row]]:
    """The parameters of every seed, with row fields; earlier training continues, or is read.

    name: of the model, in files and events. init: `key -> parameters`. measure: of the parameters of a seed; default, their
    loss on validation tasks. references: losses on these by predictor, which are events.
    """
    steps, numbers = steps or config.steps, [config.seed + n for n in range(config.seeds)]
    tenth = max(every, steps // 10 // every * every)
    if measure is None:
        validation, loss = problem.sample(random_key(config, VALIDATION), config.validation_tasks), jax.jit(problem.loss)
        measure = lambda params: {"loss": loss(params, validation)}  # noqa: E731
    if not where(folder.events("reference"), model=name):
        for predictor, level in (references or {}).items():
            folder.log(event="reference", model=name, predictor=predictor, loss=level)

    def evaluate(params: Any) -> Row:
        entries = [measure(one) for one in _split_seeds(params)]
        return {what: [float(entry[what]) for entry in entries] for what in entries[0]}

    def on_evaluation(entry: Row) -> None:
        folder.log(event="evaluation", model=name, **entry)
        if entry["step"] % tenth == 0:
            measures = ", ".join(f"{what} {np.mean(entry[what]):.4f}" for what in ("loss", "cosine") if what in entry)
            console.print(f"    {name}: step {entry['step']}, {measures}, {entry['seconds']:.0f} s")

    first = [init(jax.random.fold_in(key_of_seed(seed), 0)) for seed in numbers]
    params = jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *first)
    options: Any = {"steps": steps, "seeds": numbers, "every": every, "devices": config.devices}
    options |= {"checkpoints": folder.path / "checkpoints" / name, "on_evaluation": on_evaluation}
    with stage(f"training {name}, {len(numbers)} seed{'s' * (len(numbers) > 1)}", "steps") as progress:
        recipe = recipe._replace(cooling=config.cooling)
        trained = train_layers(params, problem, recipe, evaluate=evaluate, progress=progress, **options)
    about = {"steps": steps, "seconds": trained.seconds}
    return [(one, {"seed": seed, **about}) for one, seed in zip(_split_seeds(trained.params), numbers, strict=True)]


def _split_seeds(params: Any) -> list[Any]:
    """The entries of stacked parameters."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, params))
    return [jax.tree.unflatten(structure, [jnp.asarray(leaf[n]) for leaf in leaves]) for n in range(len(leaves[0]))]


@functools.lru_cache(maxsize=64)
def descent(config: TaskFlags, model: Model, name: str) -> tuple[Polynomial, float]:
    """The rates of K steps of descent, and the seconds to find them.

    gd: one rate for all steps. gd++: rates tied as the layers are. closed_form: GD++ with rates of its own per layer.
    """
    (tasks, K, recurrent), start = model, time.perf_counter()
    if name == "gd++" and K == 1 or name == "closed_form" and K > 1 and not recurrent:
        return descent(config, model, "closed_form" if K == 1 else "gd++")  # the last γ has no effect: of one layer GD++ is GD
    with stage(f"best rates of {name}, {K} layer{'s' * (K > 1)}, N = {tasks.context}"):
        tied = {"gd": True, "gd++": recurrent, "closed_form": K == 1}[name]
        depth, law = K if tied else min(K, _deepest), spectrum(config, tasks)
        rates = optimal_polynomials(law, tasks, layers=depth, tied=tied, plus_plus=name != "gd", seed=config.seed)[-1]
        idle = np.zeros(K - depth)  # further layers that change nothing
        rates = rates._replace(eta=np.append(rates.eta, idle), gamma=np.append(rates.gamma, idle))
        if K == 1:  # exactly, from moments
            rates = rates._replace(eta=np.array([optimal_rate(tasks)]))
    return rates, time.perf_counter() - start


def constructed_layers(config: TaskFlags, model: Model) -> attention.AttentionLayer:
    """The weights that perform GD++ (GD if K = 1)."""
    (eta, gamma, _), free = descent(config, model, "gd++")[0], model.free
    return attention.descent_layers(model.tasks.dim, model.tasks.context, eta[:free], gamma=gamma[:free])


def descents(config: TaskFlags, model: Model, *names: str) -> list[Predictor]:
    """The descents that K layers are compared with, or some of `descent`."""
    found = []
    for name in names or ("gd", *["gd++"] * (model.layers > 1), "closed_form"):
        rates, seconds = descent(config, model, name)
        # one number where all layers share it
        eta, gamma = (float(rate[0]) if np.ptp(rate) == 0 else rate.tolist() for rate in (rates.eta, rates.gamma))
        about = {"eta": eta, "gamma": gamma if name != "gd" and model.layers > 1 else None, "seconds": seconds}
        weights = tuple(jnp.asarray(rate, jnp.zeros(()).dtype) for rate in (rates.eta, rates.gamma))
        found.append(Predictor(name, _by_descent(model.layers), weights, about))
    return found


@functools.cache
def _by_descent(K: int) -> Predict:
    return lambda rates, batch: vmap_tasks(lambda s: attention.gd_plus_plus(s, *rates, steps=K)[-1])(batch)  # with γ = 0 GD


def trained_layers(
    config: LayerFlags,
    folder: RunFolder,
    model: Model,
    *,
    name: str | None = None,
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
    sizes: Any = {"width": tasks.dim + tasks.outputs, "layers": model.free, "heads": heads}
    cold = functools.partial(attention.init_layers, scale=INIT_SCALE / model.layers, **sizes)
    trained = problem or make_regression(model, **{} if start is None else {"clip": WARM_CLIP})
    validation = sample_tasks(random_key(config, VALIDATION), tasks, config.validation_tasks)
    against = descents(config, model, *sorted({"gd", model.reference}))
    theirs = {one.name: predictions_of(one.predict, one.weights, validation) for one in against}

    def evaluate(layers: Any) -> Row:
        measured = compare(predictions_of(trained.predict, layers, validation), theirs[model.reference])
        return {what: measured[what] for what in ("loss", *attention.PredictorDifference._fields)}

    every, recipe = max(100, (steps or config.steps) // 200), make_recipe(config, model.layers)
    references = {what: float(np.mean(found.loss)) for what, found in theirs.items()}
    name, init = name or f"{begin}_{model_name(model.row(''))}", cold if start is None else lambda key: start
    members = train(config, folder, name, init, trained, recipe, evaluate, references, steps=steps, every=every)
    rates, found = jax.jit(functools.partial(attention.descent_rates, dim=tasks.dim, context=tasks.context)), []
    for layers, entry in members:
        about = {**entry, "start": begin, "heads": heads}
        if problem is None and model.recurrent:
            eta, gamma = map(float, rates(jax.tree.map(lambda leaf: leaf[0], layers)))
            about |= {"eta": eta, "gamma": gamma if model.layers > 1 else None}
        found.append(Predictor("trained", trained.predict, layers, about))
    return found


def measure(config: TaskFlags, model: Model, predictors: list[Predictor]) -> list[Row]:
    """A row for each predictor on the same fresh test tasks."""
    size = min(_block, config.test_tasks)
    blocks, found = -(-config.test_tasks // size), []
    (reference,) = descents(config, model, model.reference)
    with stage(f"testing {model_name(model.row(''))}", "tasks") as progress:
        for block in range(blocks):
            batch = sample_tasks(jax.random.fold_in(random_key(config, TEST), block), model.tasks, size)
            theirs = predictions_of(reference.predict, reference.weights, batch)
            ours = [compare(predictions_of(one.predict, one.weights, batch), theirs) for one in predictors]
            found.append(jax.tree.map(float, ours))
            progress((block + 1) * size, blocks * size)
    rows, averages = [], jax.tree.map(lambda *of_blocks: float(np.mean(of_blocks)), *found)
    for one, mean in zip(predictors, averages, strict=True):
        variance = max(mean.pop("square") - mean["loss"] ** 2, 0)
        mean |= {"standard_error": float(np.sqrt(variance / (blocks * size))), "test_tasks": blocks * size}
        rows.append(model.row(one.name, **mean, **one.about))
    return rows


@functools.partial(jax.jit, static_argnums=0)
def predictions_of(predict: Predict, weights: Any, batch: Sequence) -> Predictions:
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


# Tables and figures of several experiments.

COLOURS = {  # distinguishable for colour-blind readers too
    "gd": "#e69f00", "gd++": "#009e73", "closed_form": "#000000", "constructed": "#56b4e9",
    "trained": "#0072b2", "warm": "#cc79a7", "interpolated": "#d55e00", "ridge": "#999999",
}  # fmt: skip
LOSS = "loss (half mean square)"
_names = {"gd": "GD", "gd++": "GD++", "closed_form": "closed form"}
BY_NAME = {_names.get(name, name): colour for name, colour in COLOURS.items()}
_reading = """Losses are half mean squared errors, means over seeds with their range in brackets. *GD* and *GD++* are K steps at
their best rates, tied across steps where the layers share weights; the best single layer is a *closed form*. *Constructed* are
attention weights that perform the reference, GD for one layer and GD++ for more; *interpolated* is the mean of trained and
constructed weights; *ridge* knows the noise. Cosines and differences compare with the reference."""
BY_STEP = {"xlabel": "training step", "ylabel": f"validation {LOSS}", "yscale": "log"}
Models = Mapping[str, str]  # names of trained models in files and events, by label
_identity = ("experiment", "task", "layers", "heads", "recurrent", "dim", "context", "predictor", "start")


def _over_seeds(results: Results) -> list[Row]:
    """Rows over seeds as one row of means, with `number` and `losses`."""
    losses = [[row["loss"] for row in own] for own in groups(results.rows, _identity).values()]
    return [{**row, "losses": own} for row, own in zip(means(results.rows, _identity), losses, strict=True)]


def curves(results: Results, models: Models) -> list[Row]:
    """The evaluations of models as a series `trained`, and constant losses."""
    rows: list[Row] = []
    evaluations = sorted(results.events("evaluation", "model", "step"), key=lambda e: e["step"])
    for label, model in models.items():
        rows += [{"label": label, "series": "trained", **entry} for entry in where(evaluations, model=model)]
        found = {event["predictor"]: event["loss"] for event in results.events("reference") if event["model"] == model}
        rows += [{"label": label, "series": _names.get(name, name), "loss": loss} for name, loss in found.items()]
    return rows


def loss_by_step(name: str, models: Models) -> Lines:
    """The figure of validation losses by step, a panel for each model."""
    rows = functools.partial(curves, models=models)
    return Lines(name, "step", "loss", "series", "label", rows, BY_NAME, axes=BY_STEP, sharey=True)


def _predictor(row: Row) -> str:
    fitted = row["predictor"] == "closed_form" and row.get("reference") == "gd++"
    name = "GD++, separate rates" if fitted else _names.get(row["predictor"], row["predictor"])
    return name + " from the solution" * (row.get("start") == "warm") + f", {row['number']} seeds" * (row["number"] > 1)


def _layers(row: Row) -> str:
    return f"{row['layers']}" + ("" if row["layers"] < 2 else " recurrent" if row["recurrent"] else " separate")


def _loss_with_range(row: Row) -> str:
    losses = row["losses"]
    return f"{row['loss']:#.5g}" + (f" ({min(losses):#.5g} to {max(losses):#.5g})" if len(losses) > 1 else "")


def _rates(values: Any, form: str) -> str:
    """A rate, or one per layer; of several γ the last has no effect."""
    kept = values[:-1] if form == ".3g" and isinstance(values, list) else values
    return "" if values is None else ", ".join(f"{rate:{form}}" for rate in np.ravel(kept))


_differences = ("cosine", "model_difference", "prediction_difference")
_measures = [
    Column("K", _layers), Column("heads", "heads"), Column("predictor", _predictor), Column("loss", _loss_with_range),
    Column("population loss", "population_loss", ".5g"),
    *(Column(name.replace("_", " "), name, ".4f") for name in _differences),
    Column("η/N", lambda row: _rates(None if row.get("eta") is None else np.divide(row["eta"], row["context"]), ".4g")),
    Column("γ", lambda row: _rates(row.get("gamma"), ".3g")),
    Column("steps", lambda row: row["steps"] or None),
    Column("seconds", "seconds", ".0f"),
]  # fmt: skip
MEASURES = Table(_measures, _over_seeds)
COMPARISON = MEASURES._replace(note=_reading.replace("\n", " "))
