"""Text corpora: lists of documents, cut into train and dev, with a hash of their content.

Three sources. `docs_corpus` and `installed_corpus` collect the documentation that a Python installation carries, so
that a language model can be fitted with no download; `text_corpus` reads the user's own text files. A document is
the unit across which no context flows: one line of a text file, or one whole docstring.
"""

import ast
import functools
import glob
import gzip
import hashlib
import logging
import os
import re
import site
import sysconfig
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
T = TypeVar("T")
Paths = str | os.PathLike | Sequence[str | os.PathLike]
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"})
_SURROGATE = re.compile("[\ud800-\udfff]")


class Corpus(NamedTuple):
    """Documents to fit and documents to score, with the hash that names them in the cache."""

    name: str
    train: list[str]
    dev: list[str]
    sha256: str


def make_corpus(name: str, train: list[str], dev: list[str]) -> Corpus:
    """Corpus of the given documents; its hash covers every document and every boundary, not the name.

    >>> one, two = make_corpus("a", ["xy"], ["z"]), make_corpus("a", ["x", "y"], ["z"])
    >>> one.sha256 == two.sha256
    False
    """
    digest = hashlib.sha256()
    for documents in (train, dev):
        digest.update(f"{len(documents)} documents\n".encode())
        for document in documents:
            data = document.encode("utf-8", "surrogatepass")
            digest.update(b"%d bytes\n" % len(data))
            digest.update(data)
    return Corpus(name, train, dev, digest.hexdigest())


def split_documents(documents: Sequence[T], *, every: int = 10, block: int = 10) -> tuple[list[T], list[T]]:
    """Cut documents into train and dev by interleaved blocks, so that both see the whole corpus.

    Blocks of `block` neighbours stay together (neighbouring lines share their subject), and one block of each
    `every` is dev, the middle one. A small corpus gets smaller blocks, so that neither part is ever empty.

    Args:
        documents: at least 2 documents, in order.
        every: one block of this many goes to dev.
        block: documents in a block.

    Returns:
        Train and dev documents, each in the order given; together they are all documents.

    Raises:
        ValueError: fewer than 2 documents, `every` < 2 or `block` < 1.

    >>> split_documents(list("abcdefgh"), every=4, block=1)
    (['a', 'b', 'd', 'e', 'f', 'h'], ['c', 'g'])
    """
    if every < 2 or block < 1:
        raise ValueError(f"cannot split with every={every}, block={block}: every must be 2 or more, block 1 or more")
    if len(documents) < 2:
        remedy = "use a text of 2 or more lines, or give dev files as well (--dev)"
        raise ValueError(f"{len(documents)} document(s) cannot be split into train and dev: {remedy}")
    train, dev = [], []
    for index, document in enumerate(documents):
        (dev if is_dev(index, len(documents), every=every, block=block) else train).append(document)
    return train, dev


def is_dev(index: int, documents: int, *, every: int = 10, block: int = 10) -> bool:
    """Whether `split_documents` puts a document into dev: a question of its place, and of how many there are below 100.

    >>> [index for index in range(300) if is_dev(index, 300)] == [*range(50, 60), *range(150, 160), *range(250, 260)]
    True
    """
    every = min(every, documents)
    return index // min(block, documents // every) % every == every // 2


def iterate_split(documents: Iterable[T], *, dev: bool, every: int = 10, block: int = 10) -> Iterator[T]:
    """One of the two parts of `split_documents`, of documents too many for memory.

    Args:
        documents: at least 2, in order.
        dev: which part.
        every, block: see `split_documents`.

    Raises:
        ValueError: those of `split_documents`, once a document is asked for.

    >>> list(iterate_split("abcdefgh", dev=True, every=4, block=1))
    ['c', 'g']
    """
    documents, enough = iter(documents), every * block  # with so many or more, their number plays no part
    first = list(islice(documents, enough))
    if len(first) < enough:
        yield from split_documents(first, every=every, block=block)[dev]
        return
    for index, document in enumerate(chain(first, documents)):
        if is_dev(index, enough, every=every, block=block) == dev:
            yield document


def split_in_three(documents: Sequence[T], *, seed: int = 0) -> tuple[list[T], list[T], list[T]]:
    """Shuffle documents and deal them into train, dev and test, 80 / 10 / 10: of every ten the ninth is dev, the last test.

    For documents whose neighbours do not belong together, as lines of a list; others are better cut by `split_documents`.

    Args:
        documents: at least 3 documents.
        seed: of the shuffle.

    Returns:
        Train, dev and test documents; together they are all documents, no part is empty.

    Raises:
        ValueError: fewer than 3 documents.

    >>> [len(part) for part in split_in_three(list(range(55)))]
    [45, 5, 5]
    """
    M = len(documents)
    if M < 3:
        raise ValueError(f"{M} document(s) cannot be split into train, dev and test: use a text of 3 or more lines")
    shuffled = [documents[m] for m in np.random.default_rng(seed).permutation(M)]
    deal = min(10, M)  # fewer than ten documents: one of each
    dev, test = shuffled[deal - 2 :: deal], shuffled[deal - 1 :: deal]
    return [document for m, document in enumerate(shuffled) if m % deal < deal - 2], dev, test


