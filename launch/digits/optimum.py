"""One convex loss of a softmax layer, and four ways to its minimum.

    L(U, b) = mean of -log softmax(H U + b)_y + penalty/2 ||U||²,    penalty = ridge times the mean variance of H

on nine tenths of the training images, H centred, from U = 0 and the class frequencies. A pass is one gradient over all of them.
"""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
import scipy.optimize
from jaxtyping import Array, Float

from jexplicit.runs.devices import full_precision
from jexplicit.runs.progress import stage
from jexplicit.solvers.sweeps import SoftmaxFit
from launch.digits.config import Config
from launch.digits.solved import Parts, Problem, describe_images, dev_scores, keep, kernel_features, linear, make_key
from launch.kit.views import Column, Results, Row, Table, groups, means, where

_ridge = 1e-4  # in units of the features' mean variance, as the softmax layer of `kernel` has it on MNIST
_shown = (3, 10, 30, 100, 300)  # passes after which a table has the loss
_block = 2000

Point = tuple[Any, Any]  # U [D, N] and b [N]
Record = Callable[..., None]  # of the loss after one more pass
Points = dict[float, Point]  # by the rate that led there, 0 without one


def most_passes(config: Config) -> int:
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
    for _ in range(most_passes(config)):
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
    stop: Any = {"maxfun": most_passes(config), "maxiter": most_passes(config), "ftol": 1e-12, "gtol": 1e-9}
    return {0.0: point(scipy.optimize.minimize(value, start, jac=True, method="L-BFGS-B", options=stop).x)}


def adam(task: Task, record: Record, config: Config) -> Points:
    """Adam on batches of 128 images, each rate falling along a cosine."""
    size, M = min(128, len(task.H)), len(task.H)
    points: Points = {}
    for rate in config.rates:
        optimizer = optax.adam(optax.cosine_decay_schedule(rate, most_passes(config) * (M // size)))

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
        for _ in range(most_passes(config)):
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
    made = functools.cache(lambda: _made(problem))
    for solver in SOLVERS:
        key = make_key(method, solver, features="kernel")
        yield key, functools.partial(_optimise, problem, key, made)


def _made(problem: Problem) -> tuple[Task, Array, Array]:
    """The task, and the features of all training and of the test images."""
    train, test, weights, *_ = describe_images(problem.config)
    features, start = jax.jit(kernel_features(weights)), time.perf_counter()
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
            progress(sum(map(len, curves.values())), most_passes(config) * max(1, len(config.rates) * (rate > 0)))

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
    fields |= {"weights": describe_images(config).weights}
    layer = fit._replace(intercept=fit.intercept - task.mean @ fit.U)
    return [keep(problem, key, linear(layer)[0], logits, H_test @ fit.U + fit.intercept[None], **fields)]


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
