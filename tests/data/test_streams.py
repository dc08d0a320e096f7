"""Token streams: contexts, documents held out, and shards, which are whole whatever interrupts the writing."""

import errno
import itertools
import json
import os
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from files import flipped, put
from reference import PAD, random_documents, stream_of, windows
from refusals import refused
from tables import refuse

from jexplicit.data import streams as module
from jexplicit.data.streams import contexts, cut_documents, distinct_contexts, hold_out, read_shards, write_shards
from jexplicit.data.text import read_documents, sample_documents
from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer
from jexplicit.runs import files
from launch.shards import main

DOCUMENTS = random_documents(seed=0, number=40, vocab_size=9, longest=6)  # most are shorter than K = 7


# Contexts


def test_contexts_equal_the_loop_over_documents_on_the_host_and_on_devices():
    for K, eos, dtype in itertools.product((1, 3, 7), (False, True), (np.uint8, np.int32)):
        stream = stream_of(DOCUMENTS, dtype)
        for found, expected in zip(contexts(stream, K, eos=eos), windows(DOCUMENTS, K, eos=eos), strict=True):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, expected)
        x = np.pad(stream, (K - 1, 0))
        for host, device in zip(module.context_columns(x, K), module.context_columns(jax.device_put(x), K), strict=True):
            assert host.dtype == device.dtype == dtype
            np.testing.assert_array_equal(host, np.asarray(device))


def test_the_largest_id_of_a_type_does_not_wrap():
    for dtype in (np.uint8, np.uint16):
        last = int(np.iinfo(dtype).max)  # N = 256 and 65,536
        X, Y = contexts(np.array([0, last, last - 1, last, last - 1, last, 0], dtype), 2)
        assert X.tolist() == [[0, 0], [last, 0], [last - 1, last], [last, last - 1], [last - 1, last]]
        assert Y.tolist() == [last, last - 1, last, last - 1, last]
        distinct, n = distinct_contexts(X, ordered=False)
        assert (distinct.tolist(), n.tolist()) == ([[0, 0], [0, last], [last - 1, last]], [1, 1, 3])
        rest, held = hold_out(np.array([0, 1, 0, last, 0, last, 0, 4, 0], dtype), positions=2, most=0.25, blocks=1)
        assert (rest.tolist(), held.tolist()) == ([0, 1, 0, last, 0, 4, 0], [0, last, 0])


def test_distinct_contexts_stand_as_often_as_their_rows_with_or_without_weights():
    X, _ = contexts(stream_of(DOCUMENTS), 3)
    times = np.arange(len(X)) % 4
    for ordered in (True, False):
        rows = np.repeat(X if ordered else np.sort(X, axis=1), times, axis=0)
        weighed, n = distinct_contexts(X, times, ordered=ordered)
        for found in ((weighed[n > 0], n[n > 0]), distinct_contexts(rows)):
            for one, of_numpy in zip(found, np.unique(rows, axis=0, return_counts=True), strict=True):
                np.testing.assert_array_equal(one, of_numpy)


# Documents held out


def documents_of(stream):
    pads = np.flatnonzero(stream == PAD)
    return [stream[a + 1 : b].tolist() for a, b in itertools.pairwise(pads)]


def numbered(lengths):
    """A stream of documents of given lengths (with their pad), each of its own number repeated."""
    return np.concatenate([[PAD], *([d + 1] * (length - 1) + [PAD] for d, length in enumerate(lengths))])


def held_numbers(lengths, **options):
    return [document[0] for document in documents_of(hold_out(numbered(lengths), **options)[1])]


STREAM = numbered([2 + n for n in np.random.default_rng(9).integers(1, 20, 800)])


def test_documents_are_held_out_whole_and_in_their_order():
    for options in ({"positions": 500}, {"positions": 10**6, "most": 0.3, "blocks": 7}, {"positions": 1}):
        rest, held = hold_out(STREAM, **options)
        assert rest.dtype == held.dtype == STREAM.dtype
        kept, out = ([document[0] for document in documents_of(part)] for part in (rest, held))
        assert out and kept == sorted(kept) and out == sorted(out) and sorted(kept + out) == list(range(1, 801))
        assert documents_of(rest) + documents_of(held) == [documents_of(STREAM)[d - 1] for d in kept + out]


def test_the_share_held_out_is_about_as_asked_in_blocks_spread_evenly():
    for blocks, share in itertools.product((1, 10, 100), (0.02, 0.5)):
        asked = round(share * len(STREAM))
        for options in ({"positions": asked, "most": 1.0}, {"positions": len(STREAM), "most": share}):
            _, held = hold_out(STREAM, **options, blocks=blocks)
            # at the end of a block half a document too much or too little, and half a block where the stream ends before one
            assert abs(len(held) - asked) <= 21 + asked / blocks / 2
    for blocks in (1, 4, 10):
        out = np.array(held_numbers([10] * 1000, positions=1000, blocks=blocks)) - 1  # 100 of 1000 documents
        firsts, lasts = (out[np.flatnonzero(np.diff(out, **end) > 1)] for end in ({"prepend": -2}, {"append": 2000}))
        np.testing.assert_allclose(lasts - firsts + 1, 100 / blocks, atol=1)  # to a document
        # each is in the middle of its part of the stream, to a document for every block before it
        np.testing.assert_allclose((firsts + lasts) / 2, (np.arange(blocks) + 0.5) * 1000 / blocks, atol=blocks)


