"""Networks trained by gradients; a held-out tenth chooses the epoch.

Stacks of softmax layers from cold and warm starts, a network with a hidden layer, a convolutional network, and a readout of the
kernel's own features. For the last two the learning rate rises over a twentieth of the steps and falls along a cosine to 0.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jexplicit.nn import networks
from jexplicit.nn.networks import ConvolutionalNetwork, FullyConnected, SoftmaxStack, init_variables
from jexplicit.nn.training import adagrad, objective
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import random_decoders
from jexplicit.solvers.metrics import accuracy, closeness, fit_temperature, mean_loss
from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits, tempered
from launch.digits import solved
from launch.digits.solved import Parts, Problem, dev_scores, explicit_decoders, keep, make_key
from launch.kit.views import Row, where

_batch_size, _patience, _hidden_units = 128, 5, 256
_stack_rate, _hidden_rate = 0.1, 1e-3  # the paper has a rate of Adagrad for text only, 0.01
_cnn_rate, _cnn_decay = 2e-3, 1e-2
_readout_rate, _readout_decays = 0.1, (0.0, 0.01, 0.03, 0.1)
_images_per_call = 1000

Variables = dict[str, Any]


class Training(NamedTuple):
    """A network on pixels, its start and optimiser; patience None: all epochs."""

    model: nn.Module
    variables: Variables
    optimizer: optax.GradientTransformation
    epochs: int
    patience: int | None
    fields: Row
    near: Callable[[Variables], Row] = lambda variables: {}


def on_pixels(problem: Problem, method: str) -> Parts:
    """A network on pixels; of stacks of softmax layers one for each depth."""
    make, solver, depths = {
        "network": (_hidden, "adam", (2,)),
        "cnn": (_convolutions, "adamw", (4,)),
    }.get(method, (_stack, "adagrad", problem.config.layers))
    for layers in depths:
        key = make_key(method, solver, layers=layers)
        yield key, functools.partial(_measure, problem, key, make)


def _stack(problem: Problem, key: Row) -> Training:
    """Softmax layers, from random parameters (cold) or from the explicit solution (warm)."""
    (H, Y, _), layers, warm = problem.train, key["layers"], key["method"] == "warm"
    used = problem.train.rows(~problem.held_out)  # a warm start is solved on these, too: held-out images stay unseen
    decoders = random_decoders(key_of_seed(problem.config.seed), H.shape[1], Y.shape[1], layers)
    decoders = explicit_decoders(used, problem.K, layers) if warm else decoders
    params = {f"layer_{n}": {"kernel": U} for n, U in enumerate(decoders, 1)}
    closed = explicit_decoders(used, problem.K, 1) if layers == 1 else ()

    def near(variables: Variables) -> Row:
        """How near training is to the solution of the same images."""
        trained = jnp.asarray(variables["params"]["layer_1"]["kernel"])
        found = [closeness(trained, U, H[problem.held_out])._asdict() for U in closed]
        return {f"explicit_{field}": value for one in found for field, value in one.items()}

    fields = {"priming_number": problem.K if warm else None, "learning_rate": _stack_rate}
    model, variables = SoftmaxStack(Y.shape[1], layers), {"params": params, "batch_stats": {}}
    return Training(model, variables, adagrad(_stack_rate), problem.config.epochs or 100, _patience, fields, near)


def _hidden(problem: Problem, key: Row) -> Training:
    """One hidden layer of rectified units, from He's normal weights."""
    config, (D, N) = problem.config, (problem.train.H.shape[1], problem.train.Y.shape[1])

    def dense(key: Array, inputs: int, outputs: int) -> dict[str, Array]:
        kernel = networks.initializer("he_normal", "relu")(key, (inputs, outputs), jnp.float32)
        return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}

    first, last = jax.random.split(key_of_seed(config.seed))
    params = {"hidden_1": {"Dense_0": dense(first, D, _hidden_units)}, "output": dense(last, _hidden_units, N)}
    model, variables = FullyConnected((_hidden_units,), N), {"params": params, "batch_stats": {}}
    fields = {"learning_rate": _hidden_rate}
    return Training(model, variables, optax.adam(_hidden_rate), config.epochs or 100, _patience, fields)


