"""Token streams in shards: whole and exact whatever interrupts the writing, and every damage named."""

import contextlib
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from jexplicit.data import shards as module
from jexplicit.data.corpora import Corpus, iterate_split, read_documents, sample_documents, split_documents, text_corpus
from jexplicit.data.shards import cached_streams, count_tokens, read_shards, write_shards, write_stream
from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer
from jexplicit.runs import files
from launch.shards import main

DOCUMENTS = ["to be", "or not", "", "to be", "that", "is", "the", "question", "whether", "'tis", "nobler", "in the mind", "to"]


class Killed(BaseException):
    """As sudden as SIGKILL: nothing catches it."""


@pytest.fixture
def tokenizer() -> Tokenizer:
    return train_tokenizer(DOCUMENTS, kind="char")


@pytest.fixture
def small(monkeypatch):
    """Shards of few documents."""
    monkeypatch.setattr("jexplicit.data.tokenizers._ENCODING_BATCH", 2)


def write(folder: Path, tokenizer: Tokenizer, documents=DOCUMENTS, shard_tokens: int = 12):
    return write_shards(folder, iter(documents), tokenizer, shard_tokens=shard_tokens)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# The stream


@pytest.mark.parametrize("shard_tokens", [1, 12, 30, 10**6])
def test_shards_are_the_stream_of_encode_documents(tmp_path, small, tokenizer, shard_tokens):
    stream, whole = write(tmp_path, tokenizer, shard_tokens=shard_tokens), encode_documents(tokenizer, DOCUMENTS)
    assert len(stream.shards) == {1: 7, 12: 6, 30: 3, 10**6: 1}[shard_tokens]
    assert stream.dtype == whole.dtype == stream[:].dtype
    assert (len(stream), stream.documents, stream.tokenizer) == (len(whole), len(DOCUMENTS), tokenizer.sha256)
    for first in range(0, len(whole) + 2, 3):  # across files, and past the end
        for last in range(len(whole) + 2):
            np.testing.assert_array_equal(stream[first:last], whole[first:last])
    np.testing.assert_array_equal(stream[-5:], whole[-5:])
    assert count_tokens(stream) == np.count_nonzero(whole)
    stream.verify()
    assert all((tmp_path / shard.file).read_bytes()[-1] == 0 for shard in stream.shards)  # each ends a document


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(256, 1), (257, 2), (65536, 2), (65537, 4)])
def test_tokens_take_the_smallest_type(tmp_path, vocab_size, itemsize):
    stream = write_stream(tmp_path, lambda done: [(np.array([vocab_size - 1, 0]), 1)], vocab_size=vocab_size)
    assert stream[:].tolist() == [0, vocab_size - 1, 0]
    assert (tmp_path / "00000.tokens").stat().st_size == 3 * itemsize


def test_a_whole_stream_is_not_written_again(tmp_path, small, tokenizer):
    stream = write(tmp_path, tokenizer)
    assert write_shards(tmp_path, iter(()), tokenizer) == stream
    with pytest.raises(ValueError, match="another tokenizer or vocabulary: choose another folder"):
        write(tmp_path, train_tokenizer(["xyz"], kind="char"))


# Kills


@contextlib.contextmanager
def killed_at(fatal: int, monkeypatch, moment: str = "before"):
    """The process dies at this write of a file: before it, in the middle of it, or after it."""
    writes, write_whole = iter(range(100)), files.write_whole

    def write_or_die(path, write):
        dies = next(writes) == fatal
        if dies and moment == "middle":
            path.with_name(path.name + ".partial").write_bytes(b"\xff\xff\xff")
        if not dies or moment == "after":
            write_whole(path, write)
        if dies:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        for place in ("jexplicit.data.shards", "jexplicit.runs.files", "launch.shards"):
            patch.setattr(f"{place}.write_whole", write_or_die)
        yield


