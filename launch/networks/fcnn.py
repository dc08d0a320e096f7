"""launch.networks fcnn: a fully connected network on images, next to the explicit solution."""

import functools
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from jexplicit.nn.diagnostics import LayerValues, hockey_stick, layer_statistics
from jexplicit.nn.parts.objectives import objective
from jexplicit.runs.devices import full_precision
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number
from jexplicit.solvers.metrics import accuracy
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Row
from launch.networks.config import FCNNConfig, checked
from launch.networks.data import Data, image_network, open_pictures, raw_data
from launch.networks.training import VIEWS, solved_row, train_network


def measure(config: FCNNConfig, folder: RunFolder) -> Iterator[Part]:
    """The explicit solution, and the network of the flags."""
    images, data = open_pictures(config, "fcnn")
    yield {"name": "explicit"}, functools.partial(solve, folder, raw_data(images, "fcnn"))
    shape = "-".join(map(str, (data.train.X.shape[1], *config.hidden, data.outputs)))
    network, kind = image_network(config, data, bias=config.bias), f"FCNN {shape}"
    train = functools.partial(train_network, folder, config, data, network, "fcnn", kind, objective=config.objective)
    yield {"name": "fcnn"}, train


@full_precision
def solve(folder: RunFolder, data: Data) -> list[Row]:
    """The explicit solution of one softmax layer on positive pixels, its row, and the statistics of its logits."""
    parts = {name: tuple(map(jnp.asarray, getattr(data, name))) for name in ("train", "dev", "test")}
    (H, Y), (H_test, Y_test) = parts["train"], parts["test"]
    begin = time.perf_counter()
    U = jax.block_until_ready(explicit_solution(dense_cooccurrence(H, Y), float(priming_number(H))))
    seconds = time.perf_counter() - begin
    loss = objective("softmax_cross_entropy")
    losses = {name: float(loss(features @ U, targets).mean()) for name, (features, targets) in parts.items()}
    z = H[:256] @ U
    gradient = jax.grad(lambda z: loss(z, Y[:256]).mean())(z)
    statistics = layer_statistics(LayerValues(z, gradient), "linear")._asdict()
    folder.log(event="layer", name="explicit", when="end", layer="logits", **statistics)
    return [
        solved_row(
            data,
            losses,
            model="explicit solution, one layer",
            seconds=seconds,
            test_accuracy=accuracy(H_test @ U, Y_test.argmax(axis=1)),
            hockey_stick=hockey_stick(losses["dev"], data.outputs).detected,
        )
    ]


EXPERIMENT = Experiment("networks", FCNNConfig, measure, VIEWS, check=checked, title="launch.networks fcnn")
