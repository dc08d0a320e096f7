"""launch.networks fcnn, initializers and optimizers: fully connected networks on images."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.data.images import Images, check_images, one_hot, pixel_features, read_images
from jexplicit.nn.diagnostics import LayerValues, hockey_stick, layer_statistics
from jexplicit.nn.networks import FullyConnected, init_variables
from jexplicit.nn.objectives import objective
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, stage
from jexplicit.solvers.explicit import dense_cooccurrence, explicit_solution, priming_number
from jexplicit.solvers.metrics import accuracy
from launch.networks.config import FCNNConfig, InitializersConfig, OptimizersConfig, Pictures
from launch.networks.rates import grid_of_rates
from launch.networks.training import Data, Job, Part, add_row, has_row, measure, plan_from


def run_fcnn(config: FCNNConfig, folder: RunFolder) -> None:
    """The explicit solution and the network of the flags."""
    images = read_pictures(config)
    data = centred_data(images)
    job = Job(config, folder, {"command": "fcnn", **about(images)})
    measure_explicit(job, images)
    shape = "-".join(map(str, (data.train.X.shape[1], *config.hidden, data.outputs)))
    model = network(config, data, bias=config.bias)
    plan = plan_from(
        config,
        name="fcnn",
        model=f"FCNN {shape}",
        network=model,
        variables=start(config, model, data),
        objective=config.objective,
    )
    measure(job, plan, data)


def run_initializers(config: InitializersConfig, folder: RunFolder) -> None:
    """The same network without biases from weights of every law, from a last layer of zeros, and from zeros everywhere."""
    images = read_pictures(config)
    data = centred_data(images)
    job = Job(config, folder, {"command": "initializers", **about(images)})
    for name in (*config.initializers, "zero last layer"):
        weights = "he_normal" if name == "zero last layer" else name
        model = network(config, data, bias=False, weights=weights)
        variables = start(config, model, data)
        if name == "zero last layer":
            params = variables["params"]
            variables["params"] = {**params, "output": jax.tree.map(jnp.zeros_like, params["output"])}
        plan = plan_from(config, name=name, model="FCNN", network=model, variables=variables, initializer=name)
        measure(job, plan, data)


def run_optimizers(config: OptimizersConfig, folder: RunFolder) -> None:
    """One task by every optimiser with the best of its rates, for every objective, and under every cooling schedule."""
    images = read_pictures(config)
    data = centred_data(images)
    job = Job(config, folder, {"command": "optimizers", **about(images)})
    model = network(config, data)
    shared: dict[str, Any] = {"model": "FCNN", "network": model, "variables": start(config, model, data), "watched": False}
    for name in config.optimizers:
        if not has_row(job, f"optimizer {name}"):
            plan = plan_from(config, **shared, name=f"optimizer {name}", optimizer=name)
            rate = grid_of_rates(job, plan, data, np.array(config.rates), config.grid_steps)
            measure(job, plan._replace(learning_rate=rate), data, compared="optimizer")
    for name in config.objectives:
        plan = plan_from(config, **shared, name=f"objective {name}", objective=name)
        measure(job, plan, data, compared="objective")
    for name in config.coolings:
        rate = 3 * config.learning_rate
        plan = plan_from(config, **shared, name=f"cooling {name}", cooling=name, learning_rate=rate)
        measure(job, plan, data, compared="cooling")


def read_pictures(config: Pictures) -> Images:
    """The images that the config asks for."""
    with stage("reading"):
        images = read_images(config.data, config.data_dir)
    if config.limit:
        parts = (getattr(images, name)[: config.limit] for name in images._fields[1:5])
        images = check_images(Images(images.name, *parts, levels=images.levels))
    console.print(f"[bold]{images.name}[/]: {len(images.train_labels):,} train and {len(images.test_labels):,} test images")
    return images


def about(images: Images) -> dict[str, Any]:
    """What all rows say of the images."""
    return {"data": images.name, "sha256": images.sha256, "outputs": images.outputs}


def centred_data(images: Images) -> Data:
    """Pixels less the training images' mean, over their standard deviation, and one-hot labels; dev is their last tenth."""
    train, test = (pixel_features(X, images.levels) for X in (images.train_images, images.test_images))
    kept = len(train) - max(1, len(train) // 10)
    mean = train[:kept].mean(axis=0)
    Y, Y_test = (one_hot(labels, images.outputs) for labels in (images.train_labels, images.test_labels))
    scale = float((train[:kept] - mean).std()) or 1.0  # one number: a pixel that never changes stays 0
    train, test = (train - mean) / scale, (test - mean) / scale
    parts = Part(train[:kept], Y[:kept]), Part(train[kept:], Y[kept:]), Part(test, Y_test)
    return Data(*parts, labels=images.train_labels[:kept].astype(np.int64), outputs=images.outputs)


def network(config: Any, data: Data, **chosen: Any) -> FullyConnected:
    """The network of the flags, but for what is chosen."""
    flags = {
        "hidden": config.hidden,
        "outputs": data.outputs,
        "activation": config.activation,
        "norm": config.norm,
        "residual": config.residual,
        "weights": config.initializer,
        "output_scale": config.output_scale,
    }
    return FullyConnected(**{**flags, **chosen})


def start(config: Any, model: FullyConnected, data: Data) -> dict[str, Any]:
    """Random variables of a network on these examples."""
    return init_variables(model, jax.random.key(config.seed), data.train.X[:2])


def measure_explicit(job: Job, images: Images) -> None:
    """The explicit solution of one softmax layer on the same images, its row, and the statistics of its logits."""
    if has_row(job, "explicit"):
        return
    train, test = (jnp.asarray(pixel_features(X, images.levels)) for X in (images.train_images, images.test_images))
    Y, Y_test = (jnp.asarray(one_hot(labels, images.outputs)) for labels in (images.train_labels, images.test_labels))
    kept = len(train) - max(1, len(train) // 10)
    begin = time.perf_counter()
    U = explicit_solution(dense_cooccurrence(train[:kept], Y[:kept]), float(priming_number(train[:kept])))
    jax.block_until_ready(U)
    seconds = time.perf_counter() - begin
    goal = objective("softmax_cross_entropy")
    parts = {"train": (train[:kept], Y[:kept]), "dev": (train[kept:], Y[kept:]), "test": (test, Y_test)}
    losses = {f"{name}_loss": float(goal.loss(H @ U, targets).mean()) for name, (H, targets) in parts.items()}
    z = train[:256] @ U
    numbers = layer_statistics(LayerValues(z, goal.sensitivity(z, Y[:256]) / len(z)), "linear")
    job.folder.log(event="layer", name="explicit", when="end", layer="logits", **numbers._asdict())
    row = {
        "name": "explicit",
        "model": "explicit solution, one layer",
        "objective": "softmax_cross_entropy",
        **losses,
        "dev_perplexity": float(np.exp(losses["dev_loss"])),
        "test_accuracy": accuracy(test @ U, jnp.asarray(images.test_labels, jnp.int32)),
        "steps": 0,
        "seconds": seconds,
        "hockey_stick": hockey_stick(losses["dev_loss"], images.outputs).detected,
    }
    add_row(job, row)
