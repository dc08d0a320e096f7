"""What jexplicit.data refuses: files and calls with parts of their messages, which name the place and the remedy."""

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reference import random_documents, stream_of
from tables import refuse

from jexplicit.data.contexts import contexts, hold_out
from jexplicit.data.corpora import check_reading, iterate_split, read_documents, sample_documents, split_documents, text_corpus
from jexplicit.data.images import Images, check_images, one_hot, pixel_features
from jexplicit.data.shards import write_shards, write_stream
from jexplicit.data.tokenizers import KINDS, Tokenizer, encode_documents, train_tokenizer

# of a file: its name, its bytes, the field that is read, and the message
AT_ONCE = [  # before anything is read
    ("a.jsonl", b'{"text": "a", "id": 1}', None, r"a.jsonl has the fields text, id: name the one .* field=NAME"),
    ("a.jsonl", b'{"id": 1}', "text", r"a.jsonl, line 1 has no field 'text': it has 'id'"),
    ("a.jsonl", b"[1]", "text", r"a.jsonl, line 1, is not a JSON object but a int"),
    ("a.jsonl", b"", "text", "a.jsonl holds no text"),
    ("a.jsonl.gz", b'{"text": "a"}', "text", "is not a whole gzip file"),
    ("a.csv", b"text,id\na,1\n", None, "a.csv has the fields text, id"),
    ("a.csv", b"text,id\n", "text", "a.csv holds no text"),
    ("a.csv", b"text,text\none,two\n", "text", "two columns 'text': rename one"),
    ("a.parquet", b"no parquet", "text", "a.parquet is not a complete Parquet file"),
    ("a.txt", b"plain", "text", "a.txt is plain text, which has no field 'text': omit the field"),
]
LATE = [
    ("a.jsonl", b'{"text": "a"}\n\n{"id": 1}', "text", r"a.jsonl, line 3 has no field 'text': it has 'id'"),
    ("a.jsonl", b'{"text": "a"}\n{"text": 7}', "text", r"line 2: field 'text' holds int '7', not text: it has 'text'"),
    ("a.jsonl", b'{"text": "a"}\n{"text"', "text", r"a.jsonl, line 2, is not JSON \(.*\): write one object per line"),
    ("a.jsonl", b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "text", "a.jsonl, line 1, is not JSON"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}', "text", r"a.jsonl, line 2, is not JSON \(two values of 'text'"),
    ("a.jsonl", b'{"text": null}\n{"text": " "}', "text", "a.jsonl holds no text"),
    ("a.csv", b"text,id\na,1\nb,2,3", "text", "a.csv, line 3, has 3 values for 2 fields"),
    ("a.csv", b"id,text\n1,a\n2\n", "text", "line 3, has 1 values for 2 fields"),
    ("a.csv", b'text,id\n"a,1\n', "text", "a.csv, line 2, cannot be read as a table"),
    ("a.csv", b'text,id\nzero,0\n\n"a"b,1\n', "text", "a.csv, line 4, cannot be read as a table"),  # a guess would mend it
    ("a.json", b'{\n "text": "one"\n}\n', "text", "a.json, line 2, is not JSON .*: write one object per line"),
    ("a.json", b'[{"text": "one"},\n{"text": "two}]', "text", "a.json, line 2, is not JSON"),
    ("a.txt", b" \n\t\n", None, "a.txt holds no text: take it out"),
    ("a.txt", b"good\nb\xe9d", None, r"a.txt is not UTF-8 text \(0xe9 at byte 6\): convert it \(iconv"),
    ("a.txt", b"\xef\xbb\xbf\xff", None, r"a.txt is not UTF-8 text \(0xff at byte 3\)"),
    ("a.txt", b"\x93quoted\x94", None, r"is not UTF-8 text .0x93 at byte 0.: convert it \(iconv -f cp1252"),
    ("a.bin", b"ab\0c", None, r"a.bin is a binary file \(NUL at byte 2\): give plain text"),
    ("a.txt.gz", gzip.compress(b"to be", 0, mtime=0).replace(b"to", b"do"), None, "a.txt.gz is not a whole gzip file"),
    ("a.txt.gz", gzip.compress(b"one two three", mtime=0)[:-9], None, "a.txt.gz is not a whole gzip file"),
    ("a.txt.gz", gzip.compress(b"one two three", mtime=0)[:12] + b"\xff" * 20, None, "a.txt.gz is not a whole gzip file"),
]


