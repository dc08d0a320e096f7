"""launch.lm with contexts of several tokens counted on disk, within --memory: the numbers of a run in memory, exactly."""

import json

import numpy as np
import pytest

from jexplicit.counts import context_ranges
from jexplicit.counts.context_ranges import Disk
from jexplicit.data.shards import read_shards
from launch import shards
from launch.lm import __main__ as lm

FLAGS = "--methods ngram mixture --rows offsets contexts-4 gaps --radius 1 --train-sample 500 --samples 0 --seed 1".split()
SAME = ("method", "train_perplexity", "dev_perplexity", "exponents", "held_out_perplexity")


def rows(out):
    found = json.loads((out / "results.json").read_text())["rows"]
    return [{name: row.get(name) for name in SAME} for row in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards of lines of words that depend on each other."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("text")
    words = rng.zipf(1.5, (300, 12)) % 40
    words[:, 1::2] = (words[:, ::2] + rng.integers(0, 3, (300, 6))) % 40
    (path / "text.txt").write_text("\n".join(" ".join(f"w{w}" for w in line) for line in words))
    flags = ["--tokenizer", "word", "--shard-tokens", "1000"]
    assert shards.main(["--train", str(path / "text.txt"), "--out", str(path / "shards"), *flags]) == 0
    return path / "shards"


@pytest.fixture(scope="module")
def in_memory(folder):
    out = folder.parent / "in_memory"
    assert lm.main(["--corpus", f"shards:{folder}", "--out", str(out), *FLAGS]) == 0
    return rows(out)


@pytest.fixture
def several_ranges(monkeypatch):
    """What 2 MB hold of so small a text is a part of it."""
    monkeypatch.setattr(context_ranges, "_bytes_per_position", 2500)


def on_disk(folder, out, *more):
    return lm.main(["--corpus", f"shards:{folder}", "--memory", "2MB", "--out", str(out), *FLAGS, *more])


@pytest.mark.slow
def test_a_run_beyond_memory_has_the_numbers_of_one_in_memory(folder, in_memory, several_ranges, tmp_path):
    """As one that is killed and continued has, too."""
    assert on_disk(folder, tmp_path / "run") == 0
    assert rows(tmp_path / "run") == in_memory
    assert not (tmp_path / "run" / "checkpoints" / "contexts").exists()


def test_a_killed_run_continues_from_the_ranges_that_are_whole(
    folder, in_memory, several_ranges, tmp_path, monkeypatch, capsys
):
    out, counted, save_arrays = tmp_path / "run", [], context_ranges.save_arrays
    offsets, levels_of = [], context_ranges._levels_of
    monkeypatch.setattr(context_ranges, "_levels_of", lambda *a: offsets.append(a[3]) or levels_of(*a))

    def save_and_be_killed(path, arrays):
        if len(counted) == 5:
            raise KeyboardInterrupt
        counted.append(path)
        save_arrays(path, arrays)

    with monkeypatch.context() as killed:
        killed.setattr(context_ranges, "save_arrays", save_and_be_killed)
        assert on_disk(folder, out) != 0
    first = {path for path in counted if path.exists()}
    assert first == set(counted) and len(first) == 5
    monkeypatch.setattr(context_ranges, "save_arrays", lambda path, arrays: counted.append(path) or save_arrays(path, arrays))
    assert lm.main(["--resume", "--out", str(out)]) == 0
    assert len(set(counted)) == len(counted)  # none twice
    assert offsets.count((1, 2, 3, 4)) > 4 and offsets.count((2, 3)) > 4  # of the whole text, and without what is held out
    assert rows(out) == in_memory
    assert not (out / "checkpoints" / "contexts").exists()


def test_contexts_beside_the_shards_are_taken(folder, in_memory, several_ranges, tmp_path, monkeypatch):
    """As launch.beam leaves them: made here without Beam."""
    beside = tmp_path / "shards"
    beside.mkdir()
    for part in ("train", "dev", "tokenizer.model"):
        (beside / part).symlink_to(folder / part)
    stream = read_shards(beside / "train")
    disk = Disk(beside / "contexts", 2_000_000).of((1, 2, 3, 4))
    files = context_ranges.count_ranges(stream, offsets=(1, 2, 3, 4), vocab_size=stream.vocab_size, disk=disk)
    counted, levels_of = [], context_ranges._levels_of
    monkeypatch.setattr(context_ranges, "_levels_of", lambda *a: counted.append((len(a[0]), a[3])) or levels_of(*a))
    flags = [*FLAGS, "--methods", "ngram"]
    assert lm.main(["--corpus", f"shards:{beside}", "--out", str(tmp_path / "run"), *flags]) == 0
    assert not counted and rows(tmp_path / "run") == in_memory[:3]
    assert all(path.exists() for path in files)
    files[0].write_bytes(files[0].read_bytes()[:-9])
    assert lm.main(["--corpus", f"shards:{beside}", "--out", str(tmp_path / "again"), *flags]) == 2


def test_memory_that_contexts_do_not_fit_into_is_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(context_ranges, "_bytes_per_position", 10**6)
    assert on_disk(folder, tmp_path / "run", "--quiet") == 2
    assert "memory of 2000000 bytes: contexts of" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("classes",), ("offsets", "words")])
def test_rows_that_need_the_text_in_memory_are_refused(names, folder, tmp_path, capsys):
    flags = ["--corpus", f"shards:{folder}", "--methods", "mixture", "--rows", *names, "--out", str(tmp_path / "run")]
    assert lm.main(flags) == 2
    assert f"--rows {names[-1]} with --corpus shards:DIR: use offsets contexts-4" in capsys.readouterr().err
