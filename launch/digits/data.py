"""Shared parts of launch.digits: features, descriptors, names and fields of rows.

A method is a function of a `Problem` that yields parts: the fields that identify a row, and what computes the rest of it.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import Images, one_hot, pixel_features, read_images
from jexplicit.features.descriptors import Axes, describe, fit_axes
from jexplicit.features.scattering import scattering_pools, wavelets
from jexplicit.runs.commands import stage
from jexplicit.runs.files import is_measured
from jexplicit.runs.loop import load_checkpoint, save_checkpoint
from jexplicit.solvers.calibration import calibration_error, reliability
from jexplicit.solvers.explicit import priming_number
from jexplicit.solvers.metrics import accuracy, mean_loss
from launch.digits.config import Config
from launch.kit.experiment import Part, RunFolder
from launch.kit.views import Row

Parts = Iterator[Part]
# methods whose features have weights of their own, in a checkpoint by the name of the features
WITH_FEATURES = ("features", "kernel", "feature-machine", "trained_readout")


class Split(NamedTuple):
    """Features, one-hot targets and labels of some images."""

    H: Array
    Y: Array
    labels: Array

    def rows(self, chosen: Any) -> "Split":
        """Some of the images."""
        return Split(*(part[chosen] for part in self))


class Problem(NamedTuple):
    """The input of every method. K is the mean L1 norm of the pixels."""

    config: Config
    folder: RunFolder
    images: Images
    train: Split
    test: Split
    K: float


@functools.lru_cache(maxsize=1)
def read(config: Config) -> Images:
    """The images that the flags name."""
    with stage("reading"):
        return read_images(config.data, config.data_dir, limit=config.limit, resize=config.resize, seed=config.seed)


def make_problem(config: Config, folder: RunFolder) -> Problem:
    """The images of the flags as features and targets."""
    images = read(config)

    def split(X: np.ndarray, labels: np.ndarray) -> Split:
        H, Y = pixel_features(X, images.levels), one_hot(labels, images.outputs)
        return Split(jnp.asarray(H), jnp.asarray(Y), jnp.asarray(labels, jnp.int32))

    train, test = split(images.train_images, images.train_labels), split(images.test_images, images.test_labels)
    return Problem(config, folder, images, train, test, float(priming_number(train.H)))


def about(problem: Problem) -> Row:
    """The fields of all rows: what they were measured on."""
    images, (height, width) = problem.images, problem.images.train_images.shape[1:]
    about = {name: getattr(images, name) for name in ("sha256", "outputs", "levels")}
    about |= {"data": images.name, "height": height, "width": width, "mean_norm": problem.K}
    about |= {"train_images": len(images.train_labels), "test_images": len(images.test_labels)}
    return about | ({"classes": list(images.classes)} if images.classes else {})


def make_key(method: str, solver: str, *, layers: int = 1, features: str = "pixels") -> Row:
    """The fields that identify the row of a model."""
    return {"method": method, "layers": layers, "features": features, "solver": solver}


def row_name(row: Row) -> str:
    """The name of a row in tables and figures, unique within a run.

    Example:
        >>> row_name({"method": "warm", "layers": 2, "features": "pixels", "solver": "adagrad"})
        'warm, 2 layers'
    """
    if row["method"] in ("kernel", "feature-machine"):
        return f"{row['method']}, {row['solver'].replace('_', ' ')}"
    if row["method"] == "features":
        return f"{row['solver']} on {row['features']}"
    layers = f", {row['layers']} layer{'s' * (row['layers'] > 1)}" if row["method"] in ("explicit", "cold", "warm") else ""
    return row["method"].replace("_", " ") + layers


def model_name(row: Row) -> str:
    """The checkpoint of a row's model."""
    several = row["method"] in ("features", "kernel", "feature-machine")
    return f"{row['features']}_{row['solver']}" if several else f"{row['method']}_{row['layers']}"


def save_model(problem: Problem, name: str, params: Any) -> None:
    """Write the parameters of a model to its checkpoint."""
    save_checkpoint(problem.folder.path / "checkpoints" / name, {"params": jax.tree.map(np.asarray, params)})


def load_model(path: Any) -> Any:
    """The parameters in a checkpoint."""
    return jax.tree.map(jnp.asarray, load_checkpoint(path)["params"])


