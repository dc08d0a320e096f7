"""Blocks of attention and an MLP: many on fresh tasks beside as many steps of descent, and few on the same tasks again."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from icl.models.blocks import BlockRegression, Blocks, init_blocks, linear_blocks
from icl.training import Recipe
from launch.icl.shared.base import STYLES, Job, Model, effort, make_recipe, make_regression, make_tasks
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import (
    Family,
    constructed_layers,
    descent_families,
    measure_families,
    predict_of,
    ridge_family,
    trained_family,
)
from launch.icl.shared.tables import BY_STEP, curves, loss_by_step, measures
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row, where
from launch.kit.views import Lines

_evaluations = 30  # of a training; one of twelve blocks takes as long as 30 steps


def check(config: Config) -> None:
    """Refuse tasks that do not fill batches."""
    batch = config.block_batch_size
    if uneven := [tasks for tasks in config.block_tasks if tasks > batch and tasks % batch]:
        raise ValueError(f"--block-tasks {uneven[0]} in batches of {batch}: use a multiple of --block-batch-size")


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """Transformers of many blocks, with MLPs."""
    tasks = make_tasks(config)
    many, few = Model(tasks, config.blocks[0], False), Model(tasks, config.small_blocks, False)
    for model in dict.fromkeys((many, few)):
        key = {"start": None, "layers": model.layers, "training_tasks": None}
        yield key, functools.partial(untrained, Job(config, folder), model)
    networks = [(many, kind, None) for kind in config.block_kinds]
    networks += [(few, config.block_kinds[0], size) for size in config.block_tasks]
    for model, kind, size in networks:
        key = {"training_tasks": size, **about(kind)}
        yield key, functools.partial(fit_blocks, Job(config, folder), model, kind, size)


def about(kind: str) -> dict[str, Any]:
    """The fields of rows that tell one kind from another."""
    attention, _, norm = kind.partition("-")
    return {"attention": attention, "layernorm": norm == "layernorm"}


def model_name(row: Row) -> str:
    """The name in files and events of blocks, from what they are and how many tasks they see.

    Example:
        >>> model_name({"attention": "softmax", "layernorm": False, "training_tasks": 8192})
        'blocks_softmax_8192_tasks'
    """
    kind = row["attention"] + "_layernorm" * row["layernorm"]
    return f"blocks_{kind}" + (f"_{row['training_tasks']}_tasks" if row["training_tasks"] else "")


def untrained(job: Job, model: Model) -> Iterable[Row]:
    """Descent, ridge regression, and linear blocks that are GD++, whose tokens are not clipped."""
    heads, predict = job.config.blocks[1], predict_of(BlockRegression(model.tasks, softmax=False))
    blocks = linear_blocks(constructed_layers(job, model), heads=heads)
    constructed = Family("constructed", predict, [(blocks, {"heads": heads})])
    return measure_families(job, model, [*descent_families(job, model), constructed, ridge_family(model.tasks)])


def fit_blocks(job: Job, model: Model, kind: str, tasks: int | None) -> Iterable[Row]:
    """Blocks of every seed, trained on fresh tasks, or on so many of them, which the batches take in turn."""
    config, runs, blocks, heads = job.config, effort(job.config, 3000, 2), model.layers, job.config.blocks[1]
    batch_size = min(config.block_batch_size, tasks or config.block_batch_size)
    cycle, b2, every = tasks and tasks // batch_size, make_recipe(config, blocks).b2, max(1, runs.steps // _evaluations)
    # with norms up to 10 and a rate of 0.003 the loss jumped, once in each of two runs, after some 3000 steps
    recipe = Recipe(batch_size, config.block_rate, b2, gradient_clip=0.1, cycle=cycle)
    if cycle:  # whole passes, whose mean loss is that of all tasks
        every = -(-every // cycle) * cycle

    def init(key: jax.Array) -> Blocks:
        return init_blocks(key, model.tasks.dim + model.tasks.outputs, blocks=blocks, heads=heads, scale=config.block_scale)

    fields, clip = {**about(kind), "training_tasks": tasks}, make_regression(config, model.tasks, blocks).clip
    softmax, name = fields["attention"] == "softmax", model_name(fields)
    problem = BlockRegression(model.tasks, softmax=softmax, layernorm=fields["layernorm"], clip=clip)
    options: Any = {"recipe": recipe, "heads": heads, "runs": runs, "init": init, "every": every}
    family = trained_family(job, model, name=name, problem=problem, **options)
    if tasks:
        last = where(job.folder.events("evaluation"), model=name)[-1]["training_loss"]
        members = [(one, {**entry, "train_loss": loss}) for (one, entry), loss in zip(family.members, last, strict=True)]
        family = family._replace(members=members)
    return measure_families(job, model, [family])


def trained_models(results: Results, *, same: bool) -> dict[str, str]:
    """The names of trained blocks by label: those that see the same tasks again and again, or those on fresh ones."""
    names = {}
    for row in where(results.rows, predictor="trained"):
        blocks, norm = f"{row['layers']} block{'s' * (row['layers'] > 1)}", ", layer normalisation" * row["layernorm"]
        if bool(row["training_tasks"]) == same:
            names[f"{row['training_tasks']} tasks, {blocks}" if same else row["attention"] + norm] = model_name(row)
    return names


def memory_curves(results: Results) -> list[Row]:
    """Losses by step on the training tasks and on fresh ones."""
    rows = curves(results, trained_models(results, same=True))
    return rows + [{**row, "series": "same", "loss": row["training_loss"]} for row in rows if "training_loss" in row]


MEMORY_STYLES = {**STYLES, "trained": {"label": "fresh tasks"}, "same": {**STYLES["warm"], "label": "training tasks"}}
NOTE = "von Oswald et al. 2023, Fig. 8, 15, 16 (50,000 steps): near twelve steps of GD++; on 8192 tasks late generalisation."
VIEWS = [
    measures({"attention": "attention", "layernorm": "norm", "training_tasks": "training tasks"})._replace(note=NOTE),
    loss_by_step("blocks", functools.partial(trained_models, same=False)),
    Lines("blocks_memory", "step", "loss", "series", "label", memory_curves, MEMORY_STYLES, BY_STEP, sharey=True),
]
EXPERIMENT = Experiment("blocks", Config, measure, VIEWS, check=check, title="Blocks with MLPs")
