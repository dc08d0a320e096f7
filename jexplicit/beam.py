"""Apache Beam: text to shards and counts, exactly as on one machine.

A worker tokenises a part of consecutive documents, writes it as the shard of the same number, and counts it. The same part
always gives the same file, so a part that a runner tries again changes nothing. All workers share one file system.
"""

import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jexplicit.counts import SparseCounts, merge_counts, sum_tables, window_pairs, write_tables
from jexplicit.data.streams import Shard, write_index, write_shard
from jexplicit.data.tokenizers import PAD, Tokenizer, encode_batches, encode_documents
from jexplicit.runs.files import local_path


class Part(NamedTuple):
    """Consecutive documents of train or dev."""

    split: str
    number: int
    documents: Iterable[str]


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
    parts: Sequence[Part], tokenizer: Tokenizer, out: str | os.PathLike, *, context: int, runner: str, options: Sequence[str]
) -> None:
    """Run the pipeline: parts to shards of train and dev, and counts."""
    check_beam()
    import apache_beam as beam  # pyright: ignore[reportMissingImports]
    from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]

    out = local_path(out)
    if runner == "DirectRunner":  # would first download another engine
        runner = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"

    def save(found):  # without types, which Beam would compare with what it infers
        write_tables(out / "counts", tuple(found[k][0] for k in sorted(found)), tokenizer=tokenizer.sha256)

    try:
        with beam.Pipeline(options=PipelineOptions([f"--runner={runner}", *options])) as pipeline:
            documents = pipeline | "Parts" >> beam.Create(parts) | "Spread" >> beam.Reshuffle()
            written = documents | "Tokenise and count" >> beam.Map(tokenise_part, tokenizer, out, context)
            shards = written | "Shards" >> beam.MapTuple(lambda split, shard, counts: (split, shard)) | beam.GroupByKey()
            _ = shards | "Index the shards" >> beam.MapTuple(lambda split, own: write_stream_index(out / split, own, tokenizer))
            tables = written | "Tables" >> beam.FlatMap(lambda part: [(k, (C,)) for k, C in enumerate(part[2], 1)])
            # tables of one offset are merged in the worker before they are sent, and again where they arrive
            summed = tables | "Sum" >> beam.CombinePerKey(lambda parts: merge_counts(*parts))
            _ = summed | beam.combiners.ToDict() | "Write the tables" >> beam.Map(save)
    except Exception as error:  # a worker's ValueError, from the text of its traceback
        text = f"ValueError: {error}" if isinstance(error, ValueError) else str(error)
        if found := re.findall(r"^ValueError: (.+?)(?: \[while running .*)?$", text, re.MULTILINE):
            raise ValueError(found[-1]) from error
        raise


def check_beam() -> None:
    """Raise a ValueError that says how to install Beam, if it is missing."""
    if importlib.util.find_spec("apache_beam") is None:
        remedy = "pip install 'jexplicit[beam]', or tokenise on this machine with launch.shards"
        raise ValueError(f"Apache Beam is not installed: {remedy}")
