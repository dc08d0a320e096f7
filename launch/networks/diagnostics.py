"""What runs of launch.networks watch while they train, and its views."""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import numpy as np

from jexplicit.nn.diagnostics import hidden_layers, layer_statistics
from jexplicit.nn.parts.objectives import Objective
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row
from launch.kit.tables import Column
from launch.kit.views import Lines, Section, Table
from launch.networks.data import Data

_watched, _bins = 256, 60  # examples; of a histogram
_networks = 3  # of the figure of ratios, at most


def watch(folder: RunFolder, name: str, network: nn.Module, variables: Any, loss: Objective, data: Data, when: str) -> None:
    """Log the statistics of every hidden layer on a few training examples, and save histograms for the figure."""
    X, Y = (part[:_watched] for part in data.train)
    arrays: dict[str, Any] = {}
    for layer, values in hidden_layers(network, variables, loss, X, Y).items():
        statistics = layer_statistics(values, getattr(network, "activation"))  # noqa: B009 (no field of all modules)
        folder.log(event="layer", name=name, when=when, layer=layer, **statistics._asdict())
        for kind, array in {"z": values.z, "gradient": values.gradient * len(X)}.items():
            density, edges = np.histogram(np.asarray(array, np.float64), _bins, density=True)
            arrays |= {f"{layer} {kind}": density, f"{layer} {kind} edges": edges}
    path = folder.path / "histograms" / f"{name} {when}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)


def _densities(results: Results) -> Iterator[Row]:
    """The histograms before training, a row for each bin; two networks stand side by side."""
    names = dict.fromkeys(event["name"] for event in results.events("layer") if event["when"] == "start")
    for n, name in enumerate(names):
        arrays = results.arrays(f"histograms/{name} start.npz")
        for key in arrays:
            if f"{key} edges" in arrays:
                layer, kind = key.rsplit(" ", 1)
                edges, panel = arrays[f"{key} edges"], {"z": "z", "gradient": "dJ/dz"}[kind]
                for at, density in zip((edges[1:] + edges[:-1]) / 2, arrays[key], strict=True):
                    row = {"layer": layer.replace("_", " "), "at": float(at), "density": density}
                    yield {**row, "panel": f"{name.replace('_', ' ')}: {panel}", "line": n // 2}


def _ratios(results: Results) -> list[Row]:
    """Update-to-data ratios of weights, a row for each array and step."""
    events = results.events("ratios", "name", "step")
    shown = list(dict.fromkeys(event["name"] for event in events))[:_networks]
    return [
        {**event, "array": array, "ratio": max(ratio, 1e-8)}
        for event in events
        for array, ratio in event["ratios"].items()
        if event["name"] in shown and not array.endswith(("bias", "scale"))
    ]


def _curves(results: Results) -> list[Row]:
    """Dev losses by epoch, and of solved models, which have no steps."""
    solved = [row for row in results.rows if row.get("steps") == 0 and row["objective"] == "softmax_cross_entropy"]
    epochs = results.events("epoch", "name", "epoch")
    return [*epochs, *solved] if any(event["epoch"] for event in epochs) else []


_axes: dict[str, dict[str, Any]] = {
    "curves": {"xscale": "log", "yscale": "log", "ylabel": "dev loss"},
    "histograms": {"xlabel": "", "ylabel": "", "yticks": []},
    "ratios": {"yscale": "log", "ylabel": "update / data"},
}


def _thousandth(axes: np.ndarray) -> None:
    """The rule of thumb for updates."""
    for ax in axes.flat:
        ax.axhline(1e-3, color="black", linestyle="--", linewidth=1)


CURVES = Lines("curves", "step", "dev_loss", "name", rows=_curves, axes=_axes["curves"], size=(6.4, 4.2), legend="below")
HISTOGRAMS = Lines(
    "histograms",
    "at",
    "density",
    "layer",
    "panel",
    _densities,
    row="line",
    axes=_axes["histograms"],
    size=(3.4, 1.9),
    legend="below",
)
RATIOS = Lines("ratios", "step", "ratio", "array", "name", _ratios, axes=_axes["ratios"], sharey=True, finish=_thousandth)
LAYERS = Table(
    [
        *(Column(name, name) for name in ("name", "layer", "when")),
        *(Column(name, name, ".3f") for name in ("mean", "std")),
        Column("gradient std", "gradient_std", ".2e"),
        *(Column(f"{name} %", name, ".1f", 100) for name in ("saturated", "dead")),
    ],
    rows=lambda results: results.events("layer", "name", "layer", "when"),
    note="Hidden layers before (start) and after (end) training: *saturated* pre-activations are in a flat region of the "
    "nonlinearity, *dead* units are there for every example.",
)
DIAGNOSTICS = Section("Diagnostics", [LAYERS, RATIOS, HISTOGRAMS])
