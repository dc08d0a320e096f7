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

from jexplicit.nn.networks import (
    ConvolutionalNetwork,
    FullyConnected,
    SoftmaxStack,
    init_variables,
    initial_state,
    initializer,
    network_outputs,
    train_network,
    training_step,
)
from jexplicit.nn.training import adagrad, objective
from jexplicit.runs.checks import key_of_seed
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import accuracy, closeness, fit_temperature, mean_loss, random_decoders
from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits, tempered
from launch.digits.kernel import describe_images, flops, kernel_features
from launch.digits.solved import (
    Parts,
    Problem,
    dev_scores,
    explicit_decoders,
    held_out_tenth,
    keep,
    linear,
    make_key,
    model_name,
    save_model,
)
from launch.kit.views import Row, where

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


def networks(problem: Problem, method: str) -> Parts:
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
    config, layers, warm = problem.config, key["layers"], key["method"] == "warm"
    (H, Y, _), tenth = problem.train, held_out_tenth(problem)
    used = problem.train.rows(~tenth)  # a warm start is solved on these, too: held-out images stay unseen
    decoders = random_decoders(key_of_seed(config.seed), H.shape[1], Y.shape[1], layers)
    decoders = explicit_decoders(used, problem.K, layers) if warm else decoders
    params = {f"layer_{n}": {"kernel": U} for n, U in enumerate(decoders, 1)}
    closed = explicit_decoders(used, problem.K, 1) if layers == 1 else ()

    def near(variables: Variables) -> Row:
        """How near training is to the solution of the same images."""
        found = [closeness(jnp.asarray(variables["params"]["layer_1"]["kernel"]), U, H[tenth]) for U in closed]
        return {f"explicit_{field}": value for one in found for field, value in one.items()}

    fields = {"priming_number": problem.K if warm else None, "learning_rate": config.learning_rate}
    model, variables = SoftmaxStack(Y.shape[1], layers), {"params": params, "batch_stats": {}}
    return Training(model, variables, adagrad(config.learning_rate), config.epochs, config.patience, fields, near)


def _hidden(problem: Problem, key: Row) -> Training:
    """One hidden layer of rectified units, from He's normal weights."""
    config, (D, N) = problem.config, (problem.train.H.shape[1], problem.train.Y.shape[1])

    def dense(key: Array, inputs: int, outputs: int) -> dict[str, Array]:
        kernel = initializer("he_normal", "relu")(key, (inputs, outputs), jnp.float32)
        return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}

    first, last = jax.random.split(key_of_seed(config.seed))
    params = {"hidden_1": {"Dense_0": dense(first, D, config.hidden)}, "output": dense(last, config.hidden, N)}
    model, variables = FullyConnected((config.hidden,), N), {"params": params, "batch_stats": {}}
    return Training(model, variables, optax.adam(1e-3), config.epochs, config.patience, {"learning_rate": 1e-3})


def _convolutions(problem: Problem, key: Row) -> Training:
    """A convolutional network."""
    images, epochs = problem.images, problem.config.cnn_epochs
    height, width = images.train_images.shape[1:]
    model = ConvolutionalNetwork((height, width), images.outputs)
    variables = init_variables(model, key_of_seed(problem.config.seed), problem.train.H[:1])
    optimizer = _adamw(problem, epochs, _cnn_rate, _cnn_decay)
    return Training(model, variables, optimizer, epochs, None, {"learning_rate": _cnn_rate, "weight_decay": _cnn_decay})


def _measure(problem: Problem, key: Row, make: Callable[[Problem, Row], Training]) -> list[Row]:
    """Train a network until its held-out loss stops falling, or to the end."""
    model, start, optimizer, epochs, patience, fields, near = make(problem, key)
    logits, (H_test, Y_test, labels), H = network_logits(model), problem.test, problem.train.H
    held_out, explicit = H[held_out_tenth(problem)], where(problem.folder.rows(), method="explicit", layers=key["layers"])

    def watch(variables: Variables) -> dict[str, Any]:
        z = logits(variables, H_test)
        return {"test_accuracy": accuracy(z, labels), "test_loss": mean_loss(z, Y_test), **near(variables)}

    reading: Any = (lambda drawn: H[drawn], logits, held_out, watch)
    variables, about = fit_network(problem, key, model, start, optimizer, *reading, epochs=epochs, patience=patience)
    about |= {"seconds": about["solve_seconds"], **dev_scores(problem, logits(variables, held_out))}
    if patience is not None:
        events = where(problem.folder.events("epoch"), method=key["method"], layers=key["layers"])
        reached = (e["epoch"] for e in events if explicit and e["test_accuracy"] >= explicit[0]["test_accuracy"])
        about |= {"stopped": about["epochs"] - about["best_epoch"] == patience, "explicit_epoch": min(reached, default=None)}
    saved = variables if variables["batch_stats"] else variables["params"]
    return [keep(problem, key, saved, logits(variables, H), logits(variables, H_test), **fields, **about)]


