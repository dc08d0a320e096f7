"""Corpora and token streams in shards: whole and exact whatever interrupts the writing, and every damage named."""

import errno
import gzip
import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from files import flipped, put
from jexplicit.data.streams import (
    count_tokens,
    read_shards,
    read_sizes,
    tokenize_corpus,
    write_shards,
    write_sizes,
)
from jexplicit.data.text import (
    Corpus,
    iterate_split,
    overlap,
    read_documents,
    sample_documents,
    split_at_end,
    split_documents,
    split_in_three,
    text_corpus,
    text_sizes,
)
from refusals import refused

from jexplicit.data import shards as module
from jexplicit.data import text as corpora
from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer
from jexplicit.runs import files
from launch.shards import main

DOCUMENTS = ["to be", "or not", "", "to be", "that", "is", "the", "question", "whether", "'tis", "nobler", "in the mind", "to"]


class Killed(BaseException):
    """As sudden as SIGKILL: nothing catches it."""


@pytest.fixture
def tokenizer(monkeypatch) -> Tokenizer:
    monkeypatch.setattr("jexplicit.data.tokenizers._ENCODING_BATCH", 2)  # shards of few documents
    return train_tokenizer(DOCUMENTS, kind="char")


def write(folder: Path, tokenizer: Tokenizer, documents=DOCUMENTS, shard_tokens: int = 12):
    return write_shards(folder, iter(documents), tokenizer, shard_tokens=shard_tokens)


# Shards


@pytest.mark.parametrize("shard_tokens", [1, 12, 10**6])
def test_shards_are_the_stream_of_encode_documents(tmp_path, tokenizer, shard_tokens):
    stream, whole = write(tmp_path, tokenizer, shard_tokens=shard_tokens), encode_documents(tokenizer, DOCUMENTS)
    assert len(stream.shards) == {1: 7, 12: 6, 10**6: 1}[shard_tokens]
    assert stream.dtype == whole.dtype == stream[:].dtype
    assert (len(stream), stream.documents, stream.tokenizer) == (len(whole), len(DOCUMENTS), tokenizer.sha256)
    for first, last in itertools.product(
        range(0, len(whole) + 2, 5), range(0, len(whole) + 2, 3)
    ):  # across files, past the end
        np.testing.assert_array_equal(stream[first:last], whole[first:last])
    np.testing.assert_array_equal(stream[-5:], whole[-5:])
    assert count_tokens(stream) == np.count_nonzero(whole)
    stream.verify()
    assert write_shards(tmp_path, iter(()), tokenizer) == stream  # which is not written again
    refused("another tokenizer or vocabulary: choose another folder", write, tmp_path, train_tokenizer(["xyz"], kind="char"))


def test_a_writer_killed_at_any_moment_is_continued_exactly(tmp_path, tokenizer, monkeypatch):
    def contents(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".partial"}

    shards, expected, write_whole = (
        len(write(tmp_path / "whole", tokenizer).shards),
        contents(tmp_path / "whole"),
        files.write_whole,
    )
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
        np.testing.assert_array_equal(write(folder, tokenizer)[:], encode_documents(tokenizer, DOCUMENTS))
        assert contents(folder) == expected


def test_only_the_rest_is_tokenised_after_a_kill_or_on_a_disk_that_was_full(tmp_path, tokenizer, monkeypatch):
    def dying():
        yield from DOCUMENTS[:9]
        raise Killed

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(Killed):
        write_shards(tmp_path, dying(), tokenizer, shard_tokens=12)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused("cannot be written .No space left on device.: make room", write, tmp_path, tokenizer)
    assert not list(tmp_path.glob("*.partial"))
    seen = []
    write_shards(tmp_path, iter(DOCUMENTS), tokenizer, shard_tokens=12, progress=lambda done, _: seen.append(done))
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


# Documents of files, and how they are split and drawn


def lines(path: Path, n: int, word: str = "line") -> str:
    return str(put(path, "".join(f"{word} number {line} of {n}, and {line * line % 97}\n" for line in range(n))))


