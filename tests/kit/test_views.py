"""Views of rows and their figures."""

import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from refusals import refused
from rich.console import Console

from launch.kit.views import Column, Lines, Results, Table, only, rich_table

ROWS = [
    {"method": method, "K": K, "seed": seed, "loss": K + seed + (method == "b")} | ({"rate": 0.5} if K == 1 else {})
    for method in ("a", "b")
    for K in (1, 2, 4)
    for seed in (0, 1)
]


@pytest.fixture
def drawn(monkeypatch):
    """Closing keeps the axes of the last figure to look at."""
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    yield figures
    monkeypatch.undo()
    plt.close("all")


def test_tables_have_a_cell_per_column_that_a_row_fills_and_empty_ones_for_what_is_missing():
    """Tables of kept results are tested on the pages."""
    columns = [Column("method", "method"), Column("MB", "bytes", ",.1f", scale=1e-6), Column("loss", "loss", ".2f", bold=True)]
    rows = [{"method": "a|b", "bytes": 12_345_678, "loss": 1.0}, {"method": "c", "bytes": None, "loss": np.nan}]
    cells = ["| a\\|b | 12.3 | **1.00** |", "| c |  |  |"]
    assert Table(columns, note="A note.")(Results(Path(), {}, rows))[3:] == [*cells, "", "A note.", ""]
    assert Table(columns)(Results(Path(), {}, rows[1:]))[1:] == ["| method |", "|---|", "| c |", ""]
    assert Table(columns)(Results(Path(), {}, [])) == []
    shown = io.StringIO()
    Console(file=shown, width=100).print(rich_table(columns, rows, title="results"))
    assert all(cell in shown.getvalue() for cell in ("results", "method", "a|b", "12.3", "1.00"))
    refused("6 rows with .*: give fields of exactly one row", only, ROWS, method="b")


def test_lines_are_means_with_a_band_and_a_row_without_x_is_a_level(tmp_path, drawn):
    rows = [*ROWS, {"method": "level", "loss": 3.0}, {"method": "none"}]
    assert Lines("x", "K", "loss", "method", rows=lambda _: rows)(Results(tmp_path, {}, [])) == ["![x](figures/x.png)", ""]
    (ax,) = drawn[0].axes
    a, b, level = [line for line in ax.get_lines() if len(line.get_xdata())]
    assert len(ax.collections) == 2 and [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["a", "b", "level"]
    np.testing.assert_array_equal(b.get_data(), [[1, 2, 4], [2.5, 3.5, 5.5]])
    np.testing.assert_array_equal(level.get_ydata(), [3, 3])
    assert len({line.get_color() for line in (a, b, level)}) == 3 and (tmp_path / "figures" / "x.png").exists()
    drawn.clear()
    assert Lines("x", "K", "loss")(Results(tmp_path, {}, [])) == Lines("x", "K", "loss")(Results(tmp_path, {}, rows[-2:])) == []
    assert not drawn
    Lines("x", "of", "loss", "of")(Results(tmp_path, {}, [{"of": n, "loss": n} for n in range(30)]))
    assert len(drawn[0].legends[0].get_texts()) == 30  # there are fewer colours
    Lines("loss", "K", {"loss": "a loss", "rate": "a rate"}, "measure")(Results(tmp_path, {}, ROWS))
    lines = [line.get_xdata() for line in drawn[1].axes[0].get_lines() if len(line.get_xdata())]
    assert [len(line) for line in lines] == [3, 1] and drawn[1].legends[0].get_texts()[1].get_text() == "a rate"


def test_zeros_on_a_log_axis_are_drawn(tmp_path, drawn):
    log = {"xscale": "log", "yscale": "log"}
    scales = {(1.0, 0.1, 1e-3): "log", (1.0, 1e-3, 0.0): "symlog", (1.0, np.nan, 0.1): "log", (0.0, 0.0, 0.0): "symlog"}
    for y, scale in scales.items():
        rows = [{"x": [1, 10, 100], "y": y}, {"x": None, "y": 0.5}]
        Lines("a", "x", "y", rows=lambda _, rows=rows: rows, axes=log)(Results(tmp_path, {}, []))
        (ax,) = drawn.pop().axes
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", scale)
        low, high = ax.get_ylim()
        assert low < np.nanmin(y) and np.nanmax(y) < high  # every point lies within


def test_curves_and_lists_over_seeds_are_drawn_in_panels_with_one_legend(tmp_path, drawn):
    curve = {"x": [1, 2, 4], "y": [[K, K + 2] for K in (1, 2, 4)]}
    rows = [{"of": name, "panel": panel, **curve} for panel in "pqrs" for name in "ab"]
    lines = Lines("loss", "x", "y", "of", "panel", axes={"xscale": "log"}, by_panel={"q": {"ylabel": "nats"}})
    lines(Results(tmp_path, {}, rows))
    (fig,) = drawn
    assert [(ax.get_title(), ax.get_ylabel()) for ax in fig.axes[:2]] == [("p", "y"), ("q", "nats")] and len(fig.axes) == 4
    np.testing.assert_array_equal(fig.axes[1].get_lines()[0].get_ydata(), [2, 3, 5])
    assert [tick.get_text() for tick in fig.axes[0].get_xticklabels()] == ["1", "2", "4"] and len(fig.legends) == 1