def network_logits(model: nn.Module) -> Callable[[Any, Any], Array]:
    """Logits `(variables, H) -> [M, N]` of images, some at a time."""
    block = jax.jit(functools.partial(network_outputs, model))

    def logits(variables: Any, H: Any) -> Array:
        return jnp.concatenate([block(variables, H[m : m + _images_per_call]) for m in range(0, len(H), _images_per_call)])

    return logits


def trained_readout(problem: Problem, method: str) -> Parts:
    """A softmax layer on the features that `kernel` solves one on."""
    key = make_key("trained_readout", "adamw", features="kernel")
    yield key, functools.partial(_readout, problem, key)


def _readout(problem: Problem, key: Row) -> list[Row]:
    config, N = problem.config, problem.images.outputs
    train, test, weights, feature_seconds, feature_flops = describe_images(config)
    save_model(problem, "kernel", weights)
    features, D = kernel_features(weights), 2 * config.frequencies
    zeros = {"kernel": jnp.zeros((D, N), train.dtype), "bias": jnp.zeros(N, train.dtype)}

    def layer(variables: Any) -> SoftmaxFit:
        output = variables["params"]["output"]
        return SoftmaxFit(jnp.asarray(output["kernel"]), jnp.asarray(output["bias"]), ())

    def logits(variables: Any, Z: Array) -> Array:
        return streamed_logits(layer(variables), Z, features)

    compute, tenth = jax.jit(features), held_out_tenth(problem)
    held_out = train[tenth]
    start: Variables = {"params": {"output": zeros}, "batch_stats": {}}
    model, epochs = FullyConnected((), N), config.readout_epochs
    reading: Any = (lambda drawn: compute(train[drawn]), logits, held_out)
    fits = [
        fit_network(problem, key, model, start, optimizer, *reading, epochs=epochs, weight_decay=decay)
        for decay in _readout_decays
        for optimizer in [_adamw(problem, epochs, _readout_rate, decay)]
    ]
    variables, fields = min(fits, key=lambda fit: dev_scores(problem, logits(fit[0], held_out))["dev_loss"])
    sums = {cost: sum(fit[1][cost] for fit in fits) for cost in ("steps", "flops", "solve_seconds")}
    fields = {**fields, **sums, "learning_rate": _readout_rate}
    temperature = fit_temperature(logits(variables, held_out), problem.train.labels[tenth])
    fit, _ = tempered(layer(variables), temperature, 0.0)
    passes = fields["steps"] * config.batch_size
    fields |= dev_scores(problem, streamed_logits(fit, held_out, features)) | {"temperature": temperature}
    fields |= {"dimensions": D, "feature_seconds": feature_seconds, "seconds": feature_seconds + fields["solve_seconds"]}
    fields["flops"] += feature_flops + 2.0 * passes * weights["W"].size
    return [keep(problem, key, linear(fit).params, *(streamed_logits(fit, Z, features) for Z in (train, test)), **fields)]


def _adamw(problem: Problem, epochs: int, rate: float, decay: float) -> optax.GradientTransformation:
    """AdamW with warm-up over a twentieth of the steps, 0 at the end."""
    steps = epochs * -(-int((~held_out_tenth(problem)).sum()) // problem.config.batch_size)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(1, steps // 20), max(2, steps))
    return optax.adamw(schedule, weight_decay=decay)


def fit_network(
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
    config, used, Y = problem.config, np.flatnonzero(~held_out_tenth(problem)), np.asarray(problem.train.Y)
    loss, size, measured = objective("softmax_cross_entropy"), min(config.batch_size, len(used)), dict[str, Any]()

    def batch(drawn: np.ndarray) -> Any:
        return inputs_of(used[drawn]), Y[used[drawn]]

    def evaluate(variables: Variables) -> float:
        measured.update(dev_scores(problem, logits(variables, held_out)) | watch(variables))
        return measured["dev_loss"]

    def on_epoch(entry: Mapping[str, float]) -> None:
        shared = {"event": "epoch", "method": key["method"], "layers": key["layers"], **about, "epoch": entry["epoch"]}
        problem.folder.log(**shared, **measured, seconds=entry.get("seconds", 0.0), train_loss=entry.get("train_loss"))

    name = "_".join([model_name(key), *(f"{value:g}" for value in about.values())])
    shapes = jax.eval_shape(lambda *parts: parts, initial_state(variables, optimizer), batch(np.arange(size)))
    step_flops = flops(training_step(model, loss, optimizer, seed=config.seed), *shapes)
    with stage(f"training {name}", "images") as progress:
        trained = train_network(
            model,
            loss,
            optimizer,
            variables,
            batch,
            evaluate,
            size=len(used),
            batch_size=config.batch_size,
            epochs=epochs,
            seed=config.seed,
            patience=patience,
            checkpoints=problem.folder.path / "checkpoints" / f"{name}.partial",
            on_epoch=on_epoch,
            progress=progress,
        )
    steps = trained.epochs * -(-len(used) // config.batch_size)
    fields = {"epochs": trained.epochs, "best_epoch": trained.best_epoch, "steps": steps, "flops": steps * step_flops}
    costs = {"solve_seconds": trained.seconds, "batch_size": config.batch_size, "backprop_free": False}
    return trained.params, {**about, **fields, **costs}
