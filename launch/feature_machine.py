"""Features without backpropagation: a kernel machine with a metric from its gradients.

python -m launch.feature_machine modular --modulus 31 --operation multiply --out runs/multiply

Modular arithmetic is learned late and all at once, by the metric, whose blocks become circulant.
"""

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float

from jexplicit.runs.files import Bounds, PositiveInt
from jexplicit.runs.progress import stage
from launch.kit.command import Command, Preset, Run, run_subcommand
from launch.kit.views import Column, Lines, Row, Table, groups


@dataclass(frozen=True, kw_only=True)
class ModularConfig(Run):
    """Learn modular arithmetic by a recursive feature machine."""

    modulus: Annotated[int, Bounds(at_least=3)] = 61
    """p: the table has p x p entries, a and b as two one-hot vectors."""
    operation: Literal["add", "subtract", "multiply"] = "add"
    """Operation to learn, modulo p."""
    train_share: Annotated[float, Bounds(above=0, below=1)] = 0.5
    """Share of the table to train on; the rest is test."""
    seeds: PositiveInt = 3
    """Number of splits of the table."""
    solves: PositiveInt = 30
    """How many times the regression is solved."""


def modular_table(p: int, operation: str) -> tuple[Float[np.ndarray, "pp 2p"], np.ndarray]:
    """All pairs (a, b) as two one-hot vectors, and the result modulo p."""
    a, b = np.divmod(np.arange(p * p), p)
    one_hot = np.eye(p, dtype=np.float32)
    return np.concatenate([one_hot[a], one_hot[b]], axis=1), getattr(np, operation)(a, b) % p


def circulant_share(B: Float[np.ndarray, "p p"]) -> float:
    """The share of a matrix's variance that is constant along wrapped diagonals."""
    p = len(B)
    diagonal = (np.arange(p)[None] - np.arange(p)[:, None]) % p
    means = np.bincount(diagonal.ravel(), B.ravel()) / p
    return float(np.var(means) / max(np.var(B), np.finfo(B.dtype).tiny))


def _solve(config: ModularConfig, seed: int) -> list[Row]:
    """The solves of a split of the table."""
    import jax.numpy as jnp
    from jax.nn import one_hot

    from jexplicit.solvers.feature_machine import FeatureMachine, feature_machine, predict

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

    Y = one_hot(y[train], p, dtype=jnp.float32)
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
_lines = Lines("grokking", "solve", _shares, "measure", axes={"xlabel": "solve", "ylabel": "accuracy, and share"})


def measure(config: ModularConfig, folder: object) -> Iterator[Any]:
    """A machine for each split of the table."""
    for seed in range(config.seed, config.seed + config.seeds):
        yield {"method": "feature-machine", "seed": seed}, functools.partial(_solve, config, seed)


def run(config: ModularConfig) -> dict[str, Any]:
    """Measure, and write the report."""
    from launch.kit.experiment import Experiment  # JAX, which --help does not wait for

    title = "launch.feature_machine modular: features by solving"
    return Experiment("feature-machine", ModularConfig, measure, [RESULTS, _lines], title=title).run(config)


_tiny = Preset(ModularConfig(out="runs/modular", modulus=7, seeds=2, solves=4, train_share=0.8), "p = 7; seconds.")
COMMANDS = {"modular": Command(ModularConfig, run, {"tiny": _tiny}, "feature-machine")}
main = functools.partial(run_subcommand, COMMANDS, description=__doc__ or "")

if __name__ == "__main__":
    sys.exit(main())