def test_a_document_is_a_line_unchanged_and_globs_and_folders_are_sorted_and_skip_hidden_files(tmp_path):
    text = "  two  spaces \n\n\t\n\ttab\x0b\u2028\x85 end\r\nmac\rlast é".encode()
    for data in (text, b"\xef\xbb\xbf" + text, gzip.compress(text)):
        found = read_documents([put(tmp_path / "lines", data)])
        assert found == ["  two  spaces ", "\ttab\x0b\u2028\x85 end", "mac", "last é"]
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden", ".git/config", "d[1].md"):
        put(tmp_path / "in" / name, name)
    for names, expected in [
        ("*.txt", "a.txt b.txt"),
        ("", "a.txt b.txt d[1].md sub/c.txt"),
        ("*", "a.txt b.txt d[1].md sub/c.txt"),
        ("**/*.txt", "a.txt b.txt sub/c.txt"),
        ("d[1].md", "d[1].md"),
        ("a.txt *.txt", "a.txt b.txt"),  # a file named twice is read once
    ]:
        assert read_documents([f"{tmp_path}/in/{name}" for name in names.split(" ")]) == expected.split()


def test_a_split_is_complete_disjoint_and_interleaved_and_lazy_or_not():
    for n, every in itertools.product((2, 3, 9, 10, 11, 101, 1234), (2, 10)):
        train, dev = split_documents(range(n), every=every)
        assert train and dev and sorted(train + dev) == list(range(n))
        assert train == sorted(train) and dev == sorted(dev) and (n == 2 or dev[0] < n - 1)
        assert n < 100 or abs(len(dev) - n / every) <= 10
        assert tuple(list(iterate_split(range(n), dev=dev)) for dev in (False, True)) == split_documents(range(n))
    assert split_documents(range(300), every=10, block=10)[1] == [*range(50, 60), *range(150, 160), *range(250, 260)]
    # the last characters are dev, and a document across the boundary is in both
    parts = [list(split_at_end(["to be", "or not"], dev=dev, share=0.3)) for dev in (False, True)]
    assert parts == [["to be", "or"], [" not"]]
    documents = [str(n) for n in range(103)]
    three = split_in_three(documents, seed=1)
    assert [len(part) for part in three] == [83, 10, 10] and sorted(sum(three, [])) == sorted(documents)
    assert split_in_three(documents, seed=1) == three != split_in_three(documents, seed=2)
    assert [len(part) for part in split_in_three(documents[:3])] == [1, 1, 1]
    refused("3 or more lines", split_in_three, documents[:2])


def test_a_sample_is_in_order_and_reproducible_and_every_document_as_likely():
    numbers = list(map(str, range(1000)))
    sample, in_all = sample_documents(numbers, 50, seed=3)
    assert in_all == 1000 and sample == sorted(set(sample), key=int) and len(sample) == 50
    assert sample == sample_documents(iter(numbers), 50, seed=3)[0] != sample_documents(numbers, 50, seed=4)[0]
    assert sample_documents(numbers[:50], 50) == (numbers[:50], 50)
    drawn = np.bincount([int(n) for seed in range(500) for n in sample_documents(numbers[:20], 5, seed=seed)[0]])
    # 20 binomials at once: five standard deviations are passed less than once in 80,000 times
    assert np.abs(drawn - 500 / 4).max() < 5 * np.sqrt(500 / 4 * 3 / 4)


def test_a_text_corpus_is_read_again_by_every_loop_and_its_hash_is_of_documents_and_their_boundaries(tmp_path):
    a, b = lines(tmp_path / "a.txt", 321), lines(tmp_path / "b.txt", 12, "dev")
    for dev, expected in (((), split_documents(read_documents(a))), ((b,), (read_documents(a), read_documents(b)))):
        corpus = text_corpus([a], dev)
        for _ in range(2):
            assert (list(corpus.train), list(corpus.dev)) == expected
        in_memory, few = corpus.in_memory(), corpus.limit(30)
        assert (corpus.name, in_memory.train, in_memory.dev) == (a, *expected)
        assert (list(few.train), list(few.dev)) == (in_memory.train[:30], in_memory.dev[:3])
        assert corpus.sha256 == in_memory.sha256 == Corpus("another", *expected).sha256
        assert corpus.identity == few.identity != Corpus("another", *expected).identity
    (tmp_path / "link.txt").symlink_to(a)
    refused("a.txt is in train and in dev: remove it from one", text_corpus, [a], [f"{tmp_path}/link.txt"])
    one = text_corpus([put(tmp_path / "c.txt", "four")])
    refused(r"1 document\(s\) cannot be split .*2 or more documents.*dev text", one.in_memory)
    cuts = [(["a", "b"], ["c"]), (["ab"], ["c"]), (["a"], ["b", "c"]), (["a", "b", "c"], []), (["a\nb"], ["c"])]
    assert len({Corpus("x", train, dev).sha256 for train, dev in cuts}) == len(cuts)


