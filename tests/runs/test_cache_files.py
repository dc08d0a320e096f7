"""The folder of the token cache: what is removed, and when."""

import json
import os

import pytest

from jexplicit.data.corpora import Corpus
from jexplicit.data.corpus.cache import cached_streams
from jexplicit.runs import cache as cache_files
from jexplicit.runs.cache import cache_entries, clear_cache
from launch import cache


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
    monkeypatch.setattr(cache_files, "_in_use", {oldest.path})  # this run reads it
    monkeypatch.setenv("JEXPLICIT_CACHE_LIMIT", f"{2.5 * oldest.bytes:.0f}B")
    assert not made(folder, "gh").cached
    left = {entry.path for entry in cache_entries(folder)}
    assert oldest.path in left and middle.path not in left and latest.path not in left and len(left) == 2
    monkeypatch.setenv("JEXPLICIT_CACHE_LIMIT", "much")
    with pytest.raises(ValueError, match="JEXPLICIT_CACHE_LIMIT=much"):
        made(folder, "ij")


def test_reading_an_entry_is_a_use_of_it(tmp_path):
    made(tmp_path, "ab")
    os.utime(cache_entries(tmp_path)[0].path, (0, 0))
    assert made(tmp_path, "ab").cached and cache_entries(tmp_path)[0].used > 0


def test_the_cache_is_cleared_by_age_and_as_a_whole(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "cache"
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(folder))
    made(folder, "ab")
    made(folder, "cd")
    (folder / "notes.txt").write_text("not an entry")
    os.utime(cache_entries(folder)[0].path, (0, 0))
    assert cache.main(["clear", "--older-than", "30", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 1 and len(cache_entries(folder)) == 1
    assert clear_cache(cache_entries(folder)) and not cache_entries(folder) and (folder / "notes.txt").exists()
