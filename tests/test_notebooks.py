"""The notebooks: scripts that start alike, kept with the outputs of these very cells; and the program that keeps them."""

import contextlib
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from tools.notebooks import KEPT, SCRIPTS, main, read_script, run, without_noise

NOTEBOOKS = sorted(SCRIPTS.glob("*.py"))
FIRST_CELL = read_script(NOTEBOOKS[0]).cells[1].source
each_notebook = pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda script: script.stem)


@each_notebook
def test_a_notebook_starts_with_a_title_and_the_cells_that_all_have(script):
    notebook = jupytext.read(script)
    title, first, setup = notebook.cells[:3]
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert title.cell_type == "markdown" and re.match(r"# \w", title.source)
    assert first.cell_type == setup.cell_type == "code"
    assert first.source == FIRST_CELL
    assert 'TINY = bool(os.environ.get("TINY"))' in setup.source


@each_notebook
def test_a_kept_notebook_is_its_script_with_outputs(script):
    kept = nbformat.read(KEPT / f"{script.stem}.ipynb", as_version=4)
    cells = read_script(script).cells
    remedy = f"make notebooks, or python -m tools.notebooks {script.stem}"
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == [(cell.cell_type, cell.source) for cell in cells], remedy
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), remedy
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)


@each_notebook
def test_a_kept_notebook_is_small_and_says_nothing_of_where_and_when_it_ran(script):
    path = KEPT / f"{script.stem}.ipynb"
    kept = nbformat.read(path, as_version=4)
    assert path.stat().st_size < 400_000
    assert [cell.id for cell in kept.cells] == [f"cell-{n}" for n in range(1, len(kept.cells) + 1)]
    assert not any(cell.metadata for cell in kept.cells) and set(kept.metadata) == {"kernelspec", "language_info"}
    for output in (output for cell in kept.cells for output in cell.get("outputs", [])):
        text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
        assert output.output_type in ("stream", "display_data") and output.get("name") != "stderr"
        assert not re.search(r"0x[0-9a-f]{6}|/(home|root|tmp|Users|usr|work)/|site-packages|\r|\x1b", text), text


def test_every_kept_notebook_has_a_script():
    assert [path.stem for path in sorted(KEPT.glob("*.ipynb"))] == [path.stem for path in NOTEBOOKS]
    assert not list(SCRIPTS.glob("*.ipynb"))


@pytest.mark.parametrize(
    ("place", "wheel", "expected"),
    [
        ("clone/notebooks", True, ["--editable", "{folder}/clone"]),  # the clone around the notebook
        (
            "clone",
            False,
            ["--editable", "{folder}/clone"],
        ),  # its root, where Python finds the folder of the package
        ("content", True, ["{folder}/content/jexplicit-0.2.0-py3-none-any.whl"]),  # the wheel beside the notebook
        ("content", False, None),
        ("", False, []),  # it is installed
    ],
)
def test_the_first_cell_installs_what_there_is(place, wheel, expected, tmp_path, monkeypatch):
    given = []
    for folder in ("clone/notebooks", "clone/jexplicit", "content"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "clone/jexplicit/__init__.py").touch()
    monkeypatch.chdir(tmp_path / place)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(subprocess, "run", lambda command, check: given.extend(command[command.index("--quiet") + 1 :]))
    if wheel:
        Path("jexplicit-0.2.0-py3-none-any.whl").touch()
    if place:
        monkeypatch.setattr(importlib.metadata, "version", missing)
    nothing = pytest.raises(ModuleNotFoundError, match="clone of its repository.*make dist.*Colab")
    with contextlib.nullcontext() if expected is not None else nothing:
        exec(compile(FIRST_CELL, "first cell", "exec"), {})
    assert given == [argument.format(folder=tmp_path) for argument in expected or []]


def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_notebook_runs_at_full_size_on_embedded_data_and_its_output_is_stable(tmp_path, monkeypatch):
    monkeypatch.setenv("TINY", "1")
    monkeypatch.setenv("JEXPLICIT_DATA_DIR", str(tmp_path))
    script = tmp_path / "one.py"
    script.write_text(
        "# %% [markdown]\n# # One\n\n# %%\nimport os\nimport sys\n\n"
        "print([os.environ.get(name) for name in ('TINY', 'JEXPLICIT_DATA_DIR')], flush=True)\n"
        "print('a warning', file=sys.stderr, flush=True)\nprint(os.getcwd() == os.path.realpath('.'))\n"
    )
    first, second = (nbformat.writes(run(read_script(script), tmp_path)) for _ in range(2))
    assert first == second
    markdown, code = json.loads(first)["cells"]
    assert markdown["source"] == ["# One"]
    assert [output["text"] for output in code["outputs"]] == [["[None, None]\n", "True\n"]]


def test_what_was_printed_is_one_output_without_noise():
    def printed(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", {"image/png": "="})
    kept = without_noise([printed("a"), printed("warning", "stderr"), printed("b"), figure, printed("c")])
    assert [output.get("text", "figure") for output in kept] == ["ab", "figure", "c"]


def test_an_unknown_notebook_is_named_with_those_that_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"no notebook is called 12_more; there are 01_\w+, "):
        main(("12_more",), out=tmp_path)
