"""Apache Beam: text to shards and co-occurrence counts on many machines, exactly as one machine would have made them.

A corpus is cut into parts of consecutive documents. A worker tokenises a part, writes it as the shard of the same number, and
counts it into a sorted run; what is sent to others is runs, combined in the worker first, and never single pairs. The same part
gives the same file, so a part that a runner tries again changes nothing. All workers see one file system.
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.counts.merging import Run, Table, add_run, count_run, merge_runs, split_columns, write_tables, write_tables_index
from jexplicit.data.corpora import is_dev
from jexplicit.data.shards import Shard, write_index, write_shard
from jexplicit.data.sources import Documents
from jexplicit.data.text import file_documents
from jexplicit.data.tfds import TfdsText
from jexplicit.data.tokenizers import Tokenizer, encode_documents

_batch = 512  # documents encoded at a time
_counted_at_once = 1 << 20  # tokens, whose pairs are sorted together


class Part(NamedTuple):
    """Consecutive documents of a corpus: which part of the corpus, which of its parts, and how they are read."""

    split: str
    number: int
    read: Documents


def file_parts(split: str, files: Sequence[str], *, size: int) -> list[Part]:
    """The documents of text files, in parts of about `size` bytes; a .gz file is one part.

    Args:
        split: `train` or `dev`.
        files: their paths, seen by every worker.
        size: bytes of a part.

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
        if file.endswith(".gz"):  # read from its beginning or not at all
            stops = [None]
        ranges += [(file, start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True)]
    return [Part(split, n, partial(file_documents, *where)) for n, where in enumerate(ranges)]


def list_parts(split: str, documents: Sequence[str], *, size: int) -> list[Part]:
    """Documents in memory, in parts of `size`.

    >>> [list(part.read()) for part in list_parts("dev", "abcde", size=2)]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    starts = range(0, len(documents), size)
    return [Part(split, n, partial(iter, list(documents[start : start + size]))) for n, start in enumerate(starts)]


def tfds_parts(data: TfdsText, *, size: int) -> list[Part]:
    """A text data set of TFDS, in parts of `size` documents: of train and dev, or of `all` where there is no dev."""
    parts = []
    for name, split in (("all" if data.dev is None else "train", "train"), ("dev", data.dev)):
        in_all = data.sizes[split] if split else 0
        ranges = (f"{split}[{first}:{min(first + size, in_all)}]" for first in range(0, in_all, size))
        parts += [Part(name, n, partial(data.documents, where)) for n, where in enumerate(ranges)]
    return parts


def cut_part(part: Part, lengths: Mapping[int, int]) -> list[Part]:
    """A part of a corpus without dev documents as a part of train and one of dev, by `split_documents`.

    Args:
        part: of the whole corpus.
        lengths: how many documents each part holds.

    Raises:
        ValueError: fewer than 2 documents in all.

    >>> parts = list_parts("all", "abcd", size=3)
    >>> [(p.split, list(p.read())) for part in parts for p in cut_part(part, {0: 3, 1: 1})]
    [('train', ['a', 'b']), ('dev', ['c']), ('train', ['d']), ('dev', [])]
    """
    first, in_all = sum(lengths[n] for n in lengths if n < part.number), sum(lengths.values())
    if in_all < 2:
        raise ValueError(f"{in_all} document(s) cannot be split into train and dev: use more text, or give dev files (--dev)")
    return [Part(split, part.number, partial(_cut, part.read, first, in_all, split == "dev")) for split in ("train", "dev")]


def tokenise_part(part: Part, tokenizer: Tokenizer, folder: str | os.PathLike, *, radius: int | None) -> tuple[Shard, Run]:
    """Write a part as a shard, and count it.

    Args:
        part: of train or dev.
        tokenizer: the tokenizer.
        folder: holds a folder `train` and a folder `dev`.
        radius: K; None counts nothing.

    Returns:
        What the index says of the shard, and the counts of its pairs.

    Raises:
        ValueError: what reading the part raises; a file that cannot be written.
    """
    documents, done = part.read(), 0
    pieces: list[np.ndarray] = [encode_documents(tokenizer, [])[part.number > 0 :]]  # `<pad>` before the first document
    uncounted, runs = [], []
    while batch := list(islice(documents, _batch)):
        pieces.append(encode_documents(tokenizer, batch)[1:])
        done += len(batch)
        if radius:
            uncounted.append(pieces[-1])
            if sum(map(len, uncounted)) >= _counted_at_once:
                runs, uncounted = add_run(runs, _count(uncounted, radius, tokenizer.vocab_size)), []
    if sum(map(len, uncounted)):
        runs = add_run(runs, _count(uncounted, radius or 0, tokenizer.vocab_size))
    shard = write_shard(Path(folder, part.split), part.number, np.concatenate(pieces), documents=done)
    return shard, merge_runs(runs)


def write_stream_index(folder: str | os.PathLike, shards: Iterable[Shard], tokenizer: Tokenizer) -> None:
    """Name the shards of a stream, in order and without those that hold no token: only now is it whole.

    Raises:
        ValueError: no token at all; a file that cannot be written.
    """
    held = sorted((shard for shard in shards if shard.tokens), key=lambda shard: int(shard.file.split(".")[0]))
    if sum(shard.tokens for shard in held) < 3:
        raise ValueError(f"no token for {folder}: give documents that hold text")
    write_index(folder, held, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.sha256)


def ingest(
    parts: Sequence[Part],
    tokenizer: Tokenizer,
    out: str | os.PathLike,
    *,
    radius: int,
    column_shards: int = 1,
    runner: str = "DirectRunner",
    options: Sequence[str] = (),
) -> None:
    """Run the pipeline: parts -> shards in `out/train` and `out/dev`, counts of train in `out/counts`.

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
    if min(radius, column_shards) < 1:
        raise ValueError(f"radius {radius}, {column_shards} column shards: both are at least 1")
    out = Path(out).absolute()
    try:
        for folder in ("train", "dev", "counts"):
            (out / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}): choose another --out") from error
    _run(list(parts), tokenizer, out, radius, column_shards, runner, list(options))


