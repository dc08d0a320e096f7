"""The experiment of launch.digits, and its models as functions of images for launch.classify."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import check_grey_levels, pixel_features, read_grey_images, size
from jexplicit.nn.networks import ConvolutionalNetwork, FullyConnected, SoftmaxStack
from jexplicit.runs.devices import is_checkpoint
from jexplicit.runs.files import config_of, local_path, read_config, read_run
from jexplicit.runs.progress import console, show
from jexplicit.solvers.explicit import stack_logits
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits import solved, trained
from launch.digits.config import PRESETS, Config
from launch.digits.solved import load_model, model_name, row_name
from launch.kit.experiment import Experiment
from launch.kit.views import Row, section, where

_methods: dict[str, solved.Method] = {
    **solved.METHODS,
    "optimum": trained.optimum, "trained_readout": trained.readout,
    **dict.fromkeys(("network", "cnn", "cold", "warm"), trained.on_pixels),
}  # fmt: skip
_measure = functools.partial(solved.measure, _methods)
_views = [*solved.VIEWS, section("One loss, four optimisers", trained.OPTIMUM, method="optimum")]
EXPERIMENT = Experiment(
    "digits", Config, _measure, _views, PRESETS, solved.check_images, ("methods", "layers"), "Digits: solved and trained"
)
_images_per_call = 1000


class Classifier(NamedTuple):
    """A model of a run: its row, labels and logits [M, N]."""

    row: Row
    classes: tuple[str, ...]
    logits: Callable[[np.ndarray], Array]


def load_classifier(run: str, **wanted: Any) -> Classifier:
    """The most accurate of the wanted models of a run."""
    stored, rows = read_run(run, "digits")
    if set(stored) != {field.name for field in fields(Config)}:
        raise ValueError(f"{run} is a run of another version: fit its models again, by jexplicit digits with another --out")
    config_of(Config, stored, f"restore it in {run}, or give another run")
    folder = local_path(run, "--run") / "checkpoints"
    saved = [row for row in rows if is_checkpoint(folder / model_name(row))]
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not (fitting := where(saved, **wanted)):
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items()) or "--run"
        there = "; ".join(map(row_name, saved)) or "none that was saved"
        raise ValueError(f"{asked}: {run} has no such model; it has {there}")
    row = solved.most_accurate(fitting)
    params, method, N = load_model(folder / model_name(row)), row["method"], row["outputs"]
    weights = load_model(folder / row["features"]) if method in solved.WITH_FEATURES else {}

    def logits(X: np.ndarray) -> Array:
        if row["features"] == "kernel":
            return solved.kernel_logits(weights, params, X, row["levels"])
        H = jnp.asarray(pixel_features(X, row["levels"]))
        if method == "explicit":
            return stack_logits(params, H)
        if method in ("scaling", "quadratic"):
            return SoftmaxFit(params["U"], params["intercept"], ()).logits(solved.layer_inputs(row, H))
        if method == "cnn":
            return trained.network_logits(ConvolutionalNetwork((row["height"], row["width"]), N))(params, H)
        network = method == "network"
        model = FullyConnected((len(params["output"]["kernel"]),), N) if network else SoftmaxStack(N, row["layers"])
        return trained.network_logits(model)({"params": params}, H)

    return Classifier(row, tuple(row.get("classes") or map(str, range(N))), logits)


def classify(config: Any) -> dict[str, Any]:
    """launch.classify: load the model, read the images, print a line for each."""
    if not config.images:
        raise ValueError("--images needs at least one file or folder")
    wanted = {name: getattr(config, name) for name in ("method", "layers", "features", "solver")}
    model = load_classifier(config.run, **wanted)
    name, accuracy = row_name(model.row), model.row["test_accuracy"]
    console.print(f"model {name} of {config.run}, test accuracy {100 * accuracy:.2f} %", soft_wrap=True)
    resize = (read_config(config.run) or {}).get("resize")
    names, X = _stack_images(read_grey_images(config.images, model.row["levels"], resize), model.row, config.run)
    blocks = (X[m : m + _images_per_call] for m in range(0, len(X), _images_per_call))
    P = np.concatenate([np.asarray(jax.nn.softmax(model.logits(block))) for block in blocks])
    found = []
    for image, p in zip(names, P, strict=True):
        top = [{"label": model.classes[i], "probability": float(p[i])} for i in np.argsort(-p, kind="stable")[: config.top]]
        found.append({"image": image, **top[0], "top": top})
        show(f"{image}: " + ", ".join(f"{guess['label']} {guess['probability']:.4f}" for guess in top))
    return {"model": name, "test_accuracy": accuracy, "images": found}


def _stack_images(images: Sequence[tuple[str, np.ndarray]], row: Row, run: str) -> tuple[list[str], np.ndarray]:
    """The names of images, and the images as one array that a model reads."""
    shape = (row["height"], row["width"])
    for name, image in images:
        if image.shape != shape:
            remedy = f"resize it, with Pillow: image.resize({shape[::-1]})"
            raise ValueError(f"{name} is {size(image.shape)}, but the models of {run} read {size(shape)}: {remedy}")
    names, X = [name for name, _ in images], np.stack([image for _, image in images])
    brightest = names[int(X.max(axis=(1, 2)).argmax())]
    check_grey_levels(X, row["levels"], f"images such as {brightest}")
    return names, X
