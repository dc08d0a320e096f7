"""The experiment of launch.digits: images -> solved and trained classifiers -> accuracies, figures, report."""

import functools
import shutil
from collections.abc import Callable, Iterable

import jax.numpy as jnp
import numpy as np

from jexplicit.experiments.experiment import Experiment
from jexplicit.experiments.folder import RunFolder
from jexplicit.experiments.rows import Row, where
from jexplicit.nn.optimizers import optax_optimizer
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import dense_cooccurrence
from jexplicit.solvers.priming import priming_scan
from launch.digits import solved, trained
from launch.digits.base import PICTURES, SCAN, Parts, Problem, about, make_problem, read, row_name
from launch.digits.config import PRESETS, Config
from launch.digits.kernel import check_kernel, kernel
from launch.digits.views import ALL, VIEWS

METHODS: dict[str, Callable[[Problem], Parts]] = {
    **{name: functools.partial(solved.pixels, method=name) for name in solved.PIXELS},
    "features": solved.features,
    "kernel": kernel,
    "network": trained.network,
    "cold": functools.partial(trained.stacks, method="cold"),
    "warm": functools.partial(trained.stacks, method="warm"),
    "solved_second": solved.second,
}
_shared = {"epochs": 0, "priming_number": None, "backprop_free": True}  # of rows whose methods have no others
_most_mistakes = 40


def check(config: Config) -> None:
    """Refuse flags that do not fit each other or the images, before anything is written."""
    if not config.methods or not config.layers or not config.stop:
        raise ValueError("--methods, --layers and --stop need at least one value each")
    if "features" in config.methods and not config.featurizers:
        raise ValueError("--methods features without --featurizers: give patches, random or both")
    if "solved_second" in config.methods and not solved.first_layers(config):
        raise ValueError("--methods solved_second without a trained first layer: add network, or cold or warm with --layers 1")
    if "kernel" in config.methods and not config.ridges:
        raise ValueError("--ridges needs at least one value")
    if config.optimizer != "adagrad":
        optax_optimizer(config.optimizer, config.learning_rate)


def check_images(config: Config) -> None:
    """Refuse flags that do not fit the images."""
    check(config)
    side = min(read(config).train_images.shape[1:])
    if "features" in config.methods and "patches" in config.featurizers:
        solved.patch_sizes(config, side)
    if "kernel" in config.methods:
        check_kernel(config, side)


def measure(config: Config, folder: RunFolder) -> Parts:
    """The accuracy by priming number, every method, and what the pictures show."""
    problem = make_problem(config, folder)
    images, data = problem.images, about(problem)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    write_scan(problem)
    for method in sorted(config.methods, key=lambda name: name == "solved_second"):  # after the layers that it reads
        for key, part in METHODS[method](problem):
            yield key, functools.partial(_complete, part, data)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)
    save_pictures(problem)


def _complete(part: Callable[[], Iterable[Row]], data: Row) -> list[Row]:
    return [{**_shared, **row, **data} for row in part()]


def write_scan(problem: Problem) -> None:
    """Write scan.csv: the explicit solution's accuracy on the train and the test images at the priming numbers 1 .. D."""
    with stage("priming scan"):
        F = dense_cooccurrence(problem.train.H, problem.train.Y)
        K = jnp.arange(1, problem.train.H.shape[1] + 1, dtype=F.dtype)
        columns = [K, *(priming_scan(s.H, F, s.labels, K).accuracy for s in (problem.train, problem.test))]
        lines = [f"{k:g},{train:.6f},{test:.6f}" for k, train, test in zip(*map(np.asarray, columns), strict=True)]
    (problem.folder.path / SCAN).write_text("\n".join(["K,train_accuracy,test_accuracy", *lines]) + "\n")


def save_pictures(problem: Problem) -> None:
    """Save mistakes of the most accurate model without backpropagation."""
    if rows := where(problem.folder.rows(), backprop_free=True):
        best = max(rows, key=lambda row: row["test_accuracy"])
        guesses = np.load(problem.folder.path / "guesses" / f"{row_name(best)}.npy")
        X, labels = problem.images.test_images, problem.images.test_labels
        places = np.flatnonzero(guesses != labels)[:_most_mistakes]
        shown = {"places": places, "images": X[places], "labels": labels[places], "guesses": guesses[places]}
        np.savez_compressed(problem.folder.path / PICTURES, **shown)


EXPERIMENT = Experiment(
    "digits",
    Config,
    measure,
    VIEWS,
    presets=PRESETS,
    check=check_images,
    extend=("methods", "layers", "featurizers"),
    title="Digits: solved and trained",
    terminal=ALL,
)
run = EXPERIMENT.run
