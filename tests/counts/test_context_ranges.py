"""Contexts counted a range of nearest ids at a time: exactly those counted at once. Integers, so nothing is approximate."""

from pathlib import Path

import numpy as np
import pytest
from files import shards_of
from reference import random_documents, stream_of, windows

from jexplicit.counts import context_ranges
from jexplicit.counts.context_ranges import Disk, count_ranges, merge_nearest, read_levels
from jexplicit.counts.contexts import count_contexts

N, K = 23, 4
DOCUMENTS = random_documents(seed=5, number=150, vocab_size=N, longest=15)
STREAM = stream_of(DOCUMENTS, np.uint8)
OFFSETS = [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 3), (2, 4), (3, 1, 2)]
PLENTY = 1 << 20


def positions(memory_of: int) -> int:
    """Bytes of so many positions."""
    return memory_of * context_ranges._bytes_per_position


def assert_same_levels(files, offsets, *, documents=DOCUMENTS, n=N, eos=False):
    """The stretches of all ranges are, one after the other, what is counted at once; contexts of a single id are merged."""
    X, Y = windows(documents, K, eos=eos)
    expected = count_contexts([X[:, offset - 1] for offset in offsets], Y, (n,) * len(offsets), n)
    ranges = [read_levels(path) for path in files]
    one = merge_nearest([(first, levels[0]) for first, levels in ranges], n)
    for name, mine, theirs in zip(one._fields, one, expected[0], strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    for level, whole in enumerate(expected[1:], start=1):
        stretches = [levels[level] for _, levels in ranges]
        for name in ("totals", "outputs", "counts"):
            np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in stretches]), getattr(whole, name))
        pairs = np.concatenate([np.diff(part.start) for part in stretches])
        np.testing.assert_array_equal(pairs, np.diff(whole.start))
        before = [first for first, _ in ranges]
        if level > 1:
            before = np.cumsum([0, *(len(levels[level - 1].contexts) for _, levels in ranges)])
        keys = np.concatenate([part.contexts + b * n for part, b in zip(stretches, before, strict=False)])
        np.testing.assert_array_equal(keys, whole.contexts)


EVERY = [(offsets, most, eos) for offsets in OFFSETS for most in (130, 500, 10**6) for eos in (False, True)]


@pytest.mark.parametrize(
    "offsets, most, eos", [case if n % 5 == 0 else pytest.param(*case, marks=pytest.mark.slow) for n, case in enumerate(EVERY)]
)
def test_ranges_of_any_size_are_stretches_of_all_contexts(offsets, most, eos, tmp_path):
    """The most frequent ids have more than 130 positions, and a document's first pair, `<pad>` twice, too."""
    disk = Disk(tmp_path, positions(most))
    files = count_ranges(STREAM, offsets=offsets, vocab_size=N, disk=disk, eos=eos)
    assert len(files) == 1 if most == 10**6 else len(files) >= 3
    assert_same_levels(files, offsets, eos=eos)


@pytest.mark.parametrize("window", [7, *(pytest.param(w, marks=pytest.mark.slow) for w in (1, 100))])
def test_windows_change_nothing_nor_do_shards(window, tmp_path, monkeypatch):
    monkeypatch.setattr(context_ranges, "_window", window)
    documents = DOCUMENTS[:40]
    stream = shards_of(tmp_path / "shards", documents, vocab_size=N)
    files = count_ranges(stream, offsets=(1, 2, 3), vocab_size=N, disk=Disk(tmp_path / "contexts", positions(80)))
    assert len(files) >= 3
    assert_same_levels(files, (1, 2, 3), documents=documents)


def test_positions_that_do_not_fit_are_reduced_to_the_different_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(context_ranges, "_window", 16)
    documents = [[1, 2, 3, 1, 2]] * 300
    disk = Disk(tmp_path, positions(30))  # 1500 positions, five of them different
    files = count_ranges(stream_of(documents), offsets=(1, 2, 3, 4), vocab_size=N, disk=disk)
    assert_same_levels(files, (1, 2, 3, 4), documents=documents)


