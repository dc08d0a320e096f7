"""launch.networks autoencoder: linear ones, a bottleneck, anomalies, memories."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn import networks
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs, reconstruction_errors
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import stage
from launch.kit.experiment import Experiment, RunFolder
from launch.kit.experiment import Part as Step
from launch.kit.views import (
    Column,
    Results,
    Row,
    Section,
    Table,
    groups,
    mean_std,
    where,
)
from launch.networks.config import AutoencoderConfig, Descent, checked
from launch.networks.training import CURVES, RESULTS, Data, SplitData, open_pictures, train_model

_starts_per_memory = 10
_noise = 0.5  # of these starts, in standard deviations of the data

Map = Callable[[Any], Any]


def measure(config: AutoencoderConfig, folder: RunFolder) -> Iterator[Step]:
    """Solved and trained linear autoencoders, a bottleneck, and over-parameterised networks."""
    everything = open_pictures(config, "autoencoder")
    if config.anomaly >= everything.outputs:
        raise ValueError(f"--anomaly {config.anomaly}: the classes are 0 .. {everything.outputs - 1}")
    data, anomalies = without_class(everything, config.anomaly)
    few = SplitData(*(part[: config.memories] for part in data.train))
    D, k, key = data.outputs, config.bottleneck, key_of_seed(config.seed)
    solved = networks.linear_autoencoder(jnp.asarray(data.train.X), k)
    yield {"name": "linear, solved"}, functools.partial(measure_linear, solved, data, anomalies)

    def trained(flags: Descent, data: Data, network: FullyConnected, name: str, model: str, **options: Any) -> Step:
        def finish(variables: Any) -> Row:
            f = functools.partial(network_outputs, network, variables)
            more = attraction(config, lambda x: f(x[None])[0], data) if "variables" in options else {}
            return {"anomaly_auc": auc(f, data, anomalies), **more}

        options |= {"objective": "squared_error", "finish": finish}
        return {"name": name}, functools.partial(train_model, folder, flags, data, network, name, model, **options)

    linear = FullyConnected((k,), D, "linear", bias=False, weights="glorot_normal")
    yield trained(config, data, linear, "linear, trained", "linear, trained")
    bottleneck = FullyConnected((config.width, k, config.width), D)
    yield trained(config, data, bottleneck, "bottleneck", "bottleneck")
    flags = Descent(config.out, config.seed, batch_size=0, epochs=config.memory_steps)
    # the few examples are dev too, which selects the step: a memory need not generalise
    remembered = data._replace(train=few, dev=few, labels=data.labels[: len(few.X)])
    for phi, scale in itertools.product(config.memory_activations, config.memory_scales):
        network = FullyConnected((config.memory_width,) * config.memory_depth, D, phi)
        start = jax.tree.map(lambda W, scale=scale: W * scale, init_variables(network, key, few.X[:2]))
        name, model = f"over-parameterised, {phi}, weights x {scale:g}", f"{config.memory_depth} x {config.memory_width} {phi}"
        yield trained(flags, remembered, network, name, model, variables=start)


def without_class(data: Data, anomaly: int) -> tuple[Data, np.ndarray]:
    """Examples as their own targets without one class, and that class's test examples."""
    normal = [part.Y.argmax(axis=1) != anomaly for part in data[:3]]
    parts = (SplitData(part.X[kept], part.X[kept]) for part, kept in zip(data[:3], normal, strict=True))
    labels, about = data.labels[data.labels != anomaly], {**data.about, "anomaly": anomaly}
    return Data(*parts, labels=labels, outputs=data.train.X.shape[1], about=about), data.test.X[~normal[2]]


def measure_linear(f: Map, data: Data, anomalies: np.ndarray) -> list[Row]:
    """The row of a linear autoencoder in closed form."""
    begin = time.perf_counter()
    parts = {"train": data.train.X, "dev": data.dev.X, "test": data.test.X}
    losses = {part: float(reconstruction_errors(f(jnp.asarray(X)), jnp.asarray(X)).mean()) for part, X in parts.items()}
    found, seconds = auc(f, data, anomalies), time.perf_counter() - begin
    row = {"objective": "squared_error", "model": "linear, solved", "steps": 0, "seconds": seconds, "anomaly_auc": found}
    return [{**row, **{f"{part}_loss": loss for part, loss in losses.items()}, **data.about}]


def auc(f: Map, data: Data, anomalies: np.ndarray) -> float:
    """How well the reconstruction error separates anomalies from test examples."""
    return networks.anomaly_auc(*(reconstruction_errors(f(X), X) for X in map(jnp.asarray, (data.test.X, anomalies))))


def attraction(config: AutoencoderConfig, f: Map, data: Data) -> Row:
    """Whether a map contracts around the training examples, and leads back to them."""
    X = jnp.asarray(data.train.X)
    with stage("iterating the map"):
        singular, radius = networks.contraction(f, X)
        starts = networks.add_noise(key_of_seed(config.seed), X, _noise, _starts_per_memory)
        own = np.repeat(np.arange(len(X)), _starts_per_memory)
        from_noise = networks.recall(networks.iterate_map(f, starts, config.iterations), X)
        from_test = networks.recall(networks.iterate_map(f, jnp.asarray(data.test.X), config.iterations), X)
    largest = {"singular_value": float(singular.max()), "spectral_radius": float(radius.max())}
    return {
        **{f"largest_{name}": value for name, value in largest.items()},
        "attractors": int((radius < 1).sum()),
        "recalled_from_noise": float(from_noise[np.arange(len(own)), own].mean()),
        "recalled_from_test": float(from_test.any(axis=1).mean()),
    }


def _anomalies(results: Results) -> list[Row]:
    """Errors of the autoencoders that are to find anomalies, over seeds."""
    found = groups(where(results.rows, name=("linear, solved", "linear, trained", "bottleneck")), ["name"])
    shown = {"test_loss": ".2f", "anomaly_auc": ".3f"}
    own = ({of: mean_std([row[of] for row in rows], form) for of, form in shown.items()} for rows in found.values())
    return [{"name": name, **fields} for (name,), fields in zip(found, own, strict=True)]


_named = [Column("autoencoder", "name"), Column("half the squared error", "test_loss")]
ANOMALIES = Table([*_named, Column("area under the ROC curve", "anomaly_auc")], _anomalies)
MAPS = Table(
    [
        Column("network", "name"),
        Column("AUC", "anomaly_auc", ".3f"),
        *(Column(f"largest {x}", f"largest_{x.replace(' ', '_')}", ".3f") for x in ("singular value", "spectral radius")),
        Column("attractors", "attractors", "d"),
        *(Column(f"from {x} %", f"recalled_from_{x}", ".0f", 100) for x in ("noise", "test")),
    ],
    rows=lambda results: [row for row in results.rows if "attractors" in row],
    note="A training example whose Jacobian has a spectral radius below 1 attracts the iterates of the map.",
)
SECTIONS = {
    "Anomalies": [ANOMALIES],
    "Memories": [MAPS],
}
VIEWS = [RESULTS, CURVES, *(Section(title, views) for title, views in SECTIONS.items())]
EXPERIMENT = Experiment("networks", AutoencoderConfig, measure, VIEWS, check=checked, title="launch.networks autoencoder")
