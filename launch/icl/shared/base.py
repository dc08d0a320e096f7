"""What experiments of launch.icl share: flags, tasks, random keys, rows, and trained parameters.

An experiment is one file of launch.icl: `measure`, views, and `EXPERIMENT`, which the command finds there. Its name and its
flags are in launch.icl.shared.config, which does not import JAX.
"""

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from icl.models.batched import Regression
from icl.tasks import Tasks
from icl.training import Recipe, TrainingProblem, train_layers
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint, save_checkpoint
from jexplicit.runs.host import host_bytes
from jexplicit.runs.progress import console, stage
from launch.icl.shared.config import Config
from launch.kit.experiment import Part
from launch.kit.figures import legend_below
from launch.kit.folder import RunFolder
from launch.kit.rows import Row

# Streams of random numbers that depend on --seed; none of them is a training seed's own.
VALIDATION, TEST, SPECTRUM, SWEEP = 101, 102, 103, 104

COLOURS = {  # distinguishable for colour-blind readers too
    "gd": "#e69f00",
    "gd++": "#009e73",
    "closed_form": "#000000",
    "constructed": "#56b4e9",
    "trained": "#0072b2",
    "warm": "#cc79a7",
    "interpolated": "#d55e00",
    "ridge": "#999999",
}
NAMES = {"gd": "GD", "gd++": "GD++", "closed_form": "closed form"}
LOSS = "loss (half mean square)"
STYLES = {name: {"color": colour, "label": NAMES.get(name, name)} for name, colour in COLOURS.items()}


def one_legend(axes: np.ndarray) -> None:
    """One legend beside the panels instead of one in each."""
    for ax in axes.flat:
        ax.get_legend().remove()
    legend_below(axes, loc="outside right upper", ncols=1)


Measure = Callable[[Any], Row]  # parameters of one seed -> numbers
Member = tuple[Any, Row]  # parameters, and the fields of rows that do not depend on a test: seed, steps and seconds


class Job(NamedTuple):
    """A run: its flags, also those of the experiment, and its folder."""

    config: Any
    folder: RunFolder


def parts(keys: Callable[[Any], Iterable[Row]] = lambda config: [{}]) -> Callable[[Callable[..., Iterable[Row]]], Any]:
    """Makes the `measure` of an experiment of `(job, **key) -> rows`, from the keys of its parts; default, one part."""

    def make(rows: Callable[..., Iterable[Row]]) -> Callable[[Any, RunFolder], Iterator[Part]]:
        @functools.wraps(rows)
        def measure(config: Any, folder: RunFolder) -> Iterator[Part]:
            for key in keys(config):
                yield key, functools.partial(rows, Job(config, folder), **key)

        return measure

    return make


class Effort(NamedTuple):
    """Training steps and seeds of an experiment."""

    steps: int
    seeds: int


def effort(config: Config, steps: int = 5000, seeds: int = 5) -> Effort:
    """What --steps and --seeds say, or these defaults of an experiment."""
    return Effort(config.steps or steps, config.seeds or seeds)


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse what takes more bytes than this machine has."""
    if needed > (present := host_bytes()):
        raise ValueError(f"{what} {needed / 1e9:.0f} GB and this machine has {present / 1e9:.0f} GB: {remedy}")


def random_key(config: Config, stream: int) -> Array:
    """The key of a stream of random numbers."""
    return jax.random.fold_in(jax.random.key(config.seed), stream)


def make_tasks(config: Config, *, dim: int | None = None, context: int | None = None) -> Tasks:
    """The distribution of the tasks: U(-1/2, 1/2) inputs by default."""
    input_range = 2.0 if config.settings == "paper" else 1.0
    return Tasks(dim=dim or config.dim, context=context or config.context, input_range=input_range)


def make_regression(config: Config, tasks: Tasks, depth: int) -> Regression:
    """K layers on tasks, with the token clip of the paper's code or text."""
    return Regression(tasks, depth, clip=10.0 if depth > (3 if config.settings == "code" else 2) else None)


def make_recipe(config: Config, depth: int) -> Recipe:
    """The hyperparameters for K layers, from the paper's code or text."""
    code = config.settings == "code"
    return Recipe(
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        b2=0.98 if code else 0.999,
        gradient_clip=1e-3 if code and depth <= 2 else 10.0,
    )


def init_scale(config: Config, depth: int, width: int) -> float:
    """Variance times fan-in of random weights."""
    return 0.002 / depth if config.settings == "code" else (0.002 / depth) ** 2 * width


