"""A second layer, solved over a first layer that was trained: in closed form, and by sweeps with the curvature bound."""

import time
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jexplicit.runs.checkpoints import load_checkpoint
from jexplicit.runs.devices import full_precision
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import priming_number
from launch.digits.config import Config
from launch.digits.methods import (
    Job,
    add_row,
    checkpoint_name,
    has_row,
    linear_params,
    model_path,
    new_row,
    solve,
    with_constant,
)
from launch.digits.report import row_name

_floor = 0.01  # of the mean unit, added to all: every unit meets every class, as the 1 in (X + 1)/256 sees to for pixels


def first_layers(config: Config) -> dict[str, str]:
    """The trained models whose first layer a run can keep, and their checkpoints."""
    stacks = {name: f"{name}_1" for name in ("cold", "warm") if 1 in config.layers}
    return {name: path for name, path in (stacks | {"network": "network_2"}).items() if name in config.methods}


def check_second(config: Config) -> None:
    """Refuse a second layer without a first one.

    Raises:
        ValueError: naming the flag.
    """
    if not first_layers(config):
        raise ValueError("--methods solved_second without a trained first layer: add network, or cold or warm with --layers 1")


def measure_second(job: Job) -> None:
    """Both readouts of the first layer of every trained model."""
    for first, checkpoint in first_layers(job.config).items():
        params = jax.tree.map(jnp.asarray, load_checkpoint(model_path(job, checkpoint))["params"])
        trained = max(row["seconds"] for row in job.folder.rows() if checkpoint_name(row) == checkpoint)
        floor = (_floor if first == "network" else 0.0) * first_outputs(first, params, job.train.H).mean()
        kept = {"first": params, "floor": floor}
        parts = [part._replace(H=first_outputs(first, params, part.H) + floor) for part in (job.train, job.test)]
        K = max(1.0, float(priming_number(parts[0].H)))
        for solver, sweeps in (("explicit", 0), ("quadratic", job.config.quadratic_sweeps)):
            about: Any = {"layers": 2, "features": first, "epochs": sweeps, "priming_number": K, "backprop_free": False}
            row = new_row("solved_second", solver, **about)
            if has_row(job, row):
                continue
            train, test = ((with_constant(H) if solver == "quadratic" else H) for H, _, _ in parts)
            start = time.perf_counter()
            with stage(row_name(row)):
                fit = jax.block_until_ready(solve(job, row, parts[0]._replace(H=train)))
            row["seconds"] = trained + time.perf_counter() - start
            add_row(job, row, fit.logits(train), fit.logits(test), kept | linear_params(fit))


@full_precision
def first_outputs(first: str, params: Any, H: Array) -> Array:
    """Outputs of a trained first layer: a softmax, or rectified units."""
    if first == "network":
        dense = params["hidden_1"]["Dense_0"]
        return jax.nn.relu(H @ dense["kernel"] + dense["bias"][None, :])
    return jax.nn.softmax(H @ params["layer_1"]["kernel"])


@full_precision
def second_logits(row: dict[str, Any], params: dict[str, Any], H: Array) -> Array:
    """Logits of features, from what a run keeps of both layers."""
    H = first_outputs(row["features"], params["first"], H) + params["floor"]
    H = with_constant(H) if row["solver"] == "quadratic" else H
    return H @ params["U"] + params["intercept"][None, :]
