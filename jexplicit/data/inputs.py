"""Opening inputs: files, compressed or not, pipes, and records with a text field.

The name of a file as given, in any case, and its first bytes determine its kind. Records (JSON, CSV, TSV, Parquet) are
streamed, except a JSON array. The parsers are strict: pandas would join `"a"b` to one value, take a missing field for an empty
one, and name no line. Parquet needs pyarrow, the extra `parquet`.
"""

import bz2
import contextlib
import csv
import functools
import glob
import gzip
import importlib.util
import io
import itertools
import lzma
import os
import re
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jexplicit.runs.files import parse_json, refuse_errors

Paths = str | os.PathLike | Sequence[str | os.PathLike]
Kind = Literal["json", "csv", "tsv", "parquet", "text"]

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_kinds: dict[str, Kind] = {".jsonl": "json", ".ndjson": "json", ".json": "json"}
_kinds |= {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_zip = "is a zip archive: decompress it (unzip), or save a .docx or .xlsx as text"
_html = "is a page of HTML, such as a message of a server: download the file again, or name it .html to read its source"
_refused = {  # by the first bytes, in lower case
    **dict.fromkeys((b"pk\x03\x04", b"pk\x05\x06"), _zip),
    **dict.fromkeys((b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "is UTF-32 text: convert it (iconv -f utf-32 -t utf-8)"),
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "is UTF-16 text: convert it (iconv -f utf-16 -t utf-8)"),
    **dict.fromkeys((b"<!doctype html", b"<html"), _html),
    b"\x1f\x8b": "is compressed twice: decompress it (gunzip)",
    b"%pdf-": "is a PDF: convert it to text (pdftotext)",
    b"\x89png": "is an image, not text: jexplicit digits and classify read images",
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: fetch it (git lfs pull)",
    b"mmap lm http://kheafield": "is a binary file of KenLM: give the ARPA file that it was made from",
}
_left_out = (  # written beside the files of a folder by Spark and Hadoop, macOS and Windows
    *("_SUCCESS", "_committed_", "_started_", "_metadata", "_common_metadata", "_temporary", "_delta_log", "_spark_metadata"),
    *("__MACOSX", "Thumbs.db", "desktop.ini", "."),
)
_AGAIN = "compress or download it again"
_damaged = (OSError, EOFError, zlib.error, lzma.LZMAError)
_json_start = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*\"")


def kind_of(path: str) -> Kind:
    """The kind of a file, by its name or its first bytes."""
    name, ending = os.path.splitext(path.lower())
    ending = os.path.splitext(name)[1] if ending in COMPRESSED else ending
    if ending in _kinds or not is_input(path):
        return _kinds.get(ending, "text")
    with contextlib.suppress(ValueError):  # of a damaged file: where it is read
        head = input_head(path)
        if head.startswith(b"PAR1"):
            return "parquet"
        return "json" if not ending and _json_start.match(head) else "text"
    return "text"


def is_compressed(path: str) -> bool:
    """Whether a file is compressed, by its first bytes."""
    return not is_pipe(path) and _head(path).startswith(tuple(_openers))


def is_input(path: str | os.PathLike) -> bool:
    """Whether a path is a file or a pipe."""
    return os.path.exists(path) and not os.path.isdir(path)


def is_pipe(path: str) -> bool:
    """Whether a path is neither a regular file nor a folder, such as /dev/stdin."""
    return is_input(path) and not os.path.isfile(path)


def open_input(path: str | os.PathLike, content: bytes | None = None) -> io.BufferedIOBase:
    """The decompressed bytes of a file; `content`: of standard input."""
    path = str(path)
    with refuse_errors(f"{path} cannot be read", "check the path and its permissions", OSError):
        content = pipe_bytes(path) if content is None and is_pipe(path) else content
        head, source = (_head(path), path) if content is None else (content[:6], io.BytesIO(content))
        opener = next((opener for magic, opener in _openers.items() if head.startswith(magic)), None)
        if opener is None and path.lower().endswith(COMPRESSED):
            raise ValueError(f"{_not_whole(path)} (it begins with {head!r}): {_AGAIN}")
        return opener(source) if opener else open(path, "rb") if content is None else io.BytesIO(content)


def read_input(path: str | os.PathLike, size: int = -1, *, content: bytes | None = None) -> bytes:
    """The content of an input, or its first bytes."""
    with open_input(path, content) as file, refuse_errors(_not_whole(path), _AGAIN, *_damaged):
        return file.read(size)


def input_head(path: str | os.PathLike, content: bytes | None = None) -> bytes:
    """The first bytes of an input, at most 512."""
    return read_input(path, 512, content=content)


def refuse_other_formats(path: str | os.PathLike, head: bytes) -> None:
    """Refuse a file that is no text, by its first bytes."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").lower()
    what = next((what for magic, what in _refused.items() if start.startswith(magic)), None)
    if head[257:262] == b"ustar":
        what = "is a tar archive: unpack it (tar xf)"
    if what and not (what == _html and ".htm" in str(path).lower()):
        raise ValueError(f"{path} {what}")


def file_lines(path: str, *, content: bytes | None = None) -> Generator[str, None, None]:
    """Lines of a UTF-8 file with their ends."""
    refuse_other_formats(path, input_head(path, content))
    start = 0
    with open_input(path, content) as file, refuse_errors(_not_whole(path), _AGAIN, *_damaged):
        for line in file:
            if (zero := line.find(b"\0")) >= 0:
                raise ValueError(f"{path} is a binary file (NUL at byte {start + zero}): give plain text in UTF-8")
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                found = f"0x{line[error.start]:02x} at byte {start + error.start}"
                raise ValueError(f"{path} is not UTF-8 text ({found}): convert it (iconv -f cp1252 -t utf-8)") from error
            yield text if start else text.removeprefix("\ufeff")
            start += len(line)


def list_files(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, each once, as absolute paths."""
    return list({os.path.realpath(path): os.path.abspath(path) for path in reversed(expand_paths(paths))}.values())[::-1]


