"""The experiment of launch.digits: images -> solved and trained classifiers -> accuracies, figures, report."""

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from jexplicit.runs.commands import console, refuses, stage
from jexplicit.runs.files import host_bytes
from jexplicit.solvers.explicit import dense_cooccurrence
from jexplicit.solvers.priming import priming_scan
from launch.digits import solved, trained
from launch.digits.config import PRESETS, Config
from launch.digits.data import Parts, Problem, about, grid_cells, make_problem, most_octaves, read, stored
from launch.digits.views import VIEWS
from launch.kit.experiment import Experiment, RunFolder
from launch.kit.views import Row

_shared = {"epochs": 0, "priming_number": None, "backprop_free": True}  # of rows whose methods have no others
_matrices = 4  # of D x D numbers: sums, a covariance, its factor, and what LAPACK copies
_of_descriptors = {"kernel", "feature-machine", "trained_readout"}


def parts_of(problem: Problem, method: str) -> Parts:
    """The models of a method."""
    trainings = {"trained_readout": trained.trained_readout, "network": trained.network, "cnn": trained.cnn}
    match method:
        case "features":
            return solved.features(problem)
        case "kernel" | "feature-machine":
            return solved.kernel(problem, method)
        case "cold" | "warm":
            return trained.stacks(problem, method)
    return trainings[method](problem) if method in trainings else solved.pixels(problem, method)


@refuses
def check(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other."""
    methods = set(config.methods)
    yield not (methods and config.layers), "--methods and --layers need at least one value each"
    yield {"kernel", "feature-machine"} & methods and not config.ridges, "--ridges needs at least one value"
    yield "feature-machine" in methods and not config.powers, "--powers needs at least one value"


@refuses
def check_images(config: Config) -> Iterator[tuple[Any, str]]:
    """Refuse flags that do not fit each other or the images."""
    check(config)
    side = min(read(config).train_images.shape[1:])
    small = f"--methods features of images {side} pixels wide: use images of at least 5, or leave it out"
    yield "features" in config.methods and side < 5, small
    halved = f"--methods cnn of images {side} pixels wide, which it halves twice: use images of at least 4, or leave it out"
    yield "cnn" in config.methods and side < 4, halved
    if not _of_descriptors & set(config.methods):
        return
    octaves, wide = most_octaves(side), f"of images {side} pixels wide"
    yield (config.octaves or 0) > octaves, f"--octaves {config.octaves} {wide}: use at most {octaves}"
    yield grid_cells(config, side) > side, f"--grid {config.grid} {wide}: use at most {side} cells"
    D, present = 2 * config.frequencies, host_bytes()
    needed, matrices = 4 * _matrices * D**2, f"{_matrices} matrices of {D} x {D} numbers"
    machine = f"this machine has {present / 1e9:,.0f} GB; use at most {int((present / 4 / _matrices) ** 0.5 / 2)}"
    taken = f"{matrices} take {needed / 1e9:,.0f} GB, and {machine}"
    yield needed > present, f"--frequencies {config.frequencies}: {taken}"


def measure(config: Config, folder: RunFolder) -> Parts:
    """The accuracy by priming number, and every method."""
    problem = make_problem(config, folder)
    images, data = problem.images, about(problem)
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    write_scan(problem)
    for method in config.methods:
        for key, part in parts_of(problem, method):
            yield key, functools.partial(_complete, problem, part, data)
    for path in folder.path.glob("checkpoints/*.partial"):  # the models are saved; these were for resuming
        shutil.rmtree(path)


def _complete(problem: Problem, part: Callable[[], Iterable[Row]], data: Row) -> list[Row]:
    return [{**_shared, **row, **stored(problem, row), **data} for row in part()]


def write_scan(problem: Problem) -> None:
    """Write scan.csv: the explicit solution's accuracy at K = 1 .. D."""
    with stage("priming scan"):
        F = dense_cooccurrence(problem.train.H, problem.train.Y)
        K = jnp.arange(1, problem.train.H.shape[1] + 1, dtype=F.dtype)
        columns = [K, *(priming_scan(s.H, F, s.labels, K).accuracy for s in (problem.train, problem.test))]
        lines = [f"{k:g},{train:.6f},{test:.6f}" for k, train, test in zip(*map(np.asarray, columns), strict=True)]
    (problem.folder.path / "scan.csv").write_text("\n".join(["K,train_accuracy,test_accuracy", *lines]) + "\n")


_flags: Any = {"presets": PRESETS, "check": check_images, "extend": ("methods", "layers")}
EXPERIMENT = Experiment("digits", Config, measure, VIEWS, title="Digits: solved and trained", **_flags)
