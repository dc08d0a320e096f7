"""Classify images with a model of a run of launch.digits, solved or trained.

python -m launch.classify --run runs/digits --images seven.png scans/
python -m launch.classify --run runs/mnist --method features --images t10k-images-idx3-ubyte.gz --top 3
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jexplicit.data.image_files import check_grey_levels, read_grey_images, size
from jexplicit.runs.bounds import PositiveInt
from jexplicit.runs.command import run_command
from jexplicit.runs.compiled import keep_compiled
from jexplicit.runs.progress import console, show
from launch.digits.config import Method

if TYPE_CHECKING:
    from launch.digits.classifiers import Classifier

_images_per_call = 1000


@dataclass(frozen=True)
class Config:
    """Classify images with a model of a run of launch.digits, solved or trained."""

    run: str
    """Run folder of launch.digits."""
    images: tuple[str, ...]
    """Grey images of the same size as those of the run: PNGs, folders of PNGs, idx files, .npy, or .npz with one array or
    x_test. Bright on dark, as in the run; the grey levels 0 .. 255 of PNGs are rescaled to those of the run."""
    method: Method | None = None
    """Method that fitted the model. Default: of the models that match the other flags, the one with the highest test
    accuracy."""
    layers: PositiveInt | None = None
    """Number of layers of the model."""
    features: Literal["pixels", "patches", "random", "kernel"] | None = None
    """Features that the model reads."""
    solver: str | None = None
    """How the readout was fitted. With --method features: explicit, scaling or quadratic; with --method kernel: least_squares
    or softmax."""
    top: PositiveInt = 1
    """Number of labels to show, the most probable first."""


def run(config: Config) -> dict[str, Any]:
    """Load the model, read the images, print a line for each."""
    from launch.digits.classifiers import load_classifier
    from launch.digits.report import row_name

    keep_compiled()
    if not config.images:
        raise ValueError("--images needs at least one file or folder")
    model = load_classifier(
        config.run, method=config.method, layers=config.layers, features=config.features, solver=config.solver
    )
    name, accuracy = row_name(model.row), model.row["test_accuracy"]
    console.print(f"model {name} of {config.run}, test accuracy {100 * accuracy:.2f} %", soft_wrap=True)
    names, X = stack_images(read_grey_images(config.images, model.row["levels"]), model, config.run)
    found = []
    for image, p in zip(names, probabilities(model, X), strict=True):
        top = [{"label": model.classes[i], "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[: config.top]]
        found.append({"image": image, **top[0], "top": top})
        show(f"{image}: " + ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in top))
    return {"model": name, "test_accuracy": accuracy, "images": found}


def stack_images(images: Sequence[tuple[str, np.ndarray]], model: "Classifier", run: str) -> tuple[list[str], np.ndarray]:
    """The names of images, and the images as one array.

    Raises:
        ValueError: an image of another size or range than those that the model was fitted on.
    """
    shape, levels = (model.row["height"], model.row["width"]), model.row["levels"]
    for name, image in images:
        if image.shape != shape:
            raise ValueError(
                f"{name} is {size(image.shape)}, but the models of {run} read {size(shape)}: resize it, with Pillow: "
                f"image.resize({shape[::-1]})"
            )
    names, X = [name for name, _ in images], np.stack([image for _, image in images])
    brightest = names[int(X.max(axis=(1, 2)).argmax())]
    check_grey_levels(X, levels, f"images such as {brightest}")
    return names, X


def probabilities(model: "Classifier", X: np.ndarray) -> np.ndarray:
    """[M, N] of images [M, height, width]."""
    import jax

    blocks = (X[m : m + _images_per_call] for m in range(0, len(X), _images_per_call))
    return np.concatenate([np.asarray(jax.nn.softmax(model.logits(block))) for block in blocks])


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
