"""Text: files of any kind, their documents, and corpora of train and dev documents.

Records are read strictly: pandas would join `"a"b` to one value, take a missing field for an empty one, round large integers,
and name no line. Documents are iterables of strings that can be iterated again: lists, or `Documents`, which are read again.
"""

import ast
import bz2
import contextlib
import csv
import functools
import gc
import glob
import gzip
import hashlib
import heapq
import importlib.util
import io
import lzma
import os
import platform
import random
import re
import sys
import sysconfig
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from jexplicit.runs.files import parse_json, refuse_errors

T = TypeVar("T")
D = TypeVar("D", bound=Iterable[str], covariant=True)
Paths = str | os.PathLike | Sequence[str | os.PathLike]
Unit = Literal["line", "paragraph", "file"]
Split = Literal["blocks", "end"]

# Files, compressed or not, and pipes

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_kinds = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_html = "is a page of HTML, such as a message of a server: download the file again, or name it .html to read its source"
_refused = {  # by the first bytes, in lower case: what would pass as text
    **dict.fromkeys((b"<!doctype html", b"<html"), _html),
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: fetch it (git lfs pull)",
    b"mmap lm http://kheafield": "is a binary file of KenLM: give the ARPA file that it was made from",
}
_left_out = (  # written beside the files of a folder by Spark and Hadoop, macOS and Windows
    *("_SUCCESS", "_committed_", "_started_", "_metadata", "_common_metadata", "_temporary", "_delta_log", "_spark_metadata"),
    *("__MACOSX", "Thumbs.db", "desktop.ini", "."),
)
_json_start = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*\"")


def _kind_of(path: str) -> str:
    """`json`, `csv`, `tsv`, `parquet` or `text`: by the ending, else by the first bytes."""
    name, ending = os.path.splitext(path.lower())
    ending = os.path.splitext(name)[1] if ending in COMPRESSED else ending
    if ending or not is_input(path):
        return _kinds.get(ending, "text")
    with contextlib.suppress(ValueError):  # of a damaged file: where it is read
        return "json" if _json_start.match(read_input(path, 512)) else "text"
    return "text"


def is_compressed(path: str) -> bool:
    """Whether a file is compressed, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(6).startswith(tuple(_openers))


def is_input(path: str | os.PathLike) -> bool:
    """Whether a path is a file or a pipe."""
    return os.path.exists(path) and not os.path.isdir(path)


def is_pipe(path: str) -> bool:
    """Whether a path is neither a regular file nor a folder, such as /dev/stdin."""
    return is_input(path) and not os.path.isfile(path)


@contextlib.contextmanager
def open_input(path: str | os.PathLike, content: bytes | None = None) -> Iterator[Any]:
    """The decompressed bytes of a file, as a file; `content`: of standard input."""
    path, again = str(path), "compress or download it again"
    with refuse_errors(f"{path} cannot be read", "check the path and its permissions", OSError):
        content = pipe_bytes(path) if content is None and is_pipe(path) else content
        source: Any = open(path, "rb") if content is None else io.BytesIO(content)
    with source, refuse_errors(f"{path} is not a whole file", again, OSError, EOFError, zlib.error, lzma.LZMAError):
        head = source.read(6)
        source.seek(0)
        opener = next((opener for magic, opener in _openers.items() if head.startswith(magic)), None)
        if opener is None and path.lower().endswith(COMPRESSED):
            raise ValueError(f"{path} is not a whole compressed file (it begins with {head!r}): {again}")
        with opener(source) if opener else source as file:
            yield file


def read_input(path: str | os.PathLike, size: int = -1, *, content: bytes | None = None) -> bytes:
    """The content of an input, or its first bytes."""
    with open_input(path, content) as file:
        return file.read(size)


def refuse_other_formats(path: str | os.PathLike, head: bytes) -> None:
    """Refuse a file that is something else, by its first bytes."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").lower()
    what = next((what for magic, what in _refused.items() if start.startswith(magic)), None)
    if what and not (what == _html and ".htm" in str(path).lower()):
        raise ValueError(f"{path} {what}")


