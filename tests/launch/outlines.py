"""Snapshots of reports: their headings, columns and figures, without the numbers."""

import os
from pathlib import Path

OUTLINES = Path(__file__).parent / "outlines"


def check_report(out: Path, name: str) -> None:
    """The report of a run has the outline in outlines/NAME.md, and its figures are there; JEXPLICIT_OUTLINES=1 writes it."""
    lines = (out / "report.md").read_text().splitlines()
    is_shown = [
        line.startswith(("#", "![")) or after.startswith("|---") for line, after in zip(lines, [*lines[1:], ""], strict=True)
    ]
    outline = "".join(f"{line}\n" for line, shown in zip(lines, is_shown, strict=True) if shown)
    if os.environ.get("JEXPLICIT_OUTLINES"):
        OUTLINES.mkdir(exist_ok=True)
        (OUTLINES / f"{name}.md").write_text(outline)
    assert outline == (OUTLINES / f"{name}.md").read_text()
    drawn = [line.partition("(")[2].rstrip(")") for line in outline.splitlines() if line.startswith("![")]
    assert drawn and all((out / path).read_bytes().startswith(b"\x89PNG") for path in drawn)
