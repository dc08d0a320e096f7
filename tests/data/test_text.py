"""Text corpora: what is a document, what is refused, and how train and dev are cut."""

import ast
import gzip
import logging
import os
import re
from pathlib import Path

import pytest

from jexplicit.data import corpora
from jexplicit.data.corpora import (
    Corpus,
    TextSizes,
    docs_corpus,
    installed_corpus,
    overlap,
    read_documents,
    split_at_end,
    split_documents,
    text_corpus,
    text_sizes,
)
from jexplicit.data.shards import cached_streams, read_sizes, write_sizes
from jexplicit.runs.files import cache_entries


def write(path: Path, data: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


# Documents


def test_document_is_a_line_unchanged(tmp_path):
    text = "  two  spaces \n\n\t\n\ttab\x0b\u2028\x85 end\r\nmac\rlast é"
    for name, data in (
        ("a.txt", text.encode()),
        ("b.txt", b"\xef\xbb\xbf" + text.encode()),
        ("b.gz", gzip.compress(text.encode())),
    ):
        assert read_documents([write(tmp_path / name, data)]) == ["  two  spaces ", "\ttab\x0b\u2028\x85 end", "mac", "last é"]


def test_globs_and_folders_are_sorted_and_skip_hidden_files(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden", ".git/config", "d[1].md"):
        write(tmp_path / name, name)
    assert read_documents([f"{tmp_path}/*.txt"]) == ["a.txt", "b.txt"]
    assert read_documents([tmp_path]) == ["a.txt", "b.txt", "d[1].md", "sub/c.txt"]
    assert read_documents(f"{tmp_path}/*") == ["a.txt", "b.txt", "d[1].md", "sub/c.txt"]
    assert read_documents([f"{tmp_path}/**/*.txt"]) == ["a.txt", "b.txt", "sub/c.txt"]
    assert read_documents([f"{tmp_path}/d[1].md"]) == ["d[1].md"]
    assert read_documents([tmp_path / "a.txt", f"{tmp_path}/*.txt"]) == ["a.txt", "b.txt"]  # a file named twice is read once


# Errors name the file and the remedy


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads every file")
def test_unreadable_file(tmp_path):
    path = write(tmp_path / "a.txt", "one")
    os.chmod(path, 0)
    with pytest.raises(ValueError, match="a.txt cannot be read .*: check the path and its permissions"):
        read_documents([path])


# Corpora


def test_text_corpus_with_dev_and_without(tmp_path):
    a, b = write(tmp_path / "a.txt", "one\ntwo\nthree"), write(tmp_path / "b.txt", "four")
    corpus = text_corpus([a], [b])
    assert (list(corpus.train), list(corpus.dev)) == (["one", "two", "three"], ["four"])
    corpus = text_corpus(a)
    assert (list(corpus.train), list(corpus.dev)) == (["one", "three"], ["two"])
    (tmp_path / "link.txt").symlink_to(a)
    with pytest.raises(ValueError, match="a.txt is in train and in dev: remove it from one"):
        text_corpus([a], [f"{tmp_path}/link.txt"])
    with pytest.raises(ValueError, match=r"1 document\(s\) cannot be split .*2 or more documents.*dev text"):
        text_corpus([b]).in_memory()


def test_hash_covers_content_and_boundaries_but_not_the_name():
    cuts = [(["a", "b"], ["c"]), (["ab"], ["c"]), (["a"], ["b", "c"]), (["a", "b", "c"], []), (["a\nb"], ["c"])]
    hashes = [Corpus("x", train, dev).sha256 for train, dev in cuts]
    assert len(set(hashes)) == len(hashes)
    assert Corpus("y", ["a", "b"], ["c"]).sha256 == hashes[0]


@pytest.mark.parametrize("n", [2, 3, 9, 10, 11, 100, 1234])
@pytest.mark.parametrize("every", [2, 10])
def test_split_is_complete_disjoint_and_interleaved(n, every):
    train, dev = split_documents(range(n), every=every)
    assert train and dev
    assert sorted(train + dev) == list(range(n))
    assert train == sorted(train) and dev == sorted(dev)
    assert n == 2 or dev[0] < n - 1
    assert n < 100 or abs(len(dev) - n / every) <= 10
    assert split_documents(range(300), every=10, block=10)[1] == [*range(50, 60), *range(150, 160), *range(250, 260)]


@pytest.mark.slow
def test_the_last_characters_are_dev_and_a_document_across_the_boundary_is_in_both():
    parts = [list(split_at_end(["to be", "or not"], dev=dev, share=0.3)) for dev in (False, True)]
    assert parts == [["to be", "or"], [" not"]]


@pytest.mark.slow
def test_docs_corpus_is_large_unique_and_reproducible():
    corpus = docs_corpus()
    documents = corpus.train + corpus.dev
    assert sum(len(document.split()) for document in documents) > 200_000
    assert len(set(documents)) == len(documents)
    assert all(document.strip() for document in documents)
    assert any("\n" in document for document in documents)
    corpora._standard_library_documents.cache_clear()
    assert docs_corpus().sha256 == corpus.sha256


def test_docs_corpus_is_parsed_once_and_again_where_the_cache_is_damaged_or_cannot_be_written(tmp_path, monkeypatch):
    parsed = ("first topic", "second, with a lone \ud800 surrogate", "third", "fourth")
    calls = []
    monkeypatch.setattr(corpora, "_standard_library_documents", lambda: calls.append(1) or parsed)
    monkeypatch.setattr(corpora, "_standard_library", lambda: [tmp_path / "module.py"])
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "module.py").write_text("'a module'")
    corpus = docs_corpus()
    assert len(calls) == 1 and not (tmp_path / "cache").exists()
    assert docs_corpus(keep=True) == docs_corpus(keep=True) == corpus and len(calls) == 2
    (entry,) = cache_entries(tmp_path / "cache")  # launch.cache lists and clears it
    (entry.path / "documents.json").write_text("[")
    assert docs_corpus(keep=True) == corpus and len(calls) == 3
    (tmp_path / "module.py").write_text("'a longer module'")
    assert docs_corpus(keep=True) == corpus and len(calls) == 4
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path / "module.py"))
    assert docs_corpus(keep=True) == corpus and len(calls) == 5


