"""launch.networks check: the training checklist, step by step until one fails."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jexplicit.nn.checklist import Verdict, all_examples_verdict, one_example_verdict
from jexplicit.nn.networks import FullyConnected, network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.networks.config import CheckConfig
from launch.networks.pictures import open_pictures
from launch.networks.training import Data, Job, Part, Plan, add_row, has_row, make_plan, measure


def run_check(config: CheckConfig, folder: RunFolder) -> None:
    """Every step of the checklist, until one fails."""
    job, _, data = open_pictures(config, folder, "check")
    if fit_one(job, data) and all(fit_all(job, data, *step) for step in steps(config)):
        console.print("checklist: [green]every step passed[/]")
    else:
        console.print("checklist: [red]a step failed; the steps after it were not run[/]")


def steps(config: CheckConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """The steps after the first: name, hidden layers, and whether there are biases."""
    yield "all examples", (config.width,), False
    yield "with biases", (config.width,), True
    for width in config.widths:
        yield f"width {width}", (width,), True
    for depth in config.depths:
        yield f"depth {depth}", (config.width,) * depth, True


def fit_one(job: Job, data: Data) -> bool:
    """The first step: one example, no biases."""
    one = Part(data.train.X[:1], data.train.Y[:1])
    plan = squared_error_plan(job, data, "one example", (job.config.width,), bias=False)
    plan = plan._replace(batch_size=1, epochs=job.config.steps)
    return attempt(job, plan, Data(one, one, one, data.labels[:1], data.outputs), lambda _: verdict_of_one(job, plan, one))


def fit_all(job: Job, data: Data, name: str, hidden: tuple[int, ...], bias: bool) -> bool:
    """A later step: all examples."""
    constant = float(np.mean(np.sum((data.train.Y - data.train.Y.mean(axis=0)) ** 2, axis=1)) / 2)
    plan = squared_error_plan(job, data, name, hidden, bias)
    return attempt(job, plan, data, lambda row: all_examples_verdict(row["train_loss"], constant))


def squared_error_plan(job: Job, data: Data, name: str, hidden: tuple[int, ...], bias: bool) -> Plan:
    """A network of ReLUs, trained on the squared error with a constant learning rate."""
    network = FullyConnected(hidden, data.outputs, bias=bias, weights=job.config.initializer)
    kind = f"FCNN {'-'.join(map(str, hidden))}"
    return make_plan(job.config, data, network, name=name, model=kind, objective="squared_error", watched=False)


def attempt(job: Job, plan: Plan, data: Data, verdict: Callable[[dict[str, Any]], Verdict]) -> bool:
    """Train a step's network, add its row with the verdict, and print it; a loss that is not finite fails too."""
    if not has_row(job, plan.name):
        try:
            measure(job, plan, data, finish=lambda row, _: verdict(row)._asdict())
        except FloatingPointError as error:
            add_row(job, {"name": plan.name, "model": plan.model, "passed": False, "reason": str(error)})
    row = next(row for row in job.folder.rows() if row["name"] == plan.name)
    mark = "[green]passed[/]" if row["passed"] else "[red]failed[/]"
    console.print(f"  {plan.name}: {mark}, {row['reason']}", soft_wrap=True)
    return row["passed"]


def verdict_of_one(job: Job, plan: Plan, one: Part) -> Verdict:
    """The verdict from the logged losses and the initial gradient."""
    losses = [event["dev_loss"] for event in job.folder.events("epoch") if event["name"] == plan.name]
    X, Y = map(jnp.asarray, one)

    def loss(params: Any) -> Any:
        return objective(plan.objective).loss(network_outputs(plan.network, {**plan.variables, "params": params}, X), Y).mean()

    gradient = float(optax.tree_utils.tree_norm(jax.grad(loss)(plan.variables["params"])))
    return one_example_verdict(losses, input_norm=float(np.linalg.norm(one.X)), gradient_norm=gradient, bias=False)