def flops(function: Callable, *inputs: Any) -> float:
    """Floating-point operations of a call on arrays of these shapes, by XLA."""
    return float((jax.jit(function).lower(*inputs).cost_analysis() or {}).get("flops", 0.0))


def stored(problem: Problem, row: Row) -> dict[str, int]:
    """The number of fitted parameters, and the bytes a model needs to classify."""
    names = [model_name(row), *([row["features"]] if row["method"] in WITH_FEATURES else [])]
    models = [jax.tree.leaves(load_model(problem.folder.path / "checkpoints" / name)) for name in names]
    return {"parameters": sum(leaf.size for leaf in models[0]), "bytes": sum(leaf.nbytes for leaf in sum(models, []))}


def keep(problem: Problem, key: Row, params: Any, train: Array, test: Array, **fields: Any) -> Row:
    """The row of a model from its logits; parameters and guesses are saved."""
    save_model(problem, model_name(key), params)
    log_reliability(problem, row_name(key), test)
    path = problem.folder.path / "guesses" / f"{row_name(key)}.npy"
    path.parent.mkdir(exist_ok=True)
    np.save(path, np.asarray(test.argmax(axis=1), np.uint8))
    for part, logits, split in (("test", test, problem.test), ("train", train, problem.train)):
        fields |= {f"{part}_accuracy": accuracy(logits, split.labels), f"{part}_loss": mean_loss(logits, split.Y)}
    return {**key, **fields, "calibration_error": calibration_error(test, problem.test.labels)}


def log_reliability(problem: Problem, name: str, test: Array) -> None:
    """Log the confidence and the accuracy of logits on the test images, by bin."""
    curve = reliability(test, problem.test.labels)
    problem.folder.log(event="reliability", name=name, **{field: part.tolist() for field, part in curve._asdict().items()})


def dev_scores(problem: Problem, held_out: Array) -> dict[str, float]:
    """Accuracy and loss on the held-out tenth, by which models are chosen."""
    split = problem.train.rows(held_out_tenth(problem))
    return {"dev_accuracy": accuracy(held_out, split.labels), "dev_loss": mean_loss(held_out, split.Y)}


def most_accurate(rows: Sequence[Row]) -> Row:
    """The row with the highest held-out accuracy, then the lowest loss there."""
    worst = {"dev_accuracy": 0.0, "dev_loss": math.inf}
    known = [worst | {name: row[name] for name in worst if is_measured(row.get(name))} for row in rows]
    return rows[max(range(len(rows)), key=lambda n: (known[n]["dev_accuracy"], -known[n]["dev_loss"]))]


def held_out_tenth(problem: Problem) -> np.ndarray:
    """A drawn tenth of the training images, which chooses models and settings."""
    chosen = np.zeros(len(problem.train.labels), bool)
    order = np.random.default_rng(problem.config.seed).permutation(len(chosen))
    chosen[order[: max(1, len(chosen) // 10)]] = True
    return chosen


def fit_descriptors(config: Config, images: Images) -> tuple[Array, Array, dict[str, Any]]:
    """Descriptors of the train and of the test images, and the weights they need."""
    X, levels = images.train_images, images.levels
    with stage("descriptors", "images") as progress:
        axes = fit_axes(pools(config, X.shape), X, levels, dimensions=config.axes, seed=config.seed)
        weights = axes._asdict()
        train, test = (descriptors(config, weights, x, levels, progress=progress) for x in (X, images.test_images))
    return train, test, weights


def descriptors(config: Config, weights: Mapping[str, Any], X: np.ndarray, levels: int, **options: Any) -> Array:
    """Descriptors of images [M, height, width], with weights that a run keeps."""
    return describe(pools(config, X.shape), Axes(weights["mean"], weights["axes"]), X, levels, **options)


def pools(config: Config, shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Averages of moduli of wavelets over a grid: images to [m, D]."""
    side = min(shape[1:])
    octaves = config.octaves or min(3, most_octaves(side))
    bank = wavelets(shape[1:], octaves=octaves, angles=config.angles, grid=grid_cells(config, side))
    return functools.partial(scattering_pools, bank=bank)


def grid_cells(config: Config, side: int) -> int:
    """Cells along a side: as asked for, or near a quarter of it."""
    return config.grid or max(4, round(side / 4))


def most_octaves(side: int) -> int:
    """Octaves whose coarsest wavelet is at most half an image wide."""
    return side.bit_length() - 2
