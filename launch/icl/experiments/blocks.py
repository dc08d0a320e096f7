"""The experiment of launch.icl on blocks of attention and an MLP: beside as many steps of descent, and on few tasks."""

from typing import Any

import jax

from icl.models.blocks import BlockRegression, Blocks, init_blocks, linear_blocks
from icl.training import Recipe
from launch.icl.config import BlockKind, effort
from launch.icl.experiments import predictors
from launch.icl.experiments.predictors import Family, Model, constructed_layers, descent_families, predict_of
from launch.icl.job import Job, block_model, has_rows
from launch.icl.recipes import make_recipe, make_regression

_evaluations = 30  # of a training; one of twelve blocks takes as long as 30 steps


def blocks(job: Job) -> None:
    """Many blocks on fresh tasks beside as many steps of descent, and few blocks on the same tasks again and again."""
    config = job.config
    many, few = Model(job.tasks, config.blocks[0], False), Model(job.tasks, config.small_blocks, False)
    for model in dict.fromkeys((many, few)):
        if not has_rows(job, "blocks", predictor="ridge", layers=model.layers):
            families = [*descent_families(job, model), _constructed(job, model), predictors.ridge_family(job.tasks)]
            _measure(job, model, families)
    for kind in config.block_kinds:
        if not has_rows(job, "blocks", training_tasks=None, **_about(kind)):
            _measure(job, many, [_trained(job, many, kind)], **_about(kind))
    kind = config.block_kinds[0]
    for size in config.block_tasks:
        if not has_rows(job, "blocks", training_tasks=size):
            _measure(job, few, [_trained(job, few, kind, tasks=size)], training_tasks=size, **_about(kind))


def _about(kind: BlockKind) -> dict[str, Any]:
    """The fields of rows that tell one kind from another."""
    attention, _, norm = kind.partition("-")
    return {"attention": attention, "layernorm": norm == "layernorm"}


def _problem(job: Job, model: Model, kind: BlockKind) -> BlockRegression:
    about, clip = _about(kind), make_regression(job.config, job.tasks, model.layers).clip
    return BlockRegression(job.tasks, softmax=about["attention"] == "softmax", layernorm=about["layernorm"], clip=clip)


def _constructed(job: Job, model: Model) -> Family:
    """Linear blocks that are GD++, whose tokens are not clipped."""
    heads, layers = job.config.blocks[1], constructed_layers(job, model)
    weights = jax.tree.map(lambda leaf: leaf[None], linear_blocks(layers, heads=heads))
    return Family("constructed", predict_of(BlockRegression(job.tasks, softmax=False)), weights, [{"heads": heads}])


def _trained(job: Job, model: Model, kind: BlockKind, *, tasks: int | None = None) -> Family:
    """Blocks of every seed, trained on fresh tasks, or on so many of them, which the batches take in turn."""
    config, runs, width = job.config, effort(job.config, "blocks"), job.tasks.dim + job.tasks.outputs
    heads, recipe, every = config.blocks[1], _recipe(job, model, tasks), max(1, runs.steps // _evaluations)
    if recipe.cycle:  # whole passes, whose mean loss is that of all tasks
        every = -(-every // recipe.cycle) * recipe.cycle

    def init(key: jax.Array) -> Blocks:
        return init_blocks(key, width, blocks=model.layers, heads=heads, scale=config.block_scale)

    name, problem = block_model({**_about(kind), "training_tasks": tasks}), _problem(job, model, kind)
    trained = predictors.trained_family(
        job, model, name=name, problem=problem, recipe=recipe, heads=heads, runs=runs, init=init, every=every
    )
    if tasks:
        last = [event for event in job.folder.events("evaluation") if event["model"] == name][-1]
        for entry, loss in zip(trained.entries, last["training_loss"], strict=True):
            entry["train_loss"] = loss
    return trained


def _recipe(job: Job, model: Model, tasks: int | None) -> Recipe:
    config, b2 = job.config, make_recipe(job.config, model.layers).b2
    batch_size = min(config.block_batch_size, tasks or config.block_batch_size)
    # with norms up to 10 and a rate of 0.003 the loss jumped, once in each of two runs, after some 3000 steps
    return Recipe(batch_size, config.block_rate, b2=b2, gradient_clip=0.1, cycle=tasks and tasks // batch_size)


def _measure(job: Job, model: Model, families: list[Family], **shared: Any) -> None:
    predictors.measure_families(job, "blocks", model, families, **{"training_tasks": None, **shared})
