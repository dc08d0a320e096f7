"""Paths, JSON, bounds of settings, and caches: of compiled functions and of tokens; what is damaged."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from jexplicit.data.corpora import Corpus
from jexplicit.data.shards import cached_streams
from jexplicit.runs import files
from jexplicit.runs.bounds import Bounds, NonNegativeInt, PositiveFloat, PositiveInt, check_bounds, config_of
from jexplicit.runs.files import (
    cache_entries,
    cache_folder,
    file_inside,
    is_measured,
    local_path,
    parse_bytes,
    parse_json,
    read_command,
    read_texts,
)
from launch import cache


def test_a_path_is_whole_and_in_the_home_folder_where_it_says_so_and_without_one_a_line_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = local_path("a/b"), local_path("~/c"), local_path(tmp_path / "~")
    monkeypatch.chdir("/")
    assert found == (tmp_path / "a/b", tmp_path / "home/c", tmp_path / "~")
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
        for name in ("own", "link", "cached", "new"):
            assert file_inside(place, name, "index").name == name
        for name in ("out", "..", "", "../1/own", str(folder / "own"), "a/b", "a\0", None, ["own"]):
            with pytest.raises(ValueError, match="^index names the file .*, which is not in its folder: restore it"):
                file_inside(place, name, "index")


def test_json_has_one_value_of_each_name_and_is_not_too_deep_and_files_of_runs_have_their_types(tmp_path):
    assert parse_json('{"a": [{"b": 1}, {"b": 2}], "c": null}') == {"a": [{"b": 1}, {"b": 2}], "c": None}
    for text in ('[{"c": {"d": 1, "d": 2}}]', "[" * 100_000, '{"a"', b"\xff\xfe"):
        with pytest.raises(ValueError):
            parse_json(text)
    assert [is_measured(value) for value in (1, 2.5, float("nan"), None, "low", True)] == [True, True, *[False] * 4]
    for command, found in (('"x"', None), ("7", None), ('["a b", 1]', "'a b' 1")):
        (tmp_path / "environment.json").write_text(f'{{"command": {command}}}')
        assert read_command(tmp_path) == found
    path = tmp_path / "samples.json"
    assert read_texts(path) == []
    files.write_json(path, ["to be"])
    assert read_texts(path) == ["to be"]
    for text in ('["to be"', "7", '{"a": "b"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="samples.json is damaged .*: delete it"):
            read_texts(path)


def test_a_size_is_a_number_and_a_unit():
    sizes = {"2GB": 2 * 10**9, "1.5 GiB": 3 * 2**29, "512mib": 2**29, ".5MB": 10**6 // 2, "10.KB": 10_000}
    assert {size: parse_bytes(size) for size in sizes} == sizes
    for size in ("", "2", "2 elephants", "0GB", "1.2.3GB", "٢GB"):
        with pytest.raises(ValueError, match="memory .*: give a number and a unit, such as 2GB"):
            parse_bytes(size)


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
        with pytest.raises(ValueError, match=f"config.json is damaged .{name} .* of another type.: restore it"):
            config_of(Config, {**stored, name: value}, "restore it")
    check_bounds(Config(patience=1, free=float("inf")))
    outside: list[tuple[dict[str, Any], str]] = [
        ({"widths": (3, 0)}, "--widths 3 0: use at least 1"),
        ({"seed": 2**63}, "--seed 9223372036854775808: use whole numbers below 2.63"),
        ({"patience": 0}, "--patience 0: use at least 1"),
        ({"share": float("nan")}, "--share nan: use above 0 and below 1"),
        ({"rates": (1.0, float("inf"))}, "--rates 1.0 inf: use above 0"),
    ]
    for changed, message in outside:
        with pytest.raises(ValueError, match=f"^{message}$"):
            check_bounds(Config(**changed))


# Compiled functions

COMPUTE = """
import jax, jax.numpy as jnp
found = []
jax.monitoring.register_event_listener(lambda event, **more: found.append(event.rsplit("/")[-1]))
def run(config=None):
    total = jax.jit(lambda x: jnp.sort(x @ x.T).sum())(jnp.ones((4, 3)))
    print(float(total), found.count("cache_hits"), jax.config.jax_compilation_cache_dir)
"""
COMMAND = f"""
import sys
from launch.kit.command import run_command
from launch.cache import List
{COMPUTE}
sys.exit(run_command(run, List, description=""))
"""


@pytest.fixture(autouse=True)
def compiled(monkeypatch, tmp_path) -> Path:
    """The folder of this test's own cache."""
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JEXPLICIT_COMPILED_LIMIT", "10MB")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path / "cache" / "compiled"


def start(program: str = COMMAND, **environment: str) -> subprocess.Popen:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **environment}, **pipes)