def docs_corpus() -> Corpus:
    """Documentation of the Python standard library, cut by `split_documents`: help topics and docstrings, no download.

    Documents are whole topics and whole docstrings, so they hold line breaks. Exact duplicates are dropped. The same
    Python release gives the same corpus.

    >>> "MappingProxyType" in " ".join(docs_corpus().train)
    True
    """
    return make_corpus("docs", *split_documents(_unique(_standard_library_documents())))


def installed_corpus(progress: Progress | None = None) -> Corpus:
    """`docs_corpus` and the docstrings of every package installed in this environment, no download.

    Source files are parsed, not imported. Those that cannot be are left out, and counted in a logged warning.

    Args:
        progress: called with (source files done, source files in all).

    Returns:
        The corpus, cut by `split_documents`.

    >>> from unittest import mock
    >>> with mock.patch(f"{__name__}._package_folders", return_value=[]):  # all packages take long
    ...     installed_corpus().sha256 == docs_corpus().sha256
    True
    """
    sources = [path for folder in _package_folders() for path in _source_files(folder)]
    documents = [*_standard_library_documents(), *_docstrings(sources, progress)]
    return make_corpus("installed", *split_documents(_unique(documents)))


@functools.cache
def _standard_library_documents() -> tuple[str, ...]:
    from pydoc_data.topics import topics  # 0.7 MB of text that no other function needs

    sources = _source_files(Path(sysconfig.get_paths()["stdlib"]))
    return *(topics[name] for name in sorted(topics)), *_docstrings(sources)


def _package_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    folders = {Path(folder).resolve() for folder in (*site.getsitepackages(), paths["purelib"], paths["platlib"])}
    return sorted(folder for folder in folders if folder.is_dir())


def _source_files(folder: Path) -> list[Path]:
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        found += [Path(place, name) for name in files if name.endswith(".py")]
    return sorted(found)


def _docstrings(sources: Sequence[Path], progress: Progress | None = None) -> Iterator[str]:
    unreadable = []
    for done, path in enumerate(sources, 1):
        try:
            yield from _file_docstrings(path)
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            unreadable.append(f"{path} ({error})")
        if progress is not None:
            progress(done, len(sources))
    if unreadable:
        counts = f"{len(unreadable)} of {len(sources)} source files"
        logger.warning("left out %s that cannot be read, the first: %s", counts, unreadable[0])


def _file_docstrings(path: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # others' invalid escapes
        tree = ast.parse(path.read_bytes())
    return [docstring for node in _documented(tree) if (docstring := ast.get_docstring(node))]


def _documented(tree: ast.AST) -> Iterator[_Documented]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _Documented):
            yield node
        if not isinstance(node, ast.expr):  # expressions define nothing and are most of the tree
            pending += reversed(list(ast.iter_child_nodes(node)))


def _unique(documents: Iterable[str]) -> list[str]:
    # A docstring may spell a lone surrogate, which no UTF-8 file can hold.
    texts = (_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", document) for document in documents)
    return list(dict.fromkeys(text for text in texts if text.strip()))


def text_corpus(train: Paths, dev: Paths = ()) -> Corpus:
    """Corpus of the user's own text files: each line that is not blank is a document.

    Args:
        train: text files, `.gz` files, globs and folders (see `read_documents`).
        dev: the same for the text to score; if there is none, `split_documents` cuts the train documents.

    Returns:
        The corpus.

    Raises:
        ValueError: a file is in train and dev, or one of the errors of `read_documents` and `split_documents`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "rhyme.txt")
    ...     _ = path.write_text("one two\\n\\nbuckle my shoe\\n")
    ...     text_corpus([str(path)])[1:3]
    (['one two'], ['buckle my shoe'])
    """
    name = ", ".join(_as_list(train))
    if not _as_list(dev):
        return make_corpus(name, *split_documents(read_documents(train)))
    train_files, dev_files = list_files(train, dev)
    return make_corpus(name, _read_files(train_files), _read_files(dev_files))


def read_documents(paths: Paths) -> list[str]:
    """Documents of text files: every line that is not blank, without its line ending and otherwise as it stands.

    Lines end at `\\n`, `\\r\\n` or `\\r` only. A byte-order mark is dropped. Each file is read once.

    Args:
        paths: files, `.gz` files, globs (sorted) and folders (all files in them, sorted, but for hidden ones).

    Returns:
        The documents, in the order of the paths.

    Raises:
        ValueError: nothing at a path, or a file that is empty, binary, not UTF-8 or a damaged `.gz`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_bytes(b"  to be,\\r\\n \\r\\nor not")
    ...     read_documents([folder])
    ['  to be,', 'or not']
    """
    return _read_files(_list_files(paths))


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


def _read_files(files: Iterable[str]) -> list[str]:
    return [document for path in files for document in file_documents(path)]


def iterate_documents(paths: Paths) -> Iterator[str]:
    """The documents of `read_documents` one after the other, for text that memory cannot hold.

    Paths are looked at now, files read as documents are asked for, when their errors come too.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("to be\\nor not")
    ...     next(iterate_documents(folder))
    'to be'
    """
    return (document for path in _list_files(paths) for document in file_documents(path))


def file_documents(path: str, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """The documents of one text file, or of the lines in it that begin at the bytes start .. stop - 1.

    Ranges that follow each other give every document once. A byte-order mark is dropped.

    Args:
        path: of the file.
        start: first byte; 0 for a .gz file.
        stop: after the last byte; default, the end of the file.

    Raises:
        ValueError: a file that cannot be read, is binary or not UTF-8; a whole file without text.

    >>> import tempfile
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