@pytest.mark.parametrize("rename, dtype, n", [(lambda j: j * 5000 + 1, np.uint32, 2**17), (lambda j: 233 + j, np.uint8, 256)])
def test_keys_that_pass_64_bits_and_ids_at_the_largest_value_of_their_type(rename, dtype, n, tmp_path):
    documents = [[rename(j) for j in document] for document in DOCUMENTS]
    files = count_ranges(stream_of(documents, dtype), offsets=(1, 2, 3, 4), vocab_size=n, disk=Disk(tmp_path, positions(300)))
    assert len(files) > 1
    assert_same_levels(files, (1, 2, 3, 4), documents=documents, n=n)


def test_a_killed_count_continues_from_the_ranges_on_disk(tmp_path, monkeypatch):
    count, saved = {"offsets": (1, 2, 3), "vocab_size": N, "disk": Disk(tmp_path, positions(250))}, []

    def save_and_be_killed(path, arrays):
        if len(saved) == 2:
            path.with_name(path.name + ".partial").write_bytes(b"half")
            raise KeyboardInterrupt
        save_arrays(path, arrays)
        saved.append(path.name)

    save_arrays = context_ranges.save_arrays
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(context_ranges, "save_arrays", save_and_be_killed)
        count_ranges(STREAM, **count)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert {path.name for path in before} == set(saved)
    files = count_ranges(STREAM, **count)
    assert_same_levels(files, (1, 2, 3))
    assert all(path in files and path.stat().st_mtime_ns == time for path, time in before.items())  # as they were
    more = count_ranges(STREAM, **{**count, "disk": Disk(tmp_path, PLENTY)})  # with another memory they are taken, too
    assert more == files
    for path in files[2:]:
        path.unlink()
    fewer = count_ranges(STREAM, **{**count, "disk": Disk(tmp_path, PLENTY)})
    assert fewer[:2] == files[:2] and len(fewer) == 3
    assert_same_levels(fewer, (1, 2, 3))


M = sum(map(len, DOCUMENTS))
OTHER = np.where(np.arange(len(STREAM)) == 3, STREAM % (N - 1) + 1, STREAM).astype(STREAM.dtype)
REFUSALS = [  # stream, options, message
    *((STREAM, {"offsets": offsets}, "give different numbers of tokens back") for offsets in ((), (1, 1), (0, 1))),
    (STREAM, {"disk": Disk(Path("file/contexts"), PLENTY)}, "file/contexts cannot be written .*choose another folder"),
    (STREAM, {"disk": Disk(Path("."), 10)}, f"memory of 10 bytes: contexts of {M} positions need at least [0-9]+"),
    (
        STREAM,
        {"disk": Disk(Path("."), positions(10)), "offsets": (1, 2, 3, 4)},
        "different contexts after token 0 do not fit; allow twice as much",
    ),
    (STREAM[1:], {}, "encode_documents"),
    (np.array([0, 0, 0]), {}, "no position"),
    (STREAM, {"vocab_size": N - 1}, f"token id {N - 1}"),
]


@pytest.mark.parametrize("stream, options, said", REFUSALS)
def test_refusals(stream, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=said):
        count_ranges(stream, **{"offsets": (1, 2), "vocab_size": N, "disk": Disk(Path("."), PLENTY), **options})
    if "memory of 10 bytes" in said:  # before anything is counted
        assert not list(tmp_path.glob("*.npz"))


def test_ranges_of_another_text_and_damaged_ones_are_refused(tmp_path):
    count = {"offsets": (1, 2), "vocab_size": N, "disk": Disk(tmp_path, PLENTY)}
    (file,) = count_ranges(STREAM, **count)
    others = [(STREAM, {"offsets": (1, 3)}), (STREAM, {"vocab_size": N + 1}), (STREAM, {"eos": True})]
    for stream, changed in ((OTHER, {}), *others):
        with pytest.raises(ValueError, match=f"{tmp_path} holds contexts of another text, or other contexts: delete it"):
            count_ranges(stream, **{**count, **changed})
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"\.npz is damaged .*delete it and run the command again"):
        read_levels(file)


def test_progress_counts_positions(tmp_path):
    seen = []
    disk = Disk(tmp_path, positions(200))
    count_ranges(STREAM, offsets=(1, 2), vocab_size=N, disk=disk, progress=lambda *now: seen.append(now))
    assert len(seen) > 2 and seen[-1] == (M, M) and seen == sorted(seen)
