"""The numbers of README.md and docs/ are those of docs/results/, and docs/results/ is made of runs."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from launch.lm import PRESETS
from tools import tables
from tools.results import command_line, keep, read_results

PAGES = {page.relative_to(tables.ROOT).as_posix(): page for page in tables.pages()}
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
    {"method": "explicit", "corpus": "docs", "radius": 1, "dev_perplexity": 123.456789, "curve": [0.5] * 100},
    {"method": "explicit", "corpus": "docs", "radius": 2, "dev_perplexity": 99.0, "curve": [0.5] * 100},
]


def config_of(config, launcher="lm"):
    return {"launcher": launcher, **json.loads(json.dumps(dataclasses.asdict(config)))}


@pytest.fixture
def run(tmp_path):
    """The folder of a finished run."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    config = dataclasses.replace(PRESETS["tiny"].config, out=str(folder), train=("a/*.txt",), corpus="text", eos=True)
    events = [{"time": 86_400.0, "event": "step", "step": "ngram"}, {"time": 2 * 86_400.0, "event": "row"}]
    (folder / "config.json").write_text(json.dumps(config_of(config)))
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (folder / "results.json").write_text(json.dumps({"rows": ROWS}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_pages_have_the_numbers_of_their_results():
    assert PAGES and not [name for name, page in PAGES.items() if tables.renewed(page) != page.read_text()], "run `make tables`"


@pytest.mark.slow
def test_the_picture_shows_the_results(tmp_path):
    tables.draw(tmp_path / "headline.png")
    drawn, kept = (np.asarray(Image.open(path).convert("L"), int) for path in (tmp_path / "headline.png", tables.PICTURE))
    # a digit has some hundred pixels; the same numbers are drawn the same by the pinned matplotlib
    assert drawn.shape == kept.shape and (np.abs(drawn - kept) > 64).sum() < 20, "run `make tables`"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Results of two runs, of which one has a seed more."""
    rows = [{"method": m, "seed": n, "loss": loss} for m, n, loss in (("a", 0, 1.0), ("a", 1, 2.0), ("b, c", 0, 0.123))]
    run = {"command": "jexplicit x", "config": {"K": 2}, "shared": {"data": "d"}, "rows": rows, "events": {"step": [{"n": 1}]}}
    about = {"machine": "2 cores", "versions": {"jax": "1"}, "date": "today"}
    (tmp_path / "one.json").write_text(json.dumps({"runs": [run | about]}))
    monkeypatch.setattr(tables, "read_results", lambda name: read_results(name, tmp_path))
    tables.kept.cache_clear()
    yield tmp_path
    tables.kept.cache_clear()


NUMBERS = {
    'one = the("loss", method="a", seed=1) : .2f': "2.00",
    'one = the("loss", method=("b, c", "d")) : .1f': "0.1",
    'one = mean("loss", method="a") : .1f': "1.5",
    'one = each("loss", method="a") : .0f': "1 and 2",
    'one = 100 * the("loss", seed=1) / most("loss") : .0f': "100",
    'one = len(rows(K=2, data="d")) + events("step")[0]["n"] : d': "4",
    'one = find("math:floor")(least("loss")) : d': "0",
}
LOSS = 'one = the("loss", seed=1) : .1f'
WRONG = [
    ("<!-- table: one = table() -->1", {}, "close it with <!-- /table -->"),
    ("<!-- table: x --> <!-- table: x --> <!-- /table -->", {}, "not closed before the next"),
    ("1", {"{}": ['one = the("loss") : .1f']}, "3 rows with"),
    ("a loss of 1", {"losses of {}": [LOSS]}, "is 0 times in its page"),
    ("of 1 nats and 2 nats", {"{} nats": [LOSS]}, "is 2 times in its page"),
    ("1 nats and 2 nats", {"{} nats and {} nats": [LOSS]}, "1 numbers, is 1 times"),
]


def test_a_number_carries_its_address_and_a_table_is_a_view_of_results(results):
    assert {address: tables.value(address) for address in NUMBERS} == NUMBERS
    for address, text in NUMBERS.items():
        assert tables.filled("a loss\nof 3.2 and 1e-5 b", {"loss of {} b": [address]}) == f"a loss\nof {text} b"
    rows = ["| method | loss |", "|---|---|", "| a | 1.0 |", "| b, c | 0.123 |"]
    page = '<!-- table: one = table(columns="method, loss", seed=0) -->{}<!-- /table -->'
    assert tables.filled(page.format("old")) == page.format("\n\n" + "\n".join(rows) + "\n\n")
    for page, pieces, message in WRONG:
        with pytest.raises(ValueError, match=message):
            tables.filled(page, pieces)


def test_commands_have_their_machine_and_those_whose_numbers_are_transcribed_are_named_as_such(monkeypatch):
    about = {"machine": "2 CPU cores", "versions": {"jax": "0.10.2"}, "date": "2026-11-24"}
    runs = [{"transcribed": True, **about}, {"command": "a", "transcribed": True, **about}, {"command": "b", **about}]
    monkeypatch.setattr(tables, "read_results", lambda name: runs)
    when = "2 CPU cores, JAX 0.10.2, 2026-11-24"
    transcribed = [f"{what}: {when}, transcribed from the report." for what in ("`a`", "Trials without a kept command")]
    assert tables.commands("x").splitlines() == [f"`b`: {when}.", *transcribed]


def test_what_is_kept_of_a_run(run, tmp_path):
    path = keep("made", (run,), ("step",), folder=tmp_path)
    assert path.read_bytes() == keep("again", (run,), ("step",), folder=tmp_path).read_bytes()
    (kept,) = read_results("made", folder=tmp_path)
    assert kept["command"] == "jexplicit lm --preset tiny --train 'a/*.txt' --out runs/tiny"
    assert (kept["date"], kept["machine"]) == ("1970-01-03", "2 CPU cores (x86-64)")
    assert (kept["config"]["radius"], kept["config"]["limit"], "out" in kept["config"]) == ([1, 2], 500, False)
    assert kept["shared"] == {"method": "explicit", "corpus": "docs"}
    assert kept["rows"] == [{"radius": 1, "dev_perplexity": 123.457}, {"radius": 2, "dev_perplexity": 99.0}]
    assert kept["events"] == {"step": [{"step": "ngram"}]}
    started = "jexplicit networks compare x --out=a --rates 0.1 0.3 --out b --resume --epochs 2".split()
    assert command_line(started, "DIR") == "jexplicit networks compare x --rates 0.1 0.3 --epochs 2 --out DIR"
    with pytest.raises(ValueError, match="python -m tools.results nonesuch RUN"):
        read_results("nonesuch", folder=tmp_path)
