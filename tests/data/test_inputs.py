"""One way to open an input: the name as it was given, the first bytes, compression, pipes."""

import bz2
import gzip
import lzma
import os
import subprocess
import sys
import threading

import pytest

from jexplicit.data import inputs
from jexplicit.data.corpora import read_documents, text_corpus
from jexplicit.data.inputs import read_pairs

TEXT = b"to be\nor not\n"
PAIR = b'{"sentence_good": "he runs", "sentence_bad": "he run"}\n'


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compression_is_seen_in_the_first_bytes_whatever_the_name(tmp_path, ending, compress):
    for name in (f"a.txt.{ending}", f"A.TXT.{ending.upper()}", "a.txt"):
        (tmp_path / name).write_bytes(compress(TEXT))
        assert read_documents(tmp_path / name) == ["to be", "or not"]
        assert inputs.is_compressed(str(tmp_path / name))
    (tmp_path / f"p.jsonl.{ending}").write_bytes(compress(b"\xef\xbb\xbf" + PAIR))
    assert read_pairs(tmp_path / f"p.jsonl.{ending}")[0].paradigm == "p"
    (tmp_path / f"b.{ending}").write_bytes(TEXT)
    with pytest.raises(ValueError, match=f"b.{ending} is not a whole .*file .*: compress or download it again"):
        read_documents(tmp_path / f"b.{ending}")


def test_zstd_is_read_where_its_package_is_and_named_elsewhere(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(pytest.importorskip("zstandard").compress(TEXT))
    assert read_documents(path) == ["to be", "or not"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="a.txt.zst is compressed by zstd, which needs zstandard: pip install zstandard"):
        read_documents(path)


def test_a_link_is_read_by_its_own_name(tmp_path):
    """As in the cache of the Hugging Face hub, whose blobs have no endings."""
    (tmp_path / "3f2a").write_text('{"text": "one two"}\n')
    (tmp_path / "train.jsonl").symlink_to("3f2a")
    assert read_documents(tmp_path / "train.jsonl", field="text") == ["one two"]
    (tmp_path / "dev.jsonl").symlink_to("3f2a")
    with pytest.raises(ValueError, match="is in train and in dev"):
        text_corpus(tmp_path / "train.jsonl", tmp_path / "dev.jsonl", field="text")


def test_a_folder_as_spark_writes_it(tmp_path):
    (tmp_path / "part-0.jsonl").write_text('{"text": "one"}')
    for name in ("_SUCCESS", "_committed_17", ".part-0.crc"):
        (tmp_path / name).touch()
    assert read_documents(tmp_path, field="text") == ["one"]


def test_a_pipe_is_read_once_and_asked_for_more_often(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(TEXT),))
    writer.start()
    corpus = text_corpus(path)
    writer.join()
    assert list(corpus.train) == list(corpus.train) == ["to be"] and list(corpus.dev) == ["or not"]
    assert corpus.identity["train_files"] == [[str(path), *inputs.file_stamp(str(path))[1:]]]
    inputs.pipe_bytes.cache_clear()


def test_standard_input_is_a_file(tmp_path):
    code = "from jexplicit.data.corpora import read_documents; print(read_documents('/dev/stdin'))"
    answer = subprocess.run([sys.executable, "-c", code], input=TEXT, capture_output=True, check=True)
    assert answer.stdout.decode().strip() == "['to be', 'or not']"


def test_a_name_that_is_no_text_is_refused_before_anything_is_read(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    with open(path, "wb") as file:
        file.write(TEXT)
    with pytest.raises(ValueError, match="is not UTF-8: rename the file"):
        read_documents(path)


OTHER_FORMATS = [
    (b"PK\x03\x04..", "is a zip archive"),
    (b"%PDF-1.4\n", "is a PDF"),
    (b"\xef\xbb\xbf\n<!DOCTYPE html>", "is a page of HTML"),
    ("to be".encode("utf-32"), "is UTF-32 text"),
    ("to be".encode("utf-16"), "is UTF-16 text"),
    (gzip.compress(TEXT, mtime=0), "is compressed twice"),
    (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
    (b"a.txt".ljust(257, b"\0") + b"ustar", "is a tar archive"),
]


@pytest.mark.parametrize(("data", "said"), OTHER_FORMATS)
def test_other_formats_are_named_compressed_or_not(tmp_path, data, said):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    with pytest.raises(ValueError, match=f"a.jsonl.gz {said}"):
        read_documents(tmp_path / "a.jsonl.gz", field="text")


def test_the_source_of_a_page_is_text_where_the_name_says_so(tmp_path):
    (tmp_path / "a.html").write_text("<html>\n")
    assert read_documents(tmp_path / "a.html") == ["<html>"]


def test_without_an_ending_the_first_bytes_tell_records(tmp_path):
    (tmp_path / "blob").write_bytes(b'{"text": "one"}\n')
    (tmp_path / "blob.GZ").write_bytes(gzip.compress(b'[{"text": "two"}]'))
    assert read_documents(tmp_path, field="text") == ["one", "two"]


def test_what_is_no_record_in_a_folder_of_records_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}')
    (tmp_path / "README.md").write_text("About")
    with pytest.raises(ValueError, match="README.md is no file of records: name those only"):
        read_documents(tmp_path, field="text")


def test_files_of_systems_are_left_out_and_links_followed_once(tmp_path):
    for name in ("in/Thumbs.db", "in/__MACOSX/a.txt", "in/_temporary/0/a.txt", "in/.hidden/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\0")
    (tmp_path / "in/sub").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.txt").write_bytes(TEXT)
    (tmp_path / "other/back").symlink_to(tmp_path / "in")
    assert read_documents(tmp_path / "in") == read_documents(f"{tmp_path}/in/*") == ["to be", "or not"]
