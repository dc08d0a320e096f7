"""Draws the picture of README.md, docs/headline.png, from docs/results/: what is solved or counted beside what is trained.

python -m tools.headline
"""

from pathlib import Path
from typing import NamedTuple

from jexplicit.experiments.figures import COLOURS, figure
from tools import tables

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"


class Bar(NamedTuple):
    """A model and its number.

    name: of the model.
    value: where its number is, as in the pages (tools/tables.py), or a published number.
    trained: whether the model was trained by gradients.
    """

    name: str
    value: str | float
    trained: bool = False

    def number(self) -> float:
        """Its number."""
        return float(tables.value(self.value)) if isinstance(self.value, str) else self.value


class Panel(NamedTuple):
    """A task, what is measured, how a number is written, and the models from worst to best."""

    task: str
    measure: str
    format: str
    bars: tuple[Bar, ...]


def _error(name: str, model: str) -> str:
    """The test error of the only row of a model, in per cent."""
    return f'{name} = 100 - 100 * the("test_accuracy", {model}) : .6f'


PANELS = (
    Panel(
        "characters of Shakespeare",
        "nats per character",
        ".4g",
        (
            Bar("nanoGPT, 3 minutes on a CPU", 1.88, trained=True),  # of its README
            Bar("Kneser-Ney 5-gram", "shakespeare dev_loss method=ngram .6f"),
            Bar("nanoGPT, 3 minutes on an A100", 1.4697, trained=True),
            Bar("mixture of counted rows", "shakespeare dev_loss method=mixture history=window:256 .6f"),
        ),
    ),
    Panel(
        "10 M words",
        "perplexity per token",
        ".1f",
        (
            Bar("explicit solution, K = 1", "babylm dev_perplexity method=explicit features=cat radius=1 .6f"),
            Bar("one layer by Adagrad, K = 4", "babylm-trained dev_perplexity method=cold features=cat radius=4 .6f", True),
            Bar("Kneser-Ney 5-gram", "babylm-mixture dev_perplexity method=ngram .6f"),
            Bar("mixture of counted rows", "babylm-mixture dev_perplexity method=mixture history=none .6f"),
            Bar("... with the text before", "babylm-mixture dev_perplexity method=mixture history=all .6f"),
        ),
    ),
    Panel(
        "MNIST",
        "test error, %",
        ".2f",
        (
            Bar("explicit solution, pixels", _error("mnist", 'method="explicit", layers=1')),
            Bar("logistic regression", _error("mnist", 'method="logistic_regression"'), trained=True),
            Bar("network, 256 hidden units", _error("mnist", 'method="network", stop="patience"'), trained=True),
            Bar("scattering, layer solved", _error("mnist-best", 'solver="softmax"')),
        ),
    ),
    Panel(
        "linear regression in context",
        "loss of five layers of linear attention",
        ".4f",
        (
            Bar("gradient descent, best rate", "icl-depths loss layers=5 predictor=gd recurrent=true .6f"),
            Bar("GD++, trained", 'icl-five-trained = mean("loss", predictor="trained") : .6f', trained=True),
            Bar("GD++, solved", "icl-depths loss layers=5 predictor=gd++ recurrent=false .6f"),
        ),
    ),
)


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    with figure(path, 2, 2, size=(9.4, 4.4)) as axes:
        for ax, panel in zip(axes.flat, PANELS, strict=True):
            lengths = [bar.number() for bar in panel.bars]
            drawn = ax.barh(range(len(lengths)), lengths, color=[COLOURS[bar.trained] for bar in panel.bars])
            ax.bar_label(drawn, [format(length, panel.format) for length in lengths], padding=3, fontsize=9)
            ax.set_yticks(range(len(lengths)), [bar.name for bar in panel.bars])
            ax.set(title=panel.task, xlabel=panel.measure, xlim=(0, 1.22 * max(lengths)))
            ax.invert_yaxis()
            ax.grid(visible=False, axis="y")
        solved, trained = (axes[0, 0].plot([], [], color=COLOURS[n], linewidth=6)[0] for n in (0, 1))
        names = ("solved or counted, without gradients", "trained by gradients")
        axes[0, 0].figure.legend([solved, trained], names, loc="outside lower center", ncols=2, frameon=False)


if __name__ == "__main__":
    draw()
