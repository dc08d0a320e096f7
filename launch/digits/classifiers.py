"""The models of a finished run of launch.digits, solved or trained, as functions of images."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.data.images import pixel_features
from jexplicit.nn.networks import FullyConnected, network_outputs
from jexplicit.runs.checkpoints import is_checkpoint, load_checkpoint
from jexplicit.runs.devices import full_precision
from jexplicit.runs.results import read_run
from jexplicit.solvers.layerwise import stack_logits
from launch.digits.config import Config
from launch.digits.kernel import kernel_logits
from launch.digits.methods import checkpoint_name, explicit_features, with_constant
from launch.digits.report import row_name
from launch.digits.second import second_logits


class Classifier(NamedTuple):
    """A model of images.

    row: of results.json, measured on the run's own test images.
    classes: the names of the N labels.
    logits: of images [M, height, width] with grey levels 0 .. levels - 1 as bytes, [M, N] nats.
    """

    row: dict[str, Any]
    classes: tuple[str, ...]
    logits: Callable[[np.ndarray], Array]


def load_classifier(
    run: str, *, method: str | None = None, layers: int | None = None, features: str | None = None, solver: str | None = None
) -> Classifier:
    """A model of a run, the most accurate one on the test images of those that the arguments leave.

    Args:
        run: folder of a run of launch.digits.
        method, layers, features, solver: of the row in results.json.

    Raises:
        ValueError: no such run or model, or a damaged checkpoint.
    """
    config, rows = read_run(run, "digits")
    folder = Path(run).expanduser() / "checkpoints"
    models = {checkpoint_name(row): row for row in rows if row.get("stop") != "rise" or "patience" not in config["stop"]}
    models = {name: row for name, row in models.items() if is_checkpoint(folder / name)}
    wanted = {"method": method, "layers": layers, "features": features, "solver": solver}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    fitting = {name: row for name, row in models.items() if wanted.items() <= row.items()}
    if not fitting:
        asked = " ".join(f"--{name} {value}" for name, value in wanted.items()) or "--run"
        there = "; ".join(row_name(row) for row in models.values()) or "none that was saved"
        raise ValueError(f"{asked}: {run} has no such model; it has {there}")
    name = max(fitting, key=lambda name: fitting[name]["test_accuracy"])
    row, params = fitting[name], _load_params(folder / name)
    weights = _load_params(folder / row["features"]) if row["method"] in ("features", "kernel") else {}
    classes = tuple(row.get("classes") or map(str, range(row["outputs"])))

    def logits(X: np.ndarray) -> Array:
        if row["method"] == "kernel":
            return kernel_logits(X, row["levels"], weights, params, Config(**config))
        if row["method"] == "features":
            H = explicit_features(X, row["levels"], weights, config["grid"], config["threshold"])
        else:
            H = jnp.asarray(pixel_features(X, row["levels"]))
        return _logits(row, params, H)

    return Classifier(row, classes, logits)


def _load_params(path: Path) -> Any:
    return jax.tree.map(jnp.asarray, load_checkpoint(path)["params"])


@full_precision
def _logits(row: dict[str, Any], params: Any, H: Array) -> Array:
    """Logits of features: of a network with a hidden layer, of a stack of softmax layers, or of one with an intercept."""
    if row["method"] == "solved_second":
        return second_logits(row, params, H)
    if row["method"] == "network":
        hidden = len(params["output"]["kernel"])
        return network_outputs(FullyConnected((hidden,), row["outputs"]), {"params": params}, H)
    if row["method"] in ("cold", "warm"):
        return stack_logits([params[f"layer_{n}"]["kernel"] for n in range(1, row["layers"] + 1)], H)
    if row["method"] == "explicit":
        return stack_logits(params, H)
    H = with_constant(H) if row["method"] == "quadratic" else H
    return H @ params["U"] + params["intercept"][None, :]
