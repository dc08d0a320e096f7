"""Apache Beam: text to shards and counts, exactly as on one machine.

A corpus is cut into parts of consecutive documents. A worker tokenises a part, writes it as the shard of the same number, and
counts it into sparse tables. Workers exchange tables, merged in each worker first, never single pairs. The same part always
gives the same file, so a part that a runner tries again changes nothing. All workers share one file system.
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.counts.pairs import SparseCounter
from jexplicit.counts.tables import SparseCounts, merge_counts, split_columns, write_tables, write_tables_index
from jexplicit.data.contexts import PAD
from jexplicit.data.corpora import Documents, TfdsText, Unit, file_documents, has_ranges, is_dev
from jexplicit.data.shards import Shard, write_index, write_shard
from jexplicit.data.tokenizers import Tokenizer, encode_batches, encode_documents
from jexplicit.runs.files import local_path, make_folder


class DocumentShard(NamedTuple):
    """Consecutive documents of a corpus.

    split: train, dev, or all where dev is still to be cut from the corpus.
    number: of the part within its split.
    documents: may be looped over more than once.
    """

    split: str
    number: int
    documents: Iterable[str]


def file_parts(
    split: str, files: Sequence[str], *, size: int, field: str | None = None, documents: Unit = "line"
) -> list[DocumentShard]:
    """The documents of text files, in parts of about `size` bytes.

    Args:
        split: `train` or `dev`.
        files: their paths, seen by every worker.
        size: bytes of a part.
        field, documents: see `jexplicit.data.corpora.read_documents`.

    Raises:
        ValueError: size < 1.

    >>> [part.number for part in file_parts("train", [__file__], size=os.path.getsize(__file__) // 2 + 1)]
    [0, 1]
    """
    if size < 1:
        raise ValueError(f"parts of {size} bytes: at least 1")
    ranges = []
    for file in files:
        stops = [*range(size, os.path.getsize(file), size), None]
        if not has_ranges(file, documents):  # read from its beginning or not at all
            stops = [None]
        ranges += [(file, start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]
    return [
        DocumentShard(split, n, Documents(file_documents, *where, field=field, documents=documents))
        for n, where in enumerate(ranges)
    ]


def list_parts(split: str, documents: Sequence[str], *, size: int) -> list[DocumentShard]:
    """Documents in memory, in parts of `size`.

    >>> [list(part.documents) for part in list_parts("dev", "abcde", size=2)]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    starts = range(0, len(documents), size)
    return [DocumentShard(split, n, list(documents[start : start + size])) for n, start in enumerate(starts)]


def tfds_parts(data: TfdsText, *, size: int) -> list[DocumentShard]:
    """A text data set of TFDS, in parts of `size` documents."""
    parts = []
    for name, split in (("all" if data.dev is None else "train", "train"), ("dev", data.dev)):
        in_all = data.sizes[split] if split else 0
        ranges = (f"{split}[{first}:{min(first + size, in_all)}]" for first in range(0, in_all, size))
        parts += [DocumentShard(name, n, Documents(data.documents, where)) for n, where in enumerate(ranges)]
    return parts


def cut_part(part: DocumentShard, lengths: Mapping[int, int]) -> list[DocumentShard]:
    """A part without dev documents, split by `split_documents`.

    Args:
        part: of the whole corpus.
        lengths: how many documents each part holds.

    Raises:
        ValueError: fewer than 2 documents in all.

    >>> parts = list_parts("all", "abcd", size=3)
    >>> [(p.split, list(p.documents)) for part in parts for p in cut_part(part, {0: 3, 1: 1})]
    [('train', ['a', 'b']), ('dev', ['c']), ('train', ['d']), ('dev', [])]
    """
    first, in_all = sum(lengths[n] for n in lengths if n < part.number), sum(lengths.values())
    if in_all < 2:
        raise ValueError(f"{in_all} document(s) cannot be split into train and dev: use more text, or give dev files")
    return [
        DocumentShard(split, part.number, Documents(_cut, part.documents, first, in_all, dev=split == "dev"))
        for split in ("train", "dev")
    ]


def tokenise_part(
    part: DocumentShard, tokenizer: Tokenizer, folder: str | os.PathLike, *, radius: int | None
) -> tuple[Shard, SparseCounts]:
    """Write a part as a shard, and count it.

    Args:
        part: of train or dev.
        tokenizer: the tokenizer.
        folder: holds a folder `train` and a folder `dev`.
        radius: K; None counts nothing.

    Returns:
        What the index says of the shard, and the counts of its pairs.

    Raises:
        ValueError: the errors of reading the part; a file that cannot be written.
    """
    pieces, documents = [encode_documents(tokenizer, [])[part.number > 0 :]], 0  # `<pad>` before the first document
    counter = SparseCounter(radius, tokenizer.vocab_size) if radius else None
    for tokens, n in encode_batches(tokenizer, part.documents):
        pieces.append(tokens)
        documents += n
        if counter:
            counter.add(np.concatenate([np.full(counter.radius, PAD, tokens.dtype), tokens]))
    shard = write_shard(Path(folder, part.split), part.number, np.concatenate(pieces), documents=documents)
    return shard, counter.tables() if counter else ()


def write_stream_index(folder: str | os.PathLike, shards: Iterable[Shard], tokenizer: Tokenizer) -> None:
    """Write the index of a stream without empty shards; it completes the stream.

    Raises:
        ValueError: no token at all; a file that cannot be written.
    """
    with_tokens = sorted((shard for shard in shards if shard.tokens), key=lambda shard: int(shard.file.split(".")[0]))
    if sum(shard.tokens for shard in with_tokens) < 3:
        raise ValueError(f"no token for {folder}: give documents that hold text")
    write_index(folder, with_tokens, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.sha256)


def ingest(
    parts: Sequence[DocumentShard],
    tokenizer: Tokenizer,
    out: str | os.PathLike,
    *,
    radius: int,
    column_shards: int = 1,
    runner: str = "DirectRunner",
    options: Sequence[str] = (),
) -> None:
    """Run the pipeline: parts to shards of train and dev, and counts.

    Args:
        parts: of the splits `train` and `dev`, or of `all`, which `cut_part` cuts into the two.
        tokenizer: the tokenizer.
        out: folder that every worker sees.
        radius: K.
        column_shards: into how many files the columns of a table go, each summed by a worker of its own.
        runner: of Beam, by its name.
        options: flags of Beam and the runner.

    Raises:
        ValueError: Beam is not installed, or knows no such runner; the ValueError of a worker.
    """
    check_beam()
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]

    if min(radius, column_shards) < 1:
        raise ValueError(f"radius {radius}, {column_shards} column shards: use at least 1 of each")
    out = local_path(out)
    for folder in ("train", "dev", "counts"):
        make_folder(out / folder)
    tokenizer = Tokenizer(tokenizer.model, tokenizer.kind)  # without its caches, which workers make themselves
    table_files = out / "counts"
    if runner == "DirectRunner":  # would first download another engine
        runner = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    flags = PipelineOptions([f"--runner={runner}", *options])
    with _one_line_errors(), beam.Pipeline(options=flags) as pipeline:
        documents = pipeline | "Parts" >> beam.Create(parts) | "Spread" >> beam.Reshuffle()
        if parts[0].split == "all":
            lengths = documents | "Lengths" >> beam.Map(lambda part: (part.number, sum(1 for _ in part.documents)))
            documents |= "Cut" >> beam.FlatMap(cut_part, beam.pvalue.AsDict(lengths))
        written = documents | "Tokenise and count" >> beam.Map(_tokenise, tokenizer, out, radius)
        shards = written | "Shards" >> beam.MapTuple(lambda split, shard, counts: (split, shard)) | beam.GroupByKey()
        _ = shards | "Index the shards" >> beam.MapTuple(
            lambda split, of_split: write_stream_index(out / split, of_split, tokenizer)
        )
        columns = written | "Columns" >> beam.FlatMap(lambda part: enumerate(split_columns(part[2], column_shards)))
        # tables of one key are merged in the worker before they are sent, and again where they arrive
        summed = columns | "Sum" >> beam.CombinePerKey(lambda parts: merge_counts(*parts))
        done = summed | "Write the columns" >> beam.MapTuple(
            lambda s, counts: write_tables(table_files, counts, shard=s, shards=column_shards)
        )
        index = {"radius": radius, "shards": column_shards, "tokenizer": tokenizer.sha256}
        _ = done | beam.combiners.ToList() | "Index" >> beam.Map(lambda _: write_tables_index(table_files, **index))


def check_beam() -> None:
    """Raise a ValueError that says how to install Beam, if it is missing."""
    if importlib.util.find_spec("apache_beam") is None:
        raise ValueError(
            "Apache Beam is not installed: pip install 'jexplicit[beam]', or tokenise on this machine with launch.shards"
        )


# Functions of the workers stand at the top level, as Beam pickles them by name; those above capture values alone.


def _tokenise(part: DocumentShard, tokenizer: Tokenizer, out: Path, K: int) -> tuple[str, Shard, SparseCounts]:
    return part.split, *tokenise_part(part, tokenizer, out, radius=K if part.split == "train" else None)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise a worker's ValueError from the text of its traceback."""
    try:
        yield
    except Exception as error:
        text = f"ValueError: {error}" if isinstance(error, ValueError) else str(error)
        if found := re.findall(r"^ValueError: (.+?)(?: \[while running .*)?$", text, re.MULTILINE):
            raise ValueError(found[-1]) from error
        raise


def _cut(documents: Iterable[str], first: int, in_all: int, *, dev: bool) -> Iterator[str]:
    return (document for index, document in enumerate(documents, first) if is_dev(index, in_all) == dev)
