"""Corpora without download: the documentation of a Python installation."""

import ast
import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import site
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from jexplicit.data.corpora import Corpus, split_documents
from jexplicit.runs.files import cache_folder, mark_used, write_whole

logger = logging.getLogger(__name__)
_HasDocstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"})
# Nodes that may contain a class or a function, and their fields; all others are skipped.
_COMPOUND = (
    *(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
    *(ast.Try, ast.TryStar, ast.ExceptHandler, ast.Match, ast.match_case),
)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_LAYOUT = "1"  # increment if the same source files give other documents
_SURROGATE = re.compile("[\ud800-\udfff]")


def docs_corpus(*, keep: bool = False) -> Corpus[list[str]]:
    """Help topics and docstrings of the Python standard library, without duplicates.

    A Python release determines the corpus (`about_corpus`). keep: cache it, as parsing takes 6 s of CPU time.
    """
    documents = _kept_documents() if keep else _standard_library_documents()
    return Corpus("docs", *split_documents(_unique(documents)))


def about_corpus(name: str) -> str | None:
    """A description of an embedded corpus with Python's version, else None."""
    docs = f"documentation of Python {platform.python_version()}"
    return {"docs": docs, "installed": f"{docs} and of the packages installed with it"}.get(name)


def installed_corpus(progress: Callable[[int, int], None] | None = None) -> Corpus[list[str]]:
    """`docs_corpus` and the docstrings of all installed packages, parsed."""
    sources = [path for folder in _package_folders() for path in _source_files(folder)]
    documents = [*_standard_library_documents(), *_docstrings(sources, progress)]
    return Corpus("installed", *split_documents(_unique(documents)))


@functools.cache
def _standard_library_documents() -> tuple[str, ...]:
    from pydoc_data.topics import topics  # 0.7 MB of text, imported only if needed

    return *(topics[name] for name in sorted(topics)), *_docstrings(_standard_library())


def _standard_library() -> list[Path]:
    return _source_files(Path(sysconfig.get_paths()["stdlib"]))


def _kept_documents() -> tuple[str, ...]:
    """The documents from the cache, if no source file has changed."""
    about = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _standard_library()]
    key = hashlib.sha256(json.dumps([sys.version, _LAYOUT, *about]).encode()).hexdigest()
    path = cache_folder() / key[:32] / "documents.json"
    try:
        documents = tuple(json.loads(path.read_text()))
    except (OSError, ValueError):  # missing or damaged
        documents = _standard_library_documents()
        with contextlib.suppress(OSError, ValueError):  # unwritable cache: not used
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda file: file.write(json.dumps(documents).encode()))
    mark_used(path.parent)
    return documents


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


def _docstrings(sources: Sequence[Path], progress: Callable[[int, int], None] | None = None) -> Iterator[str]:
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
        logger.warning("skipped %s that cannot be read, the first: %s", counts, unreadable[0])


def _file_docstrings(path: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's code
        tree = ast.parse(path.read_bytes())
    return [docstring for node in _nodes_with_docstrings(tree) if (docstring := ast.get_docstring(node))]


def _nodes_with_docstrings(tree: ast.AST) -> Iterator[_HasDocstring]:
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _HasDocstring):
            yield node
        blocks = (getattr(node, name, None) for name in _BLOCKS)
        pending += reversed([child for block in blocks if block for child in block if isinstance(child, _COMPOUND)])


def _unique(documents: Iterable[str]) -> list[str]:
    # A docstring may contain a lone surrogate, which UTF-8 cannot encode.
    texts = (_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", document) for document in documents)
    return list(dict.fromkeys(text for text in texts if text.strip()))
