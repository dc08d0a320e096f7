"""The numbers of README.md and docs/ are those of docs/results/, and docs/results/ is made of runs."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from launch.lm.config import PRESETS, Config
from launch.networks.config import CompareConfig
from tools import headline, sentences, tables
from tools.declarations import Value, only, pivot, sources
from tools.published.sentences import QUOTED, SAID
from tools.results import RESULTS, command_line, keep, read_results

PAGES = {page.relative_to(tables.ROOT).as_posix(): page for page in tables.pages()}
DECLARED = [(kind, name) for kind, declared in tables.DECLARED.items() for name in declared]
USED = {marker for page in PAGES.values() for marker in tables.used(page.read_text())}
ENVIRONMENT = {
    "command": ["python", "-m", "launch.lm", "--preset", "tiny", "--resume"],
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


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_numbers_of_its_results(page):
    assert not tables.differences(PAGES[page]), "run `make tables`"


@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_what_is_declared_stands_in_a_page(kind, name):
    assert (kind, name) in USED


def test_every_file_of_results_is_used():
    named = {file for declared in tables.DECLARED.values() for made in declared.values() for file in made.files}
    assert {path.stem for path in RESULTS.iterdir()} == named | {some.file for said in SAID.values() for some in said}


@pytest.mark.parametrize("page", PAGES)
def test_the_decimals_in_sentences_are_numbers_of_results(page):
    assert not sentences.unfounded_of(PAGES[page]), "correct them, or say in tools/published/sentences.py where they are from"


@pytest.mark.parametrize("page", {**SAID, **QUOTED})
def test_a_page_says_what_is_declared_for_its_sentences(page):
    decimals = {found.decimal for found in sentences.decimals(PAGES[page].read_text())}
    assert decimals.issuperset(QUOTED.get(page, ()))
    for some in SAID.get(page, ()):
        assert any(sentences.shows(decimal, number) for decimal in decimals for number in some.found()), some


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("It has 98.01 %, a loss of 0.076 and a gain of 1.2e-7.", []),
        ("It has 97.88 %.", ["97.88"]),
        ("It ends at 0.075.", ["0.075"]),
        ("A table | 1,234.5 |", ["1,234.5"]),
        ("The paper has 91.68.", []),
        ("`0.1`, K=0.1, version 3.11.7, [here](a0.1.md)\n```\n0.1\n```\n", []),
        ("<!-- value: x -->2.5<!-- /value -->, and again 2.5", []),
        ("<!-- value: x -->2.5<!-- /value -->\n## Else\n2.5", ["2.5"]),
    ],
)
def test_a_decimal_that_is_of_no_results_is_found(page, found):
    assert [wrong.decimal for wrong in sentences.unfounded(page, [0.9801, 0.0764, -1.21e-7], {"91.68"})] == found


def test_the_picture_shows_the_results(tmp_path):
    headline.draw(tmp_path / "headline.png")
    drawn, kept = (np.asarray(Image.open(path).convert("L"), int) for path in (tmp_path / "headline.png", headline.PICTURE))
    # a digit has some hundred pixels; the same numbers are drawn the same by the pinned matplotlib
    assert drawn.shape == kept.shape and (np.abs(drawn - kept) > 64).sum() < 20, "run python -m tools.headline"


def test_a_page_is_filled_between_its_markers(monkeypatch):
    monkeypatch.setitem(tables.DECLARED, "value", {"x": Value("none", "x", ".1f", {})})
    monkeypatch.setattr(Value, "text", lambda self: "2.5")
    page = "a <!-- value: x -->1<!-- /value --> b <!-- value: x --><!-- /value -->"
    assert tables.filled(page) == "a <!-- value: x -->2.5<!-- /value --> b <!-- value: x -->2.5<!-- /value -->"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- table: nonesuch --><!-- /table -->", "no table has this name"),
        ("<!-- value: x -->1", "close it with <!-- /value -->"),
        ("<!-- table: x --> <!-- value: x --> <!-- /value -->", "<!-- table: x -->: close it"),
    ],
)
def test_a_marker_that_is_unknown_or_not_closed_is_refused(page, message):
    with pytest.raises(ValueError, match=message):
        tables.filled(page)


def test_what_is_kept_of_a_run(run, tmp_path):
    path = keep("made", [run], ["step"], folder=tmp_path)
    assert path.read_bytes() == keep("again", [run], ["step"], folder=tmp_path).read_bytes()
    (kept,) = read_results("made", folder=tmp_path)
    assert kept["command"] == "jexplicit lm --preset tiny --train 'a/*.txt' --eos --out runs/tiny"
    assert (kept["date"], kept["machine"]) == ("1970-01-03", "2 CPU cores (x86-64)")
    assert (kept["config"]["radius"], kept["config"]["limit"], "seed" in kept["config"]) == ([1, 2], 500, False)
    assert kept["shared"] == {"method": "explicit", "corpus": "docs"}
    assert kept["rows"] == [{"radius": 1, "dev_perplexity": 123.457}, {"radius": 2, "dev_perplexity": 99.0}]
    assert kept["events"] == {"step": [{"step": "ngram"}]}


def test_the_command_line_of_a_subcommand():
    stored = config_of(CompareConfig(out="DIR", what="dropout", rates=(0.1, 0.3)), "networks")
    started = ["python", "-m", "launch.networks", "compare", "dropout"]
    assert command_line(stored, started, "DIR") == "jexplicit networks compare dropout --rates 0.1 0.3 --out DIR"


def test_a_run_on_files_of_this_machine_is_refused(run, tmp_path):
    config = Config(out=str(run), corpus="text", train=(str(tmp_path / "a.txt"),))
    (run / "config.json").write_text(json.dumps(config_of(config)))
    with pytest.raises(ValueError, match="absolute path: run the command from the folder of its files"):
        keep("made", [run], folder=tmp_path)


def test_results_that_are_not_there_name_the_command_that_keeps_them(tmp_path):
    with pytest.raises(ValueError, match="python -m tools.results nonesuch RUN"):
        read_results("nonesuch", folder=tmp_path)


def test_runs_whose_numbers_are_transcribed_are_named_as_such(monkeypatch):
    about = {"machine": "2 CPU cores", "versions": {"jax": "0.10.2"}, "date": "2026-11-24"}
    runs = [{"transcribed": True, **about}, {"command": "a", "transcribed": True, **about}, {"command": "b", **about}]
    monkeypatch.setattr("tools.declarations.read_results", lambda name: runs)
    when = "2 CPU cores, JAX 0.10.2, 2026-11-24"
    transcribed = [f"{what}: {when}, transcribed from the report." for what in ("`a`", "Trials without a kept command")]
    assert sources(["x"]) == [f"`b`: {when}.", *transcribed]


def test_one_row_or_an_error():
    assert only(ROWS, radius=2) == ROWS[1]
    with pytest.raises(ValueError, match="2 rows with"):
        only(ROWS, method="explicit")


def test_a_pivoted_table_has_a_line_for_each_value():
    rows = [{"K": K, "method": method, "loss": K + len(method)} for K in (1, 2) for method in ("a", "bc")]
    lines = pivot(rows, ["K"], "method")
    assert [(line["K"], line["a"]["loss"], line["bc"]["loss"]) for line in lines] == [(1, 2, 3), (2, 3, 4)]
