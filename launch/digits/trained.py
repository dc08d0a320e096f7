"""Networks trained by gradients; a held-out tenth chooses the epoch.

Stacks of softmax layers from cold and warm starts, a network with a hidden layer, a convolutional network, and a readout of the
kernel's own features. For the last two the learning rate rises over a twentieth of the steps and falls along a cosine to 0.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
import scipy.optimize
from jaxtyping import Array, Float

from jexplicit.nn import networks
from jexplicit.nn.networks import ConvolutionalNetwork, FullyConnected, SoftmaxStack, init_variables
from jexplicit.nn.training import adagrad, objective
from jexplicit.runs.devices import full_precision, key_of_seed
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import accuracy, closeness, fit_temperature, mean_loss, random_decoders
from jexplicit.solvers.sweeps import SoftmaxFit, streamed_logits, tempered
from launch.digits import solved
from launch.digits.config import Config
from launch.digits.solved import Parts, Problem, dev_scores, explicit_decoders, keep, make_key
from launch.kit.views import Column, Results, Row, Table, groups, means, where

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
        found = [closeness(trained, U, H[problem.held_out]) for U in closed]
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


# --- one convex loss of a softmax layer, and four ways to its minimum --------------------------------------------------------
#     L(U, b) = mean of -log softmax(H U + b)_y + penalty/2 ||U||²,    penalty = ridge times the mean variance of H
# on nine tenths of the training images, H centred, from U = 0 and the class frequencies. A pass is one gradient over all.

_ridge = 1e-4  # in units of the features' mean variance, as the softmax layer of `kernel` has it on MNIST
_shown = (3, 10, 30, 100, 300)  # passes after which a table has the loss
_block = 2000

Point = tuple[Any, Any]  # U [D, N] and b [N]
Record = Callable[..., None]  # of the loss after one more pass
Points = dict[float, Point]  # by the rate that led there, 0 without one


def _passes(config: Config) -> int:
    """Passes at most, for each optimiser and rate."""
    return config.epochs or 100


class Task(NamedTuple):
    """The loss of nine tenths of the images, and its bound's factor."""

    H: Float[Array, "M D"]
    Y: Float[Array, "M N"]
    b: Float[Array, " N"]
    mean: Float[Array, " D"]
    factor: Float[np.ndarray, "D D"]
    penalty: float
    seconds: float


@full_precision
def loss(
    U: Float[Array, "D N"], b: Float[Array, " N"], H: Float[Array, "M D"], Y: Float[Array, "M N"], penalty: float
) -> Array:
    """The mean cross-entropy of a softmax layer and its penalty, in nats."""
    return jnp.mean(optax.softmax_cross_entropy(H @ U + b[None], Y)) + penalty / 2 * jnp.sum(U**2)


