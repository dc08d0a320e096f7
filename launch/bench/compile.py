"""Compile the hot functions for an accelerator that is only described, and count the kernels they start."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from jexplicit.runs.command import Command, Preset
from jexplicit.runs.devices import AXIS
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.progress import stage
from jexplicit.runs.tables import Column, markdown_table, rich_table
from launch.bench.harness import free_folder
from launch.bench.hlo import Work, program_work
from launch.bench.hot_functions import HOT_FUNCTIONS

START = 2.5e-6  # seconds to start a kernel
BASELINE = Path(__file__).with_name("kernels.json")  # platform -> function -> kernels, bytes
_no_tpu = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}  # none to ask
_h100 = {  # what its compiler asks of the device
    **{"threads_per_block_limit": 1024, "threads_per_warp": 32, "threads_per_core_limit": 2048, "core_count": 132},
    **{"fpus_per_core": 128, "clock_rate_ghz": 1.98, "l2_cache_size": 52428800, "device_memory_size": 84942979072},
    **{"shared_memory_per_block": 49152, "shared_memory_per_core": 233472, "shared_memory_per_block_optin": 232448},
    **{"block_dim_limit_x": 2147483647, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535},
    **{"registers_per_core_limit": 65536, "registers_per_block_limit": 65536, "memory_bandwidth": 3352320000000},
}


class Platform(NamedTuple):
    """A described device: arguments of `get_topology_desc`, and bytes a second of its memory."""

    topology: str
    platform: str
    options: Mapping[str, str]
    bandwidth: float


def _target(device: Mapping[str, float], versions: str) -> str:
    numbers = " ".join(f"{name}: {value}" for name, value in device.items())
    return f'gpu_device_info {{ {numbers} cuda_compute_capability {{ major: 9 }} }} platform_name: "CUDA" {versions}'


PLATFORMS = {
    "h100": Platform(
        *("h100", "cuda"),
        {
            "topology": "1x1x1",
            "target_config": _target(
                _h100,
                'device_description_str: "NVIDIA H100 80GB HBM3" '
                "runtime_version { major: 12 minor: 9 } dnn_version_info { major: 9 minor: 10 }",
            ),
        },
        3.35e12,
    ),
    "v5e": Platform("v5e:2x2", "tpu", {}, 8.19e11),
}


@dataclass(frozen=True)
class Compile:
    """Compile the most expensive functions for an accelerator that need not be present, and count their kernels. It is an error
    if a function starts more kernels than before. Estimated times are 2.5 microseconds per kernel, plus the bytes that kernels
    read and write divided by the bandwidth of the memory."""

    out: str | None = None
    """New run folder. Default: the first free one of runs/bench-compile, runs/bench-compile-2, ..."""
    platform: Literal["h100", "v5e"] = "h100"
    """Device to compile for: an NVIDIA H100, or a TPU v5e."""
    functions: tuple[str, ...] = ()
    """Names of the functions to compile. Default: all of them."""
    update: bool = False
    """Write the kernels and bytes counted now to launch/bench/kernels.json, with which later counts are compared, and which
    launch.bench pod reads."""


COLUMNS = [
    Column("function", "function"),
    Column("kernels", "kernels", ",d"),
    Column("before", "baseline", ",d"),
    Column("MB", lambda row: f"{row['bytes'] / 1e6:,.1f}"),
    Column("estimate, ms", "estimated_ms", ",.3f"),
    Column("roofline, ms", "roofline_ms", ",.3f"),
    Column("compiled in s", "compile_seconds", ".1f"),
]


def described_mesh(platform: str) -> Mesh:
    """A mesh of one described device, which need not be there.

    Raises:
        ValueError: no compiler for it.
    """
    described = PLATFORMS[platform]
    for name, value in _no_tpu.items():
        os.environ.setdefault(name, value)
    try:
        found = topologies.get_topology_desc(described.topology, described.platform, **described.options)
    except (NotImplementedError, RuntimeError) as error:
        raise ValueError(f"platform {platform}: no compiler for it is installed; pip install -e '.[compile]'") from error
    return Mesh(np.array(found.devices[:1]), (AXIS,), axis_types=(AxisType.Auto,))


def function_row(name: str, platform: str, work: Work) -> dict[str, Any]:
    """The row of a function.

    Example:
        >>> row = function_row("counting", "h100", Work(kernels=8, bytes=3_350_000_000))
        >>> row["roofline_ms"], row["estimated_ms"]
        (1.0, 1.02)
    """
    roofline = work.bytes / PLATFORMS[platform].bandwidth
    times = {"estimated_ms": round(1e3 * (work.kernels * START + roofline), 6), "roofline_ms": round(1e3 * roofline, 6)}
    return {"function": name, "platform": platform, **work._asdict(), **times}


def check_kernels(rows: list[dict[str, Any]]) -> None:
    """Raises:
    ValueError: a function that starts more kernels than its baseline.
    """
    worse = [row for row in rows if row["baseline"] is not None and row["kernels"] > row["baseline"]]
    if worse:
        said = ", ".join(f"{row['function']} {row['kernels']} instead of {row['baseline']}" for row in worse)
        raise ValueError(
            f"more kernels on {worse[0]['platform']} than before: {said}; fix these functions, or accept the new "
            "numbers with --update"
        )


def run(config: Compile) -> dict[str, Any]:
    """Run the command."""
    start = time.perf_counter()
    names = config.functions or tuple(HOT_FUNCTIONS)
    if unknown := [name for name in names if name not in HOT_FUNCTIONS]:
        raise ValueError(f"--functions {', '.join(unknown)}: choose from {', '.join(HOT_FUNCTIONS)}")
    with contextlib.suppress(RuntimeError):  # JAX already runs
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot be read without a device
    mesh = described_mesh(config.platform)
    folder = RunFolder(config.out or free_folder("runs/bench-compile"), replace(config, out=config.out))
    baselines = json.loads(BASELINE.read_text())
    baseline = baselines[config.platform]
    rows = []
    with stage("compiling", "functions") as progress:
        for n, name in enumerate(names):
            begin = time.perf_counter()
            work = program_work(HOT_FUNCTIONS[name].lower(mesh).compile().as_text())
            seconds = round(time.perf_counter() - begin, 3)
            rows.append(
                {
                    **function_row(name, config.platform, work),
                    "baseline": baseline.get(name, {}).get("kernels"),
                    "compile_seconds": seconds,
                }
            )
            progress(n + 1, len(names))
    folder.add_rows(rows)
    if config.update:
        baselines[config.platform] = baseline | {row["function"]: Work(row["kernels"], row["bytes"])._asdict() for row in rows}
        BASELINE.write_text(json.dumps(baselines, indent=2) + "\n")
    report = folder.path / "report.md"
    about = " ".join((Compile.__doc__ or "").split())
    report.write_text("\n".join([f"# Bench: compile, {config.platform}", "", about, "", *markdown_table(COLUMNS, rows), ""]))
    if not config.update:
        check_kernels(rows)
    return present_run(folder, rich_table(COLUMNS, rows), report, start)


COMMAND = Command(
    Compile, run, {"tiny": Preset(Compile(functions=("explicit solution", "log-probabilities")), "5 s on 2 CPU cores.")}
)