def expand_paths(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, as named and as often."""
    if not path_list(paths):
        raise ValueError("no text file given: name one or more files, globs or folders")
    files = []
    for path in path_list(paths):
        found = [path]
        if not os.path.exists(path):  # before the glob: a file may be named notes[1].txt
            if not glob.has_magic(path):
                raise ValueError(f"no such file: {path!r}: check the path (it is read from {os.getcwd()!r})")
            found = [match for match in sorted(glob.glob(path, recursive=True)) if not is_left_out(match)]
            if not found:
                raise ValueError(f"no file matches {path!r}: check the folder and the pattern")
        files += [file for match in found for file in (folder_files(match) if os.path.isdir(match) else [match])]
    for file in files:
        try:
            file.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the file name {file!r} is not UTF-8: rename the file") from error
    return files


def path_list(paths: Paths) -> list[str]:
    """One path or several as a list of strings."""
    return [os.path.expanduser(str(path)) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def file_stamp(path: str) -> list[Any]:
    """An identifier that changes with a file, without reading it."""
    if is_pipe(path):
        return [path, zlib.crc32(pipe_bytes(path)), len(pipe_bytes(path))]
    found = os.stat(path)
    return [path, found.st_size, found.st_mtime_ns]


@functools.cache
def pipe_bytes(path: str) -> bytes:
    """The content of a pipe, cached: it can be read only once."""
    return Path(path).read_bytes()


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(6)


def _not_whole(path: str | os.PathLike) -> str:
    kind = {".gz": "gzip ", ".bz2": "bzip2 ", ".xz": "xz ", ".zst": "zstd "}.get(os.path.splitext(path)[1].lower(), "")
    return f"{path} is not a whole {kind}file"


def _open_zstd(source: Any) -> io.BufferedIOBase:
    if importlib.util.find_spec("zstandard") is None:
        raise ValueError("an input is compressed by zstd, which needs zstandard: pip install zstandard, or decompress it")
    import zstandard  # pyright: ignore[reportMissingImports]

    return zstandard.open(source, "rb")


_openers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"\x28\xb5\x2f\xfd": _open_zstd}


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


class Document(NamedTuple):
    """A document with its file, its first line from 1, and its fields."""

    text: str
    file: str
    line: int
    fields: Mapping[str, Any] | None = None

    def value(self, field: str) -> Any:
        """The value of a field."""
        if field not in (self.fields or {}):
            raise ValueError(f"{self._place} has no field {field!r}: {self._remedy}")
        return (self.fields or {})[field]

    def text_in(self, field: str | None) -> str:
        """The text in a field, which records need; a missing value is empty."""
        if field is None:
            names = ", ".join(self.fields or {})
            raise ValueError(f"{self.file} has the fields {names}: name the one that holds the text, field=NAME")
        value = self.value(field)
        if value is not None and not isinstance(value, str):
            found = f"{type(value).__name__} {str(value)[:40]!r}"
            raise ValueError(f"{self._place}: field {field!r} holds {found}, not text: {self._remedy}")
        return value or ""

    @property
    def _place(self) -> str:
        return f"{self.file}, {'row' if kind_of(self.file) == 'parquet' else 'line'} {self.line}"

    @property
    def _remedy(self) -> str:
        return f"it has {', '.join(map(repr, self.fields or {})) or 'none'}; name one that every record has as `field`"


def file_records(path: str, fields: Iterable[str] | None = None, *, content: bytes | None = None) -> Iterator[Document]:
    """The records of a file, in order; content: JSON lines of standard input.

    JSON has objects in lines, or in one array; a table has a header, `.csv` with commas, semicolons, tabs or bars, `.tsv`
    without quotes; or Parquet. All may be compressed.
    """
    kind = "json" if content is not None else kind_of(path)
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
    reader, names, line = csv.reader(itertools.chain([head], lines), **style), [], 1
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
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, after row {n}: text that is not UTF-8 ({error}): write the column again") from error
    except (pyarrow.ArrowException, ValueError, ArithmeticError, *_damaged) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"{path} is not a complete Parquet file ({why}): write or download it again") from error


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
            good, bad = ((record.fields or {}).get(key) for key in ("sentence_good", "sentence_bad"))
            if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
                remedy = 'give lines such as {"sentence_good": "he runs", "sentence_bad": "he run"}'
                place = f"{path}, line {record.line}"
                raise ValueError(f"{place}, is not a minimal pair (a sentence is missing or empty): {remedy}")
            about = {key: str((record.fields or {}).get(key) or "") for key in ("UID", "field", "linguistics_term")}
            field = about["field"].replace("/", "_")  # BLiMP has syntax/semantics and syntax_semantics, one field
            pairs.append(MinimalPair(good, bad, about["UID"] or name, field, about["linguistics_term"]))
        if len(pairs) == before:
            raise ValueError(f"{path} has no pair: give JSON lines with sentence_good and sentence_bad")
    return pairs