_loss, _loss_and_gradient = jax.jit(loss), jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def gradient(task: Task, record: Record, U: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss and its gradient, by one pass."""
    point = jnp.asarray(U, task.H.dtype), jnp.asarray(b, task.H.dtype)
    value, (dU, db) = _loss_and_gradient(*point, task.H, task.Y, task.penalty)
    record(float(value))
    return float(value), np.asarray(dU, float), np.asarray(db, float)


def sweeps(task: Task, record: Record, config: Config) -> Points:
    """Sweeps `U -= 2 (C + 2 penalty)⁻¹ ∇L` (Böhning 1992)."""
    U, b = np.zeros((len(task.mean), len(task.b))), np.asarray(task.b, float)
    for _ in range(_passes(config)):
        _, dU, db = gradient(task, record, U, b)
        U, b = U - 2 * scipy.linalg.cho_solve((task.factor, True), dU), b - 2 * db
    return {0.0: (U, b)}


def lbfgs(task: Task, record: Record, config: Config, *, metric: bool = False) -> Points:
    """L-BFGS of SciPy, with a metric on `V = Lᵀ U`.

    L Lᵀ = C + 2 penalty; the bound makes the curvature of V at most 1/2.
    """
    N = len(task.b)

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        U, b = point(z)
        value, dU, db = gradient(task, record, U, b)
        dU = scipy.linalg.solve_triangular(task.factor, dU, lower=True) if metric else dU
        return value, np.concatenate([dU.ravel(), db])

    def point(z: np.ndarray) -> Point:
        V, b = z[:-N].reshape(-1, N), z[-N:]
        return (scipy.linalg.solve_triangular(task.factor, V, lower=True, trans=1) if metric else V), b

    start = np.concatenate([np.zeros(len(task.mean) * N), np.asarray(task.b, float)])
    stop: Any = {"maxfun": _passes(config), "maxiter": _passes(config), "ftol": 1e-12, "gtol": 1e-9}
    return {0.0: point(scipy.optimize.minimize(value, start, jac=True, method="L-BFGS-B", options=stop).x)}


def adam(task: Task, record: Record, config: Config) -> Points:
    """Adam on batches of 128 images, each rate falling along a cosine."""
    size, M = min(_batch_size, len(task.H)), len(task.H)
    points: Points = {}
    for rate in config.rates:
        optimizer = optax.adam(optax.cosine_decay_schedule(rate, _passes(config) * (M // size)))

        @jax.jit
        def epoch(point: Any, state: Any, rows: Array, optimizer: Any = optimizer) -> Any:
            def step(carry: Any, drawn: Array) -> Any:
                point, state = carry
                gradients = jax.grad(loss, argnums=(0, 1))(*point, task.H[drawn], task.Y[drawn], task.penalty)
                with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
                    updates, state = optimizer.update(gradients, state)
                return (optax.apply_updates(point, updates), state), None

            return jax.lax.scan(step, (point, state), rows)[0]

        point: Any = (jnp.zeros((len(task.mean), len(task.b)), task.H.dtype), task.b)
        state, generator = optimizer.init(point), np.random.default_rng(config.seed)
        for _ in range(_passes(config)):
            rows = generator.permutation(M)[: M // size * size].reshape(-1, size)
            point, state = epoch(point, state, jnp.asarray(rows))
            record(float(_loss(*point, task.H, task.Y, task.penalty)), rate=rate)
        points[rate] = point
    return points


SOLVERS: dict[str, Callable[[Task, Record, Config], Points]] = {
    "lbfgs_metric": functools.partial(lbfgs, metric=True),
    "lbfgs": lbfgs,
    "sweeps": sweeps,
    "adam": adam,
}


def optimum(problem: Problem, method: str) -> Parts:
    """A row for each way to the minimum."""
    made = functools.cache(lambda: _make_task(problem))
    for solver in SOLVERS:
        key = make_key(method, solver, features="kernel")
        yield key, functools.partial(_optimise, problem, key, made)


def _make_task(problem: Problem) -> tuple[Task, Array, Array]:
    """The task, and the features of all training and of the test images."""
    train, test, weights, *_ = solved.describe_images(problem.config)
    features, start = jax.jit(solved.kernel_features(weights)), time.perf_counter()
    H, H_test = (jnp.concatenate([features(X[m : m + _block]) for m in range(0, len(X), _block)]) for X in (train, test))
    used = ~problem.held_out
    mean, Y = H[used].mean(axis=0), problem.train.Y[used]
    H, H_test = H - mean[None], H_test - mean[None]
    C = np.asarray(_second_moments(H[used]), float)
    penalty, places = _ridge * float(np.trace(C)) / len(C), np.arange(len(C))
    C[places, places] += 2 * penalty
    factor = scipy.linalg.cholesky(C, lower=True, overwrite_a=True)
    b = jnp.log(jnp.maximum(Y.mean(axis=0), 1 / len(Y)))
    return Task(H[used], Y, b, mean, factor, penalty, time.perf_counter() - start), H, H_test


@jax.jit
@full_precision
def _second_moments(H: Float[Array, "M D"]) -> Array:
    return H.T @ H / len(H)


def _optimise(problem: Problem, key: Row, made: Callable[[], tuple[Task, Array, Array]]) -> list[Row]:
    config, solver, (task, H, H_test) = problem.config, key["solver"], made()
    start, curves = time.perf_counter(), dict[float, list[float]]()
    with stage(f"optimum by {solver}", "passes") as progress:

        def record(value: float, rate: float = 0.0) -> None:
            curves.setdefault(rate, []).append(value)
            seconds, done = time.perf_counter() - start, len(curves[rate])
            problem.folder.log(event="pass", solver=solver, rate=rate, passes=done, loss=value, seconds=seconds)
            progress(sum(map(len, curves.values())), _passes(config) * max(1, len(config.rates) * (rate > 0)))

        points = SOLVERS[solver](task, record, config)
    seconds = time.perf_counter() - start
    rate = min(curves, key=lambda rate: np.nan_to_num(curves[rate][-1], nan=np.inf))  # one that diverged is not the best
    (U, b), curve, passes = points[rate], curves[rate], sum(map(len, curves.values()))
    fit = SoftmaxFit(jnp.asarray(U, H.dtype), jnp.asarray(b, H.dtype), ())
    (M, D), N = task.H.shape, len(task.b)
    factored = D**3 / 3 + 2 * M * D**2 + passes * 2 * N * D**2 if solver in ("sweeps", "lbfgs_metric") else 0
    fields = {"loss": float(_loss(fit.U, fit.intercept, task.H, task.Y, task.penalty)), "passes": passes, "ridge": _ridge}
    fields |= {f"loss_{n}": curve[n - 1] for n in _shown if n <= len(curve)}
    fields |= {"seed": config.seed, "learning_rate": rate or None, "seconds": seconds, "factor_seconds": task.seconds}
    fields |= {"flops": passes * 4.0 * M * D * N + factored, "dimensions": D}
    logits = H @ fit.U + fit.intercept[None]
    fields |= dev_scores(problem, logits[problem.held_out]) | {"backprop_free": solver != "adam"}
    fields |= {"weights": solved.describe_images(config).weights}
    layer = fit._replace(intercept=fit.intercept - task.mean @ fit.U)
    return [keep(problem, key, solved.linear(layer)[0], logits, H_test @ fit.U + fit.intercept[None], **fields)]


def _above_lowest(results: Results) -> list[Row]:
    """Means over seeds; losses are those above the lowest of the seed."""
    lines = []
    for own in groups(where(results.rows, method="optimum"), ["seed"]).values():
        lowest, losses = min(row["loss"] for row in own), ("loss", *(f"loss_{n}" for n in _shown))
        lines += [{**row, **{f"{name} above": row[name] - lowest for name in losses if name in row}} for row in own]
    return means(lines, ["solver"])


OPTIMUM = Table(
    (
        Column("solver", lambda row: row["solver"].replace("_", ", ")),
        Column("loss, nats", "loss", ".5f"),
        *(Column(f"above the lowest after {n}", f"loss_{n} above", ".1e") for n in _shown),
        Column("at the end", "loss above", ".1e"),
        Column("passes", "passes", ".0f"),
        Column("TFLOP", "flops", ".2f", 1e-12),
        Column("held-out loss", "dev_loss", ".4f"),
        Column("held-out %", "dev_accuracy", ".2f", 100),
        Column("test %", "test_accuracy", ".2f", 100),
        Column("seeds", "number", "d"),
    ),
    _above_lowest,
    "Means over seeds; losses on nine tenths of the training images. Adam has its best rate, which the first seed searched; "
    "the passes of Adam include the search.",
)