# Documentation as a corpus


SOURCE = (
    "'m'\nif x:\n def a(): 'a'\nelse:\n class b:\n  'b'\n  async def c(): 'c'\ntry:\n def d(): 'd'\nexcept E:\n def e(): 'e'\n"
)
SOURCE += (
    "else:\n def f(): 'f'\nfinally:\n def g(): 'g'\nmatch x:\n case 1:\n  def h(): 'h'\nwith x:\n for y in x:\n  def i(): 'i'\n"
)


def test_docstrings_are_those_of_blocks_of_every_kind_in_their_order(tmp_path):
    assert corpora._file_docstrings(Path(put(tmp_path / "module.py", SOURCE))) == list("mabcdefghi")
    latin = put(tmp_path / "latin.py", b'# -*- coding: latin-1 -*-\nif 1:\n    def f():\n        "caf\xe9"\n')
    assert corpora._file_docstrings(Path(latin)) == ["café"]


# Sizes and overlap

DEV = ["to be", " or  not to\u00a0be ", "naïve 漢字", "to be", "that is"]
TRAIN = ["to  be", "Naïve 漢字", "that is the question"]


def test_sizes_and_overlap_are_those_of_a_loop_and_are_kept(tmp_path):
    loop = [sum(parts) for parts in zip(*((1, len(d.encode()), len(d), len(re.split(r"\s+", d))) for d in DEV), strict=True)]
    assert list(text_sizes(DEV)) == loop and list(text_sizes([])) == [0, 0, 0, 0]
    twins = [d for d in DEV if any(d.split() == t.split() for t in TRAIN)]
    found, seen = overlap(iter(DEV), iter(TRAIN)), []
    assert found == (len(twins) / len(DEV), text_sizes(twins).bytes / text_sizes(DEV).bytes) and found.documents == 0.4
    assert overlap(DEV, DEV) == (1, 1) and overlap([], TRAIN) == (0, 0)
    text = tokenize_corpus(Corpus("tiny", TRAIN, DEV), "char", progress=lambda *now: seen.append(now))
    assert (text.dev_sizes, text.dev_in_train, seen) == (text_sizes(DEV), found, [(3, 8), (8, 8)])
    for stream, documents in ((text.train, TRAIN), (text.dev, DEV)):
        np.testing.assert_array_equal(stream, encode_documents(text.tokenizer, documents))
    assert read_sizes(tmp_path) is None
    write_sizes(tmp_path, text_sizes(DEV))
    assert read_sizes(tmp_path) == text_sizes(DEV)
    (tmp_path / "sizes.json").write_text("{}")
    refused("damaged", read_sizes, tmp_path)


# The command


def test_the_command_writes_streams_of_a_tokenizer_of_a_sample_and_refuses_other_flags_or_text(tmp_path, capsys):
    a, b, out = lines(tmp_path / "a.txt", 300), lines(tmp_path / "b.txt", 12, "dev"), tmp_path / "out"
    command = ["--out", str(out), "--train", a, "--dev", b, "--tokenizer", "char", "--tokenizer-documents", "5", "--seed", "1"]
    written = [main(command) or (out / "train/00000.tokens").stat().st_mtime_ns for _ in range(2)]
    assert written[0] == written[1] > 2  # the second time, nothing is written
    tokenizer = Tokenizer.load(out / "tokenizer.model")
    assert tokenizer == train_tokenizer(sample_documents(read_documents([a]), 5, seed=1)[0], kind="char")
    for part, file in (("train", a), ("dev", b)):
        np.testing.assert_array_equal(read_shards(out / part)[:], encode_documents(tokenizer, read_documents([file])))
        assert read_shards(out / part).tokenizer == tokenizer.sha256
    assert "300 documents" in capsys.readouterr().err

    def refused_command(said, *more):
        assert main([*command, *more]) == 2
        assert said in " ".join(capsys.readouterr().err.split())

    refused_command("was written with tokenizer_documents = 5 (now 7): give the same flags", "--tokenizer-documents", "7")
    put(tmp_path / "a.txt", "another\ntext\n")
    refused_command("was written with source = ")
    (out / "config.json").write_text("{")
    refused_command("config.json is damaged or of another command")
