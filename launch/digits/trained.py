"""Networks trained by gradients, and one convex loss by four optimisers.

A held-out tenth chooses the epoch.
"""

import functools
import time
from collections.abc import Callable
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
from jexplicit.nn.networks import ConvolutionalNetwork, FullyConnected, SoftmaxStack
from jexplicit.nn.training import adagrad, objective
from jexplicit.runs.devices import full_precision, key_of_seed
from jexplicit.runs.progress import stage
from jexplicit.solvers.explicit import accuracy, closeness, fit_temperature, mean_loss, random_decoders
from jexplicit.solvers.sweeps import SoftmaxFit, tempered
from launch.digits import Config, solved
from launch.digits.solved import Problem, dev_scores, explicit_decoders, features_of, keep, linear
from launch.kit.views import Row, where
from launch.networks.training import fit

_batch_size, _patience, _hidden_units = 128, 5, 256
_stack_rate, _hidden_rate = 0.1, 1e-3  # the paper has a rate of Adagrad for text only, 0.01
_cnn_rate, _cnn_decay = 2e-3, 1e-2
_readout_rate, _readout_decays = 0.1, (0.0, 0.01, 0.03, 0.1)
_images_per_call = 1000

Variables = dict[str, Any]


def network_of(row: Row) -> nn.Module:
    """The network of a row's method."""
    N = row["outputs"]
    if row["method"] == "cnn":
        return ConvolutionalNetwork((row["height"], row["width"]), N)
    return FullyConnected((_hidden_units,), N) if row["method"] == "network" else SoftmaxStack(N, row["layers"])


def network_logits(model: nn.Module) -> Callable[[Any, Any], Array]:
    """Logits `(variables, H) -> [M, N]` of images, some at a time."""
    block = jax.jit(functools.partial(networks.network_outputs, model))

    def logits(variables: Any, H: Any) -> Array:
        return jnp.concatenate([block(variables, H[m : m + _images_per_call]) for m in range(0, len(H), _images_per_call)])

    return logits


def on_pixels(problem: Problem, key: Row) -> list[Row]:
    """Train a network on pixels, all but the cnn until the held-out loss rises."""
    method, layers, test, (H, Y, _) = key["method"], key["layers"], problem.test, problem.train
    (height, width), random, N = problem.images.train_images.shape[1:], key_of_seed(problem.config.seed), Y.shape[1]
    model = network_of({**key, "outputs": N, "height": height, "width": width})
    patience, epochs, closed = _patience, problem.config.epochs or 100, []
    fields: dict[str, Any] = {"learning_rate": {"cnn": _cnn_rate, "network": _hidden_rate}.get(method, _stack_rate)}
    if method == "cnn":
        patience, epochs = None, problem.config.epochs or 8
        optimizer, variables = _adamw(problem, epochs, _cnn_rate, _cnn_decay), networks.init_variables(model, random, H[:1])
        fields["weight_decay"] = _cnn_decay
    elif method == "network":
        optimizer, he = optax.adam(_hidden_rate), networks.initializer("he_normal", "relu")
        sizes = zip(jax.random.split(random), ((H.shape[1], _hidden_units), (_hidden_units, N)), strict=True)
        first, last = ({"kernel": he(key, shape, H.dtype), "bias": jnp.zeros(shape[1], H.dtype)} for key, shape in sizes)
        variables = {"params": {"hidden_1": {"Dense_0": first}, "output": last}, "batch_stats": {}}
    else:  # softmax layers, from random parameters (cold) or from the explicit solution (warm)
        used = problem.train.rows(~problem.held_out)  # a warm start is solved on these, too: held-out images stay unseen
        closed = explicit_decoders(used, problem.K, 1) if layers == 1 else ()
        decoders = random_decoders(random, H.shape[1], N, layers)
        decoders = explicit_decoders(used, problem.K, layers) if method == "warm" else decoders
        optimizer, fields["priming_number"] = adagrad(_stack_rate), problem.K if method == "warm" else None
        variables = {"params": {f"layer_{n}": {"kernel": U} for n, U in enumerate(decoders, 1)}, "batch_stats": {}}
    logits = network_logits(model)

    def watch(variables: Variables) -> Row:
        """Scores on test images, and how near one layer is to its solution."""
        z = logits(variables, test.H)
        found = {"test_accuracy": accuracy(z, test.labels), "test_loss": mean_loss(z, test.Y)}
        for U in closed:
            near = closeness(jnp.asarray(variables["params"]["layer_1"]["kernel"]), U, H[problem.held_out])
            found |= {f"explicit_{field}": value for field, value in near.items()}
        return found

    trained, about = _train(problem, key, model, variables, optimizer, epochs, watch=watch, patience=patience)
    about |= {"seconds": about["solve_seconds"], **fields}
    if patience is not None:
        explicit = where(problem.folder.rows(), method="explicit", layers=layers)
        events = where(problem.folder.events("epoch"), method=method, layers=layers)
        reached = (e["epoch"] for e in events if explicit and e["test_accuracy"] >= explicit[0]["test_accuracy"])
        about |= {"stopped": about["epochs"] - about["best_epoch"] == patience, "explicit_epoch": min(reached, default=None)}
    params = {kind: tree for kind, tree in trained.items() if tree}
    return [keep(problem, key, params, logits=functools.partial(logits, trained), **about)]


