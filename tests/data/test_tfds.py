"""Text of TensorFlow Datasets: read through its data source, and refused within seconds where it is not there."""

import importlib.util
import socket
import sys
import time
import types

import pytest

from jexplicit.counts.beam import tfds_parts
from jexplicit.data import tfds
from jexplicit.data.corpora import split_documents
from jexplicit.data.tfds import tfds_corpus, tfds_text
from launch.shards import main

ROWS = {
    "train": [f"line {n}\nof text é".encode() for n in range(130)] + [b" \n"],
    "test": [b"test one"],
    "validation": [b"dev one", b"", "dev two"],
}


@pytest.fixture
def installed(monkeypatch):
    """A stand-in for TFDS with one data set, whose splits a test may take away."""
    splits, rows_read = dict(ROWS), []

    class Rows:
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, n):
            rows_read.append(n)
            return {"text": self.rows[n], "label": 0}

    class Builder:
        @property
        def info(self):
            sizes = {name: types.SimpleNamespace(num_examples=len(rows)) for name, rows in splits.items()}
            return types.SimpleNamespace(features={"text": str, "label": int}, splits=sizes, full_name="small/1.0.0")

        def download_and_prepare(self):
            pass

        def as_data_source(self, split):
            name, _, part = split.partition("[")
            first, _, last = part.rstrip("]").partition(":")
            rows = splits[name]
            if last and int(last) > len(rows):
                raise ValueError(f"Requested slice [{first}:{last}] incompatible with {len(rows)} examples.")
            return Rows(rows[int(first or 0) : int(last) if last else None])

    def builder(name, data_dir, file_format):
        assert file_format == "array_record"  # the format that needs no TensorFlow
        return Builder()

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(tfds, "_reachable", lambda host, port: True)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(builder=builder))
    return types.SimpleNamespace(splits=splits, rows_read=rows_read)


def texts(split: str) -> list[str]:
    decoded = [row.decode() if isinstance(row, bytes) else row for row in ROWS[split]]
    return [text for text in decoded if text.strip()]


def test_train_and_validation_are_train_and_dev(installed):
    corpus = tfds_corpus("small")
    for _ in range(2):
        assert (corpus.name, list(corpus.train), list(corpus.dev)) == ("tfds:small", texts("train"), texts("validation"))
    assert corpus.identity == {"version": "small/1.0.0", "feature": "text"}


def test_without_validation_test_is_dev_and_without_both_train_is_split(installed):
    del installed.splits["validation"]
    assert list(tfds_corpus("small").dev) == texts("test")
    del installed.splits["test"]
    corpus = tfds_corpus("small")
    assert (list(corpus.train), list(corpus.dev)) == split_documents(texts("train"))


def test_documents_are_read_when_they_are_asked_for(installed):
    documents = tfds_text("small").documents("train[5:50]")
    assert next(documents) == texts("train")[5] and installed.rows_read == [0]
    few = tfds_corpus("small").limit(30)
    assert len(installed.rows_read) == 1
    assert len(list(few.train)) == 30 and len(installed.rows_read) == 1 + 30


def test_parts_for_workers_hold_every_document_once_and_in_order(installed):
    for names in (["train", "dev"], ["train", "dev"], ["all"]):
        data = tfds_text("small")
        parts = tfds_parts(data, size=50)
        for name, split in zip(names, ("train", data.dev), strict=False):
            mine = [part for part in parts if part.split == name]
            assert [part.number for part in mine] == list(range(len(mine)))
            assert [document for part in mine for document in part.documents] == texts(split or "")
        assert {part.split for part in parts} == set(names)
        installed.splits.pop(data.dev, None)


def test_another_feature_another_split_and_bytes_that_are_no_text_are_refused(installed):
    with pytest.raises(ValueError, match=r"tfds:small has no feature 'story': name one of text, label \(--feature\)"):
        tfds_text("small", feature="story")
    installed.splits["train"] = [b"good", b"\xff"]
    with pytest.raises(ValueError, match=r"tfds:small could not be read \(UnicodeDecodeError: .*--train FILES"):
        list(tfds_corpus("small").train)
    del installed.splits["train"]
    with pytest.raises(ValueError, match="has the splits test, validation, and none is train"):
        tfds_text("small")


def test_the_command_writes_shards_of_a_data_set(installed, tmp_path, capsys):
    flags = ["--out", str(tmp_path), "--corpus", "tfds:small", "--tokenizer", "char"]
    assert main(flags) == 0
    assert "130 documents" in capsys.readouterr().err
    assert main([*flags, "--feature", "label"]) == 2
    assert "feature = 'text' (now 'label')" in " ".join(capsys.readouterr().err.split())


def test_not_installed_says_so_without_importing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--out", str(tmp_path), "--corpus", "tfds:lm1b"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--corpus tfds:lm1b needs tensorflow_datasets" in error and "pip install -e '.[tfds]'" in error
    assert "tensorflow_datasets" not in sys.modules


def test_offline_fails_at_once_with_the_way_out(monkeypatch, tmp_path):
    def unreachable(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(socket, "create_connection", unreachable)
    start = time.perf_counter()
    with pytest.raises(ValueError, match="cannot be reached.*--train FILES.*--corpus docs"):
        tfds_text("lm1b", data_dir=tmp_path)
    assert time.perf_counter() - start < 5 and "tensorflow_datasets" not in sys.modules
