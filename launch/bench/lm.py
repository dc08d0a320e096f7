"""The bench of language models: whole jobs from tokens to a perplexity, each in processes of its own, beside KenLM."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.experiments.tables import Column
from jexplicit.runs.host import resident_bytes
from jexplicit.runs.progress import console
from launch.bench.config import LanguageModels
from launch.bench.shared.harness import Comparison, Timings, bench, job_columns
from launch.bench.shared.streams import refuse_dev_alone, text_streams

PROGRAMS = ("lmplz", "build_binary", "query")
KENLM, METHODS = "kenlm", ("ngram", "mixture")


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


def run_program(*command: str, stdin: Path | str = os.devnull, env: dict[str, str] | None = None) -> Spent:
    """Run a program to its end.

    Raises:
        ValueError: it has failed, with the last line of its standard error.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors, open(stdin, "rb") as given:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=given, stdout=out, stderr=errors, env=env)
        _, status, used = os.wait4(process.pid, 0)  # its own memory; getrusage has only the most of all children so far
        seconds, process.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
        for file in (out, errors):
            file.seek(0)
        if process.returncode:
            last = (errors.read().strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"{Path(command[0]).name} ended with status {process.returncode}: {last}")
        return Spent(out.read(), seconds, used.ru_utime + used.ru_stime, resident_bytes(used))


def our_job(method: str, rows: Sequence[str], vocab_size: int, folder: Path) -> Job:
    """A method of launch.lm, fitted and evaluated."""
    job = json.dumps({"method": method, "rows": list(rows), "vocab_size": vocab_size, "folder": str(folder)})
    # without the numbers of threads that the other benches set
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), env.get("PYTHONPATH"))))  # this clone
    out, seconds, cpu, peak = run_program(sys.executable, "-m", "launch.bench.shared.lm_worker", job, env=env)
    return Job(seconds, cpu, peak_bytes=peak, **json.loads(out.splitlines()[-1]))


def kenlm_job(folder: Path) -> Job:
    """KenLM's estimation of order 5 with its defaults, its probing tables, and its perplexity with ends of sentences.

    Where a text is too small for an estimate of a discount, `lmplz` takes its usual one instead of giving up.
    """
    arpa, binary = str(folder / "model.arpa"), str(folder / "model.binary")
    flags = ["--text", str(folder / "train.txt"), "--arpa", arpa, "-T", str(folder), "--discount_fallback"]
    estimated, built = run_program("lmplz", "-o", "5", *flags), run_program("build_binary", arpa, binary)
    queried = run_program("query", "-v", "summary", binary, stdin=folder / "dev.txt")
    found = re.search(r"Perplexity including OOVs:\s*([\d.e+]+)", queried.out)
    if not found:
        raise ValueError(f"query printed {queried.out.strip()[:80]!r} and no perplexity: put the query of KenLM on PATH")
    spent, fit = (estimated, built, queried), estimated.seconds + built.seconds
    cpu, peak = sum(part.cpu_seconds for part in spent), max(part.peak_bytes for part in spent)
    return Job(fit + queried.seconds, cpu, fit, queried.seconds, peak, float(found[1]))


def comparisons(config: LanguageModels, folder: Path) -> Iterator[Comparison]:
    """* **ngram**: `fit_model` of the interpolated modified Kneser-Ney model of order 5, and `evaluate`, in a fresh process.
    * **mixture**: the same of the mixture of --rows without history; its exponents are fitted on the clock.
    * **kenlm**: `lmplz -o 5` and `build_binary`, which are the fit, and `query`.

    *Fit* is from tokens to a model, *eval* the perplexity of the dev text, ends of documents predicted by all; *generated* are
    tokens of one text, one after the other, once compiled; *s* is the job from start to end, files and imports included.
    *vs. kenlm* is the median over rounds of KenLM's seconds of the fit / own ones in the same round. *Peak* is the
    most memory that a process of the job held.
    """
    train, dev, N, source = text_streams(config.train, config.dev, config.vocab_size)
    tokens, scored = (int(np.count_nonzero(stream != PAD)) for stream in (train, dev))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, stream in (("train", train), ("dev", dev)):
            np.save(Path(scratch, f"{name}.npy"), stream)
            write_sentences(Path(scratch, f"{name}.txt"), stream)
        cases: dict[str, Any] = {method: partial(our_job, method, config.rows, N, Path(scratch)) for method in METHODS}
        missing = [name for name in PROGRAMS if not shutil.which(name)]
        if config.peer == "kenlm" and missing:
            console.print(f"without {', '.join(missing)} on PATH there is no KenLM to compare with: rows have no ratio")
        elif config.peer == "kenlm":
            cases[KENLM] = partial(kenlm_job, Path(scratch))

        def row(case: str, timings: Timings) -> dict[str, Any]:
            return {
                "tokens_per_second": tokens / timings.median(case, "fit_seconds"),
                "scored_per_second": scored / timings.median(case, "eval_seconds"),
                "peak_bytes": timings.peak_bytes(case),
                "perplexity": timings.all(case, "perplexity")[-1],
                "generated_per_second": timings.median(case, "generated_per_second") if case != KENLM else None,
            }

        yield Comparison(cases, {"tokens": tokens, "scored": scored, "vocab_size": N, "corpus": source}, row)


def write_sentences(path: Path, stream: np.ndarray) -> None:
    """A stream as lines of numbers, a document each, as KenLM reads them."""
    with path.open("w") as file:
        for part in np.split(stream, np.flatnonzero(stream == PAD)):
            if len(part) > 1:
                file.write(" ".join(map(str, part[1:].tolist())) + "\n")


COLUMNS = [
    *job_columns("M tokens"),
    Column("fit s", "fit_seconds", ".2f"),
    *job_columns("M tokens/s"),
    Column("eval s", "eval_seconds", ".2f"),
    Column("k scored/s", "scored_per_second", ",.0f", 1e-3),
    Column("generated/s", "generated_per_second", ",.0f"),
    *job_columns("s", "CPU s", "GB peak"),
    Column("perplexity", "perplexity", ".2f"),
]
run = bench(
    "lm",
    comparisons,
    COLUMNS,
    sizes=(),
    ours=METHODS,
    peers={"ratio": ("vs. kenlm", [KENLM])},
    clock="fit_seconds",
    jobs=True,
    check=refuse_dev_alone,
)
