"""Draws the picture of README.md, docs/headline.png, from docs/results/: what is solved or counted beside what is trained.

python -m tools.headline
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jexplicit.runs.figures import COLOURS, figure
from tools.published import VALUES
from tools.published.counted_not_trained import NANOGPT
from tools.tables import value

PICTURE = Path(__file__).parents[1] / "docs" / "headline.png"


class Bar(NamedTuple):
    """A model and its number.

    name: of the model.
    value: the name or the address of a number of the documentation (tools/tables.py), or a published number.
    trained: whether the model was trained by gradients.
    """

    name: str
    value: str | float
    trained: bool = False

    def number(self) -> float:
        """Its number."""
        if isinstance(self.value, str):
            return VALUES[self.value].number() if self.value in VALUES else float(value(self.value))
        return self.value


class Panel(NamedTuple):
    """A task, what is measured, how a number is written, the models from worst to best, and what is drawn of their numbers."""

    task: str
    measure: str
    format: str
    bars: tuple[Bar, ...]
    drawn: Callable[[float], float] = float


_large, _small = NANOGPT
PANELS = (
    Panel(
        "characters of Shakespeare",
        "nats per character",
        ".4g",
        (
            Bar("nanoGPT, 3 minutes on a CPU", _small.nats, trained=True),
            Bar("Kneser-Ney 5-gram", "shakespeare-ngram"),
            Bar("nanoGPT, 3 minutes on an A100", _large.nats, trained=True),
            Bar("mixture of counted rows", "shakespeare"),
        ),
    ),
    Panel(
        "10 M words",
        "perplexity per token",
        ".1f",
        (
            Bar("explicit solution, K = 1", "babylm-explicit"),
            Bar("one layer by Adagrad, K = 4", "babylm-cold", trained=True),
            Bar("Kneser-Ney 5-gram", "babylm-ngram"),
            Bar("mixture of counted rows", "babylm-mixture"),
            Bar("... with the text before", "babylm-mixture-past"),
        ),
    ),
    Panel(
        "MNIST",
        "test error, %",
        ".2f",
        (
            Bar("explicit solution, pixels", "mnist test_accuracy method=explicit layers=1 .6f"),
            Bar("logistic regression", "mnist test_accuracy method=logistic_regression .6f", trained=True),
            Bar("network, 256 hidden units", "mnist test_accuracy method=network stop=patience .6f", trained=True),
            Bar("scattering, layer solved", "mnist-best test_accuracy solver=softmax .6f"),
        ),
        lambda accuracy: 100 * (1 - accuracy),
    ),
    Panel(
        "linear regression in context",
        "loss of five layers of linear attention",
        ".4f",
        (
            Bar("gradient descent, best rate", "five-layers-gd"),
            Bar("GD++, trained", "five-layers-trained", trained=True),
            Bar("GD++, solved", "five-layers"),
        ),
    ),
)


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    with figure(path, 2, 2, size=(9.4, 4.4)) as axes:
        for ax, panel in zip(axes.flat, PANELS, strict=True):
            lengths = [panel.drawn(bar.number()) for bar in panel.bars]
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
