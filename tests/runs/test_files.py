"""Paths, JSON, and bounds of settings."""

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Annotated, Any

from refusals import refused

from jexplicit.runs import files
from jexplicit.runs.files import Bounds, NonNegativeInt, PositiveFloat, PositiveInt, check_bounds, config_of, parse_json


def test_a_path_is_whole_and_in_the_home_folder_where_it_says_so_and_without_one_a_line_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = files.local_path("a/b"), files.local_path("~/c"), files.local_path(tmp_path / "~")
    monkeypatch.chdir("/")
    assert found == (tmp_path / "a/b", tmp_path / "home/c", tmp_path / "~")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user whom the machine does not know
    refused(r"^[^\n]*~/[^\n]*: set HOME, or give the whole path [^\n]*$", files.local_path, "~/a")


def test_an_index_names_files_of_its_own_folder_only(tmp_path):
    folder, blobs = tmp_path / "models" / "snapshots" / "1", tmp_path / "models" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for path in (folder / "own", blobs / "3f2a", tmp_path / "outside"):
        path.write_text("")
    (folder / "link").symlink_to("own")
    (folder / "cached").symlink_to("../../blobs/3f2a")  # as in the cache of Hugging Face
    (folder / "out").symlink_to("../../../outside")
    (tmp_path / "door").symlink_to(folder)  # a folder may be reached by a link
    for place in (folder, tmp_path / "door"):
        for name in ("own", "link", "cached", "new"):
            assert files.file_inside(place, name, "index").name == name
        for name in ("out", "..", "", "../1/own", str(folder / "own"), "a/b", "a\0", None, ["own"]):
            refused("^index names the file .*, which is not in its folder: restore it", files.file_inside, place, name, "index")


def test_json_has_one_value_of_each_name_and_is_not_too_deep_and_files_of_runs_have_their_types(tmp_path):
    assert parse_json('{"a": [{"b": 1}, {"b": 2}], "c": null}') == {"a": [{"b": 1}, {"b": 2}], "c": None}
    for text in ('[{"c": {"d": 1, "d": 2}}]', "[" * 100_000, '{"a"', b"\xff\xfe"):
        refused(".", parse_json, text)
    assert [files.is_measured(value) for value in (1, 2.5, float("nan"), None, "low", True)] == [True, True, *[False] * 4]
    for command, found in (('"x"', None), ("7", None), ('["a b", 1]', "'a b' 1")):
        (tmp_path / "environment.json").write_text(f'{{"command": {command}}}')
        assert files.read_command(tmp_path) == found
    path = tmp_path / "samples.json"
    assert files.read_texts(path) == []
    files.write_json(path, ["to be"])
    assert files.read_texts(path) == ["to be"]
    for text in ('["to be"', "7", '{"a": "b"}'):
        path.write_text(text)
        refused("samples.json is damaged .*: delete it", files.read_texts, path)


def test_a_size_is_a_number_and_a_unit():
    sizes = {"2GB": 2 * 10**9, "1.5 GiB": 3 * 2**29, "512mib": 2**29, ".5MB": 10**6 // 2, "10.KB": 10_000}
    assert {size: files.parse_bytes(size) for size in sizes} == sizes
    for size in ("", "2", "2 elephants", "0GB", "1.2.3GB", "٢GB"):
        refused("memory .*: give a number and a unit, such as 2GB", files.parse_bytes, size)


@dataclass(frozen=True)
class Config:
    size: PositiveInt = 1
    widths: tuple[PositiveInt, ...] = (3, 4)
    rates: tuple[PositiveFloat, ...] = (0.5,)
    seed: NonNegativeInt = 0
    patience: PositiveInt | None = None
    share: Annotated[float, Bounds(above=0, below=1)] = 0.5
    free: float = -1.0


def test_a_stored_config_is_read_with_the_types_of_its_fields_and_values_have_their_bounds():
    stored = json.loads(json.dumps(dataclasses.asdict(Config(patience=2, free=3))))
    assert config_of(Config, stored, "restore it") == Config(patience=2, free=3)
    for name, value in (("size", "x"), ("size", 1.5), ("size", True), ("widths", 3), ("widths", {}), ("patience", [1])):
        said = f"config.json is damaged .{name} .* of another type.: restore it"
        refused(said, config_of, Config, {**stored, name: value}, "restore it")
    check_bounds(Config(patience=1, free=float("inf")))
    outside: list[tuple[dict[str, Any], str]] = [
        ({"widths": (3, 0)}, "--widths 3 0: use at least 1"),
        ({"seed": 2**63}, "--seed 9223372036854775808: use whole numbers below 2.63"),
        ({"patience": 0}, "--patience 0: use at least 1"),
        ({"share": float("nan")}, "--share nan: use above 0 and below 1"),
        ({"rates": (1.0, float("inf"))}, "--rates 1.0 inf: use above 0"),
    ]
    for changed, message in outside:
        refused(f"^{message}$", check_bounds, Config(**changed))
