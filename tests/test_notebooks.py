"""The notebooks: scripts that start alike, kept with the outputs of these very cells; and the program that keeps them."""

import ast
import itertools
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import jupytext
import nbformat
import pytest

from jexplicit import notebook
from tools.notebooks import KEPT, SCRIPTS, main, read_script, run, without_noise

pytestmark = pytest.mark.slow
NOTEBOOKS = sorted(SCRIPTS.glob("*.py"))
FIRST_CELL = read_script(NOTEBOOKS[0]).cells[1].source


def test_notebooks_start_with_a_title_and_the_cells_that_all_have():
    for script in NOTEBOOKS:
        notebook = jupytext.read(script)
        title, first, setup = notebook.cells[:3]
        assert notebook.metadata["kernelspec"]["name"] == "python3", script
        assert title.cell_type == "markdown" and re.match(r"# \w", title.source), script
        assert first.cell_type == setup.cell_type == "code" and first.source == FIRST_CELL, script
        assert 'TINY = bool(os.environ.get("TINY"))' in setup.source, script


def test_a_kept_notebook_is_its_script_with_outputs_and_says_nothing_of_where_and_when_it_ran():
    for script in NOTEBOOKS:
        path, cells = KEPT / f"{script.stem}.ipynb", read_script(script).cells
        kept = nbformat.read(path, as_version=4)
        remedy = f"make notebooks, or python -m tools.notebooks {script.stem}"
        assert [(cell.cell_type, cell.source) for cell in kept.cells] == [(cell.cell_type, cell.source) for cell in cells], (
            remedy
        )
        code = [cell for cell in kept.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), remedy
        assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs), script
        assert path.stat().st_size < 400_000, script
        assert [cell.id for cell in kept.cells] == [f"cell-{n}" for n in range(1, len(kept.cells) + 1)], script
        assert not any(cell.metadata for cell in kept.cells) and set(kept.metadata) == {"kernelspec", "language_info"}, script
        for output in (output for cell in code for output in cell.outputs):
            text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            assert output.output_type in ("stream", "display_data") and output.get("name") != "stderr", script
            assert not re.search(r"0x[0-9a-f]{6}|/(home|root|tmp|Users|usr|work)/|site-packages|\r|\x1b", text), text


def test_every_kept_notebook_has_a_script():
    assert [path.stem for path in sorted(KEPT.glob("*.ipynb"))] == [path.stem for path in NOTEBOOKS]
    assert not list(SCRIPTS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A clone, a folder with a wheel, a place where the package is installed, and an empty folder; a command nvidia-smi."""
    root, about = tmp_path_factory.mktemp("places"), "jexplicit-0.2.0.dist-info/METADATA"
    for folder in ("clone/jexplicit", "clone/notebooks", "clone/docs/notebooks", "site", "empty", "gpu", "wheel"):
        (root / folder).mkdir(parents=True)
    files = {
        "jexplicit/__init__.py": "",
        "jexplicit/notebook.py": Path(notebook.__file__).read_text(),
        about: "Name: jexplicit\n",
    }
    for name, text in [*list(files.items())[:2], ("pyproject.toml", ""), ("jexplicit.egg-info/PKG-INFO", files[about])]:
        (root / "clone" / name).parent.mkdir(exist_ok=True)
        (root / "clone" / name).write_text(text)
    for version in ("0.1.0", "0.2.0"):
        with zipfile.ZipFile(root / f"wheel/jexplicit-{version}-py3-none-any.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)
    zipfile.ZipFile(root / "wheel/jexplicit-0.2.0-py3-none-any.whl").extractall(root / "site")
    (root / "site/numpy-2.1.dist-info").mkdir()
    (root / "site/numpy-2.1.dist-info/METADATA").write_text("Name: numpy\nVersion: 2.1\n")
    (root / "gpu/nvidia-smi").touch(0o755)
    return root


SHOWN = """import subprocess, sys
subprocess.run = lambda command, check: print(*command[command.index("--quiet") + 1 :])
"""
INSTALLED = "import subprocess, sys\nsubprocess.run = lambda *_, **__: sys.path.append('../site')\n"


def run_first_cell(place, path="", site="", *, before=SHOWN, after=""):
    """What the cell prints in an interpreter without packages, or the error that it raises."""
    command = [sys.executable, "-S", "-c", f"{before}{FIRST_CELL}\n{after}"]
    done = subprocess.run(command, cwd=place, env={"PATH": path, "PYTHONPATH": site}, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip()


FOUND = {
    "clone": "--editable {}/clone",
    "clone/notebooks": "--editable {}/clone",
    "clone/docs/notebooks": "--editable {}/clone",
    "wheel": "{}/wheel/jexplicit-0.2.0-py3-none-any.whl",  # the newest
}


def test_the_first_cell_installs_what_there_is_where_the_package_is_missing(places):
    for (place, expected), (path, extra) in itertools.product(FOUND.items(), (("", ""), (str(places / "gpu"), "[cuda]"))):
        assert run_first_cell(places / place, path) == expected.format(places) + extra
        assert run_first_cell(places / place, path, str(places / "site")) == ""


def test_the_first_cell_displays_nothing():
    assert isinstance(ast.parse(FIRST_CELL).body[-1], ast.Assign)  # of an expression, a notebook would show the value


def test_the_first_cell_of_a_notebook_alone_fails_beside_the_remedy(places):
    assert "No module named 'jexplicit'" in run_first_cell(places / "empty").splitlines()[-1]
    assert re.search(r"# If this fails: .*clone of its repository.*make dist.*Colab.*\n_ = runpy", FIRST_CELL)


def test_after_its_installation_a_wheel_is_imported_from_where_it_was_installed(places):
    after = "import jexplicit\nprint(jexplicit.__file__)"
    assert run_first_cell(places / "wheel", before=INSTALLED, after=after).endswith("/site/jexplicit/__init__.py")


def test_a_kernel_with_an_older_version_of_what_was_installed_is_to_be_restarted(places):
    loaded = "import types\nsys.modules['numpy'] = types.SimpleNamespace(__version__='%s')\n"
    said = [run_first_cell(places / "wheel", before=INSTALLED + loaded % version) for version in ("2.0", "2.1")]
    assert "numpy changed its version under this kernel: restart it" in said[0] and said[1] == ""


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
