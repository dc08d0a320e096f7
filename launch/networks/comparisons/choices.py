"""The variants of every comparison of launch.networks compare."""

import functools
from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn.networks import FullyConnected
from jexplicit.nn.parts.names import Activation, NormName, OptimizerName, SamplerName, ScheduleName
from launch.networks.comparisons.variants import Variant
from launch.networks.config import CompareConfig
from launch.networks.data import Data, SplitData

SATURATION = 6.0  # of the output biases: a sigmoid has 0.9975, and a slope of 0.0025
SMALLEST_CLASS = 0.02  # examples of the rarest class, relative to the most frequent one
FEW = 200  # examples
_deep = 5  # hidden layers of the comparison of initialisers, as in Glorot & Bengio (2010)
_objectives = ("sigmoid_squared_error", "binary_cross_entropy", "squared_error", "softmax_cross_entropy")
_laws = ("fan_in_uniform", "glorot_uniform", "glorot_normal", "he_normal", "backward_normal", "standard", "zeros")
_by_descent = ("sgd", "momentum", "nesterov")
_rates_of_a_search = 8


def variants_of(config: CompareConfig, data: Data) -> Iterator[Variant]:
    """The variants of the comparison that the flags name."""
    make = functools.partial(Variant, rates=config.rates, batch_size=config.batch_size, epochs=config.epochs)
    hundredths = tuple(sorted({*(round(rate * 0.01, 9) for rate in config.rates), *config.rates}))
    tenths = tuple(rate / 10 for rate in config.rates)

    def network(layers: int, **flags: Any) -> FullyConnected:
        return FullyConnected((config.width,) * layers, data.outputs, **flags)

    match config.what:
        case "activations":
            for name in get_args(Activation):
                yield make(name, network(3, activation=name))
        case "normalisation":
            for norm, residual, depth in product(get_args(NormName), (False, True), config.depths):
                group = ("no norm" if norm == "none" else f"{norm} norm") + ", residual" * residual
                yield make(f"{group}, depth {depth}", network(depth, norm=norm, residual=residual), group, depth)
        case "objectives":
            tanh, starts = network(1, activation="tanh", output_scale=0.1), {"saturated": {"start": saturate}, "small": {}}
            plan: Any = {"batch_size": 0, "epochs": 10 * config.epochs}
            for (optimizer, own), start, name in product((("sgd", config.rates), ("adam", tenths)), starts, _objectives):
                group = f"{'descent' if optimizer == 'sgd' else optimizer}, {start} outputs"
                plan |= {"optimizer": optimizer, "rates": own}
                yield make(f"{name}, {group}", tanh, group, objective=name, **plan, **starts[start])
        case "initializers":
            deep = functools.partial(network, _deep, activation="tanh", bias=False)
            for law in _laws:
                yield make(law, deep(weights=law), "initialisers")
            yield make("he_normal, gain 1.67", deep(weight_scale=5 / 3), "initialisers")
            yield make("zero last layer", deep(), "initialisers", start=_zero_output)
            for scale in (0.1, 0.3, 1.0, 3.0, 10.0):
                yield make(f"glorot_normal x {scale:g}", deep(weights="glorot_normal", weight_scale=scale), "scales", scale)
        case "optimizers":
            for name in get_args(OptimizerName):
                own = config.rates if name in _by_descent else hundredths
                yield make(name, network(2), "optimisers", optimizer=name, rates=own)
            for momentum in (0.0, 0.5, 0.9, 0.99):
                plan = {"optimizer": "momentum", "momentum": momentum, "rates": tuple(sorted({*config.rates, *tenths}))}
                yield make(f"momentum {momentum:g}", network(2), "momentum", **plan)
            for name in get_args(ScheduleName):
                yield make(f"cooling {name}", network(2), "schedules, descent", cooling=name)
            for spacing, space in {"linear": np.linspace, "exponential": np.geomspace}.items():
                own = tuple(space(hundredths[0], hundredths[-1], _rates_of_a_search).tolist())
                name = f"{_rates_of_a_search} {spacing} rates"
                yield make(name, network(2), "spacing of rates, adam", optimizer="adam", rates=own)
        case "batch-size":
            for size in (*(size for size in (8, 32, 128, 512) if size < len(data.train.X)), 0):
                yield make(f"batch {size}" if size else "full batch", network(2), batch_size=size)
        case "samplers":
            rare = imbalance(data)
            for name in get_args(SamplerName):
                yield make(name, network(2), sampler=name, data=rare)
        case "dropout":
            few = min(FEW, len(data.labels))
            parts = {f"{few} examples": _chosen(data, np.arange(few)), "all examples": data}
            for group, dropout in product(parts, (0.0, 0.2, 0.5, 0.8)):
                wide = FullyConnected((4 * config.width,) * 2, data.outputs, dropout=dropout)
                yield make(f"dropout {dropout:g}, {group}", wide, group, dropout, data=parts[group])


def imbalance(data: Data, smallest: float = SMALLEST_CLASS) -> Data:
    """Training examples whose classes are ever rarer: class c keeps the share `smallest^(c/(N - 1))`; dev and test stay."""
    shares = smallest ** (np.arange(data.outputs) / max(1, data.outputs - 1))
    most = np.bincount(data.labels, minlength=data.outputs).min()
    kept = np.concatenate([np.flatnonzero(data.labels == c)[: max(1, round(most * share))] for c, share in enumerate(shares)])
    return _chosen(data, np.sort(kept))


def saturate(variables: dict[str, Any]) -> dict[str, Any]:
    """The same network with output biases of ±SATURATION, by turns: most outputs are wrong, and sure of it."""
    output = variables["params"]["output"]
    signs = 1 - 2 * (jnp.arange(len(output["bias"])) % 2)
    return _with_output(variables, {**output, "bias": SATURATION * signs.astype(output["bias"].dtype)})


def _zero_output(variables: dict[str, Any]) -> dict[str, Any]:
    return _with_output(variables, jax.tree.map(jnp.zeros_like, variables["params"]["output"]))


def _with_output(variables: dict[str, Any], output: Any) -> dict[str, Any]:
    return {**variables, "params": {**variables["params"], "output": output}}


def _chosen(data: Data, m: np.ndarray) -> Data:
    return data._replace(train=SplitData(data.train.X[m], data.train.Y[m]), labels=data.labels[m])
