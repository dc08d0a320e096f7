"""The bench of language models: whole jobs from tokens to a perplexity, each in processes of its own, beside KenLM."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.lm.names import SUBWORD_ROWS
from jexplicit.runs.bounds import PositiveInt
from jexplicit.runs.command import Preset
from jexplicit.runs.host import resident_bytes
from jexplicit.runs.progress import console
from jexplicit.runs.tables import Column
from launch.bench.harness import METHOD, Bench, BenchConfig, Comparison, Timings, all_cores, ratio_columns
from launch.bench.streams import VocabSize, text_streams
from launch.bench.workers import worker_environment

PROGRAMS = ("lmplz", "build_binary", "query")
KENLM, NGRAM, MIXTURE = "kenlm", "ngram", "mixture"


@dataclass(frozen=True)
class LanguageModels(BenchConfig):
    """Fitting and evaluating a 5-gram model and a mixture, beside KenLM's `lmplz`, `build_binary` and `query` on the same
    tokens, where these programs are on PATH."""

    peer: Literal["kenlm", "none"] = "kenlm"
    """Peer to compare with. kenlm: the programs of KenLM on PATH; without them there are no ratios. none: no peer."""
    train: tuple[str, ...] = ()
    """Your own text to fit: files, .gz files, globs or folders. Default: the documentation that comes with Python."""
    dev: tuple[str, ...] = ()
    """Text to evaluate. Default: documents held out of the training text."""
    vocab_size: VocabSize = 4098
    """Vocabulary size, including <pad> and <unk>."""
    rows: tuple[str, ...] = SUBWORD_ROWS
    """The rows of the mixture, as in launch.lm."""
    rounds: PositiveInt = 3
    """Number of rounds. Each runs every job once. More rounds give steadier medians."""


class Job(NamedTuple):
    """What a job took: all of its processes together, from their start to their end."""

    seconds: float
    cpu_seconds: float
    fit_seconds: float
    eval_seconds: float
    peak_bytes: int
    perplexity: float
    generated_per_second: float | None = None


class Spent(NamedTuple):
    """What a program has printed and used."""

    out: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run_program(command: Sequence[str], *, stdin: Path | None = None, env: dict[str, str] | None = None) -> Spent:
    """Run a program to its end.

    Raises:
        ValueError: it has failed, with the last line of its standard error.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, open(stdin or os.devnull, "rb") as given:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=given, stdout=out, stderr=errors, env=env)
        _, status, used = os.wait4(process.pid, 0)  # its own memory; getrusage has only the most of all children so far
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        printed, said = (_read(file) for file in (out, errors))
    if process.returncode:
        last = (said.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"{Path(command[0]).name} ended with status {process.returncode}: {last}")
    return Spent(printed, seconds, used.ru_utime + used.ru_stime, resident_bytes(used))


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def our_job(method: str, rows: Sequence[str], vocab_size: int, folder: Path) -> Job:
    """A method of launch.lm, fitted and evaluated."""
    job = {"method": method, "rows": list(rows), "vocab_size": vocab_size, "folder": str(folder)}
    command = [sys.executable, "-m", "launch.bench.lm_worker", json.dumps(job)]
    spent = run_program(command, env=worker_environment("_NUM_THREADS"))  # which the other benches set
    return Job(spent.seconds, spent.cpu_seconds, peak_bytes=spent.peak_bytes, **json.loads(spent.out.splitlines()[-1]))


def kenlm_job(folder: Path) -> Job:
    """KenLM's estimation of order 5 with its defaults, its probing tables, and its perplexity with ends of sentences.

    Where a text is too small for an estimate of a discount, `lmplz` takes its usual one instead of giving up.
    """
    arpa, binary = str(folder / "model.arpa"), str(folder / "model.binary")
    flags = ["--text", str(folder / "train.txt"), "--arpa", arpa, "-T", str(folder), "--discount_fallback"]
    spent = [
        run_program(["lmplz", "-o", "5", *flags]),
        run_program(["build_binary", arpa, binary]),
        run_program(["query", "-v", "summary", binary], stdin=folder / "dev.txt"),
    ]
    found = re.search(r"Perplexity including OOVs:\s*([\d.e+]+)", spent[-1].out)
    if not found:
        raise ValueError(f"query printed {spent[-1].out.strip()[:80]!r} and no perplexity: put the query of KenLM on PATH")
    fit, evaluation = spent[0].seconds + spent[1].seconds, spent[2].seconds
    cpu, peak = sum(part.cpu_seconds for part in spent), max(part.peak_bytes for part in spent)
    return Job(fit + evaluation, cpu, fit, evaluation, peak, float(found[1]))


