"""The variants of every comparison of launch.networks compare."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn.names import ACTIVATION_NAMES, NORMS, OPTIMIZERS, SAMPLERS, SCHEDULES, ComparisonName
from jexplicit.nn.networks import FullyConnected
from launch.networks.comparisons.variants import Variant
from launch.networks.config import CompareConfig
from launch.networks.training import Data, Part

SATURATION = 6.0  # of the output biases: a sigmoid has 0.9975, and a slope of 0.0025
SMALLEST_CLASS = 0.02  # examples of the rarest class, relative to the most frequent one
FEW = 200  # examples
_deep = 5  # hidden layers of the comparison of initialisers, as in Glorot & Bengio (2010)
_objectives = ("sigmoid_squared_error", "binary_cross_entropy", "squared_error", "softmax_cross_entropy")
_by_descent = ("sgd", "momentum", "nesterov")
_rates_of_a_search = 8


def variants_of(config: CompareConfig, data: Data) -> list[Variant]:
    """The variants of the comparison that the flags name."""
    shared: dict[str, Any] = {"rates": config.rates, "batch_size": config.batch_size, "epochs": config.epochs}
    return [variant._replace(**{**shared, **chosen}) for variant, chosen in _choices[config.what](config, data)]


def imbalance(data: Data, smallest: float = SMALLEST_CLASS) -> Data:
    """Training examples whose classes are ever rarer: class c keeps the share `smallest^(c/(N - 1))`; dev and test stay."""
    shares = smallest ** (np.arange(data.outputs) / max(1, data.outputs - 1))
    most = np.bincount(data.labels, minlength=data.outputs).min()
    kept = np.concatenate([np.flatnonzero(data.labels == c)[: max(1, round(most * share))] for c, share in enumerate(shares)])
    return _chosen(data, np.sort(kept))


def saturate(variables: dict[str, Any]) -> dict[str, Any]:
    """The same network with output biases of ±SATURATION, by turns: most outputs are wrong, and sure of it."""
    params = variables["params"]
    b = params["output"]["bias"]
    signs = 1 - 2 * (jnp.arange(len(b)) % 2)
    output = {**params["output"], "bias": SATURATION * signs.astype(b.dtype)}
    return {**variables, "params": {**params, "output": output}}


def _zero_output(variables: dict[str, Any]) -> dict[str, Any]:
    params = variables["params"]
    return {**variables, "params": {**params, "output": jax.tree.map(jnp.zeros_like, params["output"])}}


def _chosen(data: Data, m: np.ndarray) -> Data:
    return data._replace(train=Part(data.train.X[m], data.train.Y[m]), labels=data.labels[m])


Chosen = list[tuple[Variant, dict[str, Any]]]


def _activations(config: CompareConfig, data: Data) -> Chosen:
    hidden = (config.width,) * 3
    return [(Variant(name, FullyConnected(hidden, data.outputs, activation=name)), {}) for name in ACTIVATION_NAMES]


def _normalisation(config: CompareConfig, data: Data) -> Chosen:
    chosen: Chosen = []
    for norm in NORMS:
        for residual in (False, True):
            group = ("no norm" if norm == "none" else f"{norm} norm") + (", residual" if residual else "")
            for depth in config.depths:
                network = FullyConnected((config.width,) * depth, data.outputs, norm=norm, residual=residual)
                chosen.append((Variant(f"{group}, depth {depth}", network, group, depth), {}))
    return chosen


def _of_objectives(config: CompareConfig, data: Data) -> Chosen:
    network, chosen = FullyConnected((config.width,), data.outputs, activation="tanh", output_scale=0.1), []
    for optimizer in ("sgd", "adam"):
        for start in ("saturated", "small"):
            group = f"{'descent' if optimizer == 'sgd' else optimizer}, {start} outputs"
            first = {"start": saturate} if start == "saturated" else {}
            plan: Any = {"optimizer": optimizer, "batch_size": 0, "epochs": 10 * config.epochs, **first}
            plan["rates"] = config.rates if optimizer == "sgd" else tuple(rate / 10 for rate in config.rates)
            chosen += [(Variant(f"{name}, {group}", network, group, objective=name), plan) for name in _objectives]
    return chosen


def _initializers(config: CompareConfig, data: Data) -> Chosen:
    def variant(name: str, group: str, value: float | None = None, **flags: Any) -> tuple[Variant, dict[str, Any]]:
        network = FullyConnected((config.width,) * _deep, data.outputs, activation="tanh", bias=False, **flags)
        return Variant(name, network, group, value), {}

    laws = ("fan_in_uniform", "glorot_uniform", "glorot_normal", "he_normal", "backward_normal", "standard", "zeros")
    chosen = [variant(law, "initialisers", weights=law) for law in laws]
    chosen.append(variant("he_normal, gain 1.67", "initialisers", weights="he_normal", weight_scale=5 / 3))
    zero, plan = variant("zero last layer", "initialisers")
    chosen.append((zero, {**plan, "start": _zero_output}))
    scales = (0.1, 0.3, 1.0, 3.0, 10.0)
    return chosen + [variant(f"glorot_normal x {s:g}", "scales", s, weights="glorot_normal", weight_scale=s) for s in scales]


def _optimizers(config: CompareConfig, data: Data) -> Chosen:
    network = FullyConnected((config.width,) * 2, data.outputs)
    low = tuple(sorted({round(rate * 0.01, 9) for rate in config.rates} | set(config.rates)))
    chosen: Chosen = []
    for name in OPTIMIZERS:
        rates = config.rates if name in _by_descent else low
        chosen.append((Variant(name, network, "optimisers", optimizer=name), {"rates": rates}))
    for momentum in (0.0, 0.5, 0.9, 0.99):
        named = Variant(f"momentum {momentum:g}", network, "momentum", optimizer="momentum", momentum=momentum)
        chosen.append((named, {"rates": tuple(sorted({*config.rates, *(rate / 10 for rate in config.rates)}))}))
    chosen += [(Variant(f"cooling {name}", network, "schedules, descent", cooling=name), {}) for name in SCHEDULES]
    ends = low[0], low[-1]
    for spacing, space in (("linear", np.linspace), ("exponential", np.geomspace)):
        rates = tuple(float(rate) for rate in space(*ends, _rates_of_a_search))
        named = Variant(f"{_rates_of_a_search} {spacing} rates", network, "spacing of rates, adam", optimizer="adam")
        chosen.append((named, {"rates": rates}))
    return chosen


def _batch_size(config: CompareConfig, data: Data) -> Chosen:
    network = FullyConnected((config.width,) * 2, data.outputs)
    sizes = [size for size in (8, 32, 128, 512) if size < len(data.train.X)]
    return [(Variant(f"batch {size}" if size else "full batch", network), {"batch_size": size}) for size in (*sizes, 0)]


def _samplers(config: CompareConfig, data: Data) -> Chosen:
    network, rare = FullyConnected((config.width,) * 2, data.outputs), imbalance(data)
    return [(Variant(name, network, sampler=name, data=rare), {}) for name in SAMPLERS]


def _dropout(config: CompareConfig, data: Data) -> Chosen:
    few, chosen = min(FEW, len(data.labels)), []
    for group, part in ((f"{few} examples", _chosen(data, np.arange(few))), ("all examples", data)):
        for dropout in (0.0, 0.2, 0.5, 0.8):
            network = FullyConnected((4 * config.width,) * 2, data.outputs, dropout=dropout)
            chosen.append((Variant(f"dropout {dropout:g}, {group}", network, group, dropout, data=part), {}))
    return chosen


_choices: dict[ComparisonName, Callable[[CompareConfig, Data], Chosen]] = {
    "activations": _activations,
    "normalisation": _normalisation,
    "objectives": _of_objectives,
    "initializers": _initializers,
    "optimizers": _optimizers,
    "batch-size": _batch_size,
    "samplers": _samplers,
    "dropout": _dropout,
}
