"""Opening inputs, and records of every format: what is read and what is refused."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import threading
from itertools import pairwise

import pyarrow
import pyarrow.parquet
import pytest

from jexplicit.data import inputs
from jexplicit.data.corpora import file_documents, locate_documents, read_documents, text_corpus
from jexplicit.data.inputs import file_records, read_pairs

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


TEXTS = ["to be, or not", 'that "is"\nthe question', "  ", "naïve ü", "x" * 200_000]
EXPECTED = [TEXTS[n] for n in (0, 1, 3, 4)]


def csv_bytes(delimiter=","):
    rows = [["id", "text"], *([str(n), text] for n, text in enumerate(TEXTS))]
    quoted = [delimiter.join('"' + value.replace('"', '""') + '"' for value in row) for row in rows]
    return "\r\n".join([*quoted, "", ""]).encode()


def json_bytes():
    return "\n\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS)).encode()


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    contents = {"a.jsonl": json_bytes(), "a.csv": csv_bytes(), "b.csv": csv_bytes(";"), "b.NDJSON": json_bytes()}
    contents["a.json"] = json.dumps([{"id": n, "text": text} for n, text in enumerate(TEXTS)], indent=1).encode()
    for name, data in contents.items():
        (folder / name).write_bytes(b"\xef\xbb\xbf" + data)
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    parquet(folder / "a.parquet", id=list(range(5)), text=TEXTS)
    return sorted(map(str, folder.iterdir()))


def test_every_format_gives_the_same_documents(files):
    assert len(files) == 11
    for file in files:
        assert read_documents(file, field="text") == EXPECTED, file


@pytest.mark.parametrize(("name", "lines"), [("a.jsonl", [1, 3, 7, 9]), ("a.csv", [2, 3, 6, 7]), ("a.parquet", [1, 2, 4, 5])])
def test_records_keep_line_and_id(files, name, lines):
    (file,) = (file for file in files if file.endswith(name))
    found = list(locate_documents(file, field="text", id_field="id"))
    assert [document.line for document in found] == lines
    assert [str(document.id) for document in found] == ["0", "1", "3", "4"]


def test_records_are_read_lazily_and_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\nbroken\n')
    documents = file_documents(str(path), field="text")
    assert [next(documents), next(documents)] == ["one", "two"]
    path.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}')
    corpus = text_corpus(path, field="text")
    assert list(corpus.train) == list(corpus.train) == ["one", "three"] and list(corpus.dev) == ["two"]


def test_a_folder_may_mix_records_and_plain_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}')
    (tmp_path / "b.txt").write_text("two\nlines\n\nthree\n")
    assert read_documents(tmp_path, field="text", documents="paragraph") == ["one", "two\nlines", "three"]


def test_the_identity_of_a_corpus_covers_how_it_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "one", "b": "two"}\n' * 2)
    (tmp_path / "b.txt").write_text("one\ntwo\n\nthree")
    a, b = (text_corpus(tmp_path / "a.jsonl", field=field) for field in "ab")
    c, d = (text_corpus(tmp_path / "b.txt", documents=documents) for documents in ("line", "paragraph"))
    for one, two in ((a, b), (c, d)):
        assert one.identity != two.identity
        assert one.in_memory().sha256 != two.in_memory().sha256  # which names the cached tokens


def test_rows_of_a_table_are_documents(tmp_path):
    """TSV has no quotes; a quoted CSV keeps its line breaks."""
    (tmp_path / "a.tsv").write_text('id\ttext\n1\t"hello there\n2\tfoo\n3\tbar"\n4\tbaz\n')
    assert read_documents(tmp_path / "a.tsv", field="text") == ['"hello there', "foo", 'bar"', "baz"]
    (tmp_path / "a.csv").write_text("text;id\none, two;1\nthree;2\n")
    assert read_documents(tmp_path / "a.csv", field="text") == ["one, two", "three"]


def test_missing_texts_are_left_out_as_blank_ones_are(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "two"}\n')
    assert read_documents(tmp_path / "a.jsonl", field="text") == ["one", "two"]


def test_text_of_parquet_that_is_not_utf8(tmp_path):
    offsets = pyarrow.array([0, 2], pyarrow.int32()).buffers()[1]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, offsets, pyarrow.py_buffer(b"a\xff")])
    with pytest.raises(ValueError, match="a.parquet, after row 0: text that is not UTF-8"):
        read_documents(parquet(tmp_path / "a.parquet", text=broken), field="text")


def test_bad_parquet(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", text=["a", None], n=[1, 2])
    assert read_documents(path, field="text") == ["a"]
    for field, message in [
        (None, "has the fields text, n"),
        ("id", "row 1 has no field 'id': it has 'text', 'n'"),
        ("n", "row 1: field 'n' holds int '1'"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_documents(path, field=field)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'jexplicit\[parquet\]'"):
        list(file_records(path))


# Parts of plain text

PLAIN = "\n\none\ntwo\r\n \r\n\tthree\rfour\n\n\nfive"


@pytest.mark.parametrize(
    ("unit", "documents", "lines"),
    [
        ("line", ["one", "two", "\tthree", "four", "five"], [3, 4, 6, 7, 10]),
        ("paragraph", ["one\ntwo", "\tthree\nfour", "five"], [3, 6, 10]),
        ("file", ["one\ntwo\n \n\tthree\nfour\n\n\nfive"], [3]),
    ],
)
def test_units_of_plain_text(tmp_path, unit, documents, lines):
    for name, data in (("a.txt", PLAIN.encode()), ("a.txt.gz", gzip.compress(PLAIN.encode() + b"\n \n"))):
        (tmp_path / name).write_bytes(data)
        found = list(locate_documents(str(tmp_path / name), documents=unit))
        assert [document.text for document in found] == read_documents(tmp_path / name, documents=unit) == documents
        assert [document.line for document in found] == lines


def test_lines_of_any_ranges_are_the_lines_of_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(PLAIN.encode())
    size, whole = len(PLAIN), list(file_documents(str(path)))
    for step in range(1, size):
        bounds = [*range(0, size, step), size]
        parts = [list(file_documents(str(path), *span)) for span in pairwise(bounds)]
        assert sum(parts, []) == whole


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_header_of_a_csv_tells_its_delimiter(tmp_path, mark):
    (tmp_path / "a.Csv").write_text(f"id{mark}text\n1{mark}one\n")
    assert read_documents(tmp_path / "a.Csv", field="text") == ["one"]


def test_a_parquet_column_that_stands_twice_and_a_date_out_of_range(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a.parquet .*two columns 'text'"):
        read_documents(tmp_path / "a.parquet", field="text")
    times = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["a"], "time": times}), tmp_path / "b.parquet")
    assert read_documents(tmp_path / "b.parquet", field="text") == ["a"]


def test_minimal_pairs_are_records_of_any_format(tmp_path):
    (tmp_path / "p.csv").write_text("sentence_good,sentence_bad\nhe runs,he run\n")
    (tmp_path / "q.json").write_text('[{\n"sentence_good": "he runs",\n"sentence_bad": "he run"\n}]')
    assert [pair[:3] for pair in read_pairs(tmp_path)] == [("he runs", "he run", name) for name in "pq"]
