"""Modular arithmetic by a recursive feature machine.

It is learned late and all at once: from half of the table of a + b mod p, the first solves predict nothing of the other half,
and the last ones all of it. What is learned is the metric, whose blocks become circulant.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jexplicit.runs.progress import stage
from jexplicit.solvers.feature_machine import FeatureMachine, feature_machine, predict
from launch.feature_machine.config import ModularConfig
from launch.kit.experiment import Experiment, Part, RunFolder
from launch.kit.views import Column, Lines, Row, Table, groups

_operations = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


def modular_table(p: int, operation: str) -> tuple[Float[np.ndarray, "pp 2p"], np.ndarray]:
    """All pairs (a, b) as two one-hot vectors, and the result modulo p."""
    a, b = np.divmod(np.arange(p * p), p)
    one_hot = np.eye(p, dtype=np.float32)
    return np.concatenate([one_hot[a], one_hot[b]], axis=1), _operations[operation](a, b) % p


def circulant_share(B: Float[np.ndarray, "p p"]) -> float:
    """The share of a matrix's variance that is constant along wrapped diagonals."""
    p = len(B)
    diagonal = (np.arange(p)[None] - np.arange(p)[:, None]) % p
    means = np.bincount(diagonal.ravel(), B.ravel()) / p
    return float(np.var(means) / max(np.var(B), np.finfo(B.dtype).tiny))


def _measure(config: ModularConfig, folder: RunFolder) -> Iterator[Part]:
    """A machine for each split of the table."""
    for seed in range(config.seed, config.seed + config.seeds):
        yield {"method": "feature-machine", "seed": seed}, lambda seed=seed: _solve(config, seed)


def _solve(config: ModularConfig, seed: int) -> list[Row]:
    p = config.modulus
    X, y = modular_table(p, config.operation)
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = np.split(order, [max(1, min(len(X) - 1, round(config.train_share * len(X))))])
    inputs = {name: (jnp.asarray(X[rows]), y[rows]) for name, rows in (("train", train), ("test", test))}

    def accuracies(machine: FeatureMachine) -> Row:
        M = np.asarray(machine.M)
        guesses = {name: (jnp.argmax(predict(machine, x), axis=1), targets) for name, (x, targets) in inputs.items()}
        found = {f"{name}_accuracy": float((np.asarray(guess) == targets).mean()) for name, (guess, targets) in guesses.items()}
        return found | {"circulant": max(map(circulant_share, (M[:p, p:], M[:p, : p - 1 : -1])))}

    Y = jax.nn.one_hot(y[train], p, dtype=jnp.float32)
    with stage(f"seed {seed}", "solves") as progress:
        show = lambda entry: progress(entry["solve"], config.solves)  # noqa: E731
        _, history = feature_machine(inputs["train"][0], Y, solves=config.solves, measure=accuracies, callback=show)
    sizes = {"modulus": p, "operation": config.operation, "train_examples": len(train), "test_examples": len(test)}
    return [{**sizes, **entry} for entry in history]


RESULTS = Table(
    [
        Column("seed", "seed", "d"), Column("solves", "solve", "d"),
        *(Column(f"{part} %", f"{part}_accuracy", ".2f", 100) for part in ("train", "test")),
        Column("circulant", "circulant", ".3f"), Column("s", "seconds", ".1f"), Column("CPU s", "cpu_seconds", ".1f"),
    ],
    rows=lambda results: [rows[-1] for rows in groups(results.rows, lambda row: row["seed"]).values()],
    note="*Circulant*: how much of the variance of the metric's block of a and b is constant along wrapped diagonals.",
)  # fmt: skip


_shares = {"train_accuracy": "train", "test_accuracy": "test", "circulant": "circulant share"}
_axes = {"xlabel": "solve", "ylabel": "accuracy, and share"}
_views = [RESULTS, Lines("grokking", "solve", _shares, "measure", axes=_axes)]
EXPERIMENT = Experiment(
    "feature-machine", ModularConfig, _measure, _views, title="launch.feature_machine modular: features by solving"
)
