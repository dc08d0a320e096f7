"""launch.networks autoencoder: linear ones solved and trained, a bottleneck, anomalies, and the memories of wide networks."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn.autoencoders import (
    LinearAutoencoder,
    anomaly_auc,
    contraction,
    corrupted,
    iterate_map,
    linear_autoencoder,
    pseudo_inverse_autoencoder,
    recalled,
    reconstruction_errors,
)
from jexplicit.nn.networks import FullyConnected, init_variables
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from launch.networks.config import AutoencoderConfig
from launch.networks.images import about, centred_data, read_pictures
from launch.networks.report import pictures_path
from launch.networks.training import Data, Job, Part, Plan, add_row, has_row, measure

_starts_per_memory = 10


def run_autoencoder(config: AutoencoderConfig, folder: RunFolder) -> None:
    """The whole job of the subcommand."""
    images = read_pictures(config)
    whole = centred_data(images)
    if not 0 <= config.anomaly < images.outputs:
        raise ValueError(f"--anomaly {config.anomaly}: the classes are 0 .. {images.outputs - 1}")
    data, anomalies = without_class(whole, config.anomaly)
    job = Job(config, folder, {"command": "autoencoder", **about(images), "anomaly": config.anomaly})
    few = Part(*(part[: config.memories] for part in data.train))
    measure_linear(job, "linear, solved", linear_autoencoder(jnp.asarray(data.train.X), config.bottleneck), data, anomalies)
    span = pseudo_inverse_autoencoder(jnp.asarray(few.X))
    measure_linear(job, "span of the memories", span, data._replace(train=few), anomalies)
    D, k = data.outputs, config.bottleneck
    linear = FullyConnected((k,), D, activation="linear", bias=False, weights="glorot_normal")
    measure_trained(job, "linear, trained", linear, data, anomalies)
    bottleneck = FullyConnected((config.width, k, config.width), D, activation=config.activation)
    variables = measure_trained(job, "bottleneck", bottleneck, data, anomalies)
    maps = [measure_memory(job, data._replace(train=few), anomalies, scale) for scale in config.memory_scales]
    save_pictures(job, images.train_images.shape[1:], data, bottleneck, variables, few, maps[-1])


def without_class(data: Data, anomaly: int) -> tuple[Data, np.ndarray]:
    """Examples as their own targets without one class, and that class's test examples."""
    parts, anomalies = [], np.zeros(0)
    for part in (data.train, data.dev, data.test):
        normal = part.Y.argmax(axis=1) != anomaly
        parts.append(Part(part.X[normal], part.X[normal]))
        anomalies = part.X[~normal]
    labels = data.labels[data.labels != anomaly]
    return Data(*parts, labels=labels, outputs=data.train.X.shape[1]), anomalies


def measure_linear(job: Job, name: str, f: LinearAutoencoder, data: Data, anomalies: np.ndarray) -> None:
    """The row of a linear autoencoder in closed form."""
    if has_row(job, name):
        return
    start = time.perf_counter()
    losses = {
        part: reconstruction_errors(f(jnp.asarray(X)), jnp.asarray(X))
        for part, (X, _) in zip(("train", "dev", "test"), data[:3], strict=True)
    }
    row = {
        "name": name,
        "model": name,
        "objective": "squared_error",
        **{f"{part}_loss": float(values.mean()) for part, values in losses.items()},
        "steps": 0,
        "seconds": time.perf_counter() - start,
        "anomaly_auc": anomaly_auc(losses["test"], reconstruction_errors(f(jnp.asarray(anomalies)), jnp.asarray(anomalies))),
    }
    add_row(job, row)


