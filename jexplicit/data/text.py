"""Text files as documents, one per line: of any size, plain or gzipped, whole or a range of bytes at a time."""

import glob
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from jexplicit.data.corpora import Corpus, Documents, lazy_split

Paths = str | os.PathLike | Sequence[str | os.PathLike]


def text_corpus(train: Paths, dev: Paths = ()) -> Corpus[Documents]:
    """Corpus of the user's own text files: each line that is not blank is a document, read when it is asked for.

    Args:
        train: text files, `.gz` files, globs and folders (see `read_documents`).
        dev: the same for the text to score; if there is none, `split_documents` cuts the train documents.

    Raises:
        ValueError: nothing at a path, or a file in train and dev; once documents are read, the errors of `read_documents` and
            `split_documents`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "rhyme.txt")
    ...     _ = path.write_text("one two\\n\\nbuckle my shoe\\n")
    ...     corpus = text_corpus([str(path)])
    ...     list(corpus.train), list(corpus.dev)
    (['one two'], ['buckle my shoe'])
    """
    train_files, dev_files = list_files(train, dev)
    documents = Documents(_files_documents, train_files)
    parts = (documents, Documents(_files_documents, dev_files)) if dev_files else lazy_split(documents)
    source = {"train_files": list(map(_stamp, train_files)), "dev_files": list(map(_stamp, dev_files))}
    return Corpus(", ".join(_as_list(train)), *parts, source)


def read_documents(paths: Paths) -> list[str]:
    """Documents of text files: every line that is not blank, without its line ending and otherwise as it stands.

    Lines end at `\\n`, `\\r\\n` or `\\r` only. A byte-order mark is dropped. A file named twice is read once.

    Args:
        paths: files, `.gz` files, globs (sorted) and folders (all files in them, sorted, but for hidden ones).

    Returns:
        The documents, in the order of the paths.

    Raises:
        ValueError: nothing at a path, or a file that is empty, binary, not UTF-8 or a damaged `.gz`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_bytes(b"  to be,\\r\\n \\r\\nor not")
    ...     read_documents([folder])
    ['  to be,', 'or not']
    """
    return list(_files_documents(_list_files(paths)))


def list_files(train: Paths, dev: Paths) -> tuple[list[str], list[str]]:
    """The files of train and dev, each once and in order; dev may be none.

    Raises:
        ValueError: nothing at a path; a file in both.

    >>> list_files([__file__], [])[0] == [os.path.realpath(__file__)]
    True
    """
    train_files, dev_files = _list_files(train), _list_files(dev) if _as_list(dev) else []
    if shared := sorted(set(train_files) & set(dev_files)):
        raise ValueError(f"{shared[0]} is in train and in dev: take it out of one, or give no dev to have train split")
    return train_files, dev_files


def _list_files(paths: Paths) -> list[str]:
    if not _as_list(paths):
        raise ValueError("no text file given: name one or more files, globs or folders")
    files = [os.path.realpath(file) for path in _as_list(paths) for file in _expand(path)]
    return list(dict.fromkeys(files))


def _as_list(paths: Paths) -> list[str]:
    return [str(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def _expand(path: str) -> list[str]:
    if os.path.isdir(path):
        return _folder_files(path)
    if os.path.exists(path):  # before the glob: a file may be called notes[1].txt
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
        found += [os.path.join(place, name) for name in files if not name.startswith(".")]
    if not found:
        raise ValueError(f"no file in folder {folder!r}: name a folder that holds text files")
    return sorted(found)


def _files_documents(files: Iterable[str]) -> Iterator[str]:
    return chain.from_iterable(map(file_documents, files))


def _stamp(path: str) -> list[Any]:
    """What tells whether a file was changed without reading it."""
    found = os.stat(path)
    return [path, found.st_size, found.st_mtime_ns]


def file_documents(path: str, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The documents of one text file, or those of the lines that begin at bytes start .. stop - 1.

    Consecutive ranges yield every document exactly once. A byte-order mark is dropped.

    Args:
        path: of the file.
        start: first byte; 0 for a .gz file.
        stop: byte after the last; default, the end of the file.

    Raises:
        ValueError: a file that cannot be read, is binary or not UTF-8; a whole file without text.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("to be\\nor not")
    ...     list(file_documents(str(path), 0, 3)), list(file_documents(str(path), 3))
    (['to be'], ['or not'])
    """
    # str.splitlines would also cut at \x0b, \x0c, \x1c, \x85, \u2028 …, which are part of a line.
    empty = start == 0 and stop is None
    for text in _file_lines(path, start, stop):
        for line in text.removesuffix("\n").split("\r"):
            if line.strip():
                empty = False
                yield line
    if empty:
        raise ValueError(f"{path} holds no text: take it out, or check how it was written")


def _file_lines(path: str, start: int, stop: int | None) -> Iterator[str]:
    """Lines that end at \\n, a byte-order mark dropped."""
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            if start:
                file.seek(start - 1)
                start += len(file.readline()) - 1  # of the line that begins in the range before
            for line in file:
                if stop is not None and start >= stop:
                    return
                text = _decoded(path, line, start)
                yield text if start else text.removeprefix("\ufeff")
                start += len(line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}): compress or download it again") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error


def _decoded(path: str, line: bytes, start: int) -> str:
    if (zero := line.find(b"\0")) >= 0:
        raise ValueError(f"{path} is a binary file (NUL at byte {start + zero}): give plain text, in UTF-8 and not UTF-16")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"0x{line[error.start]:02x} at byte {start + error.start}"
        raise ValueError(f"{path} is not UTF-8 text ({found}): convert it (iconv -f latin1 -t utf-8)") from error
