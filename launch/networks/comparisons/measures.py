"""What a comparison looks at besides losses: layers, sensitivities, the noise of gradients, recall by class."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jexplicit.nn.backpropagation import backpropagation, layers_of
from jexplicit.nn.diagnostics import hidden_layers, histogram, layer_statistics
from jexplicit.nn.gradient_noise import gradient_noise
from jexplicit.nn.names import ComparisonName
from jexplicit.nn.networks import init_variables, network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.runs.folder import RunFolder
from jexplicit.solvers.metrics import recall_by_class
from launch.networks.comparisons.variants import Outcome, Variant
from launch.networks.report import histograms_path
from launch.networks.training import Data

_watched = 256  # examples whose activations and gradients are measured
_draws = 50  # of batches of each size

Measure = Callable[[RunFolder, Variant, Outcome, Data, int], None]


def first_variables(variant: Variant, data: Data, seed: int) -> dict[str, Any]:
    """The variables that a run of a variant starts from."""
    return variant.start(init_variables(variant.network, jax.random.key(seed), data.train.X[:2]))


def _first_seed(outcome: Outcome) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: leaf[0], outcome.variables)


def _log_layers(folder: RunFolder, variant: Variant, outcome: Outcome, data: Data, seed: int) -> None:
    """Activations and gradients of every hidden layer of the first seed, before and after training, with histograms."""
    X, Y = (part[:_watched] for part in data.train)
    for when, variables in (("start", first_variables(variant, data, seed)), ("end", _first_seed(outcome))):
        arrays: dict[str, np.ndarray] = {}
        for layer, values in hidden_layers(variant.network, variables, objective(variant.objective), X, Y).items():
            numbers = layer_statistics(values, variant.network.activation)
            folder.log(event="layer", name=variant.name, when=when, layer=layer, **numbers._asdict())
            for kind, array in (("z", values.z), ("gradient", values.gradient * len(X))):
                arrays[f"{layer} {kind}"], arrays[f"{layer} {kind} edges"] = histogram(array)
        path = histograms_path(folder.path, variant.name, when)
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]


def _log_sensitivities(folder: RunFolder, variant: Variant, outcome: Outcome, data: Data, seed: int) -> None:
    """The size of dJ/dz of the output and of the hidden layer where training starts, root mean square over examples."""
    layers = layers_of(first_variables(variant, data, seed)["params"])
    X, Y = (jnp.asarray(part[:_watched]) for part in data.train)
    goal = objective(variant.objective)
    found = jax.vmap(lambda x, y: backpropagation(layers, variant.network.activation, goal, x, y))(X, Y)
    hidden, output = (float(jnp.sqrt((v**2).sum(axis=1).mean())) for v in found.sensitivities)
    folder.log(
        event="sensitivity", name=variant.name, group=variant.group, objective=variant.objective, output=output, hidden=hidden
    )


def _log_noise(folder: RunFolder, variant: Variant, outcome: Outcome, data: Data, seed: int) -> None:
    """The error of mini-batch gradients where training starts and where it has ended, once for all batch sizes."""
    if variant.batch_size == 0 or folder.events("noise"):
        return
    X, Y = map(jnp.asarray, data.train)
    goal = objective(variant.objective)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return goal.loss(network_outputs(variant.network, {"params": params, "batch_stats": {}}, x[None]), y[None])[0]

    sizes = [size for size in (1, 8, 32, 128, 512) if size < len(X)]
    for when, variables in (("start", first_variables(variant, data, seed)), ("end", _first_seed(outcome))):
        found = gradient_noise(loss, variables["params"], X, Y, jax.random.key(seed), sizes=sizes, draws=_draws)
        for size, error, predicted, cosine in zip(*found[:4], strict=True):
            numbers = {"size": int(size), "error": float(error), "predicted": float(predicted), "cosine": float(cosine)}
            folder.log(event="noise", when=when, scale=found.scale, **numbers)


def _log_recall(folder: RunFolder, variant: Variant, outcome: Outcome, data: Data, seed: int) -> None:
    """Recall by class on the test examples, of every seed, and how many training examples the class had."""
    X, labels = jnp.asarray(data.test.X), jnp.asarray(data.test.Y.argmax(axis=1))
    guesses = jax.vmap(lambda variables: network_outputs(variant.network, variables, X).argmax(axis=1))(outcome.variables)
    recalls = np.asarray(jax.vmap(lambda g: recall_by_class(g, labels, data.outputs))(guesses), np.float64)
    counts = np.bincount((variant.data or data).labels, minlength=data.outputs)
    folder.log(event="recall", name=variant.name, counts=counts.tolist(), recalls=recalls.tolist())


MEASURES: dict[ComparisonName, Measure] = {
    "activations": _log_layers,
    "initializers": _log_layers,
    "objectives": _log_sensitivities,
    "batch-size": _log_noise,
    "samplers": _log_recall,
}


def log_measures(folder: RunFolder, what: ComparisonName, variant: Variant, outcome: Outcome, data: Data, seed: int) -> None:
    """What the comparison looks at besides losses, into the run's events. seed: the first of the runs."""
    if what in MEASURES:
        MEASURES[what](folder, variant, outcome, data, seed)
