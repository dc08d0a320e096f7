"""Checks of an accelerator's results, and its times and the CPU's.

    python -m launch.accelerator --out runs/gpu

It needs a Python with JAX and this source tree, and reads nothing else. Packages that are imported and not used here, for types
and files, have stand-ins where they are missing; a part that calls a missing package (optax, flax) says so, and the next one
begins.

* `tests.json`: every check, with its greatest difference and how much is allowed.
* `gpu.json`: the device, its roofline, measured in the same run, and every part: median seconds of a step on the device and on
  the CPU, the least bytes that it moves, the operations of its products, and both as shares of the roofline.

Files are written after every measurement; those of the device come before those of the CPU. Programs start one after the other,
without the host in between: times below some 0.02 ms are those of starting a program.
"""

import argparse
import functools
import importlib
import json
import os
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jexplicit.runs.devices import AXIS
from launch.accelerator.checks import CHECKS, FULL, PARTS, TINY, Case, Check, Part, Sizes

Value = float | int | str | bool | None
Row = dict[str, Value]
_repetitions = 9  # at most; three in any case
_late = "not started: the time is over"


class AnyType:
    """Stands for any class of a package that is not called."""

    def __class_getitem__(cls, shape: object) -> type:
        return cls


class Types(types.ModuleType):
    """A module all of whose names are types."""

    def __getattr__(self, name: str) -> type:
        return AnyType


def name_missing_types() -> None:
    """Stand-ins for missing packages that are named and not called here."""
    for name in ("jaxtyping", "sentencepiece", "safetensors", "safetensors.numpy"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = Types(name)


def measure(make: Part, sizes: Sizes, mesh: Mesh) -> tuple[Case, dict[str, float]]:
    """A compiled case: seconds and least bytes of a step, seconds of compilation."""
    with jax.default_device(mesh.devices.flat[0]):
        case = make(sizes, mesh)
        arguments = jax.device_put(case.arguments, NamedSharding(mesh, PartitionSpec()))
        start = time.perf_counter()
        run = cast(jax.stages.Wrapped, case.run).lower(*arguments).compile()  # all of them are made by jax.jit
        compiling = time.perf_counter() - start
        read, written = (sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(of)) for of in (arguments, run.out_info))
        calls, seconds, out, until = 1, [], (), time.perf_counter() + sizes.seconds
        while len(seconds) < 4 or (len(seconds) <= _repetitions and time.perf_counter() < until):
            start = time.perf_counter()
            for _ in range(calls):
                out = run(*arguments)
                arguments = (out[0], *arguments[1:]) if case.donates else arguments
            jax.block_until_ready(out)
            seconds.append((time.perf_counter() - start) / calls)
            calls = max(1, min(100, int(0.05 / seconds[-1])))  # so many that waiting for the last one costs little
    least = (read + written) / case.steps if case.bytes is None else case.bytes
    return case, {"seconds": statistics.median(seconds[1:]) / case.steps, "bytes": least, "compile_seconds": compiling}


def copied(sizes: Sizes, mesh: Mesh) -> Case:
    """`x + 1`: a number is read and one is written."""
    return Case(jax.jit(lambda x: x + 1), (jnp.zeros(sizes.copied, jnp.float32),))


def multiplied(dtype: str, precision: str) -> Part:
    """A product of square matrices of random numbers: `2 n³` operations."""

    def make(sizes: Sizes, mesh: Mesh) -> Case:
        n = sizes.matrix if mesh.devices.flat[0].platform != "cpu" else sizes.matrix // 4
        A, B = jax.random.normal(jax.random.key(0), (2, n, n), jnp.float32).astype(dtype)
        return Case(jax.jit(lambda A, B: jnp.matmul(A, B, precision=precision)), (A, B), flops=2 * n**3)

    return make


RATES = {
    "float32": multiplied("float32", "highest"),  # as closed forms and fits have it
    "default": multiplied("float32", "default"),  # as networks are trained: TF32 on a GPU
    "bfloat16": multiplied("bfloat16", "default"),
}


