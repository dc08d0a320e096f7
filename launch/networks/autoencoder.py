"""launch.networks autoencoder: linear ones solved and trained, a bottleneck, anomalies, and the memories of wide networks."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jexplicit.nn.activations import activation
from jexplicit.nn.autoencoders import (
    LinearAutoencoder,
    add_noise,
    anomaly_auc,
    cluster_agreement,
    contraction,
    descend_linear,
    iterate_map,
    linear_autoencoder,
    off_span_gain,
    pseudo_inverse_autoencoder,
    recall,
    reconstruction_errors,
)
from jexplicit.nn.names import Activation
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import stage
from launch.networks.config import AutoencoderConfig
from launch.networks.pictures import open_pictures
from launch.networks.report import pictures_path
from launch.networks.training import Data, Job, Part, add_solved, has_row, make_plan, measure

_starts_per_memory = 10
_clusterings = 3  # of k-means, from different seeds
_descents = 3  # of wide linear autoencoders
_descent_steps = 20_000

Map = Callable[[Any], Any]


def run_autoencoder(config: AutoencoderConfig, folder: RunFolder) -> None:
    """Solved and trained linear autoencoders, a bottleneck, and over-parameterised networks."""
    job, images, everything = open_pictures(config, folder, "autoencoder")
    if config.anomaly >= images.outputs:
        raise ValueError(f"--anomaly {config.anomaly}: the classes are 0 .. {images.outputs - 1}")
    job.about["anomaly"] = config.anomaly
    data, anomalies = without_class(everything, config.anomaly)
    few = Part(*(part[: config.memories] for part in data.train))
    measure_linear(job, "linear, solved", linear_autoencoder(jnp.asarray(data.train.X), config.bottleneck), data, anomalies)
    span = pseudo_inverse_autoencoder(jnp.asarray(few.X))
    measure_linear(job, "span of the memories", span, data._replace(train=few), anomalies)
    D, k = data.outputs, config.bottleneck
    linear = FullyConnected((k,), D, activation="linear", bias=False, weights="glorot_normal")
    measure_trained(job, "linear, trained", linear, data, anomalies)
    bottleneck = FullyConnected((config.width, k, config.width), D, activation=config.activation)
    variables = measure_trained(job, "bottleneck", bottleneck, data, anomalies)
    solved = linear_autoencoder(jnp.asarray(data.train.X), k)
    codes: dict[str, Map] = {
        "pixels": lambda X: X,
        f"linear code of {k}": lambda X: X @ solved.B.T,
        f"bottleneck of {k}": lambda X: code_of(bottleneck, variables, X, 2),
    }
    labels = everything.test.Y.argmax(axis=1)
    log_codes(job, codes, data.test.X, labels[labels != config.anomaly])
    log_wide_linear(job, jnp.asarray(few.X))
    maps = [
        measure_memory(job, data._replace(train=few), anomalies, phi, scale)
        for phi in config.memory_activations
        for scale in config.memory_scales
    ]
    examples = data.test.X[:10]
    rows = {"test example": examples, "bottleneck": network_outputs(bottleneck, variables, examples)}
    save_pictures(job, images.train_images.shape[1:], rows, few.X[:10], maps[-1])


def without_class(data: Data, anomaly: int) -> tuple[Data, np.ndarray]:
    """Examples as their own targets without one class, and that class's test examples."""
    normal = [part.Y.argmax(axis=1) != anomaly for part in data[:3]]
    parts = (Part(part.X[kept], part.X[kept]) for part, kept in zip(data[:3], normal, strict=True))
    labels = data.labels[data.labels != anomaly]
    return Data(*parts, labels=labels, outputs=data.train.X.shape[1]), data.test.X[~normal[2]]


def measure_linear(job: Job, name: str, f: LinearAutoencoder, data: Data, anomalies: np.ndarray) -> None:
    """The row of a linear autoencoder in closed form."""
    if has_row(job, name):
        return
    begin = time.perf_counter()
    parts = {"train": data.train.X, "dev": data.dev.X, "test": data.test.X, "anomalies": anomalies}
    errors = {part: reconstruction_errors(f(jnp.asarray(X)), jnp.asarray(X)) for part, X in parts.items()}
    auc = anomaly_auc(errors["test"], errors.pop("anomalies"))
    losses = {part: float(values.mean()) for part, values in errors.items()}
    seconds = time.perf_counter() - begin
    add_solved(job, name, losses, objective="squared_error", model=name, seconds=seconds, anomaly_auc=auc)


def measure_trained(job: Job, name: str, network: FullyConnected, data: Data, anomalies: np.ndarray) -> dict[str, Any]:
    """Train an autoencoder, and add its row."""
    shared: dict[str, Any] = {"objective": "squared_error", "cooling": "cosine", "classifies": False}
    chosen = {"initializer": network.weights, "activation": network.activation}
    plan = make_plan(job.config, data, network, name=name, model=name, **shared, **chosen)
    return measure(job, plan, data, finish=lambda _, variables: auc(network, variables, data, anomalies))


def auc(network: FullyConnected, variables: dict[str, Any], data: Data, anomalies: np.ndarray) -> dict[str, float]:
    """How well the reconstruction error separates anomalies from test examples."""
    errors = [reconstruction_errors(network_outputs(network, variables, X), jnp.asarray(X)) for X in (data.test.X, anomalies)]
    return {"anomaly_auc": anomaly_auc(*errors)}


def code_of(network: FullyConnected, variables: dict[str, Any], X: Any, layer: int) -> Any:
    """The outputs of a hidden layer, without dropout."""
    _, seen = network.apply(variables, X, mutable=["intermediates"])
    layers: Any = seen["intermediates"]
    return activation(network.activation)(layers[f"hidden_{layer}"]["z"][0])


