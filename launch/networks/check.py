"""launch.networks check: the training checklist, step by step until one fails."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.parts.objectives import objective
from jexplicit.nn.studies.checklist import Verdict, all_examples_verdict, one_example_verdict
from jexplicit.runs.progress import console
from launch.kit.experiment import Experiment
from launch.kit.experiment import Part as Step
from launch.kit.folder import RunFolder
from launch.kit.rows import Row, only
from launch.kit.tables import Column
from launch.kit.views import Section, Table
from launch.networks.config import CheckConfig, Training, checked
from launch.networks.data import Data, SplitData, open_pictures
from launch.networks.diagnostics import CURVES
from launch.networks.training import RESULTS, flags_of, row_of, train_network


def measure(config: CheckConfig, folder: RunFolder) -> Iterator[Step]:
    """Every step of the checklist, until one fails: its name, hidden layers, and whether there are biases."""
    _, data = open_pictures(config, "check")
    steps: dict[str, tuple[tuple[int, ...], bool]] = {
        "one example": ((config.width,), False),
        "all examples": ((config.width,), False),
        "with biases": ((config.width,), True),
        **{f"width {width}": ((width,), True) for width in config.widths},
        **{f"depth {depth}": ((config.width,) * depth, True) for depth in config.depths},
    }
    flags = flags_of(config, initializer=config.initializer, cooling="constant")
    for name, (hidden, bias) in steps.items():
        network = FullyConnected(hidden, data.outputs, bias=bias, weights=config.initializer)
        kind = f"FCNN {'-'.join(map(str, hidden))}"
        one = replace(flags, batch_size=1, epochs=config.steps) if name == "one example" else None
        yield {"name": name}, functools.partial(attempt, folder, one or flags, data, network, name, kind)
        row = only(folder.rows(), name=name)
        mark = "[green]passed[/]" if row["passed"] else "[red]failed; the steps after it are not run[/]"
        console.print(f"  {name}: {mark}, {row['reason']}", soft_wrap=True)
        if not row["passed"]:
            return


def attempt(folder: RunFolder, flags: Training, data: Data, network: FullyConnected, name: str, kind: str) -> list[Row]:
    """Train a step's network on the squared error, with the verdict in its row; a loss that is not finite fails too."""
    Y, one = data.train.Y, name == "one example"
    if one:
        example = SplitData(*(part[:1] for part in data.train))
        data = Data(example, example, example, data.labels[:1], data.outputs, data.about)

    def verdict(row: Row, _: Any) -> Row:
        if one:
            return verdict_of_one(folder, network, data, flags.seed)._asdict()
        constant = float(np.mean(np.sum((Y - Y.mean(axis=0)) ** 2, axis=1)) / 2)
        return all_examples_verdict(row["train_loss"], constant)._asdict()

    how: Any = {"objective": "squared_error", "watched": False, "finish": verdict}
    try:
        return [*train_network(folder, flags, data, network, name, kind, **how)]
    except FloatingPointError as error:
        return [row_of(data, name=name, model=kind, passed=False, reason=str(error))]


def verdict_of_one(folder: RunFolder, network: FullyConnected, data: Data, seed: int) -> Verdict:
    """The verdict from the logged losses and the initial gradient."""
    losses = [event["dev_loss"] for event in folder.events("epoch") if event["name"] == "one example"]
    X, Y = map(jnp.asarray, data.train)
    params = init_variables(network, jax.random.key(seed), X)["params"]
    gradient = jax.grad(lambda params: objective("squared_error")(network_outputs(network, {"params": params}, X), Y).mean())
    sizes = {"input_norm": float(jnp.linalg.norm(X)), "gradient_norm": float(optax.tree_utils.tree_norm(gradient(params)))}
    return one_example_verdict(losses, **sizes, bias=False)


VERDICT = Column("verdict", lambda row: "passed" if row["passed"] else "**failed**")
CHECKLIST = Section("Checklist", [Table([Column("step", "name"), VERDICT, Column("why", "reason")])])
VIEWS = [RESULTS, CHECKLIST, CURVES]
EXPERIMENT = Experiment("networks", CheckConfig, measure, VIEWS, check=checked, title="launch.networks check")
