"""A corpus: train and dev documents, read lazily, their splits and sources.

Contexts do not cross documents, such as lines of a text file or docstrings. Documents are an iterable of strings that can be
iterated repeatedly: a list, or `Documents`, which are read again every time. Sources are text files, TensorFlow Datasets (by
random access without TensorFlow), and the documentation of the Python standard library.
"""

import ast
import contextlib
import functools
import gc
import hashlib
import heapq
import importlib.util
import logging
import os
import platform
import random
import re
import socket
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from jexplicit.data.text import Document, Paths, file_lines, file_records, file_stamp, kind_of, list_files, path_list
from jexplicit.runs.files import local_path

T = TypeVar("T")
D = TypeVar("D", bound=Iterable[str], covariant=True)
logger = logging.getLogger(__name__)


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


def split_documents(documents: Sequence[T], *, every: int = 10, block: int = 10) -> tuple[list[T], list[T]]:
    """Split documents into train and dev by interleaved blocks.

    `block` neighbours, which are often related, stay together; of `every` blocks the middle one is dev. A small corpus has
    smaller blocks, so that neither part is empty.
    """
    train, dev = (list(iterate_split(documents, dev=dev, every=every, block=block)) for dev in (False, True))
    return train, dev


def is_dev(index: int, documents: int, *, every: int = 10, block: int = 10) -> bool:
    """Whether document `index` of `documents` is in dev of `split_documents`."""
    every = min(every, documents)
    return index // min(block, documents // every) % every == every // 2


def iterate_split(documents: Iterable[T], *, dev: bool, every: int = 10, block: int = 10) -> Iterator[T]:
    """One of the two parts of `split_documents`, of lazy documents."""
    if every < 2 or block < 1:
        raise ValueError(f"cannot split with every={every}, block={block}: every must be 2 or more, block 1 or more")
    documents = iter(documents)
    first = list(islice(documents, every * block))  # with at least as many, their number does not matter
    if len(first) < 2:
        remedy = "use a text of 2 or more documents (lines, if not said otherwise), or give dev text as well"
        raise ValueError(f"{len(first)} document(s) cannot be split into train and dev: {remedy}")
    numbered = enumerate(chain(first, documents))
    return (document for m, document in numbered if is_dev(m, len(first), every=every, block=block) == dev)


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


Split = Literal["blocks", "end"]


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
    if size < 1:
        raise ValueError(f"a sample of {size} documents: draw at least 1")
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
    sizes = [(1, _bytes(document), len(document), len(re.split(r"\s+", document))) for document in documents]
    return TextSizes(*map(sum, zip(*sizes, strict=True))) if sizes else TextSizes(0, 0, 0, 0)


def overlap(dev: Iterable[str], train: Iterable[str]) -> Overlap:
    """Shares of dev whose documents occur in train, for any white space."""
    words = [(" ".join(document.split()), _bytes(document)) for document in dev]
    wanted = {key for key, _ in words}
    found = {key for document in train if (key := " ".join(document.split())) in wanted}
    repeated, in_all = [size for key, size in words if key in found], sum(size for _, size in words)
    return Overlap(len(repeated) / max(len(words), 1), sum(repeated) / max(in_all, 1))


def _bytes(document: str) -> int:
    return len(document.encode("utf-8", "surrogatepass"))


Unit = Literal["line", "paragraph", "file"]
_plain_name = re.compile(r"\.txt(\.\w+)?$")


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
    stamps = {"train_files": list(map(file_stamp, train_files)), "dev_files": list(map(file_stamp, dev_files))}
    return Corpus(", ".join(path_list(train)), *parts, {**stamps, **reading, "split": split})


def read_documents(paths: Paths, *, field: str | None = None, documents: Unit = "line") -> list[str]:
    """Documents of files: every line that is not blank, without its end.

    paths: files, compressed or not, pipes, globs and folders (sorted, without hidden files), each read once. Files of records
        (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, see jexplicit.data.text) have one document per record.
    field: of the records, with the text; required for records.
    documents: of plain text: each `line`, each `paragraph` (between blank lines), or each `file`.
    """
    files = list_files(paths)
    check_reading(files, field=field, documents=documents)
    return list(files_documents(files, field=field, documents=documents))


def check_reading(files: Sequence[str], *, field: str | None, documents: str) -> None:
    """Refuse a `field` or `documents` that does not fit the files."""
    if documents not in get_args(Unit):
        raise ValueError(f"documents {documents!r}: choose one of {', '.join(get_args(Unit))}")
    records = [file for file in files if kind_of(file) != "text"]
    for file in records:
        first = next(file_records(file, [] if field is None else [field]), None)
        if first is None:
            raise ValueError(f"{file} holds no text: take it out, or check how it was written")
        first.text_in(field)
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
    if kind_of(path) != "text" or (content is not None and field is not None):
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


# TensorFlow Datasets

_host = ("storage.googleapis.com", 443)
_info_file = "dataset_info.json"  # of every version of a prepared data set
_text_way_out = "download the text and use train=FILES, or the corpus docs, which is embedded"


