"""Text files of any size as documents.

Lines can also be read by ranges of bytes.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

from jexplicit.data.corpora import Corpus, Documents, Split, lazy_split
from jexplicit.data.inputs import Paths, file_lines, file_stamp, is_compressed, is_pipe, kind_of, list_files, path_list
from jexplicit.data.records import Record, check_field, file_records, text_of, value_of

Unit = Literal["line", "paragraph", "file"]
_plain_name = re.compile(r"\.txt(\.\w+)?$")


def text_corpus(
    train: Paths, dev: Paths = (), *, field: str | None = None, documents: Unit = "line", split: Split = "blocks"
) -> Corpus[Documents]:
    """A lazy corpus of text files; train is split without dev files.

    Paths, `field` and `documents` are as in `read_documents`.
    """
    train_files, dev_files = train_and_dev_files(train, dev)
    check_reading([*train_files, *dev_files], field=field, documents=documents)
    reading: dict[str, Any] = {"field": field, "documents": documents}
    whole = Documents(_files_documents, train_files, **reading)
    parts = (whole, Documents(_files_documents, dev_files, **reading)) if dev_files else lazy_split(whole, split)
    reading |= {"split": split}
    source = {"train_files": list(map(file_stamp, train_files)), "dev_files": list(map(file_stamp, dev_files)), **reading}
    return Corpus(", ".join(path_list(train)), *parts, source)


def read_documents(paths: Paths, *, field: str | None = None, documents: Unit = "line") -> list[str]:
    """Documents of files: every line that is not blank, without its end.

    paths: files, compressed or not, pipes, globs and folders (sorted, without hidden files), each read once. Files of records
        (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, see jexplicit.data.records) have one document per record.
    field: of the records, with the text; required for records.
    documents: of plain text: each `line`, each `paragraph` (between blank lines), or each `file`.
    """
    files = list_files(paths)
    check_reading(files, field=field, documents=documents)
    return list(_files_documents(files, field=field, documents=documents))


def check_reading(files: Sequence[str], *, field: str | None, documents: str) -> None:
    """Refuse a `field` or `documents` that does not fit the files."""
    if documents not in get_args(Unit):
        raise ValueError(f"documents {documents!r}: choose one of {', '.join(get_args(Unit))}")
    records = [file for file in files if kind_of(file) != "text"]
    for file in records:
        check_field(file, field)
    other = [file for file in sorted(set(files) - set(records)) if not _plain_name.search(file.lower())]
    if records and other:
        raise ValueError(f"{other[0]} is no file of records: name those only, such as *.jsonl, or name plain text .txt")
    if field is not None and not records:
        raise ValueError(f"{files[0]} is plain text, which has no field {field!r}: omit the field, or give .jsonl, .csv, ...")
    if documents != "line" and len(records) == len(files):
        raise ValueError(f"{files[0]} holds records, a document each: documents={documents!r} is for plain text; omit it")


def train_and_dev_files(train: Paths, dev: Paths) -> tuple[list[str], list[str]]:
    """The files of train and dev, each once and in order."""
    train_files, dev_files = list_files(train), list_files(dev) if path_list(dev) else []
    if shared := sorted(set(map(os.path.realpath, train_files)) & set(map(os.path.realpath, dev_files))):
        raise ValueError(f"{shared[0]} is in train and in dev: remove it from one, or give no dev to split train")
    return train_files, dev_files


def _files_documents(files: Iterable[str], **reading: Any) -> Iterator[str]:
    return chain.from_iterable(file_documents(file, **reading) for file in files)


class Document(NamedTuple):
    """A document with its file, first line from 1, id and fields."""

    text: str
    file: str
    line: int
    id: Any = None
    fields: Mapping[str, Any] | None = None


def file_documents(path: str, start: int = 0, stop: int | None = None, **reading: Any) -> Iterator[str]:
    """The documents of one file, or of the lines in a byte range.

    Consecutive ranges yield every document exactly once.
    """
    return (document.text for document in locate_documents(path, start, stop, **reading))


def has_ranges(path: str, documents: Unit = "line") -> bool:
    """Whether byte ranges of a file are independent: one document per line."""
    return documents == "line" and kind_of(path) == "text" and not is_pipe(path) and not is_compressed(path)


def locate_documents(
    path: str,
    start: int = 0,
    stop: int | None = None,
    *,
    field: str | None = None,
    documents: Unit = "line",
    id_field: str | None = None,
    every: bool = False,
) -> Iterator[Document]:
    """The documents of one file with their positions; every: all records, blank ones too."""
    if kind_of(path) != "text":
        fields = None if field is None or every else [field, *([] if id_field is None else [id_field])]
        found = record_documents(file_records(path, fields), path, field=field, id_field=id_field, every=every)
    else:
        found = line_documents(file_lines(path, start, stop), path, documents)
    empty = start == 0 and stop is None
    for document in found:
        empty = False
        yield document
    if empty:
        raise ValueError(f"{path} holds no text: take it out, or check how it was written")


def line_documents(lines: Iterable[str], name: str, documents: Unit = "line") -> Iterator[Document]:
    """The documents in plain text: lines, blocks between blank lines, or all."""
    block: list[str] = []
    first = 0
    for n, line in enumerate(_split_lines(lines), 1):
        if documents == "line":
            if line.strip():
                yield Document(line, name, n)
        elif line.strip() or (documents == "file" and block):
            first = first if block else n
            block.append(line)
        elif block:
            yield Document("\n".join(block), name, first)
            block = []
    while block and not block[-1].strip():
        block.pop()
    if block:
        yield Document("\n".join(block), name, first)


def record_documents(
    records: Iterable[Record], name: str, *, field: str | None, id_field: str | None = None, every: bool = False
) -> Iterator[Document]:
    """The documents in a field of records, with `every` also blank ones."""
    for record in records:
        if field is None:
            raise ValueError(f"{name} has the fields {', '.join(record.fields)}: name the one that holds the text, field=NAME")
        text = text_of(record, name, field)
        if every or text.strip():
            value = None if id_field is None else value_of(record, name, id_field)
            yield Document(text if text.strip() else "", name, record.line, value, record.fields if every else None)


def _split_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines without their ends, `\\n`, `\\r\\n` or `\\r`."""
    # str.splitlines would also split at \x0b, \x0c, \x1c, \x85, \u2028 …, which are part of a line.
    for line in lines:
        if "\r" in line:
            yield from line.removesuffix("\n").removesuffix("\r").split("\r")
        else:
            yield line.removesuffix("\n")