def test_files_that_are_refused(tmp_path):
    def calls(rows, readers):
        for number, (name, data, field, message) in enumerate(rows):
            folder = tmp_path / f"{len(readers)}-{number}"
            folder.mkdir()
            (folder / name).write_bytes(data)
            yield from ((message, partial(read, folder / name, field=field)) for read in readers)

    refuse(calls(AT_ONCE, (read_documents, text_corpus)))
    refuse(calls(LATE, (read_documents,)))


DOCUMENTS = random_documents(seed=0, number=5, vocab_size=9, longest=6)
PIXELS = np.random.default_rng(0).integers(1, 256, (12, 5, 4), np.uint8)
VALID: dict[str, Any] = {"train_images": PIXELS, "train_labels": np.arange(12, dtype=np.uint8) % 3, "levels": 256}
VALID |= {"name": "mnist", "test_images": PIXELS[:6], "test_labels": np.arange(6, dtype=np.uint8) % 3}


def images(**changed) -> Images:
    return check_images(Images(**{**VALID, **changed}))


def with_value(name, value):
    """One of the arrays, the fifth example of which has another value."""
    array = VALID[name].copy()
    array[4] = value
    return {name: array}


def holding_out(**options):
    return hold_out(np.array([0, 1, 0]), **options)


def streamed(folder, *tokens: int):
    return write_stream(folder, lambda done: [(np.array(tokens), 1)], vocab_size=9)


def characters(folder, documents):
    return write_shards(folder, iter(documents), train_tokenizer(["to be"], kind="char"))


def read_in(folder, data: bytes, **options):
    """Documents of a file of records."""
    (folder / "a.jsonl").write_bytes(data)
    return read_documents(folder / "a.jsonl", **options)


NOT_STREAMS = [[], [0, 0], [1, 2, 0], [0, 1, 2], [[0, 1, 0]], [0.0, 1.5, 0.0]]


