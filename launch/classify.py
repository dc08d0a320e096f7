"""Classify images with a model of a run of launch.digits, solved or trained.

python -m launch.classify --run runs/digits --images seven.png scans/
python -m launch.classify --run runs/mnist --method kernel --images t10k-images-idx3-ubyte.gz --top 3
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jexplicit.runs.files import PositiveInt, config_of, local_path, read_run
from jexplicit.runs.progress import console, show
from launch.digits import Config as Digits
from launch.digits import Method
from launch.kit.command import entry_point
from launch.kit.views import Row, where

if TYPE_CHECKING:
    from jaxtyping import Array

_images_per_call = 1000


@dataclass(frozen=True)
class Config:
    run: str
    """Run folder of launch.digits."""
    images: tuple[str, ...]
    """Images of the run's size: PNG, JPEG, ..., folders of them, idx files, .npy, or .npz with one array or x_test. They become
    grey, bright on dark, with the levels of the run."""
    method: Method | None = None
    """Method that fitted the model. Default: the model of the highest held-out accuracy of those that match the other flags."""
    layers: PositiveInt | None = None
    """Number of layers of the model."""
    features: Literal["pixels", "kernel"] | None = None
    """Features that the model reads."""
    solver: str | None = None
    """How the readout was fitted. With --method kernel: least_squares, softmax."""
    top: PositiveInt = 1
    """Number of labels to show, the most probable first."""


class Classifier(NamedTuple):
    """A model of a run: its row, labels and logits [M, N] of images."""

    row: Row
    classes: tuple[str, ...]
    logits: "Callable[[np.ndarray], Array]"


def load_classifier(run: str, **wanted: Any) -> Classifier:
    """The most accurate of the wanted models of a run."""
    import jax
    import jax.numpy as jnp

    from jexplicit.data.images import pixel_features
    from jexplicit.runs.devices import is_checkpoint, load_checkpoint
    from launch.digits import solved

    stored, rows = read_run(run, "digits")
    if set(stored) != {field.name for field in dataclasses.fields(Digits)}:
        raise ValueError(f"{run} is a run of another version: fit its models again, by jexplicit digits with another --out")
    config_of(Digits, stored, f"restore it in {run}, or give another run")
    folder = local_path(run, "--run") / "checkpoints"
    saved = [row for row in rows if is_checkpoint(folder / solved.model_name(row))]
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not (fitting := where(saved, **wanted)):
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items()) or "--run"
        there = "; ".join(map(solved.row_name, saved)) or "none that was saved"
        raise ValueError(f"{asked}: {run} has no such model; it has {there}")
    row, name = (best := solved.most_accurate(fitting)), solved.model_name(best)
    names = [name, *([row["features"]] if row["features"] != "pixels" else [])]
    params, *described = (jax.tree.map(jnp.asarray, load_checkpoint(folder / name)["params"]) for name in names)
    weights = described[0] if described else {}
    if row["method"] in ("network", "cnn", "cold", "warm"):
        from launch.digits.trained import network_logits, network_of  # flax and optax, which solved models need not wait for

        logits: Callable[[Any], Array] = functools.partial(network_logits(network_of(row)), params)
    else:
        logits = solved.logits_of(params, weights)

    def of_images(X: np.ndarray) -> "Array":
        if not weights:
            return logits(jnp.asarray(pixel_features(X, row["levels"])))
        from jexplicit.features import Axes, describe

        return logits(describe(solved.pools(X.shape), Axes(weights["mean"], weights["axes"]), X, row["levels"]))

    return Classifier(row, tuple(row.get("classes") or map(str, range(row["outputs"]))), of_images)


def run(config: Config) -> dict[str, Any]:
    """Load the model, read the images, print a line for each."""
    import jax

    from jexplicit.data.images import check_grey_levels, read_grey_images, size
    from launch.digits.solved import row_name

    if not config.images:
        raise ValueError("--images needs at least one file or folder")
    wanted = {name: getattr(config, name) for name in ("method", "layers", "features", "solver")}
    model = load_classifier(config.run, **wanted)
    row, name = model.row, row_name(model.row)
    console.print(f"model {name} of {config.run}, test accuracy {100 * row['test_accuracy']:.2f} %", soft_wrap=True)
    shape, resize = (row["height"], row["width"]), read_run(config.run, "digits")[0]["resize"]
    given = list(read_grey_images(config.images, row["levels"], resize))
    for image, pixels in given:
        if pixels.shape != shape:
            remedy = f"resize it, with Pillow: image.resize({shape[::-1]})"
            raise ValueError(f"{image} is {size(pixels.shape)}, but the models of {config.run} read {size(shape)}: {remedy}")
    names, X = [image for image, _ in given], np.stack([pixels for _, pixels in given])
    check_grey_levels(X, row["levels"], f"images such as {names[int(X.max(axis=(1, 2)).argmax())]}")
    blocks = (X[m : m + _images_per_call] for m in range(0, len(X), _images_per_call))
    P = np.concatenate([np.asarray(jax.nn.softmax(model.logits(block))) for block in blocks])
    found = []
    for image, p in zip(names, P, strict=True):
        top = [{"label": model.classes[i], "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[: config.top]]
        found.append({"image": image, **top[0], "top": top})
        show(f"{image}: " + ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in top))
    return {"model": name, "test_accuracy": row["test_accuracy"], "images": found}


main = entry_point(run, Config, __doc__, module=__name__)