def check_beam() -> None:
    """Say how to install Beam where it is not.

    Raises:
        ValueError: it is not.
    """
    if importlib.util.find_spec("apache_beam") is None:
        raise ValueError(
            "Apache Beam is not installed: pip install 'jexplicit[beam]', or tokenise on this machine with launch.shards"
        )


def _run(
    parts: list[Part], tokenizer: Tokenizer, out: Path, K: int, column_shards: int, runner: str, options: list[str]
) -> None:
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]

    N = tokenizer.vocab_size
    tokenizer = Tokenizer(tokenizer.model, tokenizer.kind)  # without what it has cached, which is not to be sent around
    flags = PipelineOptions([f"--runner={_engine(runner)}", *options])
    with _one_line_errors(), beam.Pipeline(options=flags) as pipeline:
        documents = pipeline | "Parts" >> beam.Create(parts) | "Spread" >> beam.Reshuffle()
        if parts[0].split == "all":
            lengths = documents | "Lengths" >> beam.Map(_length)
            documents |= "Cut" >> beam.FlatMap(cut_part, beam.pvalue.AsDict(lengths))
        written = documents | "Tokenise and count" >> beam.Map(_tokenise, tokenizer, out, K)
        shards = written | "Shards" >> beam.Map(_shard) | beam.GroupByKey()
        _ = shards | "Index the shards" >> beam.Map(_index_stream, out, tokenizer)
        # merge_runs adds up in the worker what has one key, before it is sent, and again where it arrives
        summed = written | "Columns" >> beam.FlatMap(_columns, column_shards, N) | "Sum" >> beam.CombinePerKey(merge_runs)
        tables = summed | "Write the columns" >> beam.FlatMap(_write_columns, out, K, N, column_shards)
        _ = tables | beam.combiners.ToList() | "Index the tables" >> beam.Map(_index_tables, out, K, N, tokenizer.sha256)


# What the workers do: functions of a module, which travel by their names.


def _length(part: Part) -> tuple[int, int]:
    return part.number, sum(1 for _ in part.read())


def _tokenise(part: Part, tokenizer: Tokenizer, out: Path, K: int) -> tuple[str, Shard, Run]:
    return part.split, *tokenise_part(part, tokenizer, out, radius=K if part.split == "train" else None)


def _shard(written: tuple[str, Shard, Run]) -> tuple[str, Shard]:
    return written[:2]


def _columns(written: tuple[str, Shard, Run], column_shards: int, N: int) -> list[tuple[int, Run]]:
    return [(s, run) for s, run in enumerate(split_columns(written[2], column_shards, vocab_size=N)) if len(run.keys)]


def _index_stream(split_and_shards: tuple[str, Iterable[Shard]], out: Path, tokenizer: Tokenizer) -> None:
    split, shards = split_and_shards
    write_stream_index(out / split, shards, tokenizer)


def _write_columns(s_and_run: tuple[int, Run], out: Path, K: int, N: int, column_shards: int) -> list[Table]:
    s, run = s_and_run
    return write_tables(out / "counts", run, radius=K, vocab_size=N, shard=s, shards=column_shards)


def _index_tables(tables: list[Table], out: Path, K: int, N: int, tokenizer: str) -> None:
    write_tables_index(out / "counts", tables, radius=K, vocab_size=N, tokenizer=tokenizer)


def _engine(runner: str) -> str:
    """The local runner itself: Beam's DirectRunner downloads another engine first where there is none."""
    return "apache_beam.runners.portability.fn_api_runner.FnApiRunner" if runner == "DirectRunner" else runner


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """A worker's ValueError arrives as the text of its traceback, in an error of the runner."""
    try:
        yield
    except Exception as error:
        text = f"ValueError: {error}" if isinstance(error, ValueError) else str(error)
        if found := re.findall(r"^ValueError: (.+?)(?: \[while running .*)?$", text, re.MULTILINE):
            raise ValueError(found[-1]) from error
        raise


def _count(pieces: list[np.ndarray], radius: int, N: int) -> Run:
    return count_run(np.concatenate([np.zeros(1, pieces[0].dtype), *pieces]), radius=radius, vocab_size=N)


def _cut(read: Documents, first: int, in_all: int, dev: bool) -> Iterator[str]:
    return (document for index, document in enumerate(read(), first) if is_dev(index, in_all) == dev)