def test_few_and_long_documents_and_a_single_one():
    for lengths in ([900, *[10] * 10], [*[10] * 5, 900, *[10] * 5]):  # a tenth is asked for: the long document stays
        out = held_numbers(lengths, positions=100)
        assert lengths.index(900) + 1 not in out and 1 <= len(out) <= 10
    assert [held_numbers(lengths, positions=100) for lengths in ([2, 998], [998, 2])] == [[1], [2]]
    assert held_numbers([330, 2, 400, 268], positions=100) == [4]  # nearest to 100 of those that are not tiny
    for most in (0.01, 0.5, 1.0):  # something is left, and something held out
        assert list(map(len, hold_out(numbered([5, 5]), positions=10, most=most))) == [6, 6]
    rest, held = hold_out(np.array([0, *range(1, 21), 0]), positions=5, most=0.25)  # of a single one, the last part
    assert (rest.tolist(), held.tolist()) == ([0, *range(1, 16), 0], [0, *range(16, 21), 0])
    pieces = documents_of(cut_documents(STREAM, 4))
    assert max(map(len, pieces)) <= 4 and sum(pieces, []) == sum(documents_of(STREAM), [])
    assert cut_documents(np.array([0, 1, 2, 3, 4, 5, 0, 6, 0]), 3).tolist() == [0, 1, 2, 0, 3, 4, 5, 0, 6, 0]


# Shards

TEXTS = ["to be", "or not", "", "to be", "that", "is", "the", "question", "whether", "'tis", "nobler", "in the mind", "to"]


class Killed(BaseException):
    """As sudden as SIGKILL: nothing catches it."""


@pytest.fixture
def tokenizer(monkeypatch) -> Tokenizer:
    monkeypatch.setattr("jexplicit.data.tokenizers._encoding_batch", 2)  # shards of few documents
    return train_tokenizer(TEXTS, kind="char")


def write(folder: Path, tokenizer: Tokenizer, documents=TEXTS, shard_tokens: int = 12):
    return write_shards(folder, iter(documents), tokenizer, shard_tokens=shard_tokens)


def test_shards_are_the_stream_of_encode_documents(tmp_path, tokenizer):
    whole = encode_documents(tokenizer, TEXTS)
    for shard_tokens, shards in {1: 7, 12: 6, 10**6: 1}.items():
        folder = tmp_path / str(shard_tokens)
        stream = write(folder, tokenizer, shard_tokens=shard_tokens)
        assert len(stream.shards) == shards and stream.dtype == whole.dtype == stream[:].dtype
        assert (len(stream), stream.documents, stream.tokenizer) == (len(whole), len(TEXTS), tokenizer.sha256)
        for first, last in itertools.product(range(0, len(whole) + 2, 5), range(0, len(whole) + 2, 3)):  # past the end, too
            np.testing.assert_array_equal(stream[first:last], whole[first:last])
        np.testing.assert_array_equal(stream[-5:], whole[-5:])
        stream.verify()
        assert write_shards(folder, iter(()), tokenizer) == stream  # which is not written again
        refused("another tokenizer or vocabulary: choose another", write, folder, train_tokenizer(["xyz"], kind="char"))


def test_a_writer_killed_at_any_moment_is_continued_exactly(tmp_path, tokenizer, monkeypatch):
    def contents(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".partial"}

    shards = len(write(tmp_path / "whole", tokenizer).shards)
    expected, write_whole = contents(tmp_path / "whole"), files.write_whole
    fatals = (0, 1, 2, 5, 2 * shards - 1, 2 * shards)  # an index with each shard, and the last index
    for moment, fatal in itertools.product(("before", "middle", "after"), fatals):
        folder, writes = tmp_path / f"{moment}_{fatal}", iter(range(100))

        def write_or_die(path, write, moment=moment, fatal=fatal, writes=writes):
            dies = next(writes) == fatal
            if dies and moment == "middle":
                put(path.with_name(path.name + ".partial"), b"\xff\xff\xff")
            if not dies or moment == "after":
                write_whole(path, write)
            if dies:
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            for place in ("jexplicit.data.streams", "jexplicit.runs.files"):
                patch.setattr(f"{place}.write_whole", write_or_die)
            write(folder, tokenizer)
        if fatal < 2 * shards or moment != "after":  # the last index was not written
            refused(r"no shards|not all written", read_shards, folder)
        np.testing.assert_array_equal(write(folder, tokenizer)[:], encode_documents(tokenizer, TEXTS))
        assert contents(folder) == expected


