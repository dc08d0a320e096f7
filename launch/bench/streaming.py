"""The bench of counting from shards within a memory budget, against counting the same stream in memory."""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.data.shards import ShardWriter
from jexplicit.data.tokenizers import Progress
from jexplicit.runs.command import Preset
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.memory import parse_bytes
from jexplicit.runs.progress import console, stage
from jexplicit.runs.timing import median_ratio
from launch.bench import counting
from launch.bench.counting_worker import Answer, Request, Setting
from launch.bench.harness import free_folder
from launch.bench.tables import cpu_cores, markdown_table, terminal_table
from launch.bench.workers import Workers, medians, working

_block = 1 << 22  # tokens drawn at a time


@dataclass(frozen=True)
class Streaming:
    """Counting a stream in shards within a memory budget, partial counts saved at intervals, against counting the same stream
    from memory on as many devices. Both give the same tables, checked in every round."""

    out: str | None = None
    """New run folder; default, the first free of runs/bench-streaming, runs/bench-streaming-2, ..."""
    shards: str | None = None
    """Folder of the stream's shards, written where they are not there yet, and kept; default, in the run folder, deleted at
    the end."""
    tokens: int = 200_000_000
    """Positions to count: independent draws from Zipf's law in documents of 40 tokens on average."""
    vocab_size: int = 4098
    """Token ids, <pad> included."""
    radius: int = 4
    """Context length K, in tokens: K pairs per position."""
    memory: str = "2GB"
    """What the process that counts from shards may take."""
    checkpoint_seconds: float = 60.0
    """Between two saves of partial counts, as in launch.lm; the last save is at the end. A save costs the more the larger the
    tables, however few the tokens."""
    devices: int = 2
    """Virtual CPU devices; fewer where the memory does not hold their tables."""
    rounds: int = 3
    """How often each method is timed; the more, the steadier the medians."""
    seed: int = 0
    """Of the stream, and of the order of the methods in each round."""


STREAMED, IN_MEMORY = "streamed", "in memory"
PRESETS = {
    "tiny": Preset(
        Streaming(tokens=200_000, vocab_size=100, radius=2, memory="700MB", rounds=2), "200,000 tokens; 20 s on 2 CPU cores."
    ),
    "full": Preset(Streaming(), "200 M tokens; 5 minutes, 4 GB of memory and 0.4 GB of disk on 2 CPU cores."),
}


def run(config: Streaming) -> None:
    """The whole job: write the shards, count them both ways, report."""
    check(config)
    out = config.out or free_folder("runs/bench-streaming")
    folder = RunFolder(out, replace(config, out=out))
    console.print(f"[bold]bench streaming[/] of {config.tokens:,} tokens within {config.memory}")
    shards = Path(config.shards or folder.path / "shards")
    with stage("writing shards", "tokens") as progress:
        write_zipf_shards(shards, config.tokens, config.vocab_size, config.seed, progress)
    for row in measure(config, folder, shards):
        folder.add_row({"bench": "streaming", **row})
    if config.shards is None:
        shutil.rmtree(shards)
    write_report(folder)
    console.print(terminal_table(_columns, folder.rows()))
    console.print(f"report {folder.path / 'report.md'}", soft_wrap=True)


def check(config: Streaming) -> None:
    """Flags that make no sense."""
    if config.rounds < 1:
        raise ValueError(f"--rounds {config.rounds}: time every method at least once")
    for flag, value in {"radius": config.radius, "devices": config.devices}.items():
        if value < 1:
            raise ValueError(f"--{flag} {value}: give at least 1")
    if config.checkpoint_seconds <= 0:
        raise ValueError(f"--checkpoint-seconds {config.checkpoint_seconds}: give a positive number of seconds")
    parse_bytes(config.memory)
    counting.check(counting.Counting(tokens=config.tokens, vocab_size=config.vocab_size))


def write_zipf_shards(
    folder: Path, tokens: int, vocab_size: int, seed: int, progress: Progress | None = None, *, block: int = _block
) -> None:
    """The law of `launch.bench.counting.zipf_stream` in shards, drawn block by block; what is there already is kept.

    Raises:
        ValueError: another stream in the folder; a disk that is full.
    """
    writer = ShardWriter(folder, vocab_size=vocab_size, tokenizer=f"zipf, {tokens} tokens in blocks of {block}, seed {seed}")
    if writer.complete:
        return
    kept, documents = writer.documents, 0
    for start in range(0, tokens, block):
        rng = np.random.default_rng([seed, start])
        drawn = counting.zipf_stream(rng, min(block, tokens - start), vocab_size)[1:]  # the first <pad> is the last block's
        n = int(np.count_nonzero(drawn == PAD))
        documents += n
        if documents > kept:
            writer.add(drawn, documents=n)
        if progress:
            progress(start + len(drawn), tokens)
    writer.close()


