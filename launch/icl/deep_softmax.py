"""Several layers of softmax attention on linear regression, trained from random weights and from constructed steps of GD++."""

from collections.abc import Iterator
from dataclasses import replace

from icl.models.constructions import softmax_layers
from launch.icl.linear_regression import several_layers
from launch.icl.shared.base import Job, effort, make_regression
from launch.icl.shared.config import Config
from launch.icl.shared.predictors import (
    Family,
    constructed_layers,
    descent,
    descent_families,
    measure_families,
    predict_of,
    trained_family,
)
from launch.icl.shared.tables import curve, first_steps, loss_by_step, measures
from launch.kit.experiment import Experiment, Part
from launch.kit.folder import RunFolder
from launch.kit.rows import Results, Row
from launch.kit.tables import Column
from launch.kit.views import Table

_sharpness = 0.3  # of the scores of the first layer, which are below 1
_clip = 1e3  # of tokens: constructed layers stay below
_names = {"cold": "softmax_cold", "warm": "softmax_warm"}
_levels = (0.2, 0.15, 0.1, 0.05)


def measure(config: Config, folder: RunFolder) -> Iterator[Part]:
    """--layers layers of softmax attention with two heads, from random weights and from GD++."""
    job, model = Job(config, folder), several_layers(config)

    def part() -> list[Row]:
        problem = replace(make_regression(config, model.tasks, model.layers), softmax=True)
        exploding = replace(problem, clip=_clip)
        linear, rates = constructed_layers(job, model), descent(job, model, "gd++")[0].eta
        sharpness = (_sharpness * rates / rates[0])[: len(linear.P)]  # inputs shrink from layer to layer, as rates grow
        layers = softmax_layers(linear, model.tasks.context, sharpness=sharpness)
        cold = trained_family(job, model, name=_names["cold"], problem=problem, heads=2)
        runs = effort(config)._replace(steps=config.warm_steps)
        init = lambda key: layers  # noqa: E731
        warm = trained_family(job, model, name=_names["warm"], problem=exploding, start="warm", heads=2, runs=runs, init=init)
        constructed = Family("constructed", predict_of(exploding), [(layers, {"heads": 2})])
        return measure_families(job, model, [*descent_families(job, model), constructed, cold, warm])

    yield model.sizes, part


def _steps(results: Results) -> list[Row]:
    """Steps until the validation loss of a seed is below some levels."""
    rows = []
    for start, name in _names.items():
        own = curve(results, name)
        for level in _levels if own else ():
            steps = first_steps(own, lambda entry, n, level=level: entry["loss"][n] <= level)
            rows.append({"start": start, "level": level, "steps": ", ".join("never" if s is None else str(s) for s in steps)})
    return rows


STEPS = Table(
    [Column("start", "start"), Column("validation loss", "level", "g"), Column("steps of each seed", "steps")], rows=_steps
)
VIEWS = [measures(), STEPS, loss_by_step("deep_softmax", {"cold": _names["cold"], "from GD++": _names["warm"]})]
DEEP_SOFTMAX = Experiment("deep-softmax", Config, measure, VIEWS, title="Layers of softmax attention from GD++")
