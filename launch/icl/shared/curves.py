"""Losses by training step, beside those of the predictors that trained models are compared with."""

from collections.abc import Callable, Mapping

from jexplicit.experiments.rows import Results, Row
from jexplicit.experiments.views import Lines
from launch.icl.shared.base import LOSS, STYLES
from launch.icl.shared.tables import curve, reference_losses

BY_STEP = {"xlabel": "training step", "ylabel": f"validation {LOSS}", "yscale": "log"}

Models = Mapping[str, str]  # names of trained models in files and events, by label


def curves(results: Results, models: Models) -> list[Row]:
    """The evaluations of models as a series `trained`; then, without a step, the losses that they are compared with."""
    trained: list[Row] = [
        {"label": label, "series": "trained", **e} for label, model in models.items() for e in curve(results, model)
    ]
    return trained + [
        {"label": label, "series": predictor, "loss": loss}
        for label, model in models.items()
        for predictor, loss in reference_losses(results, model).items()
    ]


def loss_by_step(name: str, models: Models | Callable[[Results], Models]) -> Lines:
    """The figure of validation losses by step, a panel for each model."""

    def rows(results: Results) -> list[Row]:
        return curves(results, models(results) if callable(models) else models)

    return Lines(name, "step", "loss", "series", "label", rows, STYLES, BY_STEP, sharey=True)
