"""The scaling report: counting over devices and processes, measured on this machine and extrapolated by arithmetic."""

import functools
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jexplicit.data.contexts import PAD
from jexplicit.runs.command import Preset
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console, human, stage
from jexplicit.runs.timing import median_ratio
from launch.bench import counting
from launch.bench import scaling_model as model
from launch.bench.counting_worker import Answer, Request, Setting
from launch.bench.harness import free_folder
from launch.bench.scaling_figures import extrapolated_scaling, measured_scaling
from launch.bench.tables import cpu_cores, markdown_table, terminal_table
from launch.bench.workers import Workers, medians, working

_batch = 8192  # positions per step of the training that the measured runs are compared with
_tokens = 1e12
_vocabularies = 50_000, 128_000, 256_000
_devices = tuple(64 * 2**i for i in range(7))
_radius = 4


@dataclass(frozen=True)
class Scaling:
    """Weak and strong scaling of counting over virtual CPU devices and processes, the bytes that it moves against those of
    data-parallel training, and both extrapolated to a trillion tokens. All configurations give the same tables, checked
    first."""

    out: str | None = None
    """New run folder; default, the first free of runs/bench-scaling, runs/bench-scaling-2, ..."""
    tokens: int = 16_000_000
    """Positions per device in weak scaling; in strong scaling as many for each of the most devices, however many count."""
    vocab_size: int = 2050
    """Token ids, <pad> included. Few, so that pairs outnumber the cells of the tables by four, as with a trillion tokens on
    some hundred devices."""
    radius: int = 4
    """Context length K, in tokens: K pairs per position."""
    devices: tuple[int, ...] = (1, 2, 4, 8)
    """Virtual CPU devices, of all processes together. One device of one process is always measured."""
    processes: tuple[int, ...] = (1, 2)
    """Processes that share the devices evenly; where they cannot, that pair is left out."""
    rounds: int = 5
    """How often each configuration is timed; the more, the steadier the medians."""
    seed: int = 0
    """Of the stream, and of the order of the configurations in each round."""


class Case(NamedTuple):
    """A configuration: devices in all, and processes that share them."""

    devices: int
    processes: int


PRESETS = {
    "tiny": Preset(
        Scaling(tokens=5_000, vocab_size=100, radius=2, devices=(1, 2), processes=(1,), rounds=2),
        "5,000 tokens per device on 1 and 2 devices; half a minute on 2 CPU cores.",
    ),
    "full": Preset(Scaling(rounds=9), "16 M tokens per device; 6 minutes and 4 GB on 2 CPU cores."),
}


def run(config: Scaling) -> None:
    """The whole job: measure, extrapolate, report."""
    cases = check(config)
    out = config.out or free_folder("runs/bench-scaling")
    folder = RunFolder(out, replace(config, out=out))
    cores = cpu_cores()
    console.print(f"[bold]bench scaling[/] on {cores} CPU cores")
    for row in measure(config, folder, cases, cores):
        folder.add_row({"bench": "scaling", "experiment": "measured", **row})
    rate = _pairs_per_core_second(folder.rows())
    machines = model.GPU, model.calibrated(model.HOST, rate)
    for machine in machines:
        folder.log(event="assumptions", **machine._asdict())
    for row in extrapolate(machines):
        folder.add_row({"bench": "scaling", "experiment": "extrapolated", **row})
    write_report(folder)
    measured = [row for row in folder.rows() if row["experiment"] == "measured"]
    console.print(terminal_table(_measured_columns, measured))
    console.print(f"report {folder.path / 'report.md'}, figures in {folder.path / 'figures'}", soft_wrap=True)


def check(config: Scaling) -> list[Case]:
    """Flags that make no sense; the configurations."""
    if config.rounds < 1:
        raise ValueError(f"--rounds {config.rounds}: time every configuration at least once")
    if config.radius < 1:
        raise ValueError(f"--radius {config.radius}: give a context length of at least 1 token")
    for flag, values in {"devices": config.devices, "processes": config.processes}.items():
        if not values or min(values) < 1:
            raise ValueError(f"--{flag} {values}: give numbers of at least 1")
    counting.check(counting.Counting(tokens=config.tokens, vocab_size=config.vocab_size))
    shared = {Case(n, P) for n in config.devices for P in config.processes if n % P == 0}
    return sorted({Case(1, 1), *shared}, key=lambda case: (case.processes, case.devices))


