"""Tables of results: Markdown and terminal from one description."""

import io

from rich.console import Console

from jexplicit.experiments.tables import Column, markdown_table, rich_table

COLUMNS = [
    Column("method", "method"),
    Column("MB", "bytes", ",.1f", scale=1e-6),
    Column("dev", lambda row: row["loss"] + 1, ".2f", bold=True),
    Column("epochs", "epochs", "d"),
]
ROWS = [{"method": "a|b", "bytes": 12_345_678, "loss": 1.0, "epochs": 3}, {"method": "c", "bytes": None, "loss": 2.0}]


def test_markdown_has_a_cell_per_column_and_empty_ones_for_what_is_missing():
    assert markdown_table(COLUMNS, ROWS) == [
        "",
        "| method | MB | dev | epochs |",
        "|---|---|---|---|",
        "| a\\|b | 12.3 | **2.00** | 3 |",
        "| c |  | **3.00** |  |",
        "",
    ]


def test_the_terminal_shows_the_same_cells():
    shown = io.StringIO()
    Console(file=shown, width=100).print(rich_table(COLUMNS, ROWS, title="results"))
    for cell in ("results", "method", "a|b", "12.3", "2.00", "3.00"):
        assert cell in shown.getvalue()
