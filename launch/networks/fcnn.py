"""launch.networks fcnn: a fully connected network on images, next to the explicit solution."""

import functools
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from jexplicit.nn.networks import FullyConnected
from jexplicit.nn.parts.objectives import objective
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number
from jexplicit.solvers.metrics import accuracy
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Row
from launch.networks.config import FCNNConfig, checked
from launch.networks.training import CURVES, RESULTS, Data, open_pictures, raw_data, solved_row, train_model


def measure(config: FCNNConfig, folder: RunFolder) -> Iterator[Part]:
    """The explicit solution, and the network of the flags."""
    images, data = open_pictures(config, "fcnn")
    yield {"name": "explicit"}, functools.partial(solve, raw_data(images, "fcnn"))
    kind = "FCNN " + "-".join(map(str, (data.train.X.shape[1], *config.hidden, data.outputs)))
    network = FullyConnected(config.hidden, data.outputs, dropout=config.dropout)
    yield {"name": "fcnn"}, functools.partial(train_model, folder, config, data, network, "fcnn", kind)


@full_precision
def solve(data: Data) -> list[Row]:
    """The row of the explicit solution of one softmax layer on positive pixels."""
    parts = {name: tuple(map(jnp.asarray, getattr(data, name))) for name in ("train", "dev", "test")}
    (H, Y), (H_test, Y_test) = parts["train"], parts["test"]
    begin = time.perf_counter()
    U = jax.block_until_ready(explicit_solution(dense_cooccurrence(H, Y), float(priming_number(H))))
    seconds = time.perf_counter() - begin
    loss = objective("softmax_cross_entropy")
    losses = {name: float(loss(features @ U, targets).mean()) for name, (features, targets) in parts.items()}
    found = accuracy(H_test @ U, Y_test.argmax(axis=1))
    return [solved_row(data, losses, model="explicit solution, one layer", seconds=seconds, test_accuracy=found)]


VIEWS = [RESULTS, CURVES]
EXPERIMENT = Experiment("networks", FCNNConfig, measure, VIEWS, check=checked, title="launch.networks fcnn")