def measure(config: Streaming, folder: RunFolder, shards: Path) -> list[dict[str, Any]]:
    """Both methods in turn, each in a process that stays: a row per method."""
    N, K = config.vocab_size, config.radius
    with tempfile.TemporaryDirectory(dir=folder.path) as scratch:
        saved, few = Path(scratch, "saved"), Path(scratch, "few.npy")
        np.save(few, counting.zipf_stream(np.random.default_rng(config.seed), min(config.tokens, 1 << 20), N))
        requests = {
            STREAMED: Request(str(shards), saving=str(saved), saving_seconds=config.checkpoint_seconds),
            IN_MEMORY: Request(str(shards), whole=True),
        }
        with working({STREAMED: Setting(config.devices, N, K, config.memory)}) as streamed:
            with stage("starting"):
                devices = streamed[STREAMED].ask(Request(str(few))).devices  # and compile
            with working({IN_MEMORY: Setting(devices, N, K)}) as in_memory:
                in_memory[IN_MEMORY].ask(Request(str(few)))
                answers = _in_turn(config, {**streamed, **in_memory}, requests, saved)
    peer = answers[IN_MEMORY]
    rows = []
    for method, found in answers.items():
        folder.log(event="timings", method=method, answers=[answer._asdict() for answer in found])
        seconds = medians(found)
        rows.append(
            {
                "method": method,
                "tokens": config.tokens,
                "vocab_size": N,
                "radius": K,
                "devices": devices,
                "tokens_per_second": config.tokens / seconds["seconds"],
                "ratio_to_memory": median_ratio(*([answer.seconds for answer in each] for each in (peer, found))),
                "cpu_ratio_to_memory": median_ratio(*([answer.cpu_seconds for answer in each] for each in (peer, found))),
                "peak_bytes": max((answer.peak_bytes or 0 for answer in found), default=0) or None,
                "memory": parse_bytes(config.memory) if method == STREAMED else None,
                **seconds,
                "checkpoint_seconds": config.checkpoint_seconds if method == STREAMED else None,
                "counts_equal": True,
                "rounds": config.rounds,
                "cores": cpu_cores(),
            }
        )
    return rows


def _in_turn(
    config: Streaming, workers: dict[str, Workers], requests: dict[str, Request], saved: Path
) -> dict[str, list[Answer]]:
    """Every round asks both, in a new order; other tables are refused."""
    answers: dict[str, list[Answer]] = {method: [] for method in requests}
    orders, methods = np.random.default_rng(config.seed), list(requests)
    with stage("timing", "counts") as progress:
        for done in range(config.rounds):
            for i, method in enumerate(orders.permutation(methods)):
                answers[method].append(workers[method].ask(requests[method]))
                shutil.rmtree(saved, ignore_errors=True)  # or the next pass would go on from there
                progress(len(methods) * done + i + 1, len(methods) * config.rounds)
            if len({found[-1].digest for found in answers.values()}) > 1:
                raise ValueError(f"{STREAMED} counts otherwise than {IN_MEMORY}: mend it before timing it")
    return answers


_columns = {
    "method": ("method", 1, ""),
    "M tokens": ("tokens", 1e-6, ".3g"),
    "devices": ("devices", 1, "d"),
    "s": ("seconds", 1, ".2f"),
    "CPU s": ("cpu_seconds", 1, ".2f"),
    "M tokens/s": ("tokens_per_second", 1e-6, ".2f"),
    "vs. memory": ("ratio_to_memory", 1, ".2f"),
    "in CPU s": ("cpu_ratio_to_memory", 1, ".2f"),
    "GB peak": ("peak_bytes", 1e-9, ".2f"),
    "GB allowed": ("memory", 1e-9, ".2f"),
}


def write_report(folder: RunFolder) -> None:
    """report.md, from the rows of the run."""
    rows = folder.rows()
    lines = [
        "# Counting from shards",
        "",
        f"Zipf stream, vocabulary {rows[0]['vocab_size']}, K = {rows[0]['radius']}, {rows[0]['rounds']} interleaved rounds on "
        f"{rows[0]['cores']} CPU cores. Both methods gave the same tables in every round.",
        "",
        *markdown_table(_columns, rows),
        "",
        "* **streamed**: shards of 128 MB verified against their checksums, read a window ahead of the devices, and partial "
        f"counts saved every {rows[0]['checkpoint_seconds']:g} s and at the end; all of it on the clock.",
        "* **in memory**: the same stream as an array that is in memory when the clock starts, nothing saved.",
        "",
        "*vs. memory* is the median over rounds of the seconds in memory over those of the method; CPU seconds, beside it, "
        "depend less on what else the machine does. *Peak* is the most memory that the process held at any time, its libraries "
        "included.",
        "",
    ]
    (folder.path / "report.md").write_text("\n".join(lines))
