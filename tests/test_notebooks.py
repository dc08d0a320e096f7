"""The lessons: scripts of one form, kept with the outputs of these very cells."""

import re

import nbformat
import pytest

from tools.notebooks import KEPT, SCRIPTS, read_script

pytestmark = pytest.mark.slow
NOTEBOOKS = sorted(SCRIPTS.glob("*.py"))


def test_a_kept_notebook_is_its_script_with_outputs_and_says_nothing_of_where_and_when_it_ran():
    assert [path.stem for path in sorted(KEPT.glob("*.ipynb"))] == [path.stem for path in NOTEBOOKS]
    for script in NOTEBOOKS:
        path, cells = KEPT / f"{script.stem}.ipynb", read_script(script).cells
        kept = nbformat.read(path, as_version=4)
        remedy = f"make notebooks, or python -m tools.notebooks {script.stem}"
        made, source = ([(cell.cell_type, cell.source) for cell in some] for some in (kept.cells, cells))
        assert made == source, remedy
        code = [cell for cell in kept.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], remedy
        assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs), script
        assert path.stat().st_size < 400_000, script
        assert [cell.id for cell in kept.cells] == [f"cell-{n}" for n in range(1, len(kept.cells) + 1)], script
        assert not any(cell.metadata for cell in kept.cells) and set(kept.metadata) == {"kernelspec", "language_info"}, script
        for output in (output for cell in code for output in cell.outputs):
            text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            assert output.output_type in ("stream", "display_data") and output.get("name") != "stderr", script
            assert not re.search(r"0x[0-9a-f]{6}|/(home|root|tmp|Users|usr|work)/|site-packages|\r|\x1b", text), text
