"""The models of runs, with their perplexities.

python -m launch.runs runs/demo runs/other
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from jexplicit.runs.files import local_path, read_rows, read_stored
from jexplicit.runs.progress import show
from launch.kit.command import entry_point
from launch.kit.views import Column, rich_table


@dataclass(frozen=True)
class Config:
    folders: tyro.conf.Positional[tuple[str, ...]] = ("runs",)
    """Run folders, or folders of run folders."""


COLUMNS = (
    Column("run", "run"), Column("of launch.", "launcher"),
    *(Column(f"--{name}", name) for name in ("method", "features", "context", "history")),
    Column("dev perplexity", "dev_perplexity", ",.2f"), Column("bits per byte", "bits_per_byte", ".3f"),
)  # fmt: skip


def run(config: Config) -> dict[str, Any]:
    """Show a table with a line for every model."""
    rows = []
    for name in config.folders:
        folder = local_path(name)
        found = [path.parent for path in sorted([*folder.glob("results.json"), *folder.glob("*/results.json")])]
        if not found:
            raise ValueError(f"no run in {name}: give the --out of a finished run, or a folder of such")
        for path in found:
            about = {"run": str(Path(name, path.relative_to(folder))), "launcher": read_stored(path).get("launcher")}
            rows += [about | row for row in read_rows(path)]
    show(rich_table(COLUMNS, rows))
    return {"rows": rows}


main = entry_point(run, Config, __doc__, module=__name__)
