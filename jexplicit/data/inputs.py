"""Opening inputs: files of all readers, compressed or not, and pipes, which can be read only once.

The kind of a file is determined by its name as given, in any case, and by its first bytes.
"""

import bz2
import functools
import glob
import gzip
import importlib.util
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

Paths = str | os.PathLike | Sequence[str | os.PathLike]
Kind = Literal["json", "csv", "tsv", "parquet", "text"]

_compressed = (".gz", ".bz2", ".xz", ".zst")
_kinds: dict[str, Kind] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_refused = {
    b"PK\x03\x04": "is a zip archive: decompress it (unzip)",
    b"7z\xbc\xaf": "is a 7z archive: decompress it (7z x)",
    b"\xff\xfe": "is UTF-16 text: convert it (iconv -f utf-16 -t utf-8)",
    b"\xfe\xff": "is UTF-16 text: convert it (iconv -f utf-16 -t utf-8)",
}
_left_out = ("_SUCCESS", "_committed_", "_started_", "_metadata", "_common_metadata")  # written by Spark beside its parts
_damaged = (OSError, EOFError, zlib.error, lzma.LZMAError)


def kind_of(path: str) -> Kind:
    """The kind of a file by its name: a format of records, or plain text."""
    name, ending = os.path.splitext(path.lower())
    return _kinds.get(os.path.splitext(name)[1] if ending in _compressed else ending, "text")


def is_compressed(path: str) -> bool:
    """Whether a file is compressed, by its first bytes."""
    return not is_pipe(path) and any(_head(path).startswith(magic) for magic in _openers)


def is_pipe(path: str) -> bool:
    """Whether a path is not a regular file, such as /dev/stdin."""
    return os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode)


def open_input(path: str | os.PathLike) -> io.BufferedIOBase:
    """The bytes of a file, decompressed (gzip, bzip2, xz, zstd); those of a pipe are kept in memory for repeated reading."""
    path = str(path)
    try:
        head = pipe_bytes(path)[:4] if is_pipe(path) else _head(path)
        for magic, what in _refused.items():
            if head.startswith(magic):
                raise ValueError(f"{path} {what}")
        source = io.BytesIO(pipe_bytes(path)) if is_pipe(path) else path
        opener = next((opener for magic, opener in _openers.items() if head.startswith(magic)), None)
        if opener is None and path.lower().endswith(_compressed):
            raise _not_whole(path, f"it begins with {head!r}")
        return (opener or _open_plain)(source)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error


def file_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Lines of a UTF-8 file with their ends, without byte-order mark; or those that begin at bytes start .. stop - 1."""
    with open_input(path) as file:
        try:
            if start:
                file.seek(start - 1)
                start += len(file.readline()) - 1  # of the line that begins in the previous range
            yield from decode_lines(file, path, start, stop)
        except _damaged as error:
            raise _not_whole(path, error) from error


def decode_lines(file: Any, name: str, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The lines of a binary file opened at byte `start`; see `file_lines`."""
    for line in file:
        if stop is not None and start >= stop:
            return
        text = _decoded(name, line, start)
        yield text if start else text.removeprefix("\ufeff")
        start += len(line)


def list_files(paths: Paths) -> list[str]:
    """The files of paths, globs and folders, each once, as absolute paths without resolving links."""
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
    return [str(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def file_stamp(path: str) -> list[Any]:
    """An identifier that changes with a file, without reading it; of a pipe, by its content."""
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


def _open_plain(source: str | io.BytesIO) -> io.BufferedIOBase:
    return source if isinstance(source, io.BytesIO) else open(source, "rb")


def _open_zstd(source: str | io.BytesIO) -> io.BufferedIOBase:
    if importlib.util.find_spec("zstandard") is None:
        raise ValueError(f"{source} is compressed by zstd, which needs zstandard: pip install zstandard, or decompress it")
    import zstandard  # pyright: ignore[reportMissingImports]

    return zstandard.open(source, "rb")


_openers: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": _open_zstd,
}


def _expand(path: str) -> list[str]:
    if os.path.isdir(path):
        return _folder_files(path)
    if os.path.exists(path):  # before the glob: a file may be named notes[1].txt
        return [path]
    if not glob.has_magic(path):
        raise ValueError(f"no such file: {path!r}: check the path (it is read from {os.getcwd()!r})")
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise ValueError(f"no file matches {path!r}: check the folder and the pattern")
    return [file for match in matches for file in (_folder_files(match) if os.path.isdir(match) else [match])]


def _folder_files(folder: str) -> list[str]:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(place, name) for name in files if not name.startswith((".", *_left_out))]
    if not found:
        raise ValueError(f"no file in folder {folder!r}: name a folder that holds text files")
    return sorted(found)


def _decoded(name: str, line: bytes, start: int) -> str:
    if (zero := line.find(b"\0")) >= 0:
        raise ValueError(f"{name} is a binary file (NUL at byte {start + zero}): give plain text in UTF-8")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{line[error.start]:02x} at byte {start + error.start}"
        raise ValueError(f"{name} is not UTF-8 text ({found}): convert it (iconv -f cp1252 -t utf-8)") from error