@pytest.mark.parametrize("moment", ["before", "middle", "after"])
def test_a_killed_writer_is_continued_exactly(tmp_path, small, tokenizer, monkeypatch, moment):
    shards = len(write(tmp_path / "whole", tokenizer).shards)
    expected = contents(tmp_path / "whole")
    for fatal in range(2 * shards + 1):  # an index with each shard, and the last index
        folder = tmp_path / str(fatal)
        with killed_at(fatal, monkeypatch, moment):
            write(folder, tokenizer)
        if fatal < 2 * shards or moment != "after":  # the last index was not written
            with pytest.raises(ValueError, match=r"no shards|not all written"):
                read_shards(folder)
        np.testing.assert_array_equal(write(folder, tokenizer)[:], encode_documents(tokenizer, DOCUMENTS))
        assert {name: data for name, data in contents(folder).items() if not name.endswith(".partial")} == expected


def test_only_the_rest_is_tokenised_after_a_kill(tmp_path, small, tokenizer):
    def dying():
        yield from DOCUMENTS[:9]
        raise Killed

    with pytest.raises(Killed):
        write_shards(tmp_path, dying(), tokenizer, shard_tokens=12)
    seen = []
    write_shards(tmp_path, iter(DOCUMENTS), tokenizer, shard_tokens=12, progress=lambda done, _: seen.append(done))
    assert seen == [10, 12, 13]  # 8 were in shards


@pytest.mark.parametrize("complete", [True, False])
def test_a_shard_that_is_cut_or_gone_is_named(tmp_path, small, tokenizer, complete):
    stream = write(tmp_path, tokenizer)
    about = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.sha256}
    if not complete:
        module.write_index(tmp_path, stream.shards[:3], complete=False, **about)
    path = tmp_path / "00001.tokens"
    size = path.stat().st_size
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"00001\.tokens: 0 bytes, and the index says {size} bytes"):
        write(tmp_path, tokenizer)
    with pytest.raises(ValueError, match=r"00001\.tokens ends after 0 of \d+ tokens"):
        stream[:]  # it was open
    path.unlink()
    with pytest.raises(ValueError, match=r"00001\.tokens: missing"):
        write(tmp_path, tokenizer)
    with pytest.raises(ValueError, match=r"00001\.tokens cannot be read"):
        stream[:]


# Damage


def test_every_damaged_byte_is_found_and_its_file_named(tmp_path, small, tokenizer):
    stream = write(tmp_path, tokenizer)
    for shard in stream.shards:
        path = tmp_path / shard.file
        data = path.read_bytes()
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(ValueError, match=rf"{shard.file} is damaged \(CRC-32"):
                read_shards(tmp_path).verify()
        path.write_bytes(data)
    start = len(stream[:]) - stream.shards[-1].tokens
    (tmp_path / stream.shards[0].file).write_bytes(bytes(stream.shards[0].tokens))
    stream.verify(start)  # elsewhere
    with pytest.raises(ValueError, match="00000.tokens is damaged"):
        stream.verify(0, 1)


def test_every_damaged_byte_of_the_index_is_found(tmp_path, small, tokenizer):
    stream = write(tmp_path, tokenizer)
    path = tmp_path / "index.json"
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert read_shards(tmp_path) == stream  # a space became no less blank
        except ValueError as error:
            assert "index" in str(error) and "is damaged" in str(error)
    for place in range(0, len(data) - 1, 7):
        path.write_bytes(data[:place])
        with pytest.raises(ValueError, match="index .* is damaged"):
            read_shards(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="holds no shards: write them with"):
        read_shards(tmp_path)


