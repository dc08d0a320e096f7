"""Linear attention on linear regression compared with gradient descent (von Oswald 2023)."""

from collections.abc import Iterator
from typing import Any

from icl.descent import interpolate
from launch.icl import base
from launch.icl.config import LayerFlags, MultiStepConfig, OneStepConfig
from launch.icl.tables import COMPARISON, STYLES, curves
from launch.kit.views import Lines, Results, Row, melt


def one_step(job: base.Job[OneStepConfig]) -> Iterator[base.Part]:
    """One layer."""
    yield _compared(job, base.make_model(job.config), {"cold": job.config.steps})


def multi_step(job: base.Job[MultiStepConfig]) -> Iterator[base.Part]:
    """--layers layers, also from the solution."""
    config = job.config
    model, warm = base.make_model(config, config.layers, recurrent=config.recurrent), {"warm": config.warm_steps}
    yield _compared(job, model, {"cold": config.steps, **(warm if config.warm_steps else {})})


def _compared(job: base.Job[LayerFlags], model: base.Model, runs: dict[str, int]) -> base.Part:
    """All predictors on fresh test tasks: untrained, trained and interpolated."""

    def part() -> list[Row]:
        families = base.untrained_families(job.config, model)
        for start, steps in runs.items():
            trained = base.trained_family(job, model, start=start, steps=steps)
            families.append(base.with_descent_rates(model, trained) if model.recurrent else trained)
            if start == "cold":
                constructed, dim = base.constructed_layers(job.config, model), model.tasks.dim
                means = [(interpolate(layers, constructed, dim=dim), entry) for layers, entry in trained.members]
                families.append(trained._replace(name="interpolated", members=means))
        return base.measure_families(job.config, model, families)

    return model.sizes, part


_panels = {
    **{"loss": "validation loss", "cosine": "cosine of sensitivities"},
    **{"prediction_difference": "distance of predictions", "model_difference": "distance of sensitivities"},
}


def training(results: Results) -> list[str]:
    """The figure of training: loss, agreement and distances by step (paper, Fig. 2)."""
    model = base.model_name(results.rows[0])
    found = curves(results, {"trained": f"cold_{model}", "warm": f"warm_{model}"})
    rows = [{**row, "series": row["label"] if "step" in row else row["series"]} for row in found]
    logs: dict[str, Any] = {label: {"yscale": "log", "ylim": (1e-3, None)} for label in list(_panels.values())[2:]}
    by_panel, axes = {**logs, _panels["loss"]: {"yscale": "log"}}, {"xlabel": "training step", "ylabel": ""}
    size = (3.4, 3.2)  # a warm start begins at a distance of 0
    figure = Lines(f"training_{model}", "step", "value", "series", "measure", melt(rows, _panels), STYLES, axes, by_panel, size)
    return figure._replace(legend="right")(results)


VIEWS = [COMPARISON, training]
ONE_STEP = base.experiment("one-step", one_step, VIEWS, title="One layer is one step")
MULTI_STEP = base.experiment("multi-step", multi_step, VIEWS, title="Several layers are steps of GD++")
