"""The experiment of launch.digits: images -> solved and trained classifiers -> accuracies, figures, report."""

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.nn.optimizers import optax_optimizer
from jexplicit.runs.bounds import refuses
from jexplicit.runs.host import host_bytes
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import dense_cooccurrence
from jexplicit.solvers.priming import priming_scan
from launch.digits import scheduled, solved, trained
from launch.digits.base import PICTURES, SCAN, Parts, Problem, about, make_problem, most_accurate, read, row_name, stored
from launch.digits.config import PRESETS, Config
from launch.digits.descriptors import default_sizes, grid_cells, most_octaves
from launch.digits.kernel import kernel
from launch.digits.views import ALL, VIEWS
from launch.kit.experiment import Experiment
from launch.kit.folder import RunFolder
from launch.kit.rows import Row, where

METHODS: dict[str, Callable[[Problem], Parts]] = {
    **{name: functools.partial(solved.pixels, method=name) for name in solved.PIXELS},
    "features": solved.features,
    "kernel": kernel,
    "feature-machine": functools.partial(kernel, method="feature-machine"),
    "trained_readout": scheduled.trained_readout,
    "network": trained.network,
    "cnn": scheduled.cnn,
    "cold": functools.partial(trained.stacks, method="cold"),
    "warm": functools.partial(trained.stacks, method="warm"),
    "solved_second": solved.second,
}
_shared = {"epochs": 0, "priming_number": None, "backprop_free": True}  # of rows whose methods have no others
_most_mistakes = 40
_matrices = 4  # of D x D numbers: sums, a covariance, its factor, and what LAPACK copies


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other."""
    methods, second = config.methods, "--methods solved_second without a trained first layer"
    yield not (methods and config.layers and config.stop), "--methods, --layers and --stop need at least one value each"
    featureless = "features" in methods and not config.featurizers
    yield featureless, "--methods features without --featurizers: give patches, random or both"
    alone = "solved_second" in methods and not solved.first_layers(config)
    yield alone, f"{second}: add network, or cold or warm with --layers 1"
    yield bool({"kernel", "feature-machine"} & set(methods)) and not config.ridges, "--ridges needs at least one value"
    yield "feature-machine" in methods and not config.powers, "--powers needs at least one value"
    if config.optimizer != "adagrad":
        optax_optimizer(config.optimizer, config.learning_rate)


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other or the images, before anything is written."""
    check(config)
    side = min(read(config).train_images.shape[1:])
    wide = f"of images {side} pixels wide"
    if "features" in config.methods and "patches" in config.featurizers:
        size, grid = solved.patch_sizes(config, side)
        responses = side - size + 1
        yield size > side, f"--patch {size} {wide}: use at most {side}"
        few = f"{responses} responses along a side: use at most that, or a smaller --patch"
        yield grid > responses, f"--grid {grid} of {few}"
    stages = len(config.channels)
    shallow = f"--channels of {stages} layers {wide}, each of which halves it: use at most {side.bit_length() - 1}"
    yield "cnn" in config.methods and side < 2**stages, shallow
    if not {"kernel", "feature-machine", "trained_readout"} & set(config.methods):
        return
    sizes, octaves = config.patch_sizes or default_sizes(side), most_octaves(side)
    if config.descriptor == "patches":
        unfit = not 2 <= min(sizes) <= max(sizes) <= side
        yield unfit, f"--patch-sizes {' '.join(map(str, sizes))} {wide}: use 2 to {side}"
    else:
        yield config.patch_sizes, "--patch-sizes needs --descriptor patches"
        yield (config.octaves or 0) > octaves, f"--octaves {config.octaves} {wide}: use at most {octaves}"
    yield grid_cells(config, side) > side, f"--grid {config.grid} {wide}: use at most {side} cells"
    D, present = 2 * config.frequencies, host_bytes()
    needed, matrices = 4 * _matrices * D**2, f"{_matrices} matrices of {D} x {D} numbers"
    machine = f"this machine has {present / 1e9:,.0f} GB; use at most {int((present / 4 / _matrices) ** 0.5 / 2)}"
    taken = f"{matrices} take {needed / 1e9:,.0f} GB, and {machine}"
    yield needed > present, f"--frequencies {config.frequencies}: {taken}"


def measure(config: Config, folder: RunFolder) -> Parts:
    """The accuracy by priming number, every method, and what the pictures show."""
    problem = make_problem(config, folder)
    images, data = problem.images, about(problem)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    write_scan(problem)
    for method in sorted(config.methods, key=lambda name: name == "solved_second"):  # after the layers that it reads
        for key, part in METHODS[method](problem):
            yield key, functools.partial(_complete, problem, part, data)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)
    save_pictures(problem)


def _complete(problem: Problem, part: Callable[[], Iterable[Row]], data: Row) -> list[Row]:
    return [{**_shared, **row, **stored(problem, row), **data} for row in part()]


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
        best = most_accurate(rows)
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
