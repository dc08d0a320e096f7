"""The bench of counting from shards within a memory budget, against counting the same stream in memory."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.counts.stream import Saving
from jexplicit.data.contexts import PAD
from jexplicit.data.corpus.shards import ShardWriter
from jexplicit.data.tokenizers import Progress
from jexplicit.experiments.tables import Column
from jexplicit.runs.host import parse_bytes
from jexplicit.runs.progress import stage
from launch.bench.config import Streaming
from launch.bench.shared.harness import Comparison, Timings, bench, job_columns
from launch.bench.shared.streams import zipf_stream
from launch.bench.shared.workers import Answer, Setting, working

_block = 1 << 22  # tokens drawn at a time


STREAMED, IN_MEMORY = "streamed", "in memory"


def write_zipf_shards(
    folder: Path, tokens: int, vocab_size: int, seed: int, progress: Progress | None = None, *, block: int = _block
) -> None:
    """The distribution of `launch.bench.shared.streams.zipf_stream` in shards, drawn block by block; existing shards are kept.

    Raises:
        ValueError: another stream in the folder; a full disk.
    """
    writer = ShardWriter(folder, vocab_size=vocab_size, tokenizer=f"zipf, {tokens} tokens in blocks of {block}, seed {seed}")
    if writer.complete:
        return
    kept, documents = writer.documents, 0
    for start in range(0, tokens, block):
        rng = np.random.default_rng([seed, start])
        drawn = zipf_stream(rng, min(block, tokens - start), vocab_size)[1:]  # the first <pad> is the last block's
        n = int(np.count_nonzero(drawn == PAD))
        documents += n
        if documents > kept:
            writer.add(drawn, documents=n)
        if progress:
            progress(start + len(drawn), tokens)
    writer.close()


def comparisons(config: Streaming, folder: Path) -> Iterator[Comparison]:
    """* **streamed**: shards of 128 MB, verified against their checksums and read one window ahead of the devices; partial
      counts saved every --checkpoint-seconds and at the end; all of it on the clock.
    * **in memory**: the same stream as an array that is in memory when the clock starts; nothing is saved.

    *vs. memory* is the median over rounds of the seconds in memory / the seconds of the method, with its quartiles, *in CPU s*
    that of CPU seconds. *Peak* is the most memory that the process held at any time, its libraries included.
    """
    N, K = config.vocab_size, config.radius
    shards = config.shards or str(folder / "shards")
    with stage("writing shards", "tokens") as progress:
        write_zipf_shards(Path(shards), config.tokens, N, config.seed, progress)
    with tempfile.TemporaryDirectory(dir=folder) as scratch, contextlib.ExitStack() as stack:
        saving, few = Saving(Path(scratch, "saved"), config.checkpoint_seconds), str(Path(scratch, "few.npy"))
        np.save(few, zipf_stream(np.random.default_rng(config.seed), min(config.tokens, 1 << 20), N))
        streamed = stack.enter_context(working({STREAMED: Setting(config.devices, N, K, config.memory)}))[STREAMED]
        devices = streamed.ask(few).devices  # and compile
        in_memory = stack.enter_context(working({IN_MEMORY: Setting(devices, N, K)}))[IN_MEMORY]

        def count_shards() -> Answer:
            shutil.rmtree(saving.folder, ignore_errors=True)  # otherwise the pass would resume from it
            return streamed.ask(shards, saving=saving)

        def row(case: str, timings: Timings) -> dict[str, Any]:
            return {
                "tokens_per_second": config.tokens / timings.median(case, "seconds"),
                "cpu_ratio_to_memory": timings.ratio(case, IN_MEMORY, "cpu_seconds").median,
                "peak_bytes": timings.peak_bytes(case),
                "memory": parse_bytes(config.memory) if case == STREAMED else None,
                "checkpoint_seconds": config.checkpoint_seconds if case == STREAMED else None,
            }

        yield Comparison(
            {STREAMED: count_shards, IN_MEMORY: partial(in_memory.ask, shards, whole=True)},
            {"tokens": config.tokens, "vocab_size": N, "radius": K, "devices": devices, "counts_equal": True},
            row,
            reference=IN_MEMORY,
            difference=lambda found, right: "" if found.digest == right.digest else "the counts differ",
        )
    if config.shards is None:
        shutil.rmtree(shards)


COLUMNS = [
    *job_columns("M tokens"),
    Column("devices", "devices", "d"),
    *job_columns("s", "CPU s", "M tokens/s"),
    Column("in CPU s", "cpu_ratio_to_memory", ".2f"),
    *job_columns("GB peak"),
    Column("GB allowed", "memory", ".2f", 1e-9),
]
run = bench(
    "streaming",
    comparisons,
    COLUMNS,
    sizes=(),
    ours=[STREAMED],
    peers={"ratio_to_memory": ("vs. memory", [IN_MEMORY])},
    clock="seconds",
    jobs=True,
    check=lambda config: parse_bytes(config.memory),
)