def test_only_the_rest_is_tokenised_after_a_kill_or_on_a_disk_that_was_full(tmp_path, tokenizer, monkeypatch):
    def dying():
        yield from TEXTS[:9]
        raise Killed

    with pytest.raises(Killed):
        write_shards(tmp_path, dying(), tokenizer, shard_tokens=12)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        refused("cannot be written .No space left on device.: make room", write, tmp_path, tokenizer)
    assert not list(tmp_path.glob("*.partial"))
    seen = []
    write_shards(tmp_path, iter(TEXTS), tokenizer, shard_tokens=12, progress=lambda done, _: seen.append(done))
    assert seen == [10, 12, 13]  # 8 were in shards


def test_damaged_shards_and_indices_are_named(tmp_path, tokenizer):
    stream, index = write(tmp_path, tokenizer), tmp_path / "index.json"
    path = tmp_path / stream.shards[2].file
    data, written = path.read_bytes(), index.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2))
    refused(rf"{path.name} is damaged \(CRC-32", stream.verify)
    stream.verify(0, 5)  # elsewhere
    path.write_bytes(b"")
    refused(rf"{path.name}: 0 bytes, and the index says {len(data)} bytes", write, tmp_path, tokenizer)
    refused(rf"{path.name} ends after 0 of \d+ tokens", lambda: stream[:])  # it was open
    path.unlink()
    refused(rf"{path.name}: missing", write, tmp_path, tokenizer)
    refused(rf"{path.name} cannot be read", lambda: stream[:])
    path.write_bytes(data)
    for place in range(0, len(written), 29):
        index.write_bytes(flipped(written, place))
        try:
            assert read_shards(tmp_path) == stream  # a space became no less blank
        except ValueError as error:
            assert "index" in str(error) and "is damaged" in str(error)
    known = {name: value for name, value in json.loads(written).items() if name != "crc32"}
    shard = known["shards"][0]
    for change, said in (
        *(({"vocab_size": value}, "is damaged or of ") for value in ("x", None, 0, 1.5)),
        *(({"shards": value}, "is damaged or of ") for value in (None, [3], [{}], [{**shard, "tokens": -1}])),
        *(({"shards": [{**shard, "file": f}]}, "names the file .*, which is not in its folder") for f in ("../x", None)),
    ):
        hostile = {**known, **change}  # with a checksum of its own
        index.write_text(json.dumps({**hostile, "crc32": module._crc32_of(hostile)}))
        refused(said, read_shards, tmp_path)
    index.unlink()
    refused("holds no shards: write them with", read_shards, tmp_path)


def test_calls_that_are_refused(tmp_path, tokenizer):
    (tmp_path / "sizes.json").write_text("{}")
    refuse(
        [
            *(("encode_documents", lambda x=x: contexts(np.array(x), 2)) for x in ([], [1, 2, 0], [0, 1, 2], [0.0, 0.0, 0.0])),
            ("context K = 0.*use K >= 1", lambda: contexts(STREAM, 0)),
            ("all must be above 0", lambda: hold_out(np.array([0, 1, 0]), positions=5, most=0.0)),
            ("a text of 1 token", lambda: hold_out(np.array([0, 1, 0]), positions=1)),
            ("no token for", lambda: write(tmp_path, tokenizer, ["", ""])),
            ("every 2-th token", lambda: write(tmp_path, tokenizer, ["to be"])[::2]),
            ("damaged", lambda: module.read_sizes(tmp_path)),
        ]
    )


def test_the_command_writes_streams_of_a_tokenizer_of_a_sample_and_refuses_other_flags_or_text(tmp_path, capsys):
    a, b = (str(put(tmp_path / f"{name}.txt", "".join(f"{name} {n}\n" for n in range(300)))) for name in "ab")
    out = tmp_path / "out"
    command = ["--out", str(out), "--train", a, "--dev", b, "--tokenizer", "char", "--tokenizer-documents", "5", "--seed", "1"]
    written = [main(command) or (out / "train/00000.tokens").stat().st_mtime_ns for _ in range(2)]
    assert written[0] == written[1] > 2  # the second time, nothing is written
    tokenizer = Tokenizer.load(out / "tokenizer.model")
    assert tokenizer == train_tokenizer(sample_documents(read_documents([a]), 5, seed=1)[0], kind="char")
    for part, file in (("train", a), ("dev", b)):
        np.testing.assert_array_equal(read_shards(out / part)[:], encode_documents(tokenizer, read_documents([file])))
        assert read_shards(out / part).tokenizer == tokenizer.sha256
    assert "300 documents" in capsys.readouterr().err
    for file, text, flags, said in (
        ("note", "", ["--tokenizer-documents", "7"], "tokenizer_documents = 5 (now 7): give the same flags"),
        ("a.txt", "another\ntext\n", [], "was written with source = "),
        ("out/config.json", "{", [], "config.json is damaged or of another command"),
    ):
        put(tmp_path / file, text)
        assert main([*command, *flags]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