def calls() -> list[tuple[Callable[[Path], Any], str]]:
    """Calls, given a folder, and parts of their messages."""
    return [
        *((lambda _, x=x: contexts(np.array(x), 2), r"token stream of shape.*encode_documents") for x in NOT_STREAMS),
        (lambda _: contexts(stream_of(DOCUMENTS), 0), "radius K = 0.*use K >= 1"),
        (lambda _: holding_out(positions=0), "all must be above 0"),
        (lambda _: holding_out(positions=5, most=0.0), "all must be above 0"),
        (lambda _: holding_out(positions=5, blocks=0), "all must be above 0"),
        (lambda _: holding_out(positions=1), "a text of 1 token"),
        *(
            (lambda _, n=n: split_documents(["one"] * n), rf"{n} document\(s\) cannot be .* 2 or more documents")
            for n in (0, 1)
        ),
        (lambda _: split_documents(["one"] * 2, every=1), "every=1, block=10"),
        (lambda _: list(iterate_split(["one"], dev=False)), r"1 document\(s\) cannot be split"),
        (lambda _: sample_documents(["a"], 0), "a sample of 0 documents"),
        # text
        (lambda folder: read_documents(folder / "gone.txt"), "no such file: '.*gone.txt': check the path"),
        (lambda folder: read_documents(f"{folder}/*.txt"), r"no file matches '.*\*.txt': check the folder and the pattern"),
        (lambda folder: read_documents(folder), "no file in folder '.*': name a folder"),
        (lambda _: read_documents([]), "no text file given: name one or more"),
        (lambda _: check_reading([__file__], field=None, documents="word"), "documents 'word': choose one of line, paragraph"),
        (
            lambda folder: read_in(folder, b'{"text": "a"}', field="text", documents="file"),
            "documents='file' is for plain text",
        ),
        # tokenizers
        (lambda _: train_tokenizer(["one two"], kind="syllable"), "tokenizer kind 'syllable': use one of bpe, word, char"),
        (lambda _: train_tokenizer([]), "no text in 0 documents: give some"),
        (lambda _: train_tokenizer(["", "\n"]), "no text in 2 documents: give some"),
        (lambda _: train_tokenizer(["abc"], vocab_size=2), "size 2 holds no more than <pad> and <unk>: use 3 or more"),
        (lambda _: train_tokenizer(["abc"], vocab_size=5), "size 5 is too small for the characters .*: use 6 or more"),
        (lambda _: train_tokenizer(["abc"], vocab_size=99), "vocabulary size 99 is more than the text allows: use 12 or less"),
        (lambda _: train_tokenizer(["a b"], vocab_size=5, kind="word"), "5 is more than the text allows: use 4 or less"),
        (lambda _: train_tokenizer(["abc"], vocab_size=6, kind="char"), "6 is more than the text allows: use 5 or less"),
        *((lambda _, kind=kind: train_tokenizer("to be", kind=kind), r"a text of 5 characters .*, \[text\]") for kind in KINDS),
        (lambda _: encode_documents(train_tokenizer(["to be"]), "to be"), "a text of 5 characters instead of documents"),
        (lambda folder: Tokenizer.load(folder / "gone.model"), "no tokenizer at .*gone.model .*: check the path, or train one"),
        *(
            (lambda _, row=row: Tokenizer(*row), "damaged or foreign model of kind .*: use a model of train_tokenizer")
            for row in ((b"junk", "bpe"), (b"", "bpe"), (train_tokenizer(["to be"]).model, "syllable"))
        ),
        # shards
        (lambda folder: streamed(folder, 5), "end in token 5"),
        (lambda folder: streamed(folder, -1, 0), "token id -1 in a vocabulary of 9"),
        (lambda folder: streamed(folder, 9, 0), "token id 9 in a vocabulary of 9"),
        (lambda folder: characters(folder, ["", ""]), "no token for"),
        (lambda folder: characters(folder, ["to be"])[::2], "every 2-th token"),
        # images
        (lambda _: one_hot(np.array([0, -1, 2]), 3), "label -1 with 3 outputs"),
        (lambda _: one_hot(np.array([0, 3, 2]), 3), "label 3 with 3 outputs"),
        (lambda _: images(train_labels=VALID["train_labels"][:-1]), "12 train images and 11 labels"),
        (lambda _: images(test_images=PIXELS[:0], test_labels=VALID["test_labels"][:0]), "0 test images"),
        (lambda _: images(test_images=PIXELS[:6].swapaxes(1, 2)), "equal shapes"),
        (lambda _: images(**with_value("train_images", 0)), "train image 4 is zero everywhere"),
        (lambda _: images(**with_value("test_images", 0)), "test image 4 is zero everywhere"),
        (lambda _: images(levels=17), r"pixel \d+: grey levels are 0 .. 16"),
        (lambda _: images(**with_value("train_labels", 10)), "label 10 in mnist, whose labels are 0 .. 9"),  # of ten classes
        (lambda _: images(**with_value("train_labels", 10), name="letters"), "label 3 has no training image"),
        (lambda _: images(**with_value("test_labels", 3)), "test label 3, and training labels are 0 .. 2"),
        (
            lambda _: images(train_labels=0 * VALID["train_labels"], test_labels=0 * VALID["test_labels"]),
            "at least two classes",
        ),
        (lambda _: pixel_features(np.array([[[-1, 3]]]), 256), "pixel -1: grey levels are 0 .. 255; rescale"),
        (lambda _: pixel_features(np.array([[[0.0, 0.7]]]), 256), r"float64 from 0 to 0.7, .*: use \(255 \* X\).round"),
        (
            lambda _: pixel_features(np.array([[[0, 1]]], np.uint8), 17),
            r"uint8 from 0 to 1, .* use \(16 \* X\)",
        ),  # cast to bytes
        (lambda _: pixel_features(np.array([[[0.0, 200.5]]]), 256), r"use X.round\(\).astype\(np.uint8\)"),
        (lambda _: pixel_features(np.array([[[0.0, np.nan]]]), 256), "pixel nan"),
        (lambda _: pixel_features(np.zeros((1, 2, 2, 3), np.uint8), 256), r"shape \(1, 2, 2, 3\): give grey images"),
        (lambda _: pixel_features(np.zeros((1, 4), np.uint8), 256), r"shape \(1, 4\)"),
    ]


def test_calls_that_are_refused(tmp_path):
    refuse(((message, call) for call, message in calls()), tmp_path)
