"""Runs notebooks and keeps their outputs: python -m tools.notebooks [03_digits ...]"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

SCRIPTS = Path(__file__).parents[1] / "notebooks"
KEPT = SCRIPTS.parent / "docs" / "notebooks"


def read_script(script: Path) -> NotebookNode:
    """The notebook of a script, without outputs, cells numbered."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata, cell.source = f"cell-{number}", NotebookNode(), cell.source.replace("](../docs/", "](../")
    return notebook


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells in a new kernel in `folder`, at full size."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TINY", "JEXPLICIT_DATA_DIR")}
    options = {"timeout": None, "record_timing": False, "coalesce_streams": True, "kernel_name": "python3"}
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options).execute(env=environment)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for script in [SCRIPTS / f"{name}.py" for name in sys.argv[1:]] or sorted(SCRIPTS.glob("*.py")):
        nbformat.write(run(read_script(script), SCRIPTS), KEPT / f"{script.stem}.ipynb")
        print(script.stem)