class Model(NamedTuple):
    """Layers: K of them on some tasks, with one set of weights (recurrent) or K."""

    tasks: Tasks
    layers: int
    recurrent: bool

    @property
    def sizes(self) -> dict[str, Any]:
        """Its sizes, as rows have them."""
        tasks = self.tasks
        return {"layers": self.layers, "recurrent": self.recurrent, "dim": tasks.dim, "context": tasks.context}

    @property
    def name(self) -> str:
        """Its name in files and events."""
        return model_name(self.sizes)

    @property
    def reference(self) -> str:
        """The descent that K layers are expected to perform."""
        return "gd" if self.layers == 1 else "gd++"

    def row(self, predictor: str, **more: Any) -> dict[str, Any]:
        """A row about these tasks of linear regression."""
        return {"predictor": predictor, "reference": self.reference, "inputs": self.tasks.inputs} | self.sizes | more


def model_name(row: Row) -> str:
    """The name in files and events of K layers, from their sizes.

    Example:
        >>> model_name({"layers": 2, "recurrent": True, "dim": 10, "context": 25})
        'K2_recurrent_d10_N25'
    """
    kind = "" if row["layers"] == 1 else "_recurrent" if row["recurrent"] else "_layers"
    return f"K{row['layers']}{kind}_d{row['dim']}_N{row['context']}"


def train_or_load(
    job: Job,
    name: str,
    init: Callable[[Array], Any],
    problem: TrainingProblem,
    recipe: Recipe,
    evaluation: Callable[[], Measure],
    effort: Effort,
    every: int = 100,
) -> list[Member]:
    """The parameters of every seed, with the row fields of their training. An interrupted training continues where it was.

    Training logs an event `evaluation` every so many steps, and `trained` at the end.

    Args:
        job: the run.
        name: of the model, in files and events.
        init: `key -> parameters` of one seed; best compiled once for all models of a size.
        problem, recipe, every: as in `icl.train_layers`; the schedule of the learning rate is that of --cooling.
        evaluation: returns what to measure of the parameters of one seed; called only if there is something to train.
        effort: steps and seeds.
    """
    (config, folder), (steps, seeds) = job, effort
    path, numbers = folder.path / "checkpoints" / name, [config.seed + n for n in range(seeds)]

    def load() -> list[Member]:
        structure = jax.tree.structure(jax.eval_shape(init, jax.random.key(0)))
        params = split_seeds(jax.tree.unflatten(structure, load_checkpoint(path)["params"]))
        event = next(event for event in folder.events("trained") if event["model"] == name)
        about = {"steps": event["steps"], "seconds": event["seconds"]}
        return [(one, {"seed": seed, **about}) for one, seed in zip(params, event["seeds"], strict=True)]

    if is_checkpoint(path):
        return load()
    measure, tenth = evaluation(), max(every, steps // 10 // every * every)

    def evaluate(params: Any) -> Row:
        entries = [measure(one) for one in split_seeds(params)]
        return {what: [float(entry[what]) for entry in entries] for what in entries[0]}

    def on_evaluation(entry: Row) -> None:
        folder.log(event="evaluation", model=name, **entry)
        if entry["step"] % tenth == 0:
            measures = ", ".join(f"{what} {np.mean(entry[what]):.4f}" for what in ("loss", "cosine") if what in entry)
            console.print(f"    {name}: step {entry['step']}, {measures}, {entry['seconds']:.0f} s")

    first = [init(jax.random.fold_in(jax.random.key(seed), 0)) for seed in numbers]
    with stage(f"training {name}, {seeds} seed{'s' * (seeds > 1)}", "steps") as progress:
        trained = train_layers(
            jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *first),
            problem,
            recipe._replace(cooling=config.cooling),
            steps=steps,
            seeds=numbers,
            every=every,
            evaluate=evaluate,
            devices=config.devices,
            checkpoints=(partial := path.with_name(f"{name}.partial")),
            on_evaluation=on_evaluation,
            progress=progress,
        )
    folder.log(event="trained", model=name, steps=steps, seconds=trained.seconds, seeds=numbers)
    save_checkpoint(path, {"params": [np.asarray(leaf) for leaf in jax.tree.leaves(trained.params)]})
    shutil.rmtree(partial, ignore_errors=True)
    return load()


def split_seeds(params: Any) -> list[Any]:
    """The entries of stacked parameters."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, params))
    return [jax.tree.unflatten(structure, [jnp.asarray(leaf[n]) for leaf in leaves]) for n in range(len(leaves[0]))]


def first_layer(layers: Any) -> Any:
    """The first of a stack of layers."""
    return jax.tree.map(lambda leaf: leaf[0], layers)


@functools.partial(jax.jit, static_argnums=0)
def batch_loss(problem: TrainingProblem, params: Any, batch: Any) -> Array:
    """The loss of parameters on a batch, compiled once for equal problems; a batch that is no argument would be a constant,
    whose share of the loss XLA computes while it compiles."""
    return problem.loss(params, batch)


def validation_loss(config: Config, problem: TrainingProblem, tasks: int) -> Callable[[], Measure]:
    """An evaluation of the loss alone, on so many validation tasks."""

    def evaluation() -> Measure:
        validation = problem.sample(random_key(config, VALIDATION), tasks)
        return lambda params: {"loss": batch_loss(problem, params, validation)}

    return evaluation
