"""Apache Beam: text to shards and counts, exactly as on one machine.

A corpus is cut into parts of consecutive documents. A worker tokenises a part, writes it as the shard of the same number, and
counts it into sparse tables, which are merged in each worker before they are sent. The same part always gives the same file, so
a part that a runner tries again changes nothing. All workers share one file system.
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.counts import SparseCounts, merge_counts, sum_tables, window_pairs, write_table, write_tables_index
from jexplicit.data.streams import PAD, Shard, write_index, write_shard
from jexplicit.data.text import Documents, is_dev
from jexplicit.data.tokenizers import Tokenizer, encode_batches, encode_documents
from jexplicit.runs.files import local_path


class Part(NamedTuple):
    """Consecutive documents of train, of dev, or of all (not yet cut)."""

    split: str
    number: int
    documents: Iterable[str]


def cut_part(part: Part, lengths: Mapping[int, int]) -> list[Part]:
    """A part of all as two by `split_documents`; lengths: documents of each part.

    >>> [(part.split, list(part.documents)) for part in cut_part(Part("all", 0, "abc"), {0: 3, 1: 1})]
    [('train', ['a', 'b']), ('dev', ['c'])]
    """
    first, in_all = sum(lengths[n] for n in lengths if n < part.number), sum(lengths.values())
    if in_all < 2:
        raise ValueError(f"{in_all} document(s) cannot be split into train and dev: use more text, or give dev files")
    cut = [Documents(_cut, part.documents, first, in_all, dev=dev) for dev in (False, True)]
    return [Part(split, part.number, documents) for split, documents in zip(("train", "dev"), cut, strict=True)]


def tokenise_part(part: Part, tokenizer: Tokenizer, out: str | os.PathLike, K: int) -> tuple[str, Shard, SparseCounts]:
    """Write a part as a shard; one of train is counted."""
    pieces, documents = [encode_documents(tokenizer, [])[part.number > 0 :]], 0  # `<pad>` before the first document
    for tokens, n in encode_batches(tokenizer, part.documents):
        pieces.append(tokens)
        documents += n
    shard = write_shard(Path(out, part.split), part.number, np.concatenate(pieces), documents=documents)
    if part.split != "train":
        return part.split, shard, ()
    first = np.full(K, PAD, pieces[0].dtype)  # context of a batch, whose documents are whole
    batches = (np.concatenate([first, tokens]) for tokens in pieces[1:])
    return part.split, shard, sum_tables(window_pairs(window, K, tokenizer.vocab_size) for window in batches)


def write_stream_index(folder: str | os.PathLike, shards: Iterable[Shard], tokenizer: Tokenizer) -> None:
    """Write the index of a stream without empty shards; it completes the stream."""
    with_tokens = sorted((shard for shard in shards if shard.tokens), key=lambda shard: int(shard.file.split(".")[0]))
    if sum(shard.tokens for shard in with_tokens) < 3:
        raise ValueError(f"no token for {folder}: give documents that hold text")
    write_index(folder, with_tokens, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.sha256)


def ingest(
    parts: Sequence[Part],
    tokenizer: Tokenizer,
    out: str | os.PathLike,
    *,
    radius: int,
    runner: str = "DirectRunner",
    options: Sequence[str] = (),
) -> None:
    """Run the pipeline: parts to shards of train and dev, and counts."""
    check_beam()
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]

    out = local_path(out)
    table_files = out / "counts"
    if runner == "DirectRunner":  # would first download another engine
        runner = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    flags = PipelineOptions([f"--runner={runner}", *options])
    with _one_line_errors(), beam.Pipeline(options=flags) as pipeline:
        documents = pipeline | "Parts" >> beam.Create(parts) | "Spread" >> beam.Reshuffle()
        if parts[0].split == "all":
            lengths = documents | "Lengths" >> beam.Map(lambda part: (part.number, sum(1 for _ in part.documents)))
            documents |= "Cut" >> beam.FlatMap(cut_part, beam.pvalue.AsDict(lengths))
        written = documents | "Tokenise and count" >> beam.Map(tokenise_part, tokenizer, out, radius)
        shards = written | "Shards" >> beam.MapTuple(lambda split, shard, counts: (split, shard)) | beam.GroupByKey()
        _ = shards | "Index the shards" >> beam.MapTuple(
            lambda split, of_split: write_stream_index(out / split, of_split, tokenizer)
        )
        tables = written | "Tables" >> beam.FlatMap(lambda part: [(k, (C,)) for k, C in enumerate(part[2], 1)])
        # tables of one offset are merged in the worker before they are sent, and again where they arrive
        summed = tables | "Sum" >> beam.CombinePerKey(lambda parts: merge_counts(*parts))
        done = summed | "Write the tables" >> beam.MapTuple(lambda k, C: write_table(table_files, k, C[0]))
        index = {"radius": radius, "tokenizer": tokenizer.sha256}
        _ = done | beam.combiners.ToList() | "Index" >> beam.Map(lambda _: write_tables_index(table_files, **index))


def check_beam() -> None:
    """Raise a ValueError that says how to install Beam, if it is missing."""
    if importlib.util.find_spec("apache_beam") is None:
        raise ValueError(
            "Apache Beam is not installed: pip install 'jexplicit[beam]', or tokenise on this machine with launch.shards"
        )


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
