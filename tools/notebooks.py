"""Runs the notebooks, whose source are scripts, and keeps them with outputs in docs/notebooks/.

python -m tools.notebooks                  # all
python -m tools.notebooks 03_digits        # some
"""

import os
import sys
import time
from pathlib import Path

import jupytext
import nbformat
import tyro
from nbclient import NotebookClient
from nbformat import NotebookNode

SCRIPTS = Path(__file__).parents[1] / "notebooks"
KEPT = Path(__file__).parents[1] / "docs" / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_script(script: Path) -> NotebookNode:
    """The notebook of a script, without outputs, cells numbered."""
    notebook = jupytext.read(script)
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata = f"cell-{number}", NotebookNode()
    return notebook


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells in a new kernel in `folder`, at full size."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TINY", "JEXPLICIT_DATA_DIR")}
    options = {"timeout": None, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options).execute(env=environment)
    notebook.metadata = nbformat.from_dict(METADATA)  # the kernel adds the version of Python
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(names: tyro.conf.Positional[tuple[str, ...]] = (), /, *, out: Path = KEPT) -> None:
    """Run notebooks (all without names) and keep them with their outputs in a folder."""
    scripts = {script.stem: script for script in sorted(SCRIPTS.glob("*.py"))}
    if unknown := [name for name in names if name not in scripts]:
        raise ValueError(f"no notebook is called {', '.join(unknown)}; there are {', '.join(scripts)}")
    out.mkdir(parents=True, exist_ok=True)
    for name in names or scripts:
        start = time.perf_counter()
        nbformat.write(run(read_script(scripts[name]), SCRIPTS), out / f"{name}.ipynb")
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    tyro.cli(main)
