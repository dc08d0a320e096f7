"""Views of rows and their figures."""

import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from rich.console import Console

from launch.kit.views import (
    Column,
    Images,
    Lines,
    Results,
    Table,
    cell,
    figure,
    groups,
    log_ticks,
    markdown_table,
    mean_std,
    means,
    melt,
    only,
    pivot,
    rich_table,
)


def test_zeros_on_a_log_axis_are_drawn(tmp_path):
    scales = {(1.0, 0.1, 1e-3): "log", (1.0, 1e-3, 0.0): "symlog", (1.0, np.nan, 0.1): "log", (0.0, 0.0, 0.0): "linear"}
    for y, scale in scales.items():
        with figure(tmp_path / "a.png", size=(3, 2)) as axes:
            ax = axes[0, 0]
            ax.plot([1, 10, 100], y, "o", label="loss")
            if max(y):
                ax.axhline(0.5)  # its x are no data
            ax.set(xscale="log", yscale="log")
            log_ticks(ax)
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", scale)
        seen = np.asarray(y)[np.isfinite(y)]
        low, high = ax.get_ylim()
        assert scale == "linear" or low < seen.min() and seen.max() < high  # every point lies within
    assert (tmp_path / "a.png").stat().st_size > 0


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


def test_rows_by_fields():
    assert [row["loss"] for row in means(ROWS, ["method", "K"])] == [1, 2, 4, 2, 3, 5]  # integers are no measures: of the first
    floats = means([{"K": 1, "loss": 1.0}, {"K": 1, "loss": None}, {"K": 1, "loss": 4.0}], ["K"])
    assert floats == [{"K": 1, "loss": 2.5, "number": 3}]
    assert only(ROWS, method="b", K=4, seed=1)["loss"] == 6
    with pytest.raises(ValueError, match="2 rows with .*: give fields of exactly one row"):
        only(ROWS, method="b", K=4)
    assert list(groups([{"x": [1, 2]}, {"x": [1, 2]}], ["x"]).values()) == [[{"x": [1, 2]}] * 2]
    assert melt([{"a": 1, "b": None}], {"a": "A", "b": "B"}) == [{"a": 1, "b": None, "measure": "A", "value": 1}]
    (line,) = pivot([{"widths": [1, 2], "of": "a", "x": 5}, {"widths": [1, 2], "of": "b", "x": 6}], ["widths"], "of")
    assert [cell(key, "x")(line) for key in ("a", "b", "c")] == [5, 6, None] and line["widths"] == [1, 2]
    assert mean_std([1.0, 3.0], ".1f") == "2.0 ± 1.4" and mean_std([1.0], ".1f") == "1.0"


def test_tables_have_a_cell_per_column_that_a_row_fills_and_empty_ones_for_what_is_missing():
    columns = [
        Column("method", "method"),
        Column("MB", "bytes", ",.1f", scale=1e-6),
        Column("dev", lambda row: row["loss"] + 1, ".2f", bold=True),
        Column("epochs", "epochs", "d"),
    ]
    rows = [{"method": "a|b", "bytes": 12_345_678, "loss": 1.0, "epochs": 3}, {"method": "c", "bytes": None, "loss": 2.0}]
    cells = ["| a\\|b | 12.3 | **2.00** | 3 |", "| c |  | **3.00** |  |"]
    assert markdown_table(columns, rows) == ["", "| method | MB | dev | epochs |", "|---|---|---|---|", *cells, ""]
    shown = io.StringIO()
    Console(file=shown, width=100).print(rich_table(columns, rows, title="results"))
    assert all(cell in shown.getvalue() for cell in ("results", "method", "a|b", "12.3", "2.00", "3.00"))
    table = Table([*columns, Column("slope", "slope")], note="A note.")
    found = Results(Path(), {}, rows[1:])
    assert table(found)[1:] == ["| method | dev |", "|---|---|", "| c | **3.00** |", "", "A note.", ""]
    assert table.with_columns(["dev"])(found)[1:] == ["| dev |", "|---|", "| **3.00** |", ""]
    assert table.terminal(found).row_count == 1 and table(Results(Path(), {}, [])) == []


def test_lines_are_means_with_a_band_and_a_row_without_x_is_a_level(tmp_path, drawn):
    rows = [*ROWS, {"method": "level", "loss": 3.0}]
    assert Lines("x", "K", "loss", "method", rows=lambda _: rows)(Results(tmp_path, {}, [])) == ["![x](figures/x.png)", ""]
    (ax,) = drawn[0].axes
    lines = {str(line.get_label()): line for line in ax.get_lines()}
    assert list(lines) == ["a", "b", "level 3"] and len(ax.collections) == 2
    np.testing.assert_array_equal(lines["b"].get_data(), [[1, 2, 4], [2.5, 3.5, 5.5]])
    np.testing.assert_array_equal(lines["level 3"].get_ydata(), [3, 3])


def test_lists_over_seeds_are_drawn_in_panels_that_may_share_a_legend(tmp_path, drawn):
    rows = [{"method": name, "K": K, "loss": [K, K + 2]} for name in ("a", "b") for K in (1, 2, 4)]
    rows = [*rows, {"method": "level", "loss": 3.0, "K": None}]
    rows = [{**row, "panel": panel, "line": panel == "z"} for panel in ("x", "y", "z") for row in rows]
    axes = {"xscale": "log", "yscale": "log"}
    for legend, legends in (("right", 0), ("", 3)):
        drawn.clear()
        lines = Lines("loss", "K", "loss", "method", "panel", rows, axes=axes, row="line", legend=legend)
        lines(Results(tmp_path, {}, []))
        (fig,) = drawn
        assert [ax.axison for ax in fig.axes] == [True] * 3 + [False]
        assert [ax.get_title() for ax in fig.axes] == ["x", "y", "z", ""]
        np.testing.assert_array_equal(fig.axes[1].get_lines()[0].get_ydata(), [2, 3, 5])
        assert sum(ax.get_legend() is not None for ax in fig.axes) == legends
        labels = {text.get_text() for box in (fig.legends or [fig.axes[0].get_legend()]) for text in box.get_texts()}
        assert labels == {"a", "b", "level" if legend == "right" else "level 3"}
        assert [tick.get_text() for tick in fig.axes[0].get_xticklabels()] == ["1", "2", "4"]


def test_images_are_a_grid_that_may_have_gaps(tmp_path, drawn):
    grid = {"row": {"first": np.eye(2), "second": np.zeros((2, 2))}, "short": {"only": -np.eye(2)}}
    results = Results(tmp_path, {}, ROWS)
    Images("x", lambda results: grid)(results)
    assert [ax.get_title() for ax in drawn[0].axes][:4] == ["first", "second", "only", ""] and not drawn[0].axes[3].axison
    assert (tmp_path / "figures" / "x.png").exists() and Images("x", lambda results: {})(results) == []
