"""What jexplicit.data refuses: files and calls with parts of their messages, which name the place and the remedy."""

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jexplicit.data.streams import contexts, hold_out, write_shards
from jexplicit.data.text import check_reading, read_documents, sample_documents, split_documents, text_corpus
from reference import random_documents, stream_of
from tables import refuse

from jexplicit.data.images import Images, check_images, one_hot, pixel_features
from jexplicit.data.tokenizers import Tokenizer, encode_documents, train_tokenizer

FILES: list[tuple[str, bytes, str | None, str]] = [  # a file's name, its bytes, the field that is read, and the message
    ("a.jsonl", b'{"text": "a", "id": 1}', None, r"a.jsonl has the fields text, id: name the one .* field=NAME"),
    ("a.jsonl", b'{"id": 1}', "text", r"a.jsonl, line 1 has no field 'text': it has 'id'"),
    ("a.jsonl", b"[1]", "text", r"a.jsonl, line 1, is not a JSON object but a int"),
    ("a.jsonl", b"", "text", "a.jsonl holds no text"),
    ("a.csv", b"text,id\n", "text", "a.csv holds no text"),
    ("a.csv", b"text,text\none,two\n", "text", "two columns 'text': rename one"),
    ("a.parquet", b"no parquet", "text", "a.parquet is not a complete Parquet file"),
    ("a.txt", b"plain", "text", "a.txt is plain text, which has no field 'text': omit the field"),
    # a corpus looks at the first record alone
    ("late.jsonl", b'{"text": "a"}\n\n{"id": 1}', "text", r"late.jsonl, line 3 has no field 'text': it has 'id'"),
    ("late.jsonl", b'{"text": "a"}\n{"text": 7}', "text", r"line 2: field 'text' holds int '7', not text: it has 'text'"),
    ("late.jsonl", b'{"text": "a"}\n{"text"', "text", r"late.jsonl, line 2, is not JSON \(.*\): write one object per line"),
    ("late.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}', "text", r"line 2, is not JSON \(two values of 'text'"),
    ("late.jsonl", b'{"text": null}\n{"text": " "}', "text", "late.jsonl holds no text"),
    ("late.csv", b"text,id\na,1\nb,2,3", "text", "late.csv, line 3, has 3 values for 2 fields"),
    (
        "late.csv",
        b'text,id\nzero,0\n\n"a"b,1\n',
        "text",
        "late.csv, line 4, cannot be read as a table",
    ),
    ("late.json", b'[{"text": "one"},\n{"text": "two}]', "text", "late.json, line 2, is not JSON"),
    ("late.txt", b" \n\t\n", None, "late.txt holds no text: take it out"),
    ("late.txt", b"good\nb\xe9d", None, r"late.txt is not UTF-8 text \(0xe9 at byte 6\): convert it \(iconv"),
    ("late.bin", b"ab\0c", None, r"late.bin is a binary file \(NUL at byte 2\): give plain text"),
    ("late.gz", gzip.compress(b"to be", 0, mtime=0).replace(b"to", b"do"), None, "late.gz is not a whole gzip file"),
]


def test_files_that_are_refused(tmp_path):
    def calls():
        for number, (name, data, field, message) in enumerate(FILES):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / name).write_bytes(data)
            for read in (read_documents,) if name.startswith("late") else (read_documents, text_corpus):
                yield message, partial(read, folder / name, field=field)

    refuse(calls())


PIXELS = np.random.default_rng(0).integers(1, 256, (12, 5, 4), np.uint8)
VALID: dict[str, Any] = {"train_images": PIXELS, "train_labels": np.arange(12, dtype=np.uint8) % 3, "levels": 256}
VALID |= {"name": "mnist", "test_images": PIXELS[:6], "test_labels": np.arange(6, dtype=np.uint8) % 3}


def images(part="", value=0, **changed) -> Callable[[Path], Images]:
    """A call with other parts, or with another value in the fifth example of one of the arrays."""
    if part:
        changed[part] = VALID[part].copy()
        changed[part][4] = value
    return lambda _: check_images(Images(**{**VALID, **changed}))


def pixels(values, levels=256) -> Callable[[Path], Any]:
    return lambda _: pixel_features(np.array(values), levels)


def trained(documents, **options) -> Callable[[Path], Any]:
    return lambda _: train_tokenizer(documents, **options)


def characters(folder, documents):
    return write_shards(folder, iter(documents), train_tokenizer(["to be"], kind="char"))


CALLS: list[tuple[Callable[[Path], Any], str]] = [  # given a folder
    *(
        (lambda _, x=x: contexts(np.array(x), 2), r"token stream of shape.*encode_documents")
        for x in ([], [1, 2, 0], [0, 1, 2])
    ),
    (lambda _: contexts(np.array([0.0, 1.5, 0.0]), 2), r"token stream of shape.*encode_documents"),
    (lambda _: contexts(stream_of(random_documents(0, 5, 9, 6)), 0), "radius K = 0.*use K >= 1"),
    (lambda _: hold_out(np.array([0, 1, 0]), positions=5, most=0.0), "all must be above 0"),
    (lambda _: hold_out(np.array([0, 1, 0]), positions=1), "a text of 1 token"),
    (lambda _: split_documents(["one"]), r"1 document\(s\) cannot be .* 2 or more documents"),
    (lambda _: split_documents(["one"] * 2, every=1), "every=1, block=10"),
    (lambda _: sample_documents(["a"], 0), "a sample of 0 documents"),
    # text
    (lambda folder: read_documents(folder / "gone.txt"), "no such file: '.*gone.txt': check the path"),
    (lambda folder: read_documents(f"{folder}/*.txt"), r"no file matches '.*\*.txt': check the folder and the pattern"),
    (lambda folder: read_documents(folder), "no file in folder '.*': name a folder"),
    (lambda _: read_documents([]), "no text file given: name one or more"),
    (lambda _: check_reading([__file__], field=None, documents="word"), "documents 'word': choose one of line, paragraph"),
    # tokenizers
    (trained(["one two"], kind="syllable"), "tokenizer kind 'syllable': use one of bpe, word, char"),
    (trained(["", "\n"]), "no text in 2 documents: give some"),
    (trained(["abc"], vocab_size=2), "size 2 holds no more than <pad> and <unk>: use 3 or more"),
    (trained(["abc"], vocab_size=5), "size 5 is too small for the characters .*: use 6 or more"),
    (trained(["abc"], vocab_size=99), "vocabulary size 99 is more than the text allows: use 12 or less"),
    (trained("to be"), r"a text of 5 characters .*, \[text\]"),
    (lambda _: encode_documents(train_tokenizer(["to be"]), "to be"), "a text of 5 characters instead of documents"),
    (lambda folder: Tokenizer.load(folder / "gone.model"), "no tokenizer at .*gone.model: choose bpe, word or char, or give"),
    (lambda _: Tokenizer(b"junk", "bpe"), "damaged or foreign model of kind .*: use a model of train_tokenizer"),
    # shards
    (lambda folder: characters(folder, ["", ""]), "no token for"),
    (lambda folder: characters(folder, ["to be"])[::2], "every 2-th token"),
    # images
    (lambda _: one_hot(np.array([0, -1, 2]), 3), "label -1 for 3 outputs"),
    (lambda _: one_hot(np.array([0, 3, 2]), 3), "label 3 for 3 outputs"),
    (images(train_labels=VALID["train_labels"][:-1]), "12 train images and 11 labels"),
    (images(test_images=PIXELS[:0], test_labels=VALID["test_labels"][:0]), "0 test images"),
    (images(test_images=PIXELS[:6].swapaxes(1, 2)), "equal shapes"),
    (images("train_images", 0), "train image 4 is zero everywhere"),
    (images(levels=17), r"pixel \d+: grey levels are 0 .. 16"),
    (images("train_labels", 10), "label 10 in mnist, whose labels are 0 .. 9"),  # of ten classes
    (images("train_labels", 10, name="letters"), "label 3 has no training image"),
    (images("test_labels", 3), "test label 3, and training labels are 0 .. 2"),
    (images(train_labels=0 * VALID["train_labels"], test_labels=0 * VALID["test_labels"]), "at least two classes"),
    (pixels([[[-1, 3]]]), "pixel -1: grey levels are 0 .. 255; rescale"),
    (pixels([[[0.0, 0.7]]]), r"float64 from 0 to 0.7, .*: use \(255 \* X\).round"),
    (pixels([[[0.0, 200.5]]]), r"use X.round\(\).astype\(np.uint8\)"),
    (pixels(np.zeros((1, 2, 2, 3), np.uint8)), r"shape \(1, 2, 2, 3\): give grey images"),
]


def test_calls_that_are_refused(tmp_path):
    refuse(((message, call) for call, message in CALLS), tmp_path)
