"""Opening inputs, and records of every format: what is read and what is refused."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import threading

import pyarrow
import pyarrow.parquet
from files import put
from jexplicit.data.text import (
    MinimalPair,
    Unit,
    file_records,
    files_documents,
    locate_documents,
    read_documents,
    read_pairs,
    text_corpus,
)
from refusals import refused

from jexplicit.data import inputs

TEXT, LINES = b"to be\nor not\n", ["to be", "or not"]
PAIR = b'{"sentence_good": "he runs", "sentence_bad": "he run"}\n'


# Files of any kind


def test_compression_is_seen_in_the_first_bytes_whatever_the_name(tmp_path):
    for ending, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        for name in (f"A.TXT.{ending.upper()}", "a.txt"):
            path = put(tmp_path / name, compress(TEXT))
            assert read_documents(path) == LINES and inputs.is_compressed(str(path))
        assert read_pairs(put(tmp_path / f"p.jsonl.{ending}", compress(b"\xef\xbb\xbf" + PAIR)))[0].paradigm == "p"
        said = f"b.{ending} is not a whole .*file .*: compress or download it again"
        refused(said, read_documents, put(tmp_path / f"b.{ending}", TEXT))


def test_folders_as_programs_write_them_and_links(tmp_path):
    """As Spark, systems, and the cache of the Hugging Face hub, whose blobs have no endings."""
    put(tmp_path / "hub/3f2a", '{"text": "one two"}\n')
    for name in ("train", "dev"):
        (tmp_path / f"hub/{name}.jsonl").symlink_to("3f2a")
    train, dev = (tmp_path / f"hub/{name}.jsonl" for name in ("train", "dev"))
    assert read_documents(train, field="text") == ["one two"]
    refused("is in train and in dev", text_corpus, train, dev, field="text")
    put(tmp_path / "spark/part-0.jsonl", '{"text": "one"}')
    for name in ("_SUCCESS", "_committed_17", ".part-0.crc"):
        put(tmp_path / "spark" / name)
    assert read_documents(tmp_path / "spark", field="text") == ["one"]
    for name in ("in/Thumbs.db", "in/__MACOSX/a.txt", "in/_temporary/0/a.txt", "in/.hidden/a.txt"):
        put(tmp_path / name, b"\0")
    put(tmp_path / "other/a.txt", TEXT)
    (tmp_path / "in/sub").symlink_to(tmp_path / "other")
    (tmp_path / "other/back").symlink_to(tmp_path / "in")  # followed once
    assert read_documents(tmp_path / "in") == read_documents(f"{tmp_path}/in/*") == LINES


def test_pipes_are_read_once_and_asked_for_more_often(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(TEXT),))
    writer.start()
    corpus = text_corpus(path)
    writer.join()
    assert list(corpus.train) == list(corpus.train) == ["to be"] and list(corpus.dev) == ["or not"]
    assert corpus.identity["train_files"] == [[str(path), *inputs.file_stamp(str(path))[1:]]]
    inputs.pipe_bytes.cache_clear()
    code = "from jexplicit.data.text import read_documents; print(read_documents('/dev/stdin'))"
    answer = subprocess.run([sys.executable, "-c", code], input=TEXT, capture_output=True, check=True)
    assert answer.stdout.decode().strip() == "['to be', 'or not']"


def test_other_formats_are_named_compressed_or_not(tmp_path):
    for data, said in [
        (b"PK\x03\x04..", "is a zip archive"),
        (b"%PDF-1.4\n", "is a PDF"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html>", "is a page of HTML"),
        ("to be".encode("utf-32"), "is UTF-32 text"),
        ("to be".encode("utf-16"), "is UTF-16 text"),
        (gzip.compress(TEXT, mtime=0), "is compressed twice"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"a.txt".ljust(257, b"\0") + b"ustar", "is a tar archive"),
    ]:
        path = put(tmp_path / "a.jsonl.gz", gzip.compress(data))
        refused(f"a.jsonl.gz {said}", read_documents, path, field="text")
    assert read_documents(put(tmp_path / "a.html", "<html>\n")) == ["<html>"]  # the name says that it is text
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    with open(path, "wb") as file:
        file.write(TEXT)
    refused("is not UTF-8: rename the file", read_documents, path)


# Records

TEXTS = ["to be, or not", 'that "is"\nthe question', "  ", "naïve ü", "x" * 200_000]


def csv_bytes(delimiter=","):
    rows = [["id", "text"], *([str(n), text] for n, text in enumerate(TEXTS))]
    quoted = [delimiter.join('"' + value.replace('"', '""') + '"' for value in row) for row in rows]
    return "\r\n".join([*quoted, "", ""]).encode()


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_every_format_gives_the_same_documents_with_line_and_id(tmp_path):
    records = "\n\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS)).encode()
    array = json.dumps([{"id": n, "text": text} for n, text in enumerate(TEXTS)], indent=1).encode()
    contents = {"a.jsonl": records, "a.csv": csv_bytes(), "b.csv": csv_bytes(";"), "b.NDJSON": records, "a.json": array}
    for name, data in contents.items():
        put(tmp_path / name, b"\xef\xbb\xbf" + data)
        put(tmp_path / f"{name}.gz", gzip.compress(data))
    parquet(tmp_path / "a.parquet", id=list(range(5)), text=TEXTS)
    lines = {"a.jsonl": [1, 3, 7, 9], "a.csv": [2, 3, 6, 7], "a.parquet": [1, 2, 4, 5]}
    for file in tmp_path.iterdir():
        assert read_documents(file, field="text") == [TEXTS[n] for n in (0, 1, 3, 4)], file
        if file.name in lines:
            found = [one for one in locate_documents(str(file), field="text", every=True) if one.text]
            assert [document.line for document in found] == lines[file.name]
            assert [str((document.fields or {})["id"]) for document in found] == ["0", "1", "3", "4"]


def test_records_are_read_lazily_and_anew(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"text": "one"}\n{"text": "two"}\nbroken\n')
    documents = files_documents([str(path)], field="text")
    assert [next(documents), next(documents)] == ["one", "two"]
    put(path, '{"text": "one"}\n{"text": null}\n{"text": "two"}\n{"text": "three"}')  # missing texts are left out
    corpus = text_corpus(path, field="text")
    assert list(corpus.train) == list(corpus.train) == ["one", "three"] and list(corpus.dev) == ["two"]


def test_folders_of_records_may_have_plain_text_and_names_without_endings(tmp_path):
    put(tmp_path / "a.jsonl", '{"text": "one"}')
    put(tmp_path / "b.txt", "two\nlines\n\nthree\n")
    assert read_documents(tmp_path, field="text", documents="paragraph") == ["one", "two\nlines", "three"]
    put(tmp_path / "c/blob", b'{"text": "one"}\n')
    put(tmp_path / "c/blob.GZ", gzip.compress(b'[{"text": "two"}]'))
    assert read_documents(tmp_path / "c", field="text") == ["one", "two"]
    put(tmp_path / "c/README.md", "About")
    refused("README.md is no file of records: name those only", read_documents, tmp_path / "c", field="text")


def test_rows_of_a_table_are_documents(tmp_path):
    """TSV has no quotes; a quoted CSV keeps its line breaks."""
    path = put(tmp_path / "a.tsv", 'id\ttext\n1\t"hello there\n2\tfoo\n3\tbar"\n4\tbaz\n')
    assert read_documents(path, field="text") == ['"hello there', "foo", 'bar"', "baz"]
    path = put(tmp_path / "a.csv", "text;id\none, two;1\nthree;2\n")
    assert read_documents(path, field="text") == ["one, two", "three"]
    for mark in (",", "\t", "|"):  # the header tells
        path = put(tmp_path / "a.Csv", f"id{mark}text\n1{mark}one\n")
        assert read_documents(path, field="text") == ["one"]


def test_bad_parquet(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", text=["a", None], n=[1, 2])
    assert read_documents(path, field="text") == ["a"]
    refused("has the fields text, n", read_documents, path)
    refused("row 1 has no field 'id': it has 'text', 'n'", read_documents, path, field="id")
    refused("row 1: field 'n' holds int '1'", read_documents, path, field="n")
    offsets = pyarrow.array([0, 2], pyarrow.int32()).buffers()[1]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, offsets, pyarrow.py_buffer(b"a\xff")])
    said = "b.parquet, after row 0: text that is not UTF-8"
    refused(said, read_documents, parquet(tmp_path / "b.parquet", text=broken), field="text")
    twice = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "c.parquet")
    refused("c.parquet .*two columns 'text'", read_documents, tmp_path / "c.parquet", field="text")
    late = pyarrow.array([2**62], pyarrow.timestamp("us"))  # a date out of range
    assert read_documents(parquet(tmp_path / "d.parquet", text=["a"], time=late), field="text") == ["a"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(r"needs pyarrow: pip install 'jexplicit\[parquet\]'", lambda: list(file_records(path)))


def test_minimal_pairs_are_records_of_any_format(tmp_path):
    line = {"sentence_good": "he runs", "sentence_bad": "he run"}
    put(tmp_path / "one.jsonl", PAIR + b"\n" + json.dumps({**line, "UID": "b", "field": "syntax/semantics"}).encode())
    put(tmp_path / "p.csv", "sentence_good,sentence_bad\nhe runs,he run\n")
    put(tmp_path / "q.json", '[{\n"sentence_good": "he runs",\n"sentence_bad": "he run"\n}]')
    fields = {"b": "syntax_semantics"}
    expected = [MinimalPair("he runs", "he run", name, fields.get(name, "")) for name in ("one", "b", "p", "q")]
    assert read_pairs([tmp_path]) == expected
    for text, said in [
        ('{"sentence_good": "he runs", "sentence_bad": " "}', "a sentence is missing or empty"),
        ('{"sentence_good": "he runs", "sentence_bad": 3}', "line 1, is not a minimal pair"),
        ("\n\n", "has no pair"),
    ]:
        refused(said, read_pairs, put(tmp_path / "a.jsonl", text))


# Parts of plain text

PLAIN = "\n\none\ntwo\r\n \r\n\tthree\rfour\n\n\nfive"


def test_units_of_plain_text(tmp_path):
    units: list[tuple[Unit, list[str], list[int]]] = [
        ("line", ["one", "two", "\tthree", "four", "five"], [3, 4, 6, 7, 10]),
        ("paragraph", ["one\ntwo", "\tthree\nfour", "five"], [3, 6, 10]),
        ("file", ["one\ntwo\n \n\tthree\nfour\n\n\nfive"], [3]),
    ]
    for unit, documents, lines in units:
        for name, data in (("a.txt", PLAIN.encode()), ("a.txt.gz", gzip.compress(PLAIN.encode() + b"\n \n"))):
            found = list(locate_documents(str(put(tmp_path / name, data)), documents=unit))
            assert [document.text for document in found] == read_documents(tmp_path / name, documents=unit) == documents
            assert [document.line for document in found] == lines