def answer(process: subprocess.Popen) -> tuple[float, int, str, str]:
    """The number computed, how many functions were read, the folder of the cache, and what else was printed."""
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    total, read, folder = printed.split()
    return float(total), int(read), folder, errors


def compiled_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*-cache"))


def test_processes_hold_a_folder_each_and_read_what_others_compiled_unless_it_is_damaged(compiled):
    keep = "from jexplicit.runs.files import keep_compiled\nkeep_compiled()\nrun()"
    with start(f"import time\n{COMPUTE}\n{keep}\ntime.sleep(600)", PYTHONUNBUFFERED="1") as first:
        assert first.stdout is not None and first.stdout.readline().split()[2] == str(compiled / "0")
        assert answer(start()) == (48, 0, str(compiled / "1"), "")  # 16 sums of three ones
        first.kill()
    last = max(compiled_files(compiled / "0"), key=lambda path: path.stat().st_mtime)
    last.write_bytes(last.read_bytes()[:50])  # killed while it wrote: a process that holds the folder next removes it
    for read in (False, True):
        found = answer(start())
        assert (found[0], found[2:]) == (48, (str(compiled / "0"), "")) and (found[1] > 0) >= read
    kept = compiled_files(compiled / "0")
    for path in kept:
        path.write_bytes(path.read_bytes()[:50])  # a disk was full
    total, read, _, errors = answer(start())
    assert kept and total == 48 and read == 0 and "Error reading persistent compilation cache" in errors


def test_the_users_settings_come_first_a_library_keeps_nothing_and_a_command_clears(tmp_path, compiled, monkeypatch, capsys):
    for variable, value in (("JEXPLICIT_COMPILED_LIMIT", "0"), ("JEXPLICIT_CACHE_DIR", "/dev/null/none")):
        assert answer(start(COMMAND, **{variable: value}))[2] == "None"
    assert answer(start(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs")))[2] == str(tmp_path / "theirs")
    assert answer(start(f"import jexplicit\n{COMPUTE}\nrun()"))[2] == "None" and not compiled_files(tmp_path / "cache")
    own = compiled / "0"
    own.mkdir(parents=True)
    for n, name in enumerate(("oldest-cache", "older-cache", "newest-cache")):
        (own / name).write_bytes(bytes(1_000_000))
        os.utime(own / name, (n, n))
    assert answer(start(JEXPLICIT_COMPILED_LIMIT="2500000B"))[2] == str(own)
    assert not (own / "oldest-cache").exists() and (own / "older-cache").exists()
    os.utime(own / "newest-cache")
    assert cache.main(["clear", "--older-than", "30"]) == 0 and f"{compiled}: 1 files removed" in capsys.readouterr().out
    assert cache.main(["clear"]) == 0 and not compiled_files(compiled)
    assert cache.main(["list", "--json"]) == 0 and json.loads(capsys.readouterr().out.splitlines()[-1])["compiled"] == 0


# Cached tokens


def made(folder, text: str):
    return cached_streams(Corpus("tiny", [text * 50], [text]), kind="char", vocab_size=None, cache_dir=folder)


def test_the_cache_forgets_what_was_not_used_for_the_longest_time(tmp_path, monkeypatch):
    folder, times = tmp_path / "cache", {}
    for text in ("ab", "cd", "ef"):
        before = set(times)
        made(folder, text)
        (new,) = {entry.path for entry in cache_entries(folder)} - before
        times[new] = len(times)
    for path, n in times.items():
        os.utime(path, (n, n))
    oldest, middle, latest = cache_entries(folder)
    monkeypatch.setenv("JEXPLICIT_CACHE_LIMIT", f"{2.5 * oldest.bytes:.0f}B")
    assert not made(folder, "gh").cached
    left = {entry.path for entry in cache_entries(folder)}
    assert latest.path in left and middle.path not in left and oldest.path not in left and len(left) == 2
    monkeypatch.setenv("JEXPLICIT_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="JEXPLICIT_CACHE_LIMIT=much"):
        made(folder, "ij")


def test_reading_an_entry_is_a_use_of_it_and_the_cache_is_cleared_by_age_and_as_a_whole(tmp_path, capsys):
    folder = tmp_path / "cache"
    for text in ("ab", "cd"):
        made(folder, text)
    (folder / "notes.txt").write_text("not an entry")
    for entry in cache_entries(folder):
        os.utime(entry.path, (0, 0))
    assert made(folder, "ab").cached and sorted(entry.used > 0 for entry in cache_entries(folder)) == [False, True]
    assert cache.main(["clear", "--older-than", "30", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 1 and len(cache_entries(folder)) == 1
    assert cache.main(["clear"]) == 0 and not cache_entries(folder) and (folder / "notes.txt").exists()