def log_codes(job: Job, codes: dict[str, Map], X: np.ndarray, labels: np.ndarray) -> None:
    """How far k-means clusters of test examples agree with their classes, in pixels and in codes; and the codes' main axes."""
    if job.folder.events("code"):
        return
    clusters, seeds = len(np.unique(labels)), range(job.config.seed, job.config.seed + _clusterings)
    for name, encode in codes.items():
        code = jnp.asarray(encode(jnp.asarray(X)))
        with stage(f"clusters of {name}"):
            agreement = [cluster_agreement(np.asarray(code), labels, clusters=clusters, seed=seed) for seed in seeds]
        centred = code - code.mean(axis=0)[None, :]
        axes = linear_autoencoder(centred, 2).B
        numbers = {"agreement": float(np.mean(agreement)), "spread": float(np.std(agreement, ddof=1))}
        points = {"axes": np.asarray(centred @ axes.T).round(4).tolist(), "labels": labels.tolist()}
        job.folder.log(event="code", name=name, clusters=clusters, **numbers, **points)


def log_wide_linear(job: Job, X: Array) -> None:
    """Linear autoencoders as wide as their input, by descent from several starts: all fit, and differ beside the examples."""
    if job.folder.events("wide linear"):
        return
    D = X.shape[1]
    projection = pseudo_inverse_autoencoder(X)
    P = projection.A @ projection.B
    for seed in range(job.config.seed, job.config.seed + _descents):
        A, B = jax.random.normal(jax.random.key(seed), (2, D, D), X.dtype) * math.sqrt(2 / D)
        starts = {
            "He x 0.001": LinearAutoencoder(1e-3 * A, 1e-3 * B),
            "He x 0.1": LinearAutoencoder(0.1 * A, 0.1 * B),
            "He": LinearAutoencoder(A, B),
            "identity": LinearAutoencoder(jnp.eye(D, dtype=X.dtype), jnp.eye(D, dtype=X.dtype)),
            "pseudo-inverse": projection,
        }
        for name, start in starts.items():
            with stage(f"linear, width {D}, from {name}"):
                f = descend_linear(start, X, _descent_steps)
            losses = [float(reconstruction_errors(g(X), X).mean()) for g in (start, f)]
            distance = float(jnp.linalg.norm(f.A @ f.B - P) / jnp.linalg.norm(P))
            gain = off_span_gain(f, X)
            job.folder.log(
                event="wide linear", start=name, seed=seed, first_loss=losses[0], loss=losses[1], gain=gain, distance=distance
            )


def measure_memory(job: Job, data: Data, anomalies: np.ndarray, phi: Activation, scale: float) -> Map:
    """Train a wide and deep autoencoder on few examples, measure whether it contracts around them, and return its map."""
    config = job.config
    shape = (config.memory_width,) * config.memory_depth
    network = FullyConnected(shape, data.outputs, activation=phi)
    random = init_variables(network, jax.random.key(config.seed), data.train.X[:2])

    def map_of(variables: dict[str, Any]) -> Map:
        return lambda x: network_outputs(network, variables, x[None])[0]

    def finish(row: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        X, f = jnp.asarray(data.train.X), map_of(variables)
        with stage("iterating the map"):
            J = contraction(f, X)
            starts = add_noise(jax.random.key(config.seed), X, config.noise, _starts_per_memory)
            own = np.repeat(np.arange(len(X)), _starts_per_memory)
            from_noise = recall(iterate_map(f, starts, config.iterations), X)
            from_test = recall(iterate_map(f, jnp.asarray(data.test.X), config.iterations), X)
        return {
            **auc(network, variables, data, anomalies),
            "largest_singular_value": float(J.singular.max()),
            "largest_spectral_radius": float(J.spectral_radius.max()),
            "attractors": int((J.spectral_radius < 1).sum()),
            "recalled_from_noise": float(from_noise[np.arange(len(own)), own].mean()),
            "recalled_from_test": float(from_test.any(axis=1).mean()),
        }

    plan = make_plan(
        config,
        data,
        network,
        name=f"over-parameterised, {phi}, weights x {scale:g}",
        model=f"{config.memory_depth} x {config.memory_width} {phi}",
        variables=jax.tree.map(lambda W: W * scale, random),
        objective="squared_error",
        activation=phi,
        optimizer="adam",
        learning_rate=config.memory_rate,
        cooling="cosine",
        batch_size=0,
        epochs=config.memory_steps,
        classifies=False,
        watched=False,
    )
    # the few examples are dev too, which selects the step: a memory need not generalise
    return map_of(measure(job, plan, data._replace(dev=data.train, labels=data.labels[: len(data.train.X)]), finish=finish))


def save_pictures(job: Job, shape: tuple[int, ...], rows: dict[str, Any], memories: np.ndarray, f: Map) -> None:
    """Save rows of pictures: reconstructions, and noisy memories before and after iterating the map."""
    noise, iterations = job.config.noise, job.config.iterations
    starts = add_noise(jax.random.key(job.config.seed + 1), jnp.asarray(memories), noise, 1)
    iterates = {"f once": iterate_map(f, starts, 1), f"f {iterations} times": iterate_map(f, starts, iterations)}
    rows = {**rows, "memory": memories, "noisy memory": starts, **iterates}
    arrays: dict[str, Any] = {name: np.asarray(row).reshape(-1, *shape) for name, row in rows.items()}
    np.savez_compressed(pictures_path(job.folder.path), **arrays)