def measure_trained(job: Job, name: str, model: FullyConnected, data: Data, anomalies: np.ndarray) -> dict[str, Any]:
    """Train an autoencoder, and add its row."""
    config = job.config
    plan = Plan(
        name=name,
        model=name,
        network=model,
        variables=init_variables(model, jax.random.key(config.seed), data.train.X[:2]),
        objective="squared_error",
        initializer=model.weights,
        activation=model.activation,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        cooling="cosine",
        batch_size=config.batch_size,
        epochs=config.epochs,
        classifies=False,
    )
    return measure(job, plan, data, finish=lambda _, variables: auc(model, variables, data, anomalies))


def auc(model: FullyConnected, variables: dict[str, Any], data: Data, anomalies: np.ndarray) -> dict[str, float]:
    """How well the reconstruction error tells the anomalies from the test examples."""
    normal, strange = (
        reconstruction_errors(jnp.asarray(model.apply(variables, X)), jnp.asarray(X)) for X in (data.test.X, anomalies)
    )
    return {"anomaly_auc": anomaly_auc(normal, strange)}


def measure_memory(job: Job, data: Data, anomalies: np.ndarray, scale: float) -> Any:
    """Train a wide and deep autoencoder on few examples, see whether it contracts around them, and give its map."""
    config, name = job.config, f"over-parameterised, weights x {scale:g}"
    model = FullyConnected((config.memory_width,) * config.memory_depth, data.outputs, activation=config.memory_activation)
    random = init_variables(model, jax.random.key(config.seed), data.train.X[:2])

    def f_of(variables: dict[str, Any]) -> Any:
        return lambda x: jnp.asarray(model.apply(variables, x[None]))[0]

    def finish(row: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        X, f = jnp.asarray(data.train.X), f_of(variables)
        with stage("iterating the map"):
            J = contraction(f, X)
            starts = corrupted(jax.random.key(config.seed), X, config.noise, _starts_per_memory)
            own = np.repeat(np.arange(len(X)), _starts_per_memory)
            back = recalled(iterate_map(f, starts, config.iterations), X)
            others = recalled(iterate_map(f, jnp.asarray(data.test.X), config.iterations), X)
        return {
            **auc(model, variables, data, anomalies),
            "largest_singular_value": float(J.singular.max()),
            "largest_spectral_radius": float(J.spectral_radius.max()),
            "attractors": int((J.spectral_radius < 1).sum()),
            "recalled_from_noise": float(back[np.arange(len(own)), own].mean()),
            "recalled_from_test": float(others.any(axis=1).mean()),
        }

    plan = Plan(
        name=name,
        model=f"{config.memory_depth} x {config.memory_width} {config.memory_activation}",
        network=model,
        variables=jax.tree.map(lambda W: W * scale, random),
        objective="squared_error",
        activation=config.memory_activation,
        learning_rate=config.memory_rate,
        cooling="cosine",
        batch_size=0,
        epochs=config.memory_steps,
        classifies=False,
        watched=False,
    )
    # dev, which chooses the step, is the few examples themselves: a memory is not to generalise
    variables = measure(job, plan, data._replace(dev=data.train, labels=data.labels[: len(data.train.X)]), finish=finish)
    return f_of(variables)


def save_pictures(
    job: Job,
    shape: tuple[int, ...],
    data: Data,
    bottleneck: FullyConnected,
    variables: dict[str, Any],
    few: Part,
    f: Any,
) -> None:
    """Keep what the pictures show: reconstructions, and noisy memories before and after iterating the map."""
    config = job.config
    X = data.test.X[:10]
    starts = corrupted(jax.random.key(config.seed + 1), jnp.asarray(few.X[:10]), config.noise, 1)
    pictures = {
        "test example": X,
        "bottleneck": bottleneck.apply(variables, X),
        "memory": few.X[:10],
        "noisy memory": starts,
        "f once": iterate_map(f, starts, 1),
        f"f {config.iterations} times": iterate_map(f, starts, config.iterations),
    }
    arrays: dict[str, Any] = {name: np.asarray(rows).reshape(-1, *shape) for name, rows in pictures.items()}
    np.savez_compressed(pictures_path(job.folder.path), **arrays)
