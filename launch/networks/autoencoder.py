"""launch.networks autoencoder: linear ones, a bottleneck, anomalies, memories."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn import studies
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.studies import LinearAutoencoder, reconstruction_errors
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import stage
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Results, Row, Section, Table, groups, mean_std, where
from launch.networks.config import AutoencoderConfig, Descent, checked
from launch.networks.training import CURVES, RESULTS, Data, SplitData, open_pictures, train_model

_bottleneck, _width = 16, 64  # of the layer, and of those on both sides of it
_depth = 4  # hidden layers of the over-parameterised networks
_iterations = 500  # of their maps
_starts_per_memory = 10
_noise = 0.5  # of these starts, in standard deviations of the data

Map = Callable[[Any], Any]


def _measure(config: AutoencoderConfig, folder: RunFolder) -> Iterator[Part]:
    """Solved and trained linear autoencoders, a bottleneck, and over-parameterised networks."""
    everything = open_pictures(config, "autoencoder")
    if config.anomaly >= everything.outputs:
        raise ValueError(f"--anomaly {config.anomaly}: the classes are 0 .. {everything.outputs - 1}")
    data, anomalies = _without_class(everything, config.anomaly)
    few = SplitData(*(part[: config.memories] for part in data.train))
    D, key = data.outputs, key_of_seed(config.seed)
    solved = studies.linear_autoencoder(jnp.asarray(data.train.X), _bottleneck)
    yield {"name": "linear, solved"}, functools.partial(_linear_row, solved, data, anomalies)

    def trained(flags: Descent, data: Data, network: FullyConnected, name: str, model: str, **options: Any) -> Part:
        def finish(variables: Any) -> Row:
            f = functools.partial(network_outputs, network, variables)
            more = _attraction(config.seed, lambda x: f(x[None])[0], data) if "variables" in options else {}
            return {"anomaly_auc": _auc(f, data, anomalies), **more}

        options |= {"objective": "squared_error", "finish": finish}
        return {"name": name}, functools.partial(train_model, folder, flags, data, network, name, model, **options)

    linear = FullyConnected((_bottleneck,), D, "linear", bias=False, weights="glorot_normal")
    yield trained(config, data, linear, "linear, trained", "linear, trained")
    yield trained(config, data, FullyConnected((_width, _bottleneck, _width), D), "bottleneck", "bottleneck")
    flags = Descent(config.out, config.seed, batch_size=0, epochs=config.memory_steps)
    # the few examples are dev too, which selects the step: a memory need not generalise
    remembered = data._replace(train=few, dev=few)
    for phi, scale in itertools.product(config.memory_activations, config.memory_scales):
        network = FullyConnected((config.memory_width,) * _depth, D, phi)
        start = jax.tree.map(lambda W, scale=scale: W * scale, init_variables(network, key, few.X[:2]))
        name, model = f"over-parameterised, {phi}, weights x {scale:g}", f"{_depth} x {config.memory_width} {phi}"
        yield trained(flags, remembered, network, name, model, variables=start)


def _without_class(data: Data, anomaly: int) -> tuple[Data, np.ndarray]:
    """Examples as their own targets without one class, and that class's test examples."""
    normal = [part.Y.argmax(axis=1) != anomaly for part in data[:3]]
    parts = (SplitData(part.X[kept], part.X[kept]) for part, kept in zip(data[:3], normal, strict=True))
    about = {**data.about, "anomaly": anomaly}
    return Data(*parts, outputs=data.train.X.shape[1], about=about), data.test.X[~normal[2]]


def _linear_row(f: LinearAutoencoder, data: Data, anomalies: np.ndarray) -> list[Row]:
    """The row of a linear autoencoder in closed form."""
    begin = time.perf_counter()
    parts = {"train": data.train.X, "dev": data.dev.X, "test": data.test.X}
    losses = {f"{part}_loss": float(reconstruction_errors(f(X), X).mean()) for part, X in _on_device(parts).items()}
    found, seconds = _auc(f, data, anomalies), time.perf_counter() - begin
    row = {"objective": "squared_error", "model": "linear, solved", "steps": 0, "seconds": seconds, "anomaly_auc": found}
    return [{**row, **losses, **data.about}]


def _auc(f: Map, data: Data, anomalies: np.ndarray) -> float:
    """How well the reconstruction error separates anomalies from test examples."""
    return studies.anomaly_auc(*(reconstruction_errors(f(X), X) for X in _on_device((data.test.X, anomalies))))


def _on_device(arrays: Any) -> Any:
    return jax.tree.map(jnp.asarray, arrays)


def _attraction(seed: int, f: Map, data: Data) -> Row:
    """Whether a map contracts around the training examples, and leads back to them."""
    X = jnp.asarray(data.train.X)
    with stage("iterating the map"):
        J = studies.contraction(f, X)
        starts = studies.add_noise(key_of_seed(seed), X, _noise, _starts_per_memory)
        own = np.repeat(np.arange(len(X)), _starts_per_memory)
        from_noise = studies.recall(studies.iterate_map(f, starts, _iterations), X)
        from_test = studies.recall(studies.iterate_map(f, jnp.asarray(data.test.X), _iterations), X)
    return {
        "largest_singular_value": float(J.singular.max()),
        "largest_spectral_radius": float(J.spectral_radius.max()),
        "attractors": int((J.spectral_radius < 1).sum()),
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
_maps = Table(
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
_views = [RESULTS, CURVES, Section("Anomalies", [ANOMALIES]), Section("Memories", [_maps])]
EXPERIMENT = Experiment("networks", AutoencoderConfig, _measure, _views, check=checked, title="launch.networks autoencoder")