def _adamw(problem: Problem, epochs: int, rate: float, decay: float) -> optax.GradientTransformation:
    """AdamW with warm-up over a twentieth of the steps, 0 at the end."""
    steps = epochs * -(-int((~problem.held_out).sum()) // _batch_size)
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, max(1, steps // 20), max(2, steps))
    return optax.adamw(schedule, weight_decay=decay)


def _train(
    problem: Problem,
    key: Row,
    model: nn.Module,
    variables: Variables,
    optimizer: optax.GradientTransformation,
    epochs: int,
    *,
    inputs: Callable[[Array], Array] = lambda H: H,
    watch: Callable[[Variables], Row] = lambda variables: {},
    patience: int | None = None,
    **about: Any,
) -> tuple[Variables, dict[str, Any]]:
    """The variables of the best epoch, and row fields; interrupted fits continue.

    inputs: of the network, from the problem's. watch: fields of an epoch's event. about: tells several fits of a row apart.
    """
    H, used, logits, seed = problem.train.H, np.flatnonzero(~problem.held_out), network_logits(model), problem.config.seed
    Y, held_out, measured = np.asarray(problem.train.Y), inputs(H[problem.held_out]), dict[str, Any]()
    loss, steps = objective("softmax_cross_entropy"), -(-len(used) // _batch_size)

    def batch(drawn: np.ndarray) -> Any:
        return inputs(H[used[drawn]]), Y[used[drawn]]

    def evaluate(variables: Variables) -> float:
        scores = dev_scores(problem, logits(variables, held_out))
        measured.update({"dev_accuracy": scores["dev_accuracy"], **watch(variables)})
        return scores["dev_loss"]

    name = "_".join([solved.model_name(key), *(f"{value:g}" for value in about.values())])
    start = networks.initial_state(variables, optimizer), batch(np.arange(min(_batch_size, len(used))))
    cost = solved.flops(networks.training_step(model, loss, optimizer, seed=seed), *start)
    named = {"name": name, "method": key["method"], "layers": key["layers"], **about}
    options: Any = {"size": len(used), "batch_size": _batch_size, "seed": seed, "patience": patience, "epochs": epochs}
    options |= {"checkpoints": problem.folder.path / "checkpoints" / f"{name}.partial", "measured": lambda step: measured}
    result = fit(problem.folder, named, model, loss, optimizer, variables, batch, evaluate, **options)
    fields = {"epochs": result.epochs, "best_epoch": result.best_epoch, "steps": result.epochs * steps, **about}
    fields |= {"flops": fields["steps"] * cost, "solve_seconds": result.seconds, "batch_size": _batch_size}
    return result.params, fields | {"backprop_free": False, **dev_scores(problem, logits(result.params, held_out))}


def readout(problem: Problem, key: Row) -> list[Row]:
    """Layers trained with every weight decay; the held-out tenth chooses one and its temperature."""
    problem, weights, feature_seconds, feature_flops = problem.described()
    Z, held_out, N, D = problem.train.H, problem.held_out, problem.images.outputs, 2 * weights["W"].shape[1]
    model, epochs, features = FullyConnected((), N), problem.config.epochs or 20, jax.jit(features_of(weights))
    zeros = {"kernel": jnp.zeros((D, N), Z.dtype), "bias": jnp.zeros(N, Z.dtype)}
    start: Variables = {"params": {"output": zeros}, "batch_stats": {}}
    fits = []
    for decay in _readout_decays:
        optimizer = _adamw(problem, epochs, _readout_rate, decay)
        fits.append(_train(problem, key, model, start, optimizer, epochs, inputs=features, weight_decay=decay))
    variables, fields = min(fits, key=lambda found: found[1]["dev_loss"])
    fields |= {cost: sum(found[cost] for _, found in fits) for cost in ("steps", "flops", "solve_seconds")}
    output, H = variables["params"]["output"], features(Z[held_out])
    fit = SoftmaxFit(jnp.asarray(output["kernel"]), jnp.asarray(output["bias"]), ())
    temperature = fit_temperature(fit.logits(H), problem.train.labels[held_out])
    fit, _ = tempered(fit, temperature, 0.0)
    fields |= {**dev_scores(problem, fit.logits(H)), "temperature": temperature, "dimensions": D}
    fields |= {"learning_rate": _readout_rate, "feature_seconds": feature_seconds}
    fields["seconds"] = feature_seconds + fields["solve_seconds"]
    fields["flops"] += feature_flops + 2.0 * fields["steps"] * _batch_size * weights["W"].size
    return [keep(problem, key, linear(fit), weights, **fields)]


# --- one convex loss of a softmax layer, and four ways to its minimum --------------------------------------------------------
#     L(U, b) = mean of -log softmax(H U + b)_y + penalty/2 ||U||²,    penalty = ridge times the mean variance of H
# on nine tenths of the training images, H centred, from U = 0 and the class frequencies. A pass is one gradient over all.

_ridge = 1e-4  # in units of the features' mean variance, as the softmax layer of `kernel` has it on MNIST

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
    size, M, penalty = min(_batch_size, len(task.H)), len(task.H), task.penalty
    points: Points = {}
    for rate in config.rates:
        optimizer = optax.adam(optax.cosine_decay_schedule(rate, _passes(config) * (M // size)))

        def step(carry: Any, drawn: Array, optimizer: Any = optimizer) -> Any:
            point, state = carry
            gradients = jax.grad(loss, argnums=(0, 1))(*point, task.H[drawn], task.Y[drawn], penalty)
            with jax.numpy_dtype_promotion("standard"):  # optax's Adam and schedules mix dtypes
                updates, state = optimizer.update(gradients, state)
            return (optax.apply_updates(point, updates), state), None

        epoch = jax.jit(lambda carry, rows, step=step: jax.lax.scan(step, carry, rows)[0])
        start: Point = (jnp.zeros((len(task.mean), len(task.b)), task.H.dtype), task.b)
        carry, generator = (start, optimizer.init(start)), np.random.default_rng(config.seed)
        for _ in range(_passes(config)):
            carry = epoch(carry, jnp.asarray(generator.permutation(M)[: M // size * size].reshape(-1, size)))
            record(float(_loss(*carry[0], task.H, task.Y, penalty)), rate=rate)
        points[rate] = carry[0]
    return points


SOLVERS: dict[str, Callable[[Task, Record, Config], Points]] = {
    **{"lbfgs_metric": functools.partial(lbfgs, metric=True), "lbfgs": lbfgs},
    **{"sweeps": sweeps, "adam": adam},
}


@functools.lru_cache(maxsize=1)  # one for all optimisers
def _make_task(described: Callable[[], tuple[Problem, dict[str, Array], float, float]]) -> tuple[Task, Problem, Row]:
    """The loss of features of descriptors, and these with their weights."""
    problem, weights, *_ = described()
    used = ~problem.held_out
    H, Y = jax.jit(features_of(weights))(problem.train.H[used]), problem.train.Y[used]
    mean = H.mean(axis=0)
    H = H - mean[None]
    C = np.asarray(jax.jit(full_precision(lambda H: H.T @ H / len(H)))(H), float)
    penalty = _ridge * float(np.trace(C)) / len(C)
    factor = scipy.linalg.cholesky(C + 2 * penalty * np.eye(len(C)), lower=True)
    return Task(H, Y, jnp.log(jnp.maximum(Y.mean(axis=0), 1 / len(Y))), mean, factor, penalty), problem, weights


def optimum(problem: Problem, key: Row) -> list[Row]:
    """The row of a way to the minimum, which logs each pass."""
    task, problem, weights = _make_task(problem.described)
    config, solver, curves = problem.config, key["solver"], dict[float, list[float]]()
    start, in_all = time.perf_counter(), _passes(config) * (len(config.rates) if solver == "adam" else 1)
    with stage(f"optimum by {solver}", "passes") as progress:

        def record(value: float, rate: float = 0.0) -> None:
            curves.setdefault(rate, []).append(value)
            seconds, done = time.perf_counter() - start, len(curves[rate])
            problem.folder.log(event="pass", solver=solver, rate=rate, passes=done, loss=value, seconds=seconds)
            progress(sum(map(len, curves.values())), in_all)

        points = SOLVERS[solver](task, record, config)
    seconds = time.perf_counter() - start
    rate = min(curves, key=lambda rate: np.nan_to_num(curves[rate][-1], nan=np.inf))  # one that diverged is not the best
    curve, passes, (M, D), N = curves[rate], sum(map(len, curves.values())), task.H.shape, len(task.b)
    U, b = (jnp.asarray(part, task.H.dtype) for part in points[rate])
    factored = D**3 / 3 + 2 * M * D**2 + passes * 2 * N * D**2 if solver in ("sweeps", "lbfgs_metric") else 0
    fields: dict[str, Any] = {"loss": float(_loss(U, b, task.H, task.Y, task.penalty)), "passes": passes, "dimensions": D}
    fields |= {f"loss_{n}": curve[n - 1] for n in solved.SHOWN_PASSES if n <= len(curve)}
    fields |= {"seed": config.seed, "learning_rate": rate or None, "seconds": seconds, "backprop_free": solver != "adam"}
    fields["flops"] = passes * 4.0 * M * D * N + factored
    fit, rest = SoftmaxFit(U, b - task.mean @ U, ()), features_of(weights)(problem.train.H[problem.held_out])
    fields |= dev_scores(problem, fit.logits(rest))
    return [keep(problem, key, linear(fit), weights, **fields)]