def test_documents_are_found_in_blocks_of_every_kind(tmp_path):
    (tmp_path / "module.py").write_text(SOURCE)
    expected = [ast.get_docstring(node) for node in pre_order(ast.parse(SOURCE)) if isinstance(node, corpora._HasDocstring)]
    assert corpora._file_docstrings(tmp_path / "module.py") == list(filter(None, expected)) == list("mabcdefghi")


SOURCE = """'m'
if x:
    def a(): 'a'
else:
    class b:
        'b'
        async def c(): 'c'
try:
    def d(): 'd'
except ValueError:
    def e(): 'e'
else:
    def f(): 'f'
finally:
    def g(): 'g'
match x:
    case 1:
        def h(): 'h'
with x:
    for y in x:
        def i(): 'i'
    z = lambda: 'no docstring'
"""


def pre_order(node: ast.AST):
    """A node and all below it, in the order of the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from pre_order(child)


def test_installed_corpus_reads_packages_and_reports_what_it_cannot(tmp_path, monkeypatch, caplog):
    write(tmp_path / "pkg/__init__.py", '"""Package of the test."""\nclass C:\n    """\n    First.\n\n      Second.\n    """\n')
    write(tmp_path / "pkg/latin.py", b'# -*- coding: latin-1 -*-\nif 1:\n    def f():\n        "caf\xe9 \\ud800"\n')
    write(tmp_path / "pkg/broken.py", "def (:\n")
    write(tmp_path / "pkg/tests/test_it.py", '"""Left out."""\n')
    monkeypatch.setattr(corpora, "_package_folders", lambda: [tmp_path])
    monkeypatch.setattr(corpora, "_standard_library_documents", lambda: ("Lists.",))  # all take long
    seen = []
    with caplog.at_level(logging.WARNING):
        corpus = installed_corpus(progress=lambda done, in_all: seen.append((done, in_all)))
    documents = set(corpus.train + corpus.dev)
    assert {"Lists.", "Package of the test.", "First.\n\n  Second.", "café \ufffd"} <= documents
    assert "Left out." not in documents
    assert "skipped 1 of 3 source files" in caplog.text and "broken.py" in caplog.text
    assert seen == [(1, 3), (2, 3), (3, 3)]


# Sizes and overlap

DEV = ["to be", " or  not to\u00a0be ", "naïve 漢字", "to be", "that is"]
TRAIN = ["to  be", "Naïve 漢字", "that is the question"]


def test_sizes_are_those_of_a_loop_and_add_up():
    loop = [sum(parts) for parts in zip(*((1, len(d.encode()), len(d), len(re.split(r"\s+", d))) for d in DEV), strict=True)]
    assert list(text_sizes(DEV)) == loop
    assert [a + b for a, b in zip(text_sizes(DEV[:2]), text_sizes(DEV[2:]), strict=True)] == loop
    assert text_sizes([]) == TextSizes(0, 0, 0, 0)


def test_overlap_is_that_of_a_loop_over_all_pairs():
    twins = [d for d in DEV if any(d.split() == t.split() for t in TRAIN)]
    found = overlap(iter(DEV), iter(TRAIN))
    assert found.documents == len(twins) / len(DEV) == 0.4
    assert found.bytes == text_sizes(twins).bytes / text_sizes(DEV).bytes
    assert overlap(DEV, DEV) == (1, 1) and overlap([], TRAIN) == (0, 0)


def test_the_cache_keeps_the_sizes(tmp_path):
    corpus = Corpus("tiny", TRAIN, DEV)
    made, read = (cached_streams(corpus, kind="char", vocab_size=None, cache_dir=tmp_path) for _ in range(2))
    assert read.cached and not made.cached
    assert made.dev_sizes == read.dev_sizes == text_sizes(DEV)
    assert made.dev_in_train == read.dev_in_train == overlap(DEV, TRAIN)


def test_sizes_stand_beside_shards(tmp_path):
    assert read_sizes(tmp_path) is None
    write_sizes(tmp_path, text_sizes(DEV))
    assert read_sizes(tmp_path) == text_sizes(DEV)
    (tmp_path / "sizes.json").write_text("{}")
    with pytest.raises(ValueError, match="damaged"):
        read_sizes(tmp_path)
