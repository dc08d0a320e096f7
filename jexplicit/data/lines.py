"""Lines of UTF-8 files, plain or gzipped: decoded, with errors that name the file, the byte and the remedy."""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any


def file_lines(path: str, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The lines of a file with their ends, `\\n`, or those that begin at bytes start .. stop - 1; a byte-order mark is dropped.

    Args:
        path: of the file, `.gz` or not.
        start: first byte; 0 for a .gz file.
        stop: byte after the last; default, the end of the file.

    Raises:
        ValueError: a file that cannot be read, is binary or not UTF-8, or a damaged `.gz`.

    >>> next(file_lines(__file__))[:12]
    '\"\"\"Lines of '
    """
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            if start:
                file.seek(start - 1)
                start += len(file.readline()) - 1  # of the line that begins in the range before
            yield from decode_lines(file, path, start, stop)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}): compress or download it again") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error


def decode_lines(file: Any, name: str, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The lines of an open binary file, which stands at byte `start`; see `file_lines`."""
    for line in file:
        if stop is not None and start >= stop:
            return
        text = _decoded(name, line, start)
        yield text if start else text.removeprefix("\ufeff")
        start += len(line)


def _decoded(name: str, line: bytes, start: int) -> str:
    if (zero := line.find(b"\0")) >= 0:
        raise ValueError(f"{name} is a binary file (NUL at byte {start + zero}): give plain text, in UTF-8 and not UTF-16")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{line[error.start]:02x} at byte {start + error.start}"
        raise ValueError(f"{name} is not UTF-8 text ({found}): convert it (iconv -f latin1 -t utf-8)") from error