def comparisons(config: LanguageModels, folder: Path) -> Iterator[Comparison]:
    """All jobs on one text."""
    train, dev, N, source = text_streams(config.train, config.dev, config.vocab_size)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        place = Path(scratch)
        for name, stream in (("train", train), ("dev", dev)):
            np.save(place / f"{name}.npy", stream)
        cases: dict[str, Callable[[], Job]] = {
            method: partial(our_job, method, config.rows, N, place) for method in (NGRAM, MIXTURE)
        }
        missing = [name for name in PROGRAMS if not shutil.which(name)]
        if config.peer == "kenlm" and not missing:
            for name, stream in (("train", train), ("dev", dev)):
                write_sentences(place / f"{name}.txt", stream)
            cases[KENLM] = partial(kenlm_job, place)
        elif config.peer == "kenlm":
            console.print(f"without {', '.join(missing)} on PATH there is no KenLM to compare with: rows have no ratio")
        tokens, scored = (int(np.count_nonzero(stream != PAD)) for stream in (train, dev))

        def row(case: str, timings: Timings) -> dict[str, Any]:
            jobs = timings.rounds[case]
            return {
                "tokens_per_second": tokens / timings.medians(case)["fit_seconds"],
                "scored_per_second": scored / timings.medians(case)["eval_seconds"],
                "peak_bytes": max(job.peak_bytes for job in jobs),
                "perplexity": jobs[-1].perplexity,
                "generated_per_second": float(np.median([job.generated_per_second for job in jobs])) if case != KENLM else None,
            }

        yield Comparison(cases=cases, fields={"tokens": tokens, "scored": scored, "vocab_size": N, "corpus": source}, row=row)


def write_sentences(path: Path, stream: np.ndarray) -> None:
    """A stream as lines of numbers, a document each, as KenLM reads them."""
    with path.open("w") as file:
        for part in np.split(stream, np.flatnonzero(stream == PAD)):
            if len(part) > 1:
                file.write(" ".join(map(str, part[1:].tolist())) + "\n")


def _check(config: LanguageModels) -> None:
    if config.dev and not config.train:
        raise ValueError("--dev without --train: name the text to fit, too")


BENCH = Bench(
    name="lm",
    config=LanguageModels,
    comparisons=comparisons,
    methods={
        NGRAM: "`fit_model` of the interpolated modified Kneser-Ney model of order 5, and `evaluate`, in a fresh process.",
        MIXTURE: "The same of the mixture of --rows without history; its exponents are fitted on the clock.",
        KENLM: "`lmplz -o 5` and `build_binary`, which are the fit, and `query`.",
    },
    ours=(NGRAM, MIXTURE),
    peers={"ratio": (KENLM,)},
    clock="fit_seconds",
    timer=lambda call: call(),
    machine=all_cores,
    sizes=(),
    check=_check,
    notes="""\
*Fit* is from tokens to a model, *eval* the perplexity of the dev text, ends of documents predicted by all; *generated* are
tokens of one text, one after the other, once compiled; *s* is the job from
start to end, files and imports included. Functions that JAX has compiled once come from its cache, as in every command. *vs.
kenlm* is the median over rounds of KenLM's seconds of the fit / own ones in the same round; above 1 is faster. *Peak* is the
most memory that a process of the job held.
""",
    columns=[
        METHOD,
        Column("M tokens", "tokens", ".3g", 1e-6),
        Column("fit s", "fit_seconds", ".2f"),
        Column("M tokens/s", "tokens_per_second", ".2f", 1e-6),
        *ratio_columns("vs. kenlm", "ratio"),
        Column("eval s", "eval_seconds", ".2f"),
        Column("k scored/s", "scored_per_second", ",.0f", 1e-3),
        Column("generated/s", "generated_per_second", ",.0f"),
        Column("s", "seconds", ".2f"),
        Column("CPU s", "cpu_seconds", ".2f"),
        Column("GB peak", "peak_bytes", ".2f", 1e-9),
        Column("perplexity", "perplexity", ".2f"),
    ],
    presets={
        "tiny": Preset(LanguageModels(vocab_size=512, rounds=1), "the documentation of Python; 1 minute on 2 CPU cores."),
        "full": Preset(LanguageModels(rounds=5), "a vocabulary of 4098; about 4 minutes on 2 CPU cores."),
    },
)