def measure(config: Scaling, folder: RunFolder, cases: Sequence[Case], cores: int) -> Iterator[dict[str, Any]]:
    """A row per mode and configuration: equal tables first, then the clock."""
    N, K, most = config.vocab_size, config.radius, max(case.devices for case in cases)
    positions = {("weak", case): config.tokens * case.devices for case in cases}
    positions |= {("strong", case): config.tokens * most for case in cases}
    settings = {case: Setting(case.devices // case.processes, N, K, processes=case.processes) for case in cases}
    answers: dict[tuple[str, Case], list[Answer]] = {timed: [] for timed in positions}
    with tempfile.TemporaryDirectory(prefix="jexplicit-") as streams, working(settings) as workers:
        requests = {length: _stream(config, length, Path(streams)) for length in sorted(set(positions.values()))}
        with stage("checking that all count the same"):
            _check_equal(workers, {timed: requests[length] for timed, length in positions.items()})
        orders, timed = np.random.default_rng(config.seed), list(positions)
        with stage("timing", "counts") as progress:
            for done in range(config.rounds):
                for i, n in enumerate(orders.permutation(len(timed))):
                    mode, case = timed[n]
                    answers[mode, case].append(workers[case].ask(requests[positions[mode, case]]))
                    progress(done * len(timed) + i + 1, config.rounds * len(timed))
    for (mode, case), found in answers.items():
        folder.log(event="timings", mode=mode, **case._asdict(), answers=[answer._asdict() for answer in found])
        yield _row(config, mode, case, positions[mode, case], found, answers[mode, Case(1, 1)], cores)


def _row(
    config: Scaling, mode: str, case: Case, tokens: int, found: Sequence[Answer], alone: Sequence[Answer], cores: int
) -> dict[str, Any]:
    n, P = case
    share = n if mode == "strong" else 1  # of the work of one device
    work = model.Work(tokens, config.vocab_size, config.radius)
    seconds = medians(found)
    speedup = median_ratio([answer.seconds for answer in alone], [answer.seconds for answer in found])
    without = median_ratio(*([answer.seconds - answer.reduce_seconds for answer in each] for each in (alone, found)))
    cpu = median_ratio([answer.cpu_seconds for answer in alone], [answer.cpu_seconds for answer in found])
    epoch = model.training(work, model.HOST, n, batch=_batch)
    size = model.table_bytes(work)
    return {
        "mode": mode,
        "devices": n,
        "processes": P,
        "vocab_size": config.vocab_size,
        "radius": config.radius,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds["seconds"],
        "efficiency": speedup / share,
        "count_efficiency": without / share,
        "cpu_efficiency": cpu * (1 if mode == "strong" else n),
        "limit": min(n, cores) / n,
        **seconds,
        "peak_bytes": max((answer.peak_bytes or 0 for answer in found), default=0) or None,
        "counts_equal": True,
        # an all-reduce over a process's devices, then one over the processes
        "bytes_reduced": model.all_reduce_bytes(size, n // P) + model.all_reduce_bytes(size, P),
        "bytes_reduce_scattered": model.reduce_scatter_bytes(size, n),
        "training_batch": _batch,
        "training_steps": epoch.steps,
        "training_bytes_per_step": epoch.all_reduce_bytes / epoch.steps,
        **_training_bytes(epoch),
        "rounds": config.rounds,
        "cores": cores,
    }


def extrapolate(machines: Sequence[model.Machine]) -> Iterator[dict[str, Any]]:
    """A row per machine, vocabulary and number of devices."""
    for machine in machines:
        for V in _vocabularies:
            work = model.Work(_tokens, V, _radius)
            fewest = model.counting(work, machine, _devices[0])
            for n in _devices:
                pass_, epoch = model.counting(work, machine, n), model.training(work, machine, n)
                yield {
                    "machine": machine.name,
                    "mode": "strong",
                    "devices": n,
                    "processes": n,
                    "vocab_size": V,
                    "radius": _radius,
                    "tokens": work.tokens,
                    "tokens_per_second": work.tokens / pass_.seconds,
                    "efficiency": fewest.seconds * _devices[0] / (pass_.seconds * n),
                    **pass_._asdict(),
                    "bytes_reduced": pass_.reduced_bytes,
                    "table_bytes": model.table_bytes(work),
                    "device_memory_bytes": machine.memory,
                    "training_steps": epoch.steps,
                    "training_split": epoch.split,
                    **_training_bytes(epoch),
                    "training_communication_seconds": epoch.communication_seconds,
                    "training_columns_seconds": epoch.columns_seconds,
                    "training_compute_seconds": epoch.compute_seconds,
                    "communication_ratio": epoch.all_reduce_bytes / max(pass_.reduced_bytes + pass_.exchanged_bytes, 1),
                }


def _training_bytes(epoch: model.Training) -> dict[str, float]:
    return {
        "training_all_reduce_bytes": epoch.all_reduce_bytes,
        "training_sharded_bytes": epoch.sharded_bytes,
        "training_touched_bytes": epoch.touched_bytes,
        "training_columns_bytes": epoch.columns_bytes,
    }


def write_report(folder: RunFolder) -> None:
    """report.md and the figures, from the files of the run."""
    rows = folder.rows()
    measured = [row for row in rows if row["experiment"] == "measured"]
    modelled = [row for row in rows if row["experiment"] == "extrapolated"]
    measured_scaling(measured, folder.path / "figures" / "scaling_measured.png")
    extrapolated_scaling(modelled, folder.path / "figures" / "scaling_extrapolated.png")
    assumptions = folder.events("assumptions")
    first = measured[0]
    N, K, cores = first["vocab_size"], first["radius"], first["cores"]
    moved = [row for row in measured if row["mode"] == "strong" and row["processes"] == 1 and row["devices"] > 1]
    told = [row for row in modelled if row["devices"] in _devices[::2]]
    lines = [
        "# Scaling of counting",
        "",
        f"Zipf stream, vocabulary {N}, K = {K}, {first['rounds']} interleaved rounds on {cores} CPU cores. Every configuration "
        "gives the tables of one device, checked first.",
        "",
        "## Measured",
        "",
        *markdown_table(_measured_columns, measured),
        "",
        "Efficiency is the median over rounds of T1 / Tn (weak) or T1 / (n Tn) (strong), T1 of one device in the same round. "
        f"The *limit* is what {cores} cores allow n devices, min(n, {cores}) / n; cores that other work shares give less. "
        "*Counting* leaves the reduction out; *CPU* compares CPU seconds per token, however many cores there are. "
        "Reduced is what a device sends.",
        "",
        "![measured](figures/scaling_measured.png)",
        "",
        "## Bytes that a device sends",
        "",
        f"One counting pass against one epoch of data-parallel Adagrad in steps of {_batch} positions:",
        "",
        *markdown_table(_byte_columns, moved),
        "",
        _byte_notes,
        "## A trillion tokens, by arithmetic",
        "",
        f"K = {_radius}; nothing in this section is measured, but for the rate of a core. Groups of *split* devices split "
        "their tables by column. Seconds in all are the longest of reading, exchanging and counting, which overlap, and "
        "flushing and the reduction. Training is one epoch in steps of 1 M tokens.",
        "",
        *markdown_table(_model_columns, told),
        "",
        "![extrapolated](figures/scaling_extrapolated.png)",
        "",
        "### Assumptions",
        "",
        *_assumption_lines(assumptions),
        "",
        f"* The increments of a CPU host are {model.HOST_CORES} cores at {model.LARGE_TABLE:.2f} of the "
        f"{_pairs_per_core_second(measured) / 1e6:.0f} M pairs per CPU second that one device counted here into tables of "
        f"{model.table_bytes(model.Work(0, N, K)) / 1e6:.0f} MB: what increments lost, measured in C, from a Zipf table of 67 "
        "MB to 268 MB spread evenly. All else is assumed.",
        "* Token ids take 2 bytes up to a vocabulary of 65,536, else 4. The text is tokenised.",
        "* A device adds its int32 tables into int64 ones in its host's memory after each 2^31 positions, and sends cells of 8 "
        "bytes then, instead of 4.",
        "* Columns are dealt round-robin by frequency, so that all devices of a group count as many pairs.",
        "* Links and storage reach their rates, without latency or contention; no device fails.",
        "* Training is as ideal: gradients are not hidden behind computation, nor is anything else lost. It takes 12 bytes per "
        "cell (table, gradient, accumulator), so its groups are larger.",
        "",
    ]
    (folder.path / "report.md").write_text("\n".join(lines))


_byte_notes = """\
* *Counting, sharded* is a reduce-scatter, `4 K V^2 (n - 1) / n`: enough where every device keeps its columns. *Counting,
  everywhere* is the all-reduce that the measured runs do.
* *Gradients* are summed into every replica, an all-reduce per step. With the state sharded they are reduce-scattered and the
  tables gathered: the same volume.
* *Touched rows* exchanges only the rows that the contexts of a step touch, without their indices; a noise model whose gradient
  touches every row has no such saving.
* *Columns split* holds 1/n of the columns on each device and no replicas: tokens are gathered and two scalars per position are
  summed. It moves the least of any training, at the price of an exchange within every step.
"""

_measured_columns = {
    "mode": ("mode", 1, ""),
    "devices": ("devices", 1, "d"),
    "processes": ("processes", 1, "d"),
    "M tokens": ("tokens", 1e-6, ".3g"),
    "s": ("seconds", 1, ".2f"),
    "reduction s": ("reduce_seconds", 1, ".2f"),
    "M tokens/s": ("tokens_per_second", 1e-6, ".2f"),
    "efficiency": ("efficiency", 1, ".2f"),
    "limit": ("limit", 1, ".2f"),
    "counting": ("count_efficiency", 1, ".2f"),
    "CPU": ("cpu_efficiency", 1, ".2f"),
    "MB reduced": ("bytes_reduced", 1e-6, ",.0f"),
    "GB peak": ("peak_bytes", 1e-9, ".2f"),
}
_byte_columns = {
    "devices": ("devices", 1, "d"),
    "steps": ("training_steps", 1, ",d"),
    "counting, sharded": ("bytes_reduce_scattered", 1e-9, ",.3g GB"),
    "counting, everywhere": ("bytes_reduced", 1e-9, ",.3g GB"),
    "gradients per step": ("training_bytes_per_step", 1e-9, ",.3g GB"),
    "gradients": ("training_all_reduce_bytes", 1e-9, ",.0f GB"),
    "touched rows": ("training_touched_bytes", 1e-9, ",.0f GB"),
    "columns split": ("training_columns_bytes", 1e-9, ",.3g GB"),
}
_model_columns = {
    "machine": ("machine", 1, ""),
    "vocabulary": ("vocab_size", 1, ",d"),
    "devices": ("devices", 1, "d"),
    "split": ("split", 1, "d"),
    "GB per device": ("memory_bytes", 1e-9, ".1f"),
    "of": ("device_memory_bytes", 1e-9, ".0f GB"),
    "reading s": ("read_seconds", 1, ".1f"),
    "exchanging s": ("exchange_seconds", 1, ".1f"),
    "counting s": ("count_seconds", 1, ".1f"),
    "flushing s": ("flush_seconds", 1, ".1f"),
    "reduction s": ("reduce_seconds", 1, ".1f"),
    "in all s": ("seconds", 1, ".0f"),
    "limit": ("limit", 1, ""),
    "GB sent": ("bytes_reduced", 1e-9, ",.0f"),
    "training: compute s": ("training_compute_seconds", 1, ",.0f"),
    "its gradients s": ("training_communication_seconds", 1, ",.0f"),
    "columns split s": ("training_columns_seconds", 1, ",.0f"),
    "bytes, gradients / counting": ("communication_ratio", 1, ",.0f"),
}


def _assumption_lines(assumptions: Sequence[dict[str, Any]]) -> list[str]:
    """What the docstring of Machine says of each field, beside its values."""
    meanings = re.findall(r"^    (\w+): (.*(?:\n        .+)*)", model.Machine.__doc__ or "", re.MULTILINE)
    names = [machine["name"] for machine in assumptions]
    lines = ["| per device | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for field, meaning in meanings:
        if field != "name":
            values = [human(machine[field]) for machine in assumptions]
            lines.append(f"| **{field}**: {' '.join(meaning.split())} | " + " | ".join(values) + " |")
    return lines


def _stream(config: Scaling, positions: int, folder: Path) -> Request:
    path = folder / f"{positions}.npy"
    x = _longest(config.seed, config.tokens * max(1, *config.devices), config.vocab_size)[: positions + 1].copy()
    x[-1] = PAD  # the last document ends where the stream is cut
    np.save(path, x)
    return Request(str(path))


@functools.lru_cache(1)
def _longest(seed: int, positions: int, vocab_size: int) -> np.ndarray:
    return counting.zipf_stream(np.random.default_rng(seed), positions, vocab_size)


def _check_equal(workers: dict[Case, Workers], timed: dict[tuple[str, Case], Request]) -> None:
    """Refuse a configuration with other tables than one device's; all of them are compiled then."""
    alone = functools.cache(lambda request: workers[Case(1, 1)].ask(request).digest)
    for (mode, case), request in timed.items():
        if workers[case].ask(request).digest != alone(request):
            raise ValueError(
                f"{case.devices} devices of {case.processes} processes count otherwise than one device ({mode}): mend it "
                "before timing it"
            )


def _pairs_per_core_second(rows: Sequence[dict[str, Any]]) -> float:
    alone = next(row for row in rows if (row["experiment"], row["mode"], row["devices"]) == ("measured", "strong", 1))
    return alone["radius"] * alone["tokens"] / alone["cpu_seconds"]
