"""Tables without empty columns, and lines in several rows of panels with one legend."""

from pathlib import Path
from typing import Any

import pytest

from jexplicit.experiments import figures
from jexplicit.experiments.rows import Results, pivot
from jexplicit.experiments.tables import Column
from jexplicit.experiments.views import Lines, Table

ROWS: list[Any] = [{"K": K, "method": method, "loss": K + len(method)} for K in (1, 2, 4) for method in ("a", "bc")]
ROWS.append({"method": "level", "loss": 3.0, "K": None})


def test_a_table_has_the_columns_in_which_a_row_has_a_value():
    table = Table([Column("K", "K", "d"), Column("loss", "loss", ".1f"), Column("slope", "slope", ".1f")], note="A note.")
    found = Results(Path(), {}, ROWS[:2])
    assert table(found)[1:-2] == ["| K | loss |", "|---|---|", "| 1 | 2.0 |", "| 1 | 3.0 |", ""]
    assert table.with_columns(["loss"])(found)[1:] == ["| loss |", "|---|", "| 2.0 |", "| 3.0 |", ""]
    assert table.terminal(found).row_count == 2 and table(Results(Path(), {}, [])) == []


def test_lists_can_be_pivoted_by():
    assert len(pivot([{"widths": [1, 2], "of": "a"}, {"widths": [1, 2], "of": "b"}], ["widths"], "of")) == 1


@pytest.mark.parametrize(("legend", "legends"), [("right", 0), ("below", 0), ("", 3)])
def test_panels_wrap_and_share_a_legend(tmp_path, monkeypatch, legend, legends):
    drawn: Any = []
    monkeypatch.setattr(figures.plt, "close", drawn.append)
    rows = [{**row, "panel": panel} for panel in ("x", "y", "z") for row in ROWS]
    axes = {"xscale": "log", "yscale": "log"}
    view = Lines("loss", "K", "loss", "method", "panel", lambda _: rows, axes=axes, wrap=2, legend=legend)
    assert view(Results(tmp_path, {}, rows)) == ["![loss](figures/loss.png)", ""]
    (fig,) = drawn
    assert [ax.axison for ax in fig.axes] == [True] * 3 + [False] and (tmp_path / "figures" / "loss.png").exists()
    assert sum(ax.get_legend() is not None for ax in fig.axes) == legends
    labels = {text.get_text() for box in (fig.legends or [fig.axes[0].get_legend()]) for text in box.get_texts()}
    assert labels == {"a", "bc", "level" if legend == "right" else "level 3"}
    assert [tick.get_text() for tick in fig.axes[0].get_xticklabels()] == ["1", "2", "4"]
    assert [line.get_marker() for line in fig.axes[0].get_lines()] == ["o", "o", "None"]
    monkeypatch.undo()
    figures.plt.close(fig)
