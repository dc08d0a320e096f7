"""A pass over a stream: windows, saves, kills. Counts are integers: every comparison is exact."""

import multiprocessing
import time

import numpy as np
import pytest
from files import shards_of
from reference import random_documents, stream_of

from jexplicit.counts.dense import DenseCounter, count
from jexplicit.counts.stream import Saving, feed, window, windows
from jexplicit.data.contexts import with_leading_pads
from jexplicit.data.shards import read_shards
from jexplicit.runs.files import load_arrays, save_arrays

N, K = 7, 2
DOCUMENTS = random_documents(seed=3, number=40, vocab_size=N, longest=9)
STREAM = stream_of(DOCUMENTS)
COUNTS = count(STREAM, radius=K, vocab_size=N)


def assert_same(a, b):
    for C, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(C, other)


@pytest.mark.parametrize("span", [1, 3, 50, 10**4])
@pytest.mark.parametrize("radius", [1, 4])
def test_windows_together_are_the_stream_each_after_its_context(span, radius):
    padded = with_leading_pads(STREAM, radius)
    parts = list(windows(STREAM, 1, len(STREAM), radius=radius, span=span))
    np.testing.assert_array_equal(np.concatenate([part[radius:] for part in parts]), STREAM[1:])
    for n, part in enumerate(parts):
        np.testing.assert_array_equal(part, padded[n * span : n * span + len(part)])


def test_a_window_before_the_stream_is_pads():
    assert window(np.array([0, 5, 0], np.uint8), 1, 3, 4).tolist() == [0, 0, 0, 0, 5, 0]


def test_shards_are_counted_as_the_array_that_they_hold(tmp_path):
    assert_same(count(shards_of(tmp_path, DOCUMENTS, vocab_size=N), radius=K, vocab_size=N, chunk=11), COUNTS)


class Killed(Exception):
    pass


class Fragile(DenseCounter):
    """A counter that dies after some windows."""

    left = 10**6

    def add(self, window):
        if self.left == 0:
            raise Killed
        self.left -= 1
        super().add(window)


Fragile.__name__ = DenseCounter.__name__  # what it saves, a DenseCounter may go on from


def test_a_pass_killed_after_any_window_goes_on_exactly(tmp_path):
    for windows_before in range(0, 12, 3):
        saving = Saving(tmp_path / str(windows_before), -1.0)  # saves after every window
        for _ in range(2):  # killed twice
            counter = Fragile(radius=K, vocab_size=N, chunk=20)
            counter.left = windows_before
            if windows_before * 2 * 20 < len(STREAM):
                with pytest.raises(Killed):
                    feed(counter, STREAM, 1, len(STREAM), saving=saving)
        counter = Fragile(radius=K, vocab_size=N, chunk=20)
        feed(counter, STREAM, 1, len(STREAM), saving=saving)
        assert_same(counter.tables(), COUNTS)
        again = Fragile(radius=K, vocab_size=N, chunk=20)
        again.left = 0  # all is counted: no window is left
        feed(again, STREAM, 1, len(STREAM), saving=saving)
        assert_same(again.tables(), COUNTS)


def test_a_pass_interrupted_between_two_saves_repeats_what_was_not_saved(tmp_path):
    counter = Fragile(radius=K, vocab_size=N, chunk=20)
    counter.left = 4
    with pytest.raises(Killed):
        feed(counter, STREAM, 1, len(STREAM), saving=Saving(tmp_path, 1e9))
    assert_same(count(STREAM, radius=K, vocab_size=N, saving=Saving(tmp_path, 1e9)), COUNTS)


def test_a_save_on_a_full_disk_is_refused_and_leaves_the_last_one(tmp_path, monkeypatch):
    saving = Saving(tmp_path, -1.0)
    counter = Fragile(radius=K, vocab_size=N, chunk=20)
    counter.left = 3
    with pytest.raises(Killed):
        feed(counter, STREAM, 1, len(STREAM), saving=saving)
    with monkeypatch.context() as full:

        def no_space(*_):
            raise OSError(28, "No space left on device")

        full.setattr("jexplicit.runs.files.os.fsync", no_space)
        with pytest.raises(ValueError, match=r"process_0_of_1\.npz cannot be written \(No space left on device\): make room"):
            count(STREAM, radius=K, vocab_size=N, chunk=20, saving=saving)
    assert [path.name for path in tmp_path.iterdir()] == ["process_0_of_1.npz"]
    assert int(load_arrays(tmp_path / "process_0_of_1.npz")["done"]) == 1 + 3 * 20
    assert_same(count(STREAM, radius=K, vocab_size=N, chunk=20, saving=saving), COUNTS)


