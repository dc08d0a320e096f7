"""A pass over a stream: windows, saves, kills. Counts are integers: every comparison is exact."""

import multiprocessing
import time

import numpy as np
import pytest
from files import shards_of
from reference import cooccurrences, random_documents, stream_of

from jexplicit.counts.pairs import DenseCounter, count
from jexplicit.counts.tables import Saving, feed, windows
from jexplicit.data.contexts import with_leading_pads
from jexplicit.data.shards import read_shards
from jexplicit.runs.files import load_arrays, save_arrays

N, K = 7, 2
DOCUMENTS = random_documents(seed=3, number=40, vocab_size=N, longest=9)
STREAM = stream_of(DOCUMENTS)
COUNTS = cooccurrences(DOCUMENTS, K, N)


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


def fed(saving, left=10**6):
    """The counts of a counter that dies after so many windows, or None."""
    counter = Fragile(radius=K, vocab_size=N, chunk=20)
    counter.left = left
    try:
        feed(counter, STREAM, 1, len(STREAM), saving=saving)
    except Killed:
        return None
    return counter.tables()


@pytest.mark.parametrize("seconds", [-1.0, 1e9])  # a save after every window, or none
@pytest.mark.parametrize("left", [0, 3, 6, 9])
def test_a_pass_killed_after_any_window_goes_on_exactly(left, seconds, tmp_path):
    saving = Saving(tmp_path, seconds)
    for kill in (1, 2):
        if kill * left * 20 < len(STREAM) - 20:
            assert fed(saving, left) is None
    assert_same(fed(saving), COUNTS)
    if seconds < 0:
        assert_same(fed(saving, 0), COUNTS)  # all is counted: no window is left


def test_partial_counts_of_another_pass_and_damaged_ones_are_refused(tmp_path, monkeypatch):
    saving, path = Saving(tmp_path, -1.0), tmp_path / "process_0_of_1.npz"

    def refused(said, stream=STREAM, radius=K):
        with pytest.raises(ValueError, match=said):
            count(stream, radius=radius, vocab_size=N, saving=saving)

    count(STREAM, radius=K, vocab_size=N, saving=saving)
    other = np.where(np.arange(len(STREAM)) == 1, 3 - 2 * (STREAM[1] == 3), STREAM).astype(STREAM.dtype)
    refused(r"process_0_of_1\.npz holds partial counts of another text, radius or vocabulary", stream=other)
    refused(r"process_0_of_1\.npz holds partial counts of another text, radius or vocabulary", radius=K + 1)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], flipped(data, len(data) // 2)):
        path.write_bytes(damaged)
        refused(r"process_0_of_1\.npz is damaged")
    path.rename(tmp_path / "process_1_of_2.npz")
    refused("begun by 2 processes, and these are 1")
    monkeypatch.setattr("jax.process_count", lambda: 2)  # a process may begin after another of its run has saved
    assert_same(fed(saving), COUNTS)


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_damaged_shard_is_named_before_it_is_counted(tmp_path):
    stream = shards_of(tmp_path, DOCUMENTS, vocab_size=N)
    path = tmp_path / stream.shards[1].file
    path.write_bytes(flipped(path.read_bytes(), 3))
    with pytest.raises(ValueError, match=r"00001\.tokens is damaged \(CRC-32"):
        count(stream, radius=K, vocab_size=N)


def count_in_a_process(shards, saved, out):
    """Counts with a save after every window."""
    stream = read_shards(shards)
    counts = count(stream, radius=K, vocab_size=N, chunk=100, saving=Saving(saved, 0.0))
    save_arrays(out, {f"C_{k}": C for k, C in enumerate(counts, 1)})


@pytest.mark.slow
def test_kills_at_random_moments_leave_exact_counts(tmp_path, kills=80):
    documents = random_documents(seed=5, number=4000, vocab_size=N, longest=9)
    expected = count(stream_of(documents), radius=K, vocab_size=N)
    shards_of(tmp_path / "shards", documents, vocab_size=N, shard_tokens=5000)
    context = multiprocessing.get_context("forkserver")  # a process that has imported JAX, and not started it
    context.set_forkserver_preload(["jexplicit.counts.pairs"])
    rng, killed, ended = np.random.default_rng(0), 0, 0
    while killed < kills or not ended:
        saved, out = tmp_path / f"saved_{ended}", tmp_path / f"out_{ended}.npz"
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
            found = load_arrays(out)
            assert_same([found[f"C_{k}"] for k in range(1, K + 1)], expected)
        else:
            assert process.exitcode == -9
            killed += 1
