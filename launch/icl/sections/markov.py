"""The section on Markov chains."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.runs.figures import COLOURS as PALETTE
from jexplicit.runs.figures import figure
from launch.icl.job import CHAINS
from launch.icl.panels import COLOURS, Curve, draw_curve, draw_legends
from launch.icl.sections.run_files import draw_figure, first_step, reference_losses, training_curve
from launch.icl.tables import Rows, measures_table

_strategies = {"uniform": PALETTE[0], "unigram": PALETTE[1], "bigram": PALETTE[2]}
_titles = {"markov": "no symbol at the start", "markov_start": "a symbol at the start"}


def markov(out: Path, rows: Rows) -> list[str]:
    """The results, when each phase of training was, and two figures."""
    curves = {name: training_curve(out, name) for name in _titles}
    levels = reference_losses(out, "markov")
    exact = {row["predictor"]: row for row in rows if row.get("max_difference") is not None}
    made, cache = exact["constructed"], exact["cache row"]
    sentence = (
        f"In float64 the constructed layers differ from the posterior mean by at most {made['max_difference']:.1e}; the counts "
        f"of a language model's cache row from those of the induction head by {cache['count_difference']:.1e}, and its "
        f"prediction from that of the constructed layers with α = n₊/k by {cache['max_difference']:.1e}."
    )
    steps = [f"With {_titles[name]}: {'; '.join(map(_sentence, phases(curve)))}." for name, curve in curves.items()]
    by_step = draw_figure(out, "markov", phases_figure, curves, levels)
    maps = draw_figure(out, "markov_attention", maps_figure, np.load(out / CHAINS))
    return [*measures_table(rows), sentence, "", *steps, "", *by_step, *maps]


class Phases(NamedTuple):
    """When predictions were nearest to unigrams, with that divergence, and from when on nearer to bigrams; None for never."""

    nearest: int
    divergence: float
    nearer: int | None


def phases(curve: Curve) -> list[Phases]:
    """The phases of training, by seed.

    Example:
        >>> kl = [(0.2, 0.1), (0.1, 0.02), (0.02, 0.1)]
        >>> phases([{"step": 50 * n, "kl_bigram": [b], "kl_unigram": [u]} for n, (b, u) in enumerate(kl)])
        [Phases(nearest=50, divergence=0.02, nearer=100)]
    """
    found = []
    for n in range(len(curve[0]["kl_unigram"])):
        nearest = min(curve, key=lambda entry: entry["kl_unigram"][n])
        nearer = first_step(curve, lambda entry, n=n: entry["kl_bigram"][n] < entry["kl_unigram"][n])
        found.append(Phases(nearest["step"], nearest["kl_unigram"][n], nearer))
    return found


def _sentence(found: Phases) -> str:
    later = "never nearer to bigrams" if found.nearer is None else f"nearer to bigrams from step {found.nearer} on"
    return f"nearest to unigrams at step {found.nearest} (KL {found.divergence:.4f}), {later}"


def phases_figure(curves: Mapping[str, Curve], levels: Mapping[str, float], path: Path) -> None:
    """Loss, and divergence from the closed forms, by step (Edelman et al. 2024, Fig. 1)."""
    with figure(path, columns=3, size=(12, 3.5)) as axes:
        loss, *distances = axes[0]
        for (name, curve), shade in zip(curves.items(), (COLOURS["gd"], COLOURS["trained"]), strict=True):
            draw_curve(loss, curve, "loss", shade, _titles[name])
        for name, level in levels.items():
            loss.axhline(level, color=_strategies[name], linestyle="--", label=f"{name} {level:.4f}")
        loss.set(xlabel="training step", ylabel="cross-entropy (nats)")
        for ax, (name, curve) in zip(distances, curves.items(), strict=True):
            for strategy, shade in _strategies.items():
                draw_curve(ax, curve, f"kl_{strategy}", shade, strategy)
            ax.set(xlabel="training step", ylabel="KL from the closed form (nats)", title=_titles[name], ylim=(0, None))
        bottom, top = loss.get_ylim()
        loss.set_ylim(bottom, top + 0.5 * (top - bottom))  # room for the legend
        draw_legends(*axes[0], loc="upper right")


def maps_figure(maps: Mapping[str, np.ndarray], path: Path) -> None:
    """The attention of both layers, trained and constructed, on the same sequence."""
    shown, x = 24, maps["x"]
    with figure(path, rows=2, columns=2, size=(9.5, 9)) as axes:
        for row, (name, title) in zip(
            axes, (("trained", "trained, marked start"), ("constructed", "constructed")), strict=True
        ):
            before = maps[name].shape[-1] - len(x)
            labels = [*["·"] * before, *(str(state) for state in x[:shown])]
            for n, ax in enumerate(row):
                ax.grid(False)
                a = maps[name][n, before : before + shown, : before + shown]
                image = ax.imshow(a, cmap="Blues", vmin=0, vmax=1)
                ax.set_xticks(range(len(labels)), labels, fontsize=7)
                ax.set_yticks(range(len(labels) - before), labels[before:], fontsize=7)
                ax.set(title=f"{title}, layer {n + 1}", xlabel="attends to", ylabel="token" if n == 0 else "")
                ax.figure.colorbar(image, ax=ax, shrink=0.75)