def test_partial_counts_of_other_text_radius_or_processes_are_refused(tmp_path):
    saving = Saving(tmp_path, -1.0)
    count(STREAM, radius=K, vocab_size=N, saving=saving)
    other = np.where(np.arange(len(STREAM)) == 1, 3 - 2 * (STREAM[1] == 3), STREAM).astype(STREAM.dtype)
    for stream, radius in ((other, K), (STREAM, K + 1)):
        with pytest.raises(ValueError, match=r"process_0_of_1\.npz holds partial counts of another text, radius or vocabulary"):
            count(stream, radius=radius, vocab_size=N, saving=saving)
    (tmp_path / "process_0_of_1.npz").rename(tmp_path / "process_0_of_2.npz")
    with pytest.raises(ValueError, match="begun by 2 processes, and these are 1"):
        count(STREAM, radius=K, vocab_size=N, saving=saving)


def test_a_process_may_begin_after_another_of_its_run_has_saved(tmp_path, monkeypatch):
    saving = Saving(tmp_path, -1.0)
    (tmp_path / "process_1_of_2.npz").write_bytes(b"")
    monkeypatch.setattr("jax.process_count", lambda: 2)
    counter = DenseCounter(radius=K, vocab_size=N)
    feed(counter, STREAM, 1, len(STREAM), saving=saving)
    assert_same(counter.tables(), COUNTS)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_partial_counts_are_named(tmp_path, damage):
    count(STREAM, radius=K, vocab_size=N, saving=Saving(tmp_path, -1.0))
    path = tmp_path / "process_0_of_1.npz"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"process_0_of_1\.npz is damaged"):
        count(STREAM, radius=K, vocab_size=N, saving=Saving(tmp_path, -1.0))


def test_a_damaged_shard_is_named_before_it_is_counted(tmp_path):
    stream = shards_of(tmp_path, DOCUMENTS, vocab_size=N)
    path = tmp_path / stream.shards[1].file
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"00001\.tokens is damaged \(CRC-32"):
        count(stream, radius=K, vocab_size=N)


def count_in_a_process(shards, saved, out):
    """Counts with a save after every window."""
    stream = read_shards(shards)
    counts = count(stream, radius=K, vocab_size=N, chunk=100, saving=Saving(saved, 0.0))
    save_arrays(out, {f"C_{k}": C for k, C in enumerate(counts, 1)})


def kill_at_random(tmp_path, kills):
    """Kills the counting at random moments until it has been killed so often; checks every pass that ends."""
    documents = random_documents(seed=5, number=4000, vocab_size=N, longest=9)
    expected = count(stream_of(documents), radius=K, vocab_size=N)
    shards_of(tmp_path / "shards", documents, vocab_size=N, shard_tokens=5000)
    context = multiprocessing.get_context("forkserver")  # a process that has imported JAX, and not started it
    context.set_forkserver_preload(["jexplicit.counts.dense"])
    rng, killed, ended, run = np.random.default_rng(0), 0, 0, 0
    while killed < kills or not ended:
        saved, out = tmp_path / f"saved_{run}", tmp_path / f"out_{run}.npz"
        process = context.Process(target=count_in_a_process, args=(tmp_path / "shards", saved, out))
        process.start()
        if killed < kills:
            path, begun = saved / "process_0_of_1.npz", time.time()
            while process.is_alive() and not (path.exists() and path.stat().st_mtime > begun):  # until it counts
                time.sleep(0.005)
            process.join(rng.uniform(0, 0.5))
            process.kill()
        process.join()
        if process.exitcode == 0:
            ended += 1
            run += 1
            found = load_arrays(out)
            assert_same([found[f"C_{k}"] for k in range(1, K + 1)], expected)
        else:
            assert process.exitcode == -9
            killed += 1
    return ended


def test_a_count_that_is_killed_again_and_again_is_exact(tmp_path):
    assert kill_at_random(tmp_path, 2)


@pytest.mark.slow
def test_200_kills_leave_exact_counts(tmp_path):
    assert kill_at_random(tmp_path, 200)