def file_lines(path: str, *, content: bytes | None = None) -> Generator[str, None, None]:
    """Lines of a UTF-8 file with their ends."""
    refuse_other_formats(path, read_input(path, 512, content=content))
    start = 0
    with open_input(path, content) as file:
        for line in file:
            try:
                if (zero := line.find(b"\0")) >= 0:
                    raise UnicodeDecodeError("utf-8", line, zero, zero + 1, "NUL")
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                found = f"0x{line[error.start]:02x} at byte {start + error.start}"
                remedy = "convert it (iconv -f cp1252 -t utf-8, or -f utf-16), if it is text"
                raise ValueError(f"{path} is not UTF-8 text ({found}): {remedy}") from error
            yield text if start else text.removeprefix("\ufeff")
            start += len(line)


def list_files(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, each once, as absolute paths."""
    return list({os.path.realpath(path): os.path.abspath(path) for path in reversed(expand_paths(paths))}.values())[::-1]


def expand_paths(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, as named and as often."""
    named = [os.path.expanduser(str(path)) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not named:
        raise ValueError("no text file given: name one or more files, globs or folders")
    files = []
    for path in named:
        found = [path]
        if not os.path.exists(path):  # before the glob: a file may be named notes[1].txt
            if not glob.has_magic(path):
                raise ValueError(f"no such file: {path!r}: check the path (it is read from {os.getcwd()!r})")
            found = [match for match in sorted(glob.glob(path, recursive=True)) if not is_left_out(match)]
            if not found:
                raise ValueError(f"no file matches {path!r}: check the folder and the pattern")
        files += [file for match in found for file in (folder_files(match) if os.path.isdir(match) else [match])]
    for file in files:
        with refuse_errors(f"the file name {file!r} is not UTF-8", "rename the file", UnicodeEncodeError):
            file.encode()
    return files


def folder_files(folder: str | os.PathLike) -> list[str]:
    """The files of a folder and its subfolders, sorted, without hidden ones."""
    found: list[str] = []
    seen = {os.path.realpath(folder)}  # a link to a folder may lead back
    for place, folders, files in os.walk(folder, followlinks=True):
        inside = {os.path.realpath(os.path.join(place, name)): name for name in folders if not is_left_out(name)}
        folders[:] = [name for real, name in inside.items() if real not in seen]
        seen.update(inside)
        found += [os.path.join(place, name) for name in files if not is_left_out(name)]
    if not found:
        raise ValueError(f"no file in folder {folder!r}: name a folder that holds text files")
    return sorted(found)


def is_left_out(path: str | os.PathLike) -> bool:
    """Whether a file or folder is hidden, or one that systems write beside others."""
    return os.path.basename(path).startswith(_left_out)


def _file_stamp(path: str) -> list[Any]:
    """An identifier that changes with a file, without reading it."""
    if is_pipe(path):
        return [path, zlib.crc32(pipe_bytes(path)), len(pipe_bytes(path))]
    found = os.stat(path)
    return [path, found.st_size, found.st_mtime_ns]


@functools.cache
def pipe_bytes(path: str) -> bytes:
    """The content of a pipe, cached: it can be read only once."""
    return Path(path).read_bytes()


def _open_zstd(source: Any) -> Any:
    with refuse_errors("an input is compressed by zstd", "pip install zstandard, or decompress it", ImportError):
        import zstandard  # pyright: ignore[reportMissingImports]
    return zstandard.open(source, "rb")


_openers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"\x28\xb5\x2f\xfd": _open_zstd}

# Documents and records


class Document(NamedTuple):
    """A document with its file, its first line from 1, and its fields."""

    text: str
    file: str
    line: int
    fields: Mapping[str, Any] | None = None

    def value(self, field: str) -> Any:
        """The value of a field."""
        if field not in (self.fields or {}):
            raise self._error(f" has no field {field!r}")
        return (self.fields or {})[field]

    def text_in(self, field: str | None) -> str:
        """The text in a field, which records need; a missing value is empty."""
        if field is None:
            names = ", ".join(self.fields or {})
            raise ValueError(f"{self.file} has the fields {names}: name the one that holds the text, field=NAME")
        value = self.value(field)
        if value is not None and not isinstance(value, str):
            raise self._error(f": field {field!r} holds {type(value).__name__} {str(value)[:40]!r}, not text")
        return value or ""

    def _error(self, what: str) -> ValueError:
        unit = "row" if _kind_of(self.file) == "parquet" else "line"
        names = ", ".join(map(repr, self.fields or {})) or "none"
        return ValueError(f"{self.file}, {unit} {self.line}{what}: it has {names}; name one that every record has as `field`")


def file_records(path: str, fields: Iterable[str] | None = None, *, content: bytes | None = None) -> Iterator[Document]:
    """The records of a file, in order; content: JSON lines of standard input.

    JSON has objects in lines, or in one array; a table has a header, `.csv` with commas, semicolons, tabs or bars, `.tsv`
    without quotes; or Parquet, by pyarrow. All may be compressed.
    """
    kind = "json" if content is not None else _kind_of(path)
    if kind == "parquet":
        return _parquet_records(path, fields)
    return _table_records(path, kind) if kind in ("csv", "tsv") else _json_records(file_lines(path, content=content), path)


def _json_records(lines: Iterator[str], name: str) -> Iterator[Document]:
    """The records of JSON lines, or of one array of objects."""
    array = None
    for n, line in ((n, line) for n, line in enumerate(lines, 1) if line.strip()):
        array = array is None and line.lstrip().startswith("[")  # of the first line
        try:
            found = parse_json(line + "".join(lines) if array else line)
        except ValueError as error:
            n += getattr(error, "lineno", 1) - 1
            raise ValueError(f"{name}, line {n}, is not JSON ({error}): write one object per line") from error
        for m, fields in enumerate(found, 1) if array else [(n, found)]:
            if not isinstance(fields, dict):
                what = type(fields).__name__
                raise ValueError(f"{name}, line {m}, is not a JSON object but a {what}: write one object per line")
            yield Document("", name, m, fields)


def _table_records(path: str, kind: str) -> Iterator[Document]:
    csv.field_size_limit(sys.maxsize)  # a document may be long
    lines = file_lines(path)
    head = next((line for line in lines if line.strip()), "")
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
    if kind == "csv":
        style = {"delimiter": next((mark for mark in ",;\t|" if mark in head), ","), "strict": True}
    reader, names, line = csv.reader(chain([head], lines), **style), [], 1
    try:
        for row in reader:
            if row and not names:
                names = row
                if twice := next((name for name in names if names.count(name) > 1), None):
                    raise ValueError(f"{path} has two columns {twice!r}: rename one")
            elif row and len(row) != len(names):
                raise ValueError(
                    f"{path}, line {line}, has {len(row)} values for {len(names)} fields: the delimiter is "
                    f"{style['delimiter']!r}; quote values that contain it or a line break"
                )
            elif row:
                yield Document("", path, line, dict(zip(names, row, strict=True)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}, cannot be read as a table ({error}): check how it was written") from error


def _parquet_records(path: str, fields: Iterable[str] | None) -> Iterator[Document]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError(f"{path} needs pyarrow: pip install 'jexplicit[parquet]', or write it as .jsonl")
    import pyarrow
    import pyarrow.parquet

    n = 0
    try:
        with open_input(path) as opened, pyarrow.parquet.ParquetFile(opened) as file:
            names = file.schema_arrow.names
            if twice := next((name for name in fields or () if names.count(name) > 1), None):
                raise pyarrow.ArrowInvalid(f"two columns {twice!r}")
            columns = None if fields is None else [name for name in dict.fromkeys(fields) if name in names]
            for batch in file.iter_batches(1024, columns=columns):
                for row in batch.to_pylist():
                    yield Document("", path, n := n + 1, row if row else dict.fromkeys(names))
    except (pyarrow.ArrowException, ValueError, ArithmeticError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{path}, after row {n}, cannot be read as Parquet ({why}): write or download it again") from error


def check_reading(files: Sequence[str], *, field: str | None, documents: str) -> None:
    """Refuse a `field` or `documents` that does not fit the files."""
    if documents not in get_args(Unit):
        raise ValueError(f"documents {documents!r}: choose one of {', '.join(get_args(Unit))}")
    records = [file for file in files if _kind_of(file) != "text"]
    for file in records:
        next(locate_documents(file, field=field))
    other = [file for file in sorted(set(files) - set(records)) if not re.search(r"\.txt(\.\w+)?$", file.lower())]
    if records and other:
        raise ValueError(f"{other[0]} is no file of records: name those only, such as *.jsonl, or name plain text .txt")
    if field is not None and not records:
        raise ValueError(f"{files[0]} is plain text, which has no field {field!r}: omit the field, or give .jsonl, .csv, ...")
    if documents != "line" and len(records) == len(files):
        raise ValueError(f"{files[0]} holds records, a document each: documents={documents!r} is for plain text; omit it")


def read_documents(paths: Paths, *, field: str | None = None, documents: Unit = "line") -> list[str]:
    """Documents of files: every line that is not blank, without its end.

    paths: files, compressed or not, pipes, globs and folders (sorted, without hidden files), each read once. Files of records
        (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`) have one document per record.
    field: of the records, with the text; required for records.
    documents: of plain text: each `line`, each `paragraph` (between blank lines), or each `file`.
    """
    files = list_files(paths)
    check_reading(files, field=field, documents=documents)
    return list(files_documents(files, field=field, documents=documents))


def files_documents(files: Iterable[str], **reading: Any) -> Iterator[str]:
    """The texts of `locate_documents`, file after file."""
    return (document.text for file in files for document in locate_documents(file, **reading))


def locate_documents(
    path: str, *, field: str | None = None, documents: Unit = "line", every: bool = False, content: bytes | None = None
) -> Iterator[Document]:
    """The documents of one file with their positions.

    every: all records with all of their fields, blank ones too.
    content: of standard input, whose name is `path`: plain text, or JSON lines with a field.
    """
    empty = True
    if _kind_of(path) != "text" or (content is not None and field is not None):
        for record in file_records(path, None if field is None or every else [field], content=content):
            text = record.text_in(field)
            if every or text.strip():
                empty = False
                yield record._replace(text=text if text.strip() else "", fields=record.fields if every else None)
    else:
        for document in _plain_documents(file_lines(path, content=content), path, documents):
            empty = False
            yield document
    if empty:
        raise ValueError(f"{path} holds no text: take it out, or check how it was written")


def _plain_documents(lines: Iterable[str], name: str, documents: Unit) -> Iterator[Document]:
    """The documents in plain text: lines, blocks between blank lines, or all."""
    # str.splitlines would also split at \x0b, \x0c, \x1c, \x85, \u2028 …, which are part of a line.
    whole = (part for line in lines for part in line.removesuffix("\n").removesuffix("\r").split("\r"))
    block: list[str] = []
    first = 0
    for n, line in enumerate(whole, 1):
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


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence, their paradigm, its field and its linguistic term."""

    good: str
    bad: str
    paradigm: str
    field: str = ""
    term: str = ""


def read_pairs(paths: Paths) -> list[MinimalPair]:
    """The pairs of files of records with `sentence_good` and `sentence_bad`, globs and folders.

    As in BLiMP, records may have `UID` (the paradigm; default, the name of the file), `field` and `linguistics_term`.
    Source: Warstadt et al. 2020, BLiMP.
    """
    pairs = []
    for path in list_files(paths):
        before, name = len(pairs), Path(path).name.partition(".")[0]
        for record in file_records(path):
            fields = record.fields or {}
            good, bad = fields.get("sentence_good"), fields.get("sentence_bad")
            if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
                what = "is not a minimal pair, {'sentence_good': 'he runs', 'sentence_bad': 'he run'}"
                raise ValueError(f"{path}, line {record.line}, {what}: a sentence is missing or empty")
            paradigm, field, term = (str(fields.get(key) or "") for key in ("UID", "field", "linguistics_term"))
            field = field.replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
            pairs.append(MinimalPair(good, bad, paradigm or name, field, term))
        if len(pairs) == before:
            raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
    return pairs


# Corpora


class Documents:
    """The documents of `read(*arguments, **options)`, read by every iteration."""

    def __init__(self, read: Callable[..., Iterable[Any]], *arguments: Any, **options: Any):
        self._read = partial(read, *arguments, **options)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())


@dataclass(frozen=True)
class Corpus(Generic[D]):
    """Train and dev documents, which can be iterated repeatedly.

    source: JSON that identifies the origin of lazy documents, e.g. by file stamps; None for documents in memory.
    """

    name: str
    train: D
    dev: D
    source: dict[str, Any] | None = None

    @cached_property
    def sha256(self) -> str:
        """Hash of all documents and their boundaries, without the name; reads all documents."""
        digest = hashlib.sha256()
        for part in (self.train, self.dev):
            documents = list(part)
            digest.update(b"%d documents\n" % len(documents))
            for data in (document.encode("utf-8", "surrogatepass") for document in documents):
                digest.update(b"%d bytes\n%b" % (len(data), data))
        return digest.hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """An identifier that changes with the documents; does not read lazy ones."""
        return self.source or {"sha256": self.sha256}

    def limit(self, documents: int) -> "Corpus[Documents]":
        """At most `documents` documents of train, and a tenth as many of dev."""
        train, dev = Documents(islice, self.train, documents), Documents(islice, self.dev, max(1, documents // 10))
        return Corpus(self.name, train, dev, self.source)

    def in_memory(self) -> "Corpus[list[str]]":
        """The corpus with its documents as lists."""
        return Corpus(self.name, list(self.train), list(self.dev), self.source)


def read_corpus(name: str, train: Paths = (), dev: Paths = (), **reading: Any) -> Corpus:
    """The corpus of a name: `docs`, or `text` of files; reading: options of `text_corpus`."""
    if name not in ("docs", "text"):
        raise ValueError(f"corpus {name!r}: choose docs, or name training files")
    return text_corpus(train, dev, **reading) if name == "text" else docs_corpus()


def text_corpus(
    train: Paths, dev: Paths = (), *, field: str | None = None, documents: Unit = "line", split: Split = "blocks"
) -> Corpus[Documents]:
    """A lazy corpus of text files (`read_documents`); train is split without dev files."""
    train_files, dev_files = train_and_dev_files(train, dev)
    check_reading([*train_files, *dev_files], field=field, documents=documents)
    reading: dict[str, Any] = {"field": field, "documents": documents}
    whole = Documents(files_documents, train_files, **reading)
    cut = iterate_split if split == "blocks" else split_at_end
    parts = Documents(cut, whole, dev=False), Documents(cut, whole, dev=True)
    if dev_files:
        parts = whole, Documents(files_documents, dev_files, **reading)
    stamps = {"train_files": list(map(_file_stamp, train_files)), "dev_files": list(map(_file_stamp, dev_files))}
    name = str(train) if isinstance(train, str | os.PathLike) else ", ".join(map(str, train))
    return Corpus(name, *parts, {**stamps, **reading, "split": split})


def train_and_dev_files(train: Paths, dev: Paths) -> tuple[list[str], list[str]]:
    """The files of train and dev, each once and in order."""
    train_files, dev_files = list_files(train), list_files(dev) if dev else []
    if shared := sorted(set(map(os.path.realpath, train_files)) & set(map(os.path.realpath, dev_files))):
        raise ValueError(f"{shared[0]} is in train and in dev: remove it from one, or give no dev to split train")
    return train_files, dev_files


def split_documents(documents: Sequence[T], *, every: int = 10, block: int = 10) -> tuple[list[T], list[T]]:
    """Split documents into train and dev by interleaved blocks.

    `block` neighbours, which are often related, stay together; of `every` blocks the middle one is dev. A small corpus has
    smaller blocks, so that neither part is empty.
    """
    train, dev = (list(iterate_split(documents, dev=dev, every=every, block=block)) for dev in (False, True))
    return train, dev


def iterate_split(documents: Iterable[T], *, dev: bool, every: int = 10, block: int = 10) -> Iterator[T]:
    """One of the two parts of `split_documents`, of lazy documents."""
    if every < 2 or block < 1:
        raise ValueError(f"cannot split with every={every}, block={block}: every must be 2 or more, block 1 or more")
    documents = iter(documents)
    first = list(islice(documents, every * block))  # with at least as many, their number does not matter
    if len(first) < 2:
        remedy = "use a text of 2 or more documents (lines, if not said otherwise), or give dev text as well"
        raise ValueError(f"{len(first)} document(s) cannot be split into train and dev: {remedy}")
    every = min(every, len(first))
    block = min(block, len(first) // every)
    numbered = enumerate(chain(first, documents))
    return (document for m, document in numbered if (m // block % every == every // 2) == dev)


def split_at_end(documents: Iterable[str], *, dev: bool, share: float = 0.1) -> Iterator[str]:
    """Train or dev of a text whose last characters are dev."""
    characters = sum(map(len, documents))
    cut, place = int((1 - share) * characters), 0
    if not 0 < cut < characters:
        raise ValueError(f"{characters} character(s) cannot be split into train and dev: use a longer text")
    for document in documents:
        first = min(max(cut - place, 0), len(document))
        if piece := document[first:] if dev else document[:first]:
            yield piece
        place += len(document)


def split_in_three(documents: Sequence[T], *, seed: int = 0) -> tuple[list[T], list[T], list[T]]:
    """Shuffle unrelated documents and split them 80 / 10 / 10, none empty."""
    import numpy as np  # local import: --help does not need it

    M = len(documents)
    if M < 3:
        raise ValueError(f"{M} document(s) cannot be split into train, dev and test: use a text of 3 or more lines")
    shuffled = [documents[m] for m in np.random.default_rng(seed).permutation(M)]
    deal = min(10, M)  # fewer than ten documents: one of each
    dev, test = shuffled[deal - 2 :: deal], shuffled[deal - 1 :: deal]
    return [document for m, document in enumerate(shuffled) if m % deal < deal - 2], dev, test


def sample_documents(
    documents: Iterable[str], size: int, *, seed: int = 0, progress: Callable[[int], None] | None = None
) -> tuple[list[str], int]:
    """A uniform sample of `size` documents in order, and their total number."""
    rng, kept, seen = random.Random(seed), [], 0  # the smallest of uniform numbers are at uniform places
    for seen, document in enumerate(documents, 1):  # noqa: B007
        add = heapq.heappush if len(kept) < size else heapq.heappushpop
        add(kept, (-rng.random(), seen, document))
        if progress and seen % 10_000 == 0:
            progress(seen)
    return [document for _, _, document in sorted(kept, key=lambda one: one[1])], seen


class TextSizes(NamedTuple):
    """Documents, UTF-8 bytes (no line ends), code points and words (lm-evaluation-harness)."""

    documents: int
    bytes: int
    characters: int
    words: int


class Overlap(NamedTuple):
    """Shares of documents and bytes that occur verbatim in another text."""

    documents: float
    bytes: float


def text_sizes(documents: Iterable[str]) -> TextSizes:
    """The sizes of a text; its words are `len(re.split(r"\\s+", document))`, summed."""
    sizes = [(1, len(d.encode("utf-8", "surrogatepass")), len(d), len(re.split(r"\s+", d))) for d in documents]
    return TextSizes(*map(sum, zip(*sizes, strict=True))) if sizes else TextSizes(0, 0, 0, 0)


def overlap(dev: Iterable[str], train: Iterable[str]) -> Overlap:
    """Shares of dev whose documents occur in train, for any white space."""
    words = [(" ".join(document.split()), document) for document in dev]
    wanted = {key for key, _ in words}
    found = {key for document in train if (key := " ".join(document.split())) in wanted}
    repeated, whole = text_sizes(d for key, d in words if key in found), text_sizes(d for _, d in words)
    return Overlap(repeated.documents / max(whole.documents, 1), repeated.bytes / max(whole.bytes, 1))


# The documentation of Python

_skipped_folders = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"})


def docs_corpus() -> Corpus[list[str]]:
    """Help topics and docstrings of the Python standard library, without duplicates.

    A Python release determines the corpus (`about_corpus`); parsing takes 2 s of CPU time.
    """
    return Corpus("docs", *split_documents(list(_standard_library_documents())))


@functools.cache
def _standard_library_documents() -> tuple[str, ...]:
    from pydoc_data.topics import topics  # 0.7 MB of text, imported only if needed

    root, texts = Path(sysconfig.get_paths()["stdlib"]), [topics[name] for name in sorted(topics)]
    own = [path for path in sorted(root.rglob("*.py")) if _skipped_folders.isdisjoint(path.relative_to(root).parts)]
    collecting = gc.isenabled()
    gc.disable()  # trees have no cycles, and it would look at all objects of JAX
    try:
        for path in own:
            with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):  # such as templates
                texts += _file_docstrings(path)
    finally:
        if collecting:
            gc.enable()
    # a docstring may contain a surrogate alone, which UTF-8 cannot encode
    whole = (re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text) for text in texts)
    return tuple(dict.fromkeys(text for text in whole if text.strip()))


def about_corpus(name: str) -> str | None:
    """A description of an embedded corpus with Python's version, else None."""
    return f"documentation of Python {platform.python_version()}" if name == "docs" else None


def _file_docstrings(path: Path) -> list[str]:
    """The docstrings of a module, its classes and functions, in their order."""

    def docstrings(node: ast.AST) -> Iterator[str | None]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from docstrings(child)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's code
        return list(filter(None, docstrings(ast.parse(path.read_bytes()))))