def _convolutions(problem: Problem, key: Row) -> Training:
    """A convolutional network."""
    images, epochs = problem.images, problem.config.epochs or 8
    height, width = images.train_images.shape[1:]
    model = ConvolutionalNetwork((height, width), images.outputs)
    variables = init_variables(model, key_of_seed(problem.config.seed), problem.train.H[:1])
    optimizer = _adamw(problem, epochs, _cnn_rate, _cnn_decay)
    return Training(model, variables, optimizer, epochs, None, {"learning_rate": _cnn_rate, "weight_decay": _cnn_decay})


def _measure(problem: Problem, key: Row, make: Callable[[Problem, Row], Training]) -> list[Row]:
    """Train a network until its held-out loss stops falling, or to the end."""
    model, start, optimizer, epochs, patience, fields, near = make(problem, key)
    logits, (H_test, Y_test, labels), H = network_logits(model), problem.test, problem.train.H
    held_out, explicit = H[problem.held_out], where(problem.folder.rows(), method="explicit", layers=key["layers"])

    def watch(variables: Variables) -> dict[str, Any]:
        z = logits(variables, H_test)
        return {"test_accuracy": accuracy(z, labels), "test_loss": mean_loss(z, Y_test), **near(variables)}

    reading: Any = (lambda drawn: H[drawn], logits, held_out, watch)
    variables, about = _fit(problem, key, model, start, optimizer, *reading, epochs=epochs, patience=patience)
    about |= {"seconds": about["solve_seconds"], **dev_scores(problem, logits(variables, held_out))}
    if patience is not None:
        events = where(problem.folder.events("epoch"), method=key["method"], layers=key["layers"])
        reached = (e["epoch"] for e in events if explicit and e["test_accuracy"] >= explicit[0]["test_accuracy"])
        about |= {"stopped": about["epochs"] - about["best_epoch"] == patience, "explicit_epoch": min(reached, default=None)}
    saved = variables if variables["batch_stats"] else variables["params"]
    return [keep(problem, key, saved, logits(variables, H), logits(variables, H_test), **fields, **about)]


def network_logits(model: nn.Module) -> Callable[[Any, Any], Array]:
    """Logits `(variables, H) -> [M, N]` of images, some at a time."""
    block = jax.jit(functools.partial(networks.network_outputs, model))

    def logits(variables: Any, H: Any) -> Array:
        return jnp.concatenate([block(variables, H[m : m + _images_per_call]) for m in range(0, len(H), _images_per_call)])

    return logits


def readout(problem: Problem, method: str) -> Parts:
    """A softmax layer on the features that `kernel` solves one on."""
    key = make_key(method, "adamw", features="kernel")
    yield key, functools.partial(_readout, problem, key)


def _readout(problem: Problem, key: Row) -> list[Row]:
    config, N = problem.config, problem.images.outputs
    train, test, weights, feature_seconds, feature_flops = solved.describe_images(config)
    features, D = solved.kernel_features(weights), 2 * config.frequencies
    zeros = {"kernel": jnp.zeros((D, N), train.dtype), "bias": jnp.zeros(N, train.dtype)}

    def layer(variables: Any) -> SoftmaxFit:
        output = variables["params"]["output"]
        return SoftmaxFit(jnp.asarray(output["kernel"]), jnp.asarray(output["bias"]), ())

    def logits(variables: Any, Z: Array) -> Array:
        return streamed_logits(layer(variables), Z, features)

    compute, held_out = jax.jit(features), train[problem.held_out]
    start: Variables = {"params": {"output": zeros}, "batch_stats": {}}
    model, epochs = FullyConnected((), N), config.epochs or 20
    reading: Any = (lambda drawn: compute(train[drawn]), logits, held_out)
    fits = [
        _fit(problem, key, model, start, optimizer, *reading, epochs=epochs, weight_decay=decay)
        for decay in _readout_decays
        for optimizer in [_adamw(problem, epochs, _readout_rate, decay)]
    ]
    variables, fields = min(fits, key=lambda fit: dev_scores(problem, logits(fit[0], held_out))["dev_loss"])
    sums = {cost: sum(fit[1][cost] for fit in fits) for cost in ("steps", "flops", "solve_seconds")}
    fields = {**fields, **sums, "learning_rate": _readout_rate, "weights": weights}
    temperature = fit_temperature(logits(variables, held_out), problem.train.labels[problem.held_out])
    fit, _ = tempered(layer(variables), temperature, 0.0)
    fields |= dev_scores(problem, streamed_logits(fit, held_out, features)) | {"temperature": temperature}
    fields |= {"dimensions": D, "feature_seconds": feature_seconds, "seconds": feature_seconds + fields["solve_seconds"]}
    fields["flops"] += feature_flops + 2.0 * fields["steps"] * _batch_size * weights["W"].size
    both = (streamed_logits(fit, Z, features) for Z in (train, test))
    return [keep(problem, key, solved.linear(fit)[0], *both, **fields)]


