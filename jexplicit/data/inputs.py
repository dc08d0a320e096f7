"""Opening inputs: files, compressed or not, and pipes.

The kind of a file is determined by its name as given, in any case, and by its first bytes.
"""

import bz2
import contextlib
import functools
import glob
import gzip
import importlib.util
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

Paths = str | os.PathLike | Sequence[str | os.PathLike]
Kind = Literal["json", "csv", "tsv", "parquet", "text"]

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_kinds: dict[str, Kind] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_utf_32 = "is UTF-32 text: convert it (iconv -f utf-32 -t utf-8)"
_utf_16 = "is UTF-16 text: convert it (iconv -f utf-16 -t utf-8)"
_zip = "is a zip archive: decompress it (unzip), or save a .docx or .xlsx as text"
_html = "is a page of HTML, such as a message of a server: download the file again, or name it .html to read its source"
_refused = {  # by the first bytes, in lower case
    b"pk\x03\x04": _zip,
    b"pk\x05\x06": _zip,
    b"\x1f\x8b": "is compressed twice: decompress it (gunzip)",
    b"\xff\xfe\0\0": _utf_32,
    b"\0\0\xfe\xff": _utf_32,
    b"\xff\xfe": _utf_16,
    b"\xfe\xff": _utf_16,
    b"%pdf-": "is a PDF: convert it to text (pdftotext)",
    b"\x89png": "is an image, not text: jexplicit digits and classify read images",
    b"version https://git-lfs": "is a pointer of Git LFS, not the file itself: fetch it (git lfs pull)",
    b"mmap lm http://kheafield": "is a binary file of KenLM: give the ARPA file that it was made from",
    b"<!doctype html": _html,
    b"<html": _html,
}
_left_out = (  # written beside the files of a folder by Spark and Hadoop, macOS and Windows
    *("_SUCCESS", "_committed_", "_started_", "_metadata", "_common_metadata", "_temporary", "_delta_log", "_spark_metadata"),
    *("__MACOSX", "Thumbs.db", "desktop.ini", "."),
)
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
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
    return not is_pipe(path) and any(_head(path).startswith(magic) for magic in _openers)


def is_pipe(path: str) -> bool:
    """Whether a path is neither a regular file nor a folder, such as /dev/stdin."""
    return is_input(path) and not os.path.isfile(path)


def is_input(path: str | os.PathLike) -> bool:
    """Whether a path is a file or a pipe."""
    return os.path.exists(path) and not os.path.isdir(path)


def open_input(path: str | os.PathLike, content: bytes | None = None) -> io.BufferedIOBase:
    """The bytes of a file, decompressed (gzip, bzip2, xz, zstd).

    content: of an input that has a name only, such as standard input.
    """
    path = str(path)
    try:
        content = pipe_bytes(path) if content is None and is_pipe(path) else content
        head = _head(path) if content is None else content[:6]
        source = path if content is None else io.BytesIO(content)
        opener = next((opener for magic, opener in _openers.items() if head.startswith(magic)), None)
        if opener is None and path.lower().endswith(COMPRESSED):
            raise _not_whole(path, f"it begins with {head!r}")
        return opener(source) if opener else source if isinstance(source, io.BytesIO) else open(source, "rb")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error


def read_input(path: str | os.PathLike) -> bytes:
    """The whole content of an input; see `open_input`."""
    with open_input(path) as file, refuse_damaged(path):
        return file.read()


def input_head(path: str | os.PathLike, content: bytes | None = None) -> bytes:
    """The first bytes of an input, at most 512; see `open_input`."""
    with open_input(path, content) as file, refuse_damaged(path):
        return file.read(512)


@contextlib.contextmanager
def refuse_damaged(path: str | os.PathLike) -> Iterator[None]:
    """Turn errors of decompression into ValueErrors."""
    try:
        yield
    except DAMAGED as error:
        raise _not_whole(str(path), error) from error


def refuse_other_formats(path: str | os.PathLike, head: bytes) -> None:
    """Refuse a file that is no text, by its first bytes."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").lower()
    what = next((what for magic, what in _refused.items() if start.startswith(magic)), None)
    if head[257:262] == b"ustar":
        what = "is a tar archive: unpack it (tar xf)"
    if what and not (what == _html and ".htm" in str(path).lower()):
        raise ValueError(f"{path} {what}")


def file_lines(path: str, start: int = 0, stop: int | None = None, *, content: bytes | None = None) -> Iterator[str]:
    """Lines of a UTF-8 file with their ends, or of a byte range."""
    refuse_other_formats(path, input_head(path, content))
    with open_input(path, content) as file, refuse_damaged(path):
        if start:
            file.seek(start - 1)
            start += len(file.readline()) - 1  # of the line that begins in the previous range
        for line in file:
            if stop is not None and start >= stop:
                return
            text = _decoded(path, line, start)
            yield text if start else text.removeprefix("\ufeff")
            start += len(line)


def list_files(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, each once, as absolute paths."""
    return list({os.path.realpath(path): os.path.abspath(path) for path in reversed(expand_paths(paths))}.values())[::-1]


def expand_paths(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, as named and as often."""
    if not path_list(paths):
        raise ValueError("no text file given: name one or more files, globs or folders")
    files = [file for path in path_list(paths) for file in _expand(path)]
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


def _not_whole(path: str, why: object) -> ValueError:
    kind = {".gz": "gzip ", ".bz2": "bzip2 ", ".xz": "xz ", ".zst": "zstd "}.get(os.path.splitext(path)[1].lower(), "")
    return ValueError(f"{path} is not a whole {kind}file ({why}): compress or download it again")


def _open_zstd(source: str | io.BytesIO) -> io.BufferedIOBase:
    if importlib.util.find_spec("zstandard") is None:
        raise ValueError(f"{source} is compressed by zstd, which needs zstandard: pip install zstandard, or decompress it")
    import zstandard  # pyright: ignore[reportMissingImports]

    return zstandard.open(source, "rb")


_openers: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"\x28\xb5\x2f\xfd": _open_zstd}


def _expand(path: str) -> list[str]:
    if os.path.isdir(path):
        return folder_files(path)
    if os.path.exists(path):  # before the glob: a file may be named notes[1].txt
        return [path]
    if not glob.has_magic(path):
        raise ValueError(f"no such file: {path!r}: check the path (it is read from {os.getcwd()!r})")
    matches = [match for match in sorted(glob.glob(path, recursive=True)) if not is_left_out(match)]
    if not matches:
        raise ValueError(f"no file matches {path!r}: check the folder and the pattern")
    return [file for match in matches for file in (folder_files(match) if os.path.isdir(match) else [match])]


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


def _decoded(name: str, line: bytes, start: int) -> str:
    if (zero := line.find(b"\0")) >= 0:
        raise ValueError(f"{name} is a binary file (NUL at byte {start + zero}): give plain text in UTF-8")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{line[error.start]:02x} at byte {start + error.start}"
        raise ValueError(f"{name} is not UTF-8 text ({found}): convert it (iconv -f cp1252 -t utf-8)") from error