def prepared_builder(name: str, data_dir: str | os.PathLike | None, *, way_out: str) -> Any:
    """The builder of a TFDS data set or folder, downloaded if necessary.

    data_dir: default, `$TFDS_DATA_DIR` or `tensorflow_datasets` in the user's home.
    """
    missing = [module for module in ("tensorflow_datasets", "importlib_resources") if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(f"tfds:{name} needs {' and '.join(missing)}: pip install 'jexplicit[tfds]', or {way_out}")
    place = local_path(name, f"tfds:{name}")
    versions = sorted(path.parent for path in place.rglob(_info_file)) if place.is_dir() else []
    if len(versions) > 1:
        raise ValueError(f"tfds:{name} holds several data sets: name one of {', '.join(map(str, versions))}")
    if not versions and name.startswith(("/", ".", "~")):
        raise ValueError(f"tfds:{name}: no {_info_file} there: name the folder of a data set that TFDS has prepared")
    home = local_path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets", "the folder of TFDS")
    folder = home / name.split("/")[0]
    if not versions and not any(folder.rglob(_info_file)):
        try:
            socket.create_connection(_host, timeout=3.0).close()
        except OSError as error:  # offline, TFDS would try again for minutes
            raise ValueError(f"tfds:{name}: {_host[0]} cannot be reached, and {folder} holds no data set: {way_out}") from error
    import tensorflow_datasets as tfds  # pyright: ignore[reportMissingImports]

    with refuse_unreadable(name, way_out), contextlib.redirect_stdout(sys.stderr):  # for progress
        if versions:
            return tfds.builder_from_directory(versions[0])
        builder = tfds.builder(name, data_dir=data_dir and str(data_dir), file_format="array_record")
        builder.download_and_prepare()
        return builder


@contextlib.contextmanager
def refuse_unreadable(name: str, way_out: str) -> Iterator[None]:
    """Raise any failure of TFDS or the network as a ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"tfds:{name} could not be read ({type(error).__name__}: {error}): {way_out}") from error


def tfds_corpus(name: str, *, feature: str = "text", data_dir: str | os.PathLike | None = None) -> Corpus[Documents]:
    """A lazy TFDS text; dev is validation, test, or a part of train."""
    builder = prepared_builder(name, data_dir, way_out=_text_way_out)
    info, features, splits = builder.info, list(builder.info.features), list(builder.info.splits)
    if feature not in features:
        raise ValueError(f"tfds:{name} has no feature {feature!r}: name one of {', '.join(features)} (feature=NAME)")
    if "train" not in splits:
        raise ValueError(f"tfds:{name} has the splits {', '.join(splits)}, but no train: {_text_way_out}")
    names = [split for split in ("train", "validation", "test") if split in splits]
    own = [Documents(_tfds_documents, builder, name, feature, split) for split in names]
    size = {split: int(about.num_bytes) for split, about in info.splits.items()}
    cut = [Documents(iterate_split, own[0], dev=dev) for dev in (False, True)]
    train, dev = cut if len(own) == 1 else own[:2]
    return Corpus(f"tfds:{info.full_name}", train, dev, {"version": str(info.full_name), "bytes": size, "feature": feature})


def _tfds_documents(builder: Any, name: str, feature: str, split: str) -> Iterator[str]:
    """The documents of a split that are not blank, read lazily."""
    with refuse_unreadable(name, _text_way_out):
        rows = builder.as_data_source(split=split)
        for n in range(len(rows)):
            value = rows[n][feature]
            text = value.decode("utf-8") if isinstance(value, bytes) else str(value)
            if text.strip():
                yield text


# The documentation of Python

_HasDocstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"})
_SURROGATE = re.compile("[\ud800-\udfff]")  # a docstring may contain one alone, which UTF-8 cannot encode


def docs_corpus() -> Corpus[list[str]]:
    """Help topics and docstrings of the Python standard library, without duplicates.

    A Python release determines the corpus (`about_corpus`); parsing takes 2 s of CPU time.
    """
    texts = (_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", document) for document in _standard_library_documents())
    return Corpus("docs", *split_documents(list(dict.fromkeys(text for text in texts if text.strip()))))


def about_corpus(name: str) -> str | None:
    """A description of an embedded corpus with Python's version, else None."""
    return f"documentation of Python {platform.python_version()}" if name == "docs" else None


@functools.cache
def _standard_library_documents() -> tuple[str, ...]:
    from pydoc_data.topics import topics  # 0.7 MB of text, imported only if needed

    root, documents, unreadable = Path(sysconfig.get_paths()["stdlib"]), [topics[name] for name in sorted(topics)], []
    own = (path for path in root.rglob("*.py") if _SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts))
    collecting = gc.isenabled()
    gc.disable()  # trees have no cycles, and it would look at all objects of JAX
    try:
        for path in sorted(own):
            try:
                documents += _file_docstrings(path)
            except (OSError, SyntaxError, ValueError, RecursionError) as error:
                unreadable.append(f"{path} ({error})")
    finally:
        if collecting:
            gc.enable()
    if unreadable:
        logger.warning("skipped %d source files that cannot be read, the first: %s", len(unreadable), unreadable[0])
    return tuple(documents)


def _file_docstrings(path: Path) -> list[str]:
    """The docstrings of a module, its classes and functions, in their order."""

    def docstrings(node: ast.AST) -> Iterator[str | None]:
        if isinstance(node, _HasDocstring):
            yield ast.get_docstring(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from docstrings(child)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's code
        return list(filter(None, docstrings(ast.parse(path.read_bytes()))))


def read_corpus(
    name: str,
    train: Paths = (),
    dev: Paths = (),
    *,
    field: str | None = None,
    documents: Unit = "line",
    split: Split = "blocks",
    feature: str = "text",
    data_dir: str | os.PathLike | None = None,
) -> Corpus:
    """The corpus of a name: `docs`, `text` or `tfds:NAME`.

    train, dev, field, documents, split: of `text_corpus`. feature, data_dir: of TFDS.
    """
    kind, _, of_tfds = name.partition(":")
    if kind == "tfds" and of_tfds:
        return tfds_corpus(of_tfds, feature=feature, data_dir=data_dir)
    if name == "text":
        return text_corpus(train, dev, field=field, documents=documents, split=split)
    if name != "docs":
        raise ValueError(f"corpus {name!r}: choose docs or tfds:NAME, or name training files")
    return docs_corpus()
