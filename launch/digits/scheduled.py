"""What the solved layers are compared with: a convolutional network, and a trained readout of the kernel's own features.

Both are trained by AdamW on nine tenths of the training images. The learning rate rises over a twentieth of the steps and then
falls along a cosine to 0. The held-out tenth chooses the epoch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from jexplicit.nn.convolutional import ConvolutionalNetwork
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.steps import initial_state
from jexplicit.solvers.calibration import fit_temperature
from jexplicit.solvers.streamed import streamed_logits, tempered
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.base import Parts, Problem, dev_scores, held_out_tenth, keep, make_key, save_model
from launch.digits.config import Config
from launch.digits.kernel import describe_images, kernel_features
from launch.digits.solved import linear
from launch.digits.trained import run_training
from launch.kit.rows import Row

_cnn_rate, _cnn_decay = 2e-3, 1e-2
_readout_rate, _readout_decays = 0.1, (0.0, 0.01, 0.03, 0.1)
_images_per_call = 1000


def cnn(problem: Problem) -> Parts:
    """A convolutional network on the pixels."""
    key = make_key("cnn", "adamw", layers=len(problem.config.channels) + 2)
    yield key, functools.partial(_cnn, problem, key)


def make_cnn(config: Config, shape: tuple[int, int], outputs: int) -> ConvolutionalNetwork:
    """The network of the flags, for images of this shape."""
    return ConvolutionalNetwork(shape, outputs, config.channels, dropout=config.dropout)


def _cnn(problem: Problem, key: Row) -> list[Row]:
    config, images, H = problem.config, problem.images, problem.train.H
    height, width = images.train_images.shape[1:]
    model = make_cnn(config, (height, width), images.outputs)
    start, logits = init_variables(model, jax.random.key(config.seed), H[:1]), network_logits(model)
    rates = {"epochs": config.cnn_epochs, "rate": _cnn_rate, "decay": _cnn_decay}
    held_out = H[held_out_tenth(problem)]
    variables, fields = _trained(problem, key, model, start, lambda drawn: H[drawn], logits, held_out, **rates)
    fields |= dev_scores(problem, logits(variables, held_out)) | {"seconds": fields["solve_seconds"]}
    return [keep(problem, key, variables, logits(variables, H), logits(variables, problem.test.H), **fields)]


def network_logits(model: nn.Module) -> Callable[[Any, Any], Array]:
    """Logits `(variables, H) -> [M, N]` of images, some at a time."""
    block = jax.jit(functools.partial(network_outputs, model))

    def logits(variables: Any, H: Any) -> Array:
        return jnp.concatenate([block(variables, H[m : m + _images_per_call]) for m in range(0, len(H), _images_per_call)])

    return logits


def trained_readout(problem: Problem) -> Parts:
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
    start: Any = {"params": {"output": zeros}, "batch_stats": {}}
    model, rates = FullyConnected((), N), {"epochs": config.readout_epochs, "rate": _readout_rate}
    fits = [
        _trained(problem, key, model, start, lambda drawn: compute(train[drawn]), logits, held_out, decay=decay, **rates)
        for decay in _readout_decays
    ]
    variables, fields = min(fits, key=lambda fit: dev_scores(problem, logits(fit[0], held_out))["dev_loss"])
    fields = {**fields, **{cost: sum(fit[1][cost] for fit in fits) for cost in ("steps", "flops", "solve_seconds")}}
    temperature = fit_temperature(logits(variables, held_out), problem.train.labels[tenth])
    fit, _ = tempered(layer(variables), temperature, 0.0)
    passes = fields["steps"] * config.batch_size
    fields |= dev_scores(problem, streamed_logits(fit, held_out, features)) | {"temperature": temperature}
    fields |= {"dimensions": D, "feature_seconds": feature_seconds, "seconds": feature_seconds + fields["solve_seconds"]}
    fields["flops"] += feature_flops + 2.0 * passes * weights["W"].size
    return [keep(problem, key, linear(fit).params, *(streamed_logits(fit, Z, features) for Z in (train, test)), **fields)]


def _trained(
    problem: Problem,
    key: Row,
    model: nn.Module,
    variables: Any,
    inputs_of: Callable[[np.ndarray], Array],
    logits: Callable[[Any, Any], Array],
    held_out: Array,
    *,
    epochs: int,
    rate: float,
    decay: float,
) -> tuple[Any, dict[str, Any]]:
    """Variables of the epoch with the lowest loss on the held-out tenth, and fields of the row.

    inputs_of: what the network reads of the training images with these numbers. held_out: what `logits` read of the tenth.
    """
    used, Y = np.flatnonzero(~held_out_tenth(problem)), np.asarray(problem.train.Y)
    steps = epochs * -(-len(used) // problem.config.batch_size)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(1, steps // 20), max(2, steps))
    optimizer = optax.adamw(schedule, weight_decay=decay)
    dev: dict[str, float] = {}

    def evaluate(variables: Any) -> float:
        dev.update(dev_scores(problem, logits(variables, held_out)))
        return dev["dev_loss"]

    def on_epoch(entry: Mapping[str, float]) -> None:
        about = {"event": "epoch", "method": key["method"], "layers": key["layers"], "weight_decay": decay}
        problem.folder.log(
            **about, epoch=entry["epoch"], **dev, seconds=entry.get("seconds", 0.0), train_loss=entry.get("train_loss")
        )

    def batch(drawn: np.ndarray) -> Any:
        return inputs_of(used[drawn]), Y[used[drawn]]

    trained, step_flops = run_training(
        problem,
        f"{key['method']}_{key['layers']}_{decay:g}",
        model,
        initial_state(variables, optimizer),
        optimizer,
        batch,
        evaluate,
        size=len(used),
        epochs=epochs,
        on_epoch=on_epoch,
    )
    about = {"epochs": trained.epochs, "best_epoch": trained.best_epoch, "learning_rate": rate, "weight_decay": decay}
    costs = {"steps": steps, "flops": steps * step_flops, "solve_seconds": trained.seconds}
    return trained.params, {**about, **costs, "batch_size": problem.config.batch_size, "backprop_free": False}