def _adamw(problem: Problem, epochs: int, rate: float, decay: float) -> optax.GradientTransformation:
    """AdamW with warm-up over a twentieth of the steps, 0 at the end."""
    steps = epochs * -(-int((~problem.held_out).sum()) // _batch_size)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(1, steps // 20), max(2, steps))
    return optax.adamw(schedule, weight_decay=decay)


def _fit(
    problem: Problem,
    key: Row,
    model: nn.Module,
    variables: Variables,
    optimizer: optax.GradientTransformation,
    inputs_of: Callable[[np.ndarray], Array],
    logits: Callable[[Any, Any], Array],
    held_out: Array,
    watch: Callable[[Variables], dict[str, Any]] = lambda variables: {},
    *,
    epochs: int,
    patience: int | None = None,
    **about: Any,
) -> tuple[Variables, dict[str, Any]]:
    """The variables of the best epoch, and row fields; interrupted fits continue.

    inputs_of: numbers of training images -> inputs of the network. logits: `(variables, inputs) -> [M, N]`. held_out: inputs of
    the held-out tenth. watch: more fields of the log of an epoch. about: tells several fits of a row apart.
    """
    used, Y, seed = np.flatnonzero(~problem.held_out), np.asarray(problem.train.Y), problem.config.seed
    loss, size, measured = objective("softmax_cross_entropy"), min(_batch_size, len(used)), dict[str, Any]()

    def batch(drawn: np.ndarray) -> Any:
        return inputs_of(used[drawn]), Y[used[drawn]]

    def evaluate(variables: Variables) -> float:
        measured.update(dev_scores(problem, logits(variables, held_out)) | watch(variables))
        return measured["dev_loss"]

    def on_epoch(entry: Mapping[str, float]) -> None:
        shared = {"event": "epoch", "method": key["method"], "layers": key["layers"], **about, "epoch": entry["epoch"]}
        problem.folder.log(**shared, **measured, seconds=entry.get("seconds", 0.0), train_loss=entry.get("train_loss"))

    name = "_".join([solved.model_name(key), *(f"{value:g}" for value in about.values())])
    state = networks.initial_state(variables, optimizer)
    shapes = jax.eval_shape(lambda *parts: parts, state, batch(np.arange(size)))
    step_flops = solved.flops(networks.training_step(model, loss, optimizer, seed=seed), *shapes)
    given: Any = {"size": len(used), "batch_size": _batch_size, "epochs": epochs, "seed": seed, "patience": patience}
    given |= {"checkpoints": problem.folder.path / "checkpoints" / f"{name}.partial", "on_epoch": on_epoch}
    with stage(f"training {name}", "images") as progress:
        trained = networks.train_network(model, loss, optimizer, variables, batch, evaluate, progress=progress, **given)
    steps = trained.epochs * -(-len(used) // _batch_size)
    fields = {"epochs": trained.epochs, "best_epoch": trained.best_epoch, "steps": steps, "flops": steps * step_flops}
    costs = {"solve_seconds": trained.seconds, "batch_size": _batch_size, "backprop_free": False}
    return trained.params, {**about, **fields, **costs}