def test_a_stream_is_read_after_a_change_of_folder(tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stream = write(Path("text"), tokenizer)
    first, again = stream[:].tolist(), read_shards("text")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    write(Path("text"), tokenizer, documents=DOCUMENTS[::-1])
    assert stream[:].tolist() == again[:].tolist() == first != read_shards("text")[:].tolist()


def test_an_index_of_other_types_or_of_files_elsewhere_is_refused(tmp_path, small, tokenizer):
    """Indices with a checksum of their own."""
    write(tmp_path / "text", tokenizer)
    path = tmp_path / "text" / "index.json"
    index = json.loads(path.read_text())
    del index["crc32"]
    shard = index["shards"][0]
    (tmp_path / shard["file"]).write_bytes((tmp_path / "text" / shard["file"]).read_bytes())
    changes = [{"vocab_size": value} for value in ("x", None, 0, -3, 1.5, [1])]
    changes += [{"shards": value} for value in (None, 3, [3], [{}], [{**shard, "tokens": "x"}], [{**shard, "tokens": -1}])]
    changes += [{"tokenizer": [1]}, {"layout": None}]
    for change, said in [
        *((change, "index .* is damaged or of another version") for change in changes),
        *(
            ({"shards": [{**shard, "file": name}]}, "index.json names the file .*, which is not in its folder")
            for name in (f"../{shard['file']}", str(tmp_path / shard["file"]), None, 7)
        ),
    ]:
        hostile = {**index, **change}
        path.write_text(json.dumps({**hostile, "crc32": module._crc32_of(hostile)}))
        with pytest.raises(ValueError, match=said):
            read_shards(tmp_path / "text")


@pytest.mark.parametrize("fails_at", [0, 1, 4])
def test_a_full_disk_leaves_whole_shards_to_go_on_from(tmp_path, small, tokenizer, monkeypatch, fails_at):
    fsync, calls = os.fsync, iter(range(100))

    def full(descriptor):
        if next(calls) >= fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with (
        monkeypatch.context() as patch,
        pytest.raises(ValueError, match="cannot be written .No space left on device.: make room"),
    ):
        patch.setattr(os, "fsync", full)
        write(tmp_path, tokenizer)
    assert not list(tmp_path.glob("*.partial"))
    np.testing.assert_array_equal(write(tmp_path, tokenizer)[:], encode_documents(tokenizer, DOCUMENTS))


# Documents one by one


@pytest.mark.parametrize("n", [2, 3, 10, 11, 101])
def test_the_lazy_split_is_split_documents(n):
    assert tuple(list(iterate_split(range(n), dev=dev)) for dev in (False, True)) == split_documents(range(n))


def test_a_sample_is_in_order_and_reproducible_and_counts_all():
    sample, in_all = sample_documents(map(str, range(1000)), 50, seed=3)
    assert in_all == 1000 and sample == sorted(set(sample), key=int) and len(sample) == 50
    assert sample == sample_documents(map(str, range(1000)), 50, seed=3)[0]
    assert sample != sample_documents(map(str, range(1000)), 50, seed=4)[0]
    assert sample_documents(map(str, range(50)), 50) == (list(map(str, range(50))), 50)


def test_every_document_is_as_likely():
    n, size, draws = 20, 5, 500
    drawn = np.zeros(n)
    for seed in range(draws):
        drawn[[int(document) for document in sample_documents(map(str, range(n)), size, seed=seed)[0]]] += 1
    p = size / n
    # 20 binomials at once: five standard deviations are passed less than once in 80,000 times
    assert np.abs(drawn - draws * p).max() < 5 * np.sqrt(draws * p * (1 - p))


def test_a_text_corpus_is_read_again_by_every_loop(tmp_path):
    a, b = _lines(tmp_path / "a.txt", 321), _lines(tmp_path / "b.txt", 12, "dev")
    for dev, expected in (((), split_documents(read_documents(a))), ((b,), (read_documents(a), read_documents(b)))):
        corpus = text_corpus([a], dev)
        for _ in range(2):
            assert (list(corpus.train), list(corpus.dev)) == expected
        in_memory, few = corpus.in_memory(), corpus.limit(30)
        assert (corpus.name, in_memory.train, in_memory.dev) == (a, *expected)
        assert (list(few.train), list(few.dev)) == (in_memory.train[:30], in_memory.dev[:3])
        assert corpus.sha256 == in_memory.sha256 == Corpus("another", *expected).sha256
        assert corpus.identity == few.identity != Corpus("another", *expected).identity
    with pytest.raises(ValueError, match="a.txt is in train and in dev"):
        text_corpus([a], [a])


def _lines(path: Path, n: int, word: str = "line") -> str:
    path.write_text("".join(f"{word} number {line} of {n}, and {line * line % 97}\n" for line in range(n)))
    return str(path)


# The command


def test_the_command_gives_the_streams_of_launch_lm(tmp_path, capsys, monkeypatch):
    path = _lines(tmp_path / "a.txt", 700)
    docs = Corpus("docs", *split_documents([f"n {n}\nand {n * n % 97}" for n in range(900)]))
    monkeypatch.setattr("jexplicit.data.corpora.docs_corpus", lambda **_: docs)
    limited = Corpus("docs", docs.train[:500], docs.dev[:50])  # as launch.lm limits a corpus in memory
    for flags, corpus in ((["--train", path], text_corpus([path]).in_memory()), (["--preset", "tiny"], limited)):
        out = tmp_path / flags[0]
        assert main(["--out", str(out), *flags, "--vocab-size", "40"]) == 0
        text = cached_streams(corpus, kind="bpe", vocab_size=40, cache_dir=tmp_path / "cache")
        assert Tokenizer.load(out / "tokenizer.model") == text.tokenizer
        for part, stream in (("train", text.train), ("dev", text.dev)):
            found = read_shards(out / part)
            np.testing.assert_array_equal(found[:], stream)
            assert found.tokenizer == text.tokenizer.sha256
    assert "630 documents" in capsys.readouterr().err


def test_the_tokenizer_learns_from_a_sample_and_dev_files_are_dev_and_other_flags_or_text_are_refused(tmp_path, capsys):
    a, b, out = _lines(tmp_path / "a.txt", 300), _lines(tmp_path / "b.txt", 12, "dev"), tmp_path / "out"
    command = ["--out", str(out), "--train", a, "--dev", b, "--tokenizer", "char", "--tokenizer-documents", "5", "--seed", "1"]
    assert main(command) == 0
    tokenizer = Tokenizer.load(out / "tokenizer.model")
    assert tokenizer == train_tokenizer(sample_documents(read_documents([a]), 5, seed=1)[0], kind="char")
    np.testing.assert_array_equal(read_shards(out / "dev")[:], encode_documents(tokenizer, read_documents([b])))

    def refused(said, *more):
        assert main([*command, *more]) == 2
        assert said in " ".join(capsys.readouterr().err.split())

    before = (out / "train/00000.tokens").stat().st_mtime_ns
    assert main(command) == 0
    assert (out / "train/00000.tokens").stat().st_mtime_ns == before
    refused("was written with tokenizer_documents = 5 (now 7): give the same flags", "--tokenizer-documents", "7")
    model = (out / "tokenizer.model").read_bytes()
    (out / "tokenizer.model").write_bytes(b"")
    refused("tokenizer.model is not a tokenizer file, or is damaged")
    (out / "tokenizer.model").write_bytes(model)
    Path(a).write_text("another\ntext\n")
    refused("was written with source = ")
    (out / "config.json").write_text("{")
    refused("config.json is damaged or of another command")
    (tmp_path / "file").write_text("")
    refused("cannot be written (Not a directory): choose another place", "--out", str(tmp_path / "file/out"))


def test_a_killed_command_goes_on_when_it_is_given_again(tmp_path, monkeypatch):
    monkeypatch.setattr("jexplicit.data.tokenizers._ENCODING_BATCH", 64)
    command = ["--train", _lines(tmp_path / "a.txt", 300), "--tokenizer", "char", "--shard-tokens", "1000"]
    assert main(["--out", str(tmp_path / "whole"), *command]) == 0

    def everything(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    for fatal in (0, 3, 8):
        out = ["--out", str(tmp_path / str(fatal)), *command]
        with killed_at(fatal, monkeypatch):
            main(out)
        assert main(out) == 0
        assert everything(tmp_path / str(fatal)) == everything(tmp_path / "whole")


@pytest.mark.parametrize(  # more in tests/launch/test_bad_input.py
    ("flags", "message"),
    [
        ("--corpus tfds:", "corpus 'tfds:': choose docs, installed or tfds:NAME"),
        ("--limit 3", "--limit 3: use at least 10"),
        (f"--train {__file__} --vocab-size 300000", "is more than the text allows"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, capsys, flags, message):
    assert main(["--out", str(tmp_path / "out"), *flags.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out/config.json").exists()  # so the mended command may be given the same folder
