"""launch.networks fcnn: a fully connected network on images, next to the explicit solution."""

import time

import jax
import jax.numpy as jnp

from jexplicit.nn.diagnostics import LayerValues, hockey_stick, layer_statistics
from jexplicit.nn.objectives import objective
from jexplicit.runs.devices import full_precision
from jexplicit.runs.folder import RunFolder
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number
from jexplicit.solvers.metrics import accuracy
from launch.networks.config import FCNNConfig
from launch.networks.pictures import image_network, open_pictures, raw_data
from launch.networks.training import Data, Job, add_solved, has_row, make_plan, measure


def run_fcnn(config: FCNNConfig, folder: RunFolder) -> None:
    """The explicit solution, and the network of the flags."""
    job, images, data = open_pictures(config, folder, "fcnn")
    measure_explicit(job, raw_data(images))
    shape = "-".join(map(str, (data.train.X.shape[1], *config.hidden, data.outputs)))
    network = image_network(config, data, bias=config.bias)
    measure(job, make_plan(config, data, network, name="fcnn", model=f"FCNN {shape}"), data)


@full_precision
def measure_explicit(job: Job, data: Data) -> None:
    """The explicit solution of one softmax layer on positive pixels, its row, and the statistics of its logits."""
    if has_row(job, "explicit"):
        return
    parts = {name: tuple(map(jnp.asarray, getattr(data, name))) for name in ("train", "dev", "test")}
    (H, Y), (H_test, Y_test) = parts["train"], parts["test"]
    begin = time.perf_counter()
    U = jax.block_until_ready(explicit_solution(dense_cooccurrence(H, Y), float(priming_number(H))))
    seconds = time.perf_counter() - begin
    goal = objective("softmax_cross_entropy")
    losses = {name: float(goal.loss(features @ U, targets).mean()) for name, (features, targets) in parts.items()}
    z = H[:256] @ U
    numbers = layer_statistics(LayerValues(z, goal.sensitivity(z, Y[:256]) / len(z)), "linear")
    job.folder.log(event="layer", name="explicit", when="end", layer="logits", **numbers._asdict())
    more = {
        "test_accuracy": accuracy(H_test @ U, Y_test.argmax(axis=1)),
        "hockey_stick": hockey_stick(losses["dev"], data.outputs).detected,
    }
    add_solved(job, "explicit", losses, model="explicit solution, one layer", seconds=seconds, **more)