def measure_roofline(sizes: Sizes, mesh: Mesh) -> Row:
    """Bytes a second of a copy, and operations a second by precision."""
    _, copy = measure(copied, sizes, mesh)
    row: Row = {"copy_bytes_per_second": copy["bytes"] / copy["seconds"]}
    for name, make in RATES.items():
        case, product = measure(make, sizes, mesh)
        row[f"{name}_flops_per_second"] = (case.flops or 0) / product["seconds"]
    return row


def measure_part(make: Part, sizes: Sizes, mesh: Mesh, roofline: Mapping[str, Value], where: str) -> Row:
    """A part on a device: the fields of its row."""
    case, found = measure(make, sizes, mesh)
    bandwidth, rate = (roofline.get(name) for name in ("copy_bytes_per_second", f"{case.rate}_flops_per_second"))
    row: Row = {"bytes": found["bytes"], "flops": case.flops, "rate": case.rate if case.flops else None}
    row |= {f"{where}_seconds": found["seconds"], f"{where}_compile_seconds": found["compile_seconds"]}
    of_bandwidth = found["bytes"] / found["seconds"] / bandwidth if isinstance(bandwidth, float) else None
    of_rate = case.flops / found["seconds"] / rate if case.flops and isinstance(rate, float) else None
    prefix = "" if where == "device" else f"{where}_"
    return row | {f"{prefix}share_of_bandwidth": of_bandwidth, f"{prefix}share_of_matrix_rate": of_rate}


def run_check(check: Check) -> Row:
    """A check's greatest difference, what is allowed, and whether it passed."""
    difference, tolerance = check()
    return {"passed": bool(difference <= tolerance), "difference": float(difference), "tolerance": tolerance}


def write_json(path: Path, content: object) -> None:
    """Write a file as a whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def attempt(f: Callable[[], Row], until: float) -> Row:
    """What f returns, or why it did not: no failure ends the run."""
    if time.monotonic() > until:
        return {"error": _late}
    try:
        return f()
    except Exception as error:  # a missing package, a full memory, a compiler that gives up
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 1 if a check failed or a part has an error."""
    parser = argparse.ArgumentParser(description="Checks of an accelerator, and times beside the CPU's.")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of gpu.json and tests.json")
    parser.add_argument("--minutes", type=float, default=8, help="after which nothing more is started")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a test of the script")
    config = parser.parse_args(argv)
    sizes, until = TINY if config.tiny else FULL, time.monotonic() + 60 * config.minutes
    if (platforms := os.environ.get("JAX_PLATFORMS")) and "cpu" not in platforms.split(","):
        jax.config.update("jax_platforms", f"{platforms},cpu")  # the CPU is measured, too
    name_missing_types()
    config.out.mkdir(parents=True, exist_ok=True)
    device, cpu = jax.devices()[0], jax.devices("cpu")[0]
    about = {"device": device.device_kind, "platform": device.platform, "cpu_cores": os.cpu_count(), "jax": jax.__version__}

    checked: list[Row] = []
    for check in CHECKS:
        checked.append({"name": check.__name__} | attempt(functools.partial(run_check, check), until))
        write_json(config.out / "tests.json", about | {"tests": checked})
        print(checked[-1], file=sys.stderr, flush=True)

    rows: dict[str, Row] = {part.__name__: {"name": part.__name__} for part in PARTS}
    rooflines: dict[str, Row] = {}
    for where, on in {"device": device, "cpu": cpu}.items():
        if where == "cpu" and on == device:
            break  # there is no accelerator
        mesh = Mesh(np.array([on]), (AXIS,), axis_types=(AxisType.Auto,))
        rooflines[where] = roof = attempt(functools.partial(measure_roofline, sizes, mesh), until)
        for part in PARTS:
            found = attempt(functools.partial(measure_part, part, sizes, mesh, roof, where), until)
            if "error" in found:
                found = {f"{where}_error" if where == "cpu" else "error": found["error"]}
            rows[part.__name__] |= found
            parts = list(rows.values())
            write_json(config.out / "gpu.json", about | {"sizes": sizes._asdict(), "roofline": rooflines, "parts": parts})
            print(where, {"name": part.__name__} | found, file=sys.stderr, flush=True)
    failed = [row["name"] for row in (*checked, *rows.values()) if "error" in row or row.get("passed") is False]
    print(f"failed: {', '.join(map(str, failed)) or 'none'}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
