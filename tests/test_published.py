"""The numbers of README.md and docs/ are those of docs/results/, made of runs; lessons are kept with their own outputs."""

import dataclasses
import json
import re

import nbformat
import numpy as np
import pytest
from files import put
from PIL import Image
from refusals import refused

from launch.lm import PRESETS
from tools import tables
from tools.notebooks import KEPT, SCRIPTS, read_script
from tools.results import command_line, keep, read_results

ENVIRONMENT = {
    "command": ["python", "-m", "launch.lm", "--preset", "tiny", "--train", "a/*.txt", "--resume"],
    "python": "3.11.7",
    "platform": "Linux-6.1-x86_64-with-glibc2.36",
    "cores": 2,
    "commit": "f00d",
    "devices": ["cpu", "cpu"],
    "versions": {"jax": "0.10.2"},
}
ROWS = [
    {"method": "explicit", "corpus": "docs", "context": K, "dev_perplexity": found, "curve": [0.5] * 100}
    for K, found in ((1, 123.456789), (2, 99.0))
]


def test_pages_have_the_numbers_of_their_results():
    pages = tables.pages()
    assert pages and not [page for page in pages if tables.renewed(page) != page.read_text()], "run `make tables`"


@pytest.mark.slow
def test_the_picture_shows_the_results(tmp_path):
    tables.draw(tmp_path / "headline.png")
    drawn, kept = (np.asarray(Image.open(path).convert("L"), int) for path in (tmp_path / "headline.png", tables.PICTURE))
    # a digit has some hundred pixels; the same numbers are drawn the same by the pinned matplotlib
    assert drawn.shape == kept.shape and (np.abs(drawn - kept) > 64).sum() < 20, "run `make tables`"


def test_a_number_is_once_in_its_page_and_a_table_is_closed():
    assert tables.with_numbers("a loss\nof 3.2 and 1e-5 b", "loss of {} b", ["1 and 2"]) == "a loss\nof 1 and 2 b"
    for page in ("<!-- table: one = table() -->1", "<!-- table: x --> <!-- table: x --> <!-- /table -->"):
        refused("a table is not closed before the next one: close it with <!-- /table -->", tables.filled, page)
    for page, piece, said in (
        ("a loss of 1", "losses of {}", "is 0 times in its page"),
        ("of 1 nats and 2 nats", "{} nats", "is 2 times in its page"),
        ("1 nats and 2 nats", "{} nats and {} nats", "1 numbers, is 1 times"),
    ):
        refused(said, tables.with_numbers, page, piece, ["3.0"])


def test_what_is_kept_of_a_run(tmp_path):
    run = tmp_path / "tiny"
    config = dataclasses.replace(PRESETS["tiny"].config, out=str(run), train=("a/*.txt",), corpus="text", eos=True)
    events = [{"time": 86_400.0, "event": "step", "step": "ngram"}, {"time": 2 * 86_400.0, "event": "row"}]
    put(run / "config.json", json.dumps({"launcher": "lm", **dataclasses.asdict(config)}))
    put(run / "environment.json", json.dumps(ENVIRONMENT))
    put(run / "results.json", json.dumps({"rows": ROWS}))
    put(run / "metrics.jsonl", "".join(json.dumps(event) + "\n" for event in events))
    path = keep("made", (run,), ("step",), folder=tmp_path)
    assert path.read_bytes() == keep("again", (run,), ("step",), folder=tmp_path).read_bytes()
    (kept,) = read_results("made", folder=tmp_path)
    assert kept["command"] == "jexplicit lm --preset tiny --train 'a/*.txt' --out runs/tiny"
    assert (kept["date"], kept["machine"]) == ("1970-01-03", "2 CPU cores (x86-64)")
    assert (kept["config"]["context"], kept["config"]["limit"], "out" in kept["config"]) == ([1, 2], 500, False)
    assert kept["shared"] == {"method": "explicit", "corpus": "docs"}
    assert kept["rows"] == [{"context": 1, "dev_perplexity": 123.457}, {"context": 2, "dev_perplexity": 99.0}]
    assert kept["events"] == {"step": [{"step": "ngram"}]}
    started = "jexplicit networks compare x --out=a --rates 0.1 0.3 --out b --resume --epochs 2".split()
    assert command_line(started, "DIR") == "jexplicit networks compare x --rates 0.1 0.3 --epochs 2 --out DIR"
    refused("python -m tools.results nonesuch RUN", read_results, "nonesuch", tmp_path)


@pytest.mark.slow
def test_a_kept_notebook_is_its_script_with_outputs_and_says_nothing_of_where_and_when_it_ran():
    notebooks = sorted(SCRIPTS.glob("*.py"))
    assert [path.stem for path in sorted(KEPT.glob("*.ipynb"))] == [path.stem for path in notebooks]
    for script in notebooks:
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
