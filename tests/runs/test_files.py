"""Paths that a user gives, files that an index names, and JSON that is read."""

import os
from pathlib import Path

import pytest

from jexplicit.runs import files
from jexplicit.runs.cache import cache_folder
from jexplicit.runs.files import file_inside, local_path, parse_json
from jexplicit.runs.results import is_measured, read_command, read_texts


def test_a_path_is_whole_and_in_the_home_folder_where_it_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = local_path("a/b"), local_path("~/c"), local_path(tmp_path / "~")
    monkeypatch.chdir("/")
    assert found == (tmp_path / "a/b", tmp_path / "home/c", tmp_path / "~")


def test_without_a_home_folder_one_line_says_so(monkeypatch):
    for name in ("HOME", "JEXPLICIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user whom the machine does not know
    for call in (lambda: local_path("~/a"), cache_folder):
        with pytest.raises(ValueError, match=r"^[^\n]*~/[^\n]*: set HOME, or give the whole path [^\n]*$"):
            call()
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", "/cache")
    assert cache_folder() == Path("/cache")


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
        assert [file_inside(place, name, "index").name for name in ("own", "link", "cached", "new")] == [
            "own",
            "link",
            "cached",
            "new",
        ]
        for name in ("out", "..", ".", "", "../1/own", str(folder / "own"), "a/b", "a\0", None, ["own"], 1):
            with pytest.raises(ValueError, match="^index names the file .*, which is not in its folder: restore it"):
                file_inside(place, name, "index")


def test_json_has_one_value_of_each_name_and_is_not_too_deep():
    assert parse_json('{"a": [{"b": 1}, {"b": 2}], "c": null}') == {"a": [{"b": 1}, {"b": 2}], "c": None}
    for text, said in (('{"a": 1, "b": 2, "a": 1}', "two values of 'a'"), ('[{"c": {"d": 1, "d": 2}}]', "two values of 'd'")):
        with pytest.raises(ValueError, match=said):
            parse_json(text)
    for text in ("[" * 100_000, '{"a"', b"\xff\xfe\xfd"):
        with pytest.raises(ValueError):
            parse_json(text)


def test_only_numbers_are_measured():
    values = [1, 2.5, float("inf"), float("nan"), None, "low", True, [1.0]]
    assert list(map(is_measured, values)) == [True, True, True, False, False, False, False, False]


def test_files_of_a_run_of_other_types_are_refused_by_name(tmp_path):
    for command, found in (('"x"', None), ("7", None), ("null", None), ('["a b", 1]', "'a b' 1")):
        (tmp_path / "environment.json").write_text(f'{{"command": {command}}}')
        assert read_command(tmp_path) == found
    path = tmp_path / "samples.json"
    assert read_texts(path) == []
    for text in ('["to be"', "7", "null", '{"a": "b"}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(ValueError, match="samples.json is damaged .*: delete it"):
            read_texts(path)
    files.write_json(path, ["to be"])
    assert read_texts(path) == ["to be"]
