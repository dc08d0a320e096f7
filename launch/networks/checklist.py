"""launch.networks check: the training checklist, step by step until one fails."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jexplicit.nn.checklist import Verdict, all_examples_verdict, one_example_verdict
from jexplicit.nn.networks import FullyConnected, init_variables, network_outputs
from jexplicit.nn.objectives import objective
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.networks.config import CheckConfig
from launch.networks.images import about, centred_data, read_pictures
from launch.networks.training import Data, Job, Part, Plan, add_row, has_row, measure


def run_check(config: CheckConfig, folder: RunFolder) -> None:
    """Every step of the checklist, until one fails."""
    images = read_pictures(config)
    data = centred_data(images)
    job = Job(config, folder, {"command": "check", **about(images)})
    passed = fit_one(job, data)
    for name, hidden, bias in checklist(config) if passed else ():
        passed = passed and fit_all(job, data, name, hidden, bias)
    told = "[green]every step passed[/]" if passed else "[red]a step failed; the steps after it were not run[/]"
    console.print(f"checklist: {told}")


def checklist(config: CheckConfig) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """The steps after the first: name, hidden layers, and whether there are biases."""
    yield "all examples", (config.width,), False
    yield "with biases", (config.width,), True
    for width in config.widths:
        yield f"width {width}", (width,), True
    for depth in config.depths:
        yield f"depth {depth}", (config.width,) * depth, True


def fit_one(job: Job, data: Data) -> bool:
    """The first step: one example, no biases."""
    config, name = job.config, "one example"
    if not has_row(job, name):
        one = Part(data.train.X[:1], data.train.Y[:1])
        plan = plan_of(job, data, name, (config.width,), bias=False)
        plan = plan._replace(batch_size=1, epochs=config.steps)
        attempt(job, plan, Data(one, one, one, data.labels[:1], data.outputs), lambda _: verdict_of_one(job, plan, one))
    return said(job, name)


def attempt(job: Job, plan: Plan, data: Data, verdict: Callable[[dict[str, Any]], Verdict]) -> None:
    """Train a step's network and add its row with the verdict; a loss that is not finite is one too."""
    try:
        measure(job, plan, data, finish=lambda row, _: verdict(row)._asdict())
    except FloatingPointError as error:
        add_row(job, {"name": plan.name, "model": plan.model, "passed": False, "reason": str(error)})


def verdict_of_one(job: Job, plan: Plan, one: Part) -> Verdict:
    """From the logged losses, and the gradient at the start."""
    losses = [event["dev_loss"] for event in job.folder.events("epoch") if event["name"] == plan.name]
    X, Y = map(jnp.asarray, one)

    def loss(params: Any) -> Any:
        return objective(plan.objective).loss(network_outputs(plan.network, {**plan.variables, "params": params}, X), Y).mean()

    gradient = float(optax.tree_utils.tree_norm(jax.grad(loss)(plan.variables["params"])))
    return one_example_verdict(losses, input_norm=float(np.linalg.norm(one.X)), gradient_norm=gradient, bias=False)


def fit_all(job: Job, data: Data, name: str, hidden: tuple[int, ...], bias: bool) -> bool:
    """A later step: all examples."""
    if not has_row(job, name):
        constant = float(np.mean(np.sum((data.train.Y - data.train.Y.mean(axis=0)) ** 2, axis=1)) / 2)
        plan = plan_of(job, data, name, hidden, bias)
        attempt(job, plan, data, lambda row: all_examples_verdict(row["train_loss"], constant))
    return said(job, name)


def plan_of(job: Job, data: Data, name: str, hidden: tuple[int, ...], bias: bool) -> Plan:
    """A step's network of rectified units and how it is trained: squared error, a constant rate."""
    config = job.config
    model = FullyConnected(hidden, data.outputs, bias=bias, weights=config.initializer)
    return Plan(
        name=name,
        model=f"FCNN {'-'.join(map(str, hidden))}",
        network=model,
        variables=init_variables(model, jax.random.key(config.seed), data.train.X[:1]),
        objective="squared_error",
        initializer=config.initializer,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        batch_size=config.batch_size,
        epochs=config.epochs,
        watched=False,
    )


def said(job: Job, name: str) -> bool:
    """Tell the verdict of a step."""
    row = next(row for row in job.folder.rows() if row["name"] == name)
    mark = "[green]passed[/]" if row["passed"] else "[red]failed[/]"
    console.print(f"  {name}: {mark}, {row['reason']}", soft_wrap=True)
    return row["passed"]
