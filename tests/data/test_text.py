"""Files, records, documents and corpora: what is read, how it is split, and what is refused by name."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import re
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pyarrow
import pyarrow.parquet
from files import put
from refusals import refused
from tables import refuse

from jexplicit.data import text as module
from jexplicit.data.text import Corpus, MinimalPair, file_records, read_documents, read_pairs, split_documents, text_corpus

TEXT, LINES = b"to be\nor not\n", ["to be", "or not"]
PAIR = b'{"sentence_good": "he runs", "sentence_bad": "he run"}\n'


# Files of any kind


def test_compression_is_seen_in_the_first_bytes_whatever_the_name(tmp_path):
    for ending, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        for name in (f"A.TXT.{ending.upper()}", "a.txt"):
            path = put(tmp_path / name, compress(TEXT))
            assert read_documents(path) == LINES and module.is_compressed(str(path))
        assert read_pairs(put(tmp_path / f"p.jsonl.{ending}", compress(b"\xef\xbb\xbf" + PAIR)))[0].paradigm == "p"
        said = f"b.{ending} is not a whole .*file .*: compress or download it again"
        refused(said, read_documents, put(tmp_path / f"b.{ending}", TEXT))


def test_globs_and_folders_are_sorted_as_programs_write_them_and_links_are_followed(tmp_path):
    """As Spark, systems, and the cache of a hub, whose blobs have no endings."""
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden", ".git/config", "d[1].md"):
        put(tmp_path / "in" / name, name)
    for name in ("_SUCCESS", ".part-0.crc", "Thumbs.db", "__MACOSX/a.txt", "_temporary/0/a.txt", ".hidden/a.txt"):
        put(tmp_path / "linked" / name, b"\0")
    for names, expected in [
        ("*.txt", "a.txt b.txt"),
        ("", "a.txt b.txt d[1].md sub/c.txt"),
        ("*", "a.txt b.txt d[1].md sub/c.txt"),
        ("**/*.txt", "a.txt b.txt sub/c.txt"),
        ("d[1].md", "d[1].md"),
        ("a.txt *.txt", "a.txt b.txt"),  # a file named twice is read once
    ]:
        assert read_documents([f"{tmp_path}/in/{name}" for name in names.split(" ")]) == expected.split()
    put(tmp_path / "other/a.txt", TEXT)
    (tmp_path / "linked/sub").symlink_to(tmp_path / "other")
    (tmp_path / "other/back").symlink_to(tmp_path / "linked")  # followed once
    assert read_documents(tmp_path / "linked") == read_documents(f"{tmp_path}/linked/*") == LINES
    put(tmp_path / "hub/3f2a", '{"text": "one two"}\n')
    train, dev = (tmp_path / f"hub/{name}.jsonl" for name in ("train", "dev"))
    for path in (train, dev):
        path.symlink_to("3f2a")
    assert read_documents(train, field="text") == ["one two"]
    refused("is in train and in dev", text_corpus, train, dev, field="text")


def test_pipes_are_read_once_and_asked_for_more_often(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(TEXT),))
    writer.start()
    corpus = text_corpus(path)
    writer.join()
    assert list(corpus.train) == list(corpus.train) == ["to be"] and list(corpus.dev) == ["or not"]
    assert corpus.identity["train_files"] == [[str(path), *module._file_stamp(str(path))[1:]]]
    module.pipe_bytes.cache_clear()
    code = "from jexplicit.data.text import read_documents; print(read_documents('/dev/stdin'))"
    answer = subprocess.run([sys.executable, "-c", code], input=TEXT, capture_output=True, check=True)
    assert answer.stdout.decode().strip() == "['to be', 'or not']"


def test_a_document_is_a_line_unchanged_or_another_unit_of_plain_text(tmp_path):
    text = "  two  spaces \n\n\t\n\ttab\x0b\u2028\x85 end\r\nmac\rlast é".encode()
    for data in (text, b"\xef\xbb\xbf" + text, gzip.compress(text)):
        found = read_documents([put(tmp_path / "lines", data)])
        assert found == ["  two  spaces ", "\ttab\x0b\u2028\x85 end", "mac", "last é"]
    plain = "\n\none\ntwo\r\n \r\n\tthree\rfour\n\n\nfive"
    units: list[tuple[module.Unit, list[str], list[int]]] = [
        ("line", ["one", "two", "\tthree", "four", "five"], [3, 4, 6, 7, 10]),
        ("paragraph", ["one\ntwo", "\tthree\nfour", "five"], [3, 6, 10]),
        ("file", ["one\ntwo\n \n\tthree\nfour\n\n\nfive"], [3]),
    ]
    for unit, documents, starts in units:
        for name, data in (("a.txt", plain.encode()), ("a.txt.gz", gzip.compress(plain.encode() + b"\n \n"))):
            found = list(module.locate_documents(str(put(tmp_path / name, data)), documents=unit))
            assert [document.text for document in found] == read_documents(tmp_path / name, documents=unit) == documents
            assert [document.line for document in found] == starts


# Records

TEXTS = ["to be, or not", 'that "is"\nthe question', "  ", "naïve ü", "x" * 200_000, "NaN", "007", '"null"']


def csv_text(mark: str) -> str:
    rows = [["id", "text"], *([str(n), text.replace('"', '""')] for n, text in enumerate(TEXTS))]
    return "\r\n".join([*(mark.join(f'"{value}"' for value in row) for row in rows), "", ""])


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def test_every_format_gives_the_same_documents_with_line_and_id(tmp_path):
    dumped = [json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS)]
    contents = {"a.jsonl": "\n\n".join(dumped), "b.NDJSON": "\n".join(dumped), "a.json": "[" + ",\n".join(dumped) + "]"}
    contents |= {"a.csv": csv_text(","), "b.csv": csv_text(";")}
    for name, text in contents.items():
        put(tmp_path / name, b"\xef\xbb\xbf" + text.encode())
        put(tmp_path / f"{name}.gz", gzip.compress(text.encode()))
    parquet(tmp_path / "a.parquet", id=list(range(len(TEXTS))), text=TEXTS)
    places = {"a.jsonl": [1, 3, 7, 9, 11, 13, 15], "a.csv": [2, 3, 6, 7, 8, 9, 10], "a.parquet": [1, 2, 4, 5, 6, 7, 8]}
    own = [n for n in range(len(TEXTS)) if TEXTS[n].strip()]
    for file in tmp_path.iterdir():
        assert read_documents(file, field="text") == [TEXTS[n] for n in own], file
        if file.name in places:
            found = [one for one in module.locate_documents(str(file), field="text", every=True) if one.text]
            assert [document.line for document in found] == places[file.name]
            assert [str((document.fields or {})["id"]) for document in found] == list(map(str, own))


def test_records_are_as_they_were_written_and_read_lazily_and_anew(tmp_path):
    path = put(tmp_path / "a.jsonl", '{"id": 12345678901234567890, "text": "a", "n": 1}\n{"id": null, "text": "b", "n": null}')
    fields = [dict(record.fields or {}) for record in file_records(str(path))]
    assert fields == [{"id": 12345678901234567890, "text": "a", "n": 1}, {"id": None, "text": "b", "n": None}]
    fields = [dict(record.fields or {}) for record in file_records(parquet(tmp_path / "a.parquet", n=[2**62 + 1, None]))]
    assert fields == [{"n": 2**62 + 1}, {"n": None}]
    put(path, '{"text": "one"}\n{"text": "two"}\nbroken\n')
    documents = module.files_documents([str(path)], field="text")
    assert [next(documents), next(documents)] == ["one", "two"]
    put(path, '{"text": "one"}\n{"text": null}\n{"text": "two"}\n{"text": "three"}')  # missing texts are left out
    corpus = text_corpus(path, field="text")
    assert list(corpus.train) == list(corpus.train) == ["one", "three"] and list(corpus.dev) == ["two"]


def test_tables_and_folders_of_records_with_plain_text_and_names_without_endings(tmp_path):
    """TSV has no quotes."""
    put(tmp_path / "a.jsonl", '{"text": "one"}')
    put(tmp_path / "b.txt", "two\nlines\n\nthree\n")
    put(tmp_path / "c.tsv", 'id\ttext\n1\t"hello there\n2\tbar"\n')
    expected = ["one", "two\nlines", "three", '"hello there', 'bar"']
    assert read_documents(tmp_path, field="text", documents="paragraph") == expected
    for mark in (",", ";", "\t", "|"):  # the header tells
        assert read_documents(put(tmp_path / "a.Csv", f"id{mark}text\n1{mark}one\n"), field="text") == ["one"]
    put(tmp_path / "c/blob", b'{"text": "one"}\n')
    put(tmp_path / "c/blob.GZ", gzip.compress(b'[{"text": "two"}]'))
    assert read_documents(tmp_path / "c", field="text") == ["one", "two"]
    put(tmp_path / "c/README.md", "About")
    refused("README.md is no file of records: name those only", read_documents, tmp_path / "c", field="text")


def test_bad_parquet(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", text=["a", None], n=[1, 2])
    assert read_documents(path, field="text") == ["a"]
    refused("has the fields text, n", read_documents, path)
    refused("row 1 has no field 'id': it has 'text', 'n'", read_documents, path, field="id")
    refused("row 1: field 'n' holds int '1'", read_documents, path, field="n")
    offsets = pyarrow.array([0, 2], pyarrow.int32()).buffers()[1]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, offsets, pyarrow.py_buffer(b"a\xff")])
    said = r"b.parquet, after row 0, cannot be read as Parquet \(.*utf-8"
    refused(said, read_documents, parquet(tmp_path / "b.parquet", text=broken), field="text")
    twice = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "c.parquet")
    refused("c.parquet.*two columns 'text'", read_documents, tmp_path / "c.parquet", field="text")
    late = pyarrow.array([2**62], pyarrow.timestamp("us"))  # a date out of range
    assert read_documents(parquet(tmp_path / "d.parquet", text=["a"], time=late), field="text") == ["a"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(r"needs pyarrow: pip install 'jexplicit\[parquet\]'", lambda: list(file_records(path)))


def test_minimal_pairs_are_records_of_any_format(tmp_path):
    pair = {"sentence_good": "he runs", "sentence_bad": "he run"}
    put(tmp_path / "one.jsonl", PAIR + b"\n" + json.dumps({**pair, "UID": "b", "field": "syntax/semantics"}).encode())
    put(tmp_path / "p.csv", "sentence_good,sentence_bad\nhe runs,he run\n")
    put(tmp_path / "q.json", json.dumps([pair], indent=0))
    expected = [("one", ""), ("b", "syntax_semantics"), ("p", ""), ("q", "")]
    assert read_pairs([tmp_path]) == [MinimalPair("he runs", "he run", *own) for own in expected]
    for text, said in [
        (json.dumps({**pair, "sentence_bad": " "}), "a sentence is missing or empty"),
        (json.dumps({**pair, "sentence_bad": 3}), "line 1, is not a minimal pair"),
        ("\n\n", "has no pair"),
    ]:
        refused(said, read_pairs, put(tmp_path / "a.jsonl", text))


# Refusals

FILES: list[tuple[str, bytes, str | None, str]] = [  # a file's name, its bytes, the field that is read, and the message
    ("a.jsonl", b'{"text": "a", "id": 1}', None, r"a.jsonl has the fields text, id: name the one .* field=NAME"),
    ("a.jsonl", b"[1]", "text", r"a.jsonl, line 1, is not a JSON object but a int"),
    ("a.jsonl", b"", "text", "a.jsonl holds no text"),
    ("a.csv", b"text,id\n", "text", "a.csv holds no text"),
    ("a.csv", b"text,text\none,two\n", "text", "two columns 'text': rename one"),
    ("a.parquet", b"no parquet", "text", "a.parquet, after row 0, cannot be read as Parquet"),
    ("a.txt", b"plain", "text", "a.txt is plain text, which has no field 'text': omit the field"),
    ("a.jsonl.gz", gzip.compress(b"\xef\xbb\xbf\n<!DOCTYPE html>"), "text", "a.jsonl.gz is a page of HTML"),
    ("a.jsonl.gz", gzip.compress(b"version https://git-lfs.github.com/spec/v1\n"), "text", "is a pointer of Git LFS"),
    # a corpus looks at the first record alone
    ("late.jsonl", b'{"text": "a"}\n\n{"id": 1}', "text", r"late.jsonl, line 3 has no field 'text': it has 'id'"),
    ("late.jsonl", b'{"text": "a"}\n{"text": 7}', "text", r"line 2: field 'text' holds int '7', not text: it has 'text'"),
    ("late.jsonl", b'{"text": "a"}\n{"text"', "text", r"late.jsonl, line 2, is not JSON \(.*\): write one object per line"),
    ("late.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}', "text", r"line 2, is not JSON \(two values of 'text'"),
    ("late.jsonl", b'{"text": null}\n{"text": " "}', "text", "late.jsonl holds no text"),
    ("late.csv", b"text,id\na,1\nb,2,3", "text", "late.csv, line 3, has 3 values for 2 fields"),
    ("late.csv", b"text,id\na,1\nb", "text", "late.csv, line 3, has 1 values for 2 fields"),
    ("late.csv", b'text,id\nzero,0\n\n"a"b,1\n', "text", "late.csv, line 4, cannot be read as a table"),
    ("late.json", b'[{"text": "one"},\n{"text": "two}]', "text", "late.json, line 2, is not JSON"),
    ("late.txt", b" \n\t\n", None, "late.txt holds no text: take it out"),
    ("late.txt", b"good\nb\xe9d", None, r"late.txt is not UTF-8 text \(0xe9 at byte 6\): convert it \(iconv"),
    ("late.txt", "to be".encode("utf-16-le"), None, r"late.txt is not UTF-8 text \(0x00 at byte 1\): convert it .*utf-16"),
    ("late.gz", gzip.compress(gzip.compress(TEXT)), None, r"late.gz is not UTF-8 text \(0x.. at byte \d\)"),
    ("late.gz", gzip.compress(b"to be", 0, mtime=0).replace(b"to", b"do"), None, "late.gz is not a whole file"),
]


def test_files_and_calls_that_are_refused(tmp_path):
    def calls():
        for number, (name, data, field, message) in enumerate(FILES):
            path = put(tmp_path / str(number) / name, data)
            for read in (read_documents,) if name.startswith("late") else (read_documents, text_corpus):
                yield message, partial(read, path, field=field)

    (tmp_path / "empty").mkdir()
    latin = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    with open(latin, "wb") as file:
        file.write(TEXT)
    refuse(
        [
            *calls(),
            ("is not UTF-8 .*: rename the file", partial(read_documents, latin)),
            ("no such file: '.*gone.txt': check the path", partial(read_documents, tmp_path / "gone.txt")),
            (r"no file matches '.*\*.md': check the folder and the pattern", partial(read_documents, f"{tmp_path}/*.md")),
            ("no file in folder '.*': name a folder", partial(read_documents, tmp_path / "empty")),
            ("no text file given: name one or more", partial(read_documents, [])),
            ("documents 'word': choose one of line", lambda: module.check_reading([__file__], field=None, documents="word")),
            (r"1 document\(s\) cannot be .* 2 or more documents", lambda: split_documents(["one"])),
            ("every=1, block=10", lambda: split_documents(["one"] * 2, every=1)),
            ("3 or more lines", lambda: module.split_in_three(["a", "b"])),
        ]
    )
    assert read_documents(put(tmp_path / "a.html", "<html>\n")) == ["<html>"]  # the name says that it is text


# Corpora, and how they are split and drawn


def test_a_split_is_complete_disjoint_and_interleaved_and_lazy_or_not():
    for n, every in itertools.product((2, 3, 9, 10, 11, 101, 1234), (2, 10)):
        train, dev = split_documents(range(n), every=every)
        assert train and dev and sorted(train + dev) == list(range(n))
        assert train == sorted(train) and dev == sorted(dev) and (n == 2 or dev[0] < n - 1)
        assert n < 100 or abs(len(dev) - n / every) <= 10
        assert tuple(list(module.iterate_split(range(n), dev=dev)) for dev in (False, True)) == split_documents(range(n))
    assert split_documents(range(300), every=10, block=10)[1] == [*range(50, 60), *range(150, 160), *range(250, 260)]
    # the last characters are dev, and a document across the boundary is in both
    parts = [list(module.split_at_end(["to be", "or not"], dev=dev, share=0.3)) for dev in (False, True)]
    assert parts == [["to be", "or"], [" not"]]
    for size, sizes in ((103, [83, 10, 10]), (3, [1, 1, 1])):
        three = module.split_in_three(documents := [str(n) for n in range(size)], seed=1)
        assert [len(part) for part in three] == sizes and sorted(sum(three, [])) == sorted(documents)
        assert three == module.split_in_three(documents, seed=1)
    assert module.split_in_three(list("abcdefgh"), seed=1) != module.split_in_three(list("abcdefgh"), seed=2)


def test_a_sample_is_in_order_and_reproducible_and_every_document_as_likely():
    numbers = list(map(str, range(1000)))
    sample, in_all = module.sample_documents(numbers, 50, seed=3)
    assert in_all == 1000 and sample == sorted(set(sample), key=int) and len(sample) == 50
    assert sample == module.sample_documents(iter(numbers), 50, seed=3)[0] != module.sample_documents(numbers, 50, seed=4)[0]
    assert module.sample_documents(numbers[:50], 50) == (numbers[:50], 50)
    drawn = np.bincount([int(n) for seed in range(500) for n in module.sample_documents(numbers[:20], 5, seed=seed)[0]])
    # 20 binomials at once: five standard deviations are passed less than once in 80,000 times
    assert np.abs(drawn - 500 / 4).max() < 5 * np.sqrt(500 / 4 * 3 / 4)


def test_a_text_corpus_is_read_again_by_every_loop_and_its_hash_is_of_documents_and_their_boundaries(tmp_path):
    a, b = (str(put(tmp_path / f"{name}.txt", "\n".join(f"{name} {n % 97}" for n in range(321)))) for name in "ab")
    for dev, expected in (((), split_documents(read_documents(a))), ((b,), (read_documents(a), read_documents(b)))):
        corpus = text_corpus([a], dev)
        for _ in range(2):
            assert (list(corpus.train), list(corpus.dev)) == expected
        in_memory, few = corpus.in_memory(), corpus.limit(30)
        assert (corpus.name, in_memory.train, in_memory.dev) == (a, *expected)
        assert (list(few.train), list(few.dev)) == (in_memory.train[:30], in_memory.dev[:3])
        assert corpus.sha256 == in_memory.sha256 == Corpus("another", *expected).sha256
        assert corpus.identity == few.identity != Corpus("another", *expected).identity
    one = text_corpus([put(tmp_path / "c.txt", "four")])
    refused(r"1 document\(s\) cannot be split .*2 or more documents.*dev text", one.in_memory)
    cuts = [(["a", "b"], ["c"]), (["ab"], ["c"]), (["a"], ["b", "c"]), (["a", "b", "c"], []), (["a\nb"], ["c"])]
    assert len({Corpus("x", train, dev).sha256 for train, dev in cuts}) == len(cuts)


def test_docstrings_are_those_of_blocks_of_every_kind_in_their_order(tmp_path):
    source = "'m'\nif x:\n def a(): 'a'\nelse:\n class b:\n  'b'\n  async def c(): 'c'\ntry:\n def d(): 'd'\nexcept E:\n"
    source += " def e(): 'e'\nelse:\n def f(): 'f'\nfinally:\n def g(): 'g'\nmatch x:\n case 1:\n  def h(): 'h'\n"
    source += "with x:\n for y in x:\n  def i(): 'i'\n"
    assert module._file_docstrings(put(tmp_path / "module.py", source)) == list("mabcdefghi")
    latin = put(tmp_path / "latin.py", b'# -*- coding: latin-1 -*-\nif 1:\n    def f():\n        "caf\xe9"\n')
    assert module._file_docstrings(latin) == ["café"]


def test_sizes_and_overlap_are_those_of_a_loop():
    dev = ["to be", " or  not to\u00a0be ", "naïve 漢字", "to be", "that is"]
    train = ["to  be", "Naïve 漢字", "that is the question"]
    loop = [sum(parts) for parts in zip(*((1, len(d.encode()), len(d), len(re.split(r"\s+", d))) for d in dev), strict=True)]
    assert list(module.text_sizes(dev)) == loop and list(module.text_sizes([])) == [0, 0, 0, 0]
    assert module.overlap(iter(dev), iter(train)) == (0.4, 2 * 5 / loop[1])  # twins but for the number of spaces
    assert module.overlap(dev, dev) == (1, 1) and module.overlap([], train) == (0, 0)
