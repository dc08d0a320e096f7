"""Checks of an accelerator's results beside NumPy, and its times and the CPU's.

It needs a Python with JAX and this source tree: missing packages of types and files have stand-ins, and a part that calls a
missing package (optax, flax) says so.
"""

import argparse
import functools
import importlib
import os
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

Value = float | int | str | bool | None
Row = dict[str, Value]
_repetitions, _seconds = 9, 4.0  # of a measurement, at most; three repetitions in any case


def draw_stream(tokens: int, N: int, seed: int = 0) -> np.ndarray:
    """Tokens by Zipf's law, every fortieth one a `<pad>`, and at both ends."""
    p = 1 / np.arange(1, N)
    x = 1 + np.random.default_rng(seed).choice(N - 1, tokens + 2, p=p / p.sum()).astype(np.uint16)
    x[::40] = x[-1] = 0
    return x


def apart(ours: object, theirs: object) -> float:
    """The greatest difference of two arrays of one shape."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(a - b).max(initial=0)) if a.shape == b.shape else float("inf")


def pairs_by_scatter() -> tuple[float, float]:
    """Counts of pairs, two tokens back, equal a loop's counts."""
    from jexplicit.counts import count
    from jexplicit.runs.devices import data_mesh

    x, N = draw_stream(300, 20), 20
    counted = np.zeros((2, N, N), int)
    for k in (1, 2):
        for m in range(1, len(x)):
            j = x[m - k] if m >= k and x[m - k : m].all() else 0  # `<pad>` once a nearer token is one
            counted[k - 1, j, x[m]] += 1
    return apart(count(x, context=2, vocab_size=N, mesh=data_mesh(1)), counted), 0


def closed_form() -> tuple[float, float]:
    """`explicit_solution` of counts: ten roundings of logarithms below 10, in float32."""
    from jexplicit.solvers.explicit import explicit_solution

    F = np.random.default_rng(0).integers(1, 1000, (50, 20)).astype(np.float32)
    return apart(explicit_solution(jnp.asarray(F), 4.0), np.log(F) - 3 / 4 * np.log(F.sum(axis=0, dtype=float))), 1e-5


def sweep_of_images() -> tuple[float, float]:
    """One sweep with a bound on the curvature, from small weights, beside float64."""
    from jexplicit.solvers.sweeps import curvature_problem, curvature_sweep

    rng = np.random.default_rng(0)
    H, Y, U = rng.normal(size=(64, 12)), np.eye(5)[rng.integers(0, 5, 64)], rng.normal(size=(12, 5)) / 4
    problem = curvature_problem(jnp.asarray(H, jnp.float32), jnp.asarray(Y, jnp.float32), 1e-4)
    (swept, _), _ = curvature_sweep((jnp.asarray(U, jnp.float32), jnp.zeros(5, jnp.float32)), problem)
    A, P = H.T @ H / len(H), np.exp(H @ U)
    penalty = 1e-4 * np.trace(A) / len(A)
    ascent = H.T @ (Y - P / P.sum(axis=1, keepdims=True)) / len(H) - penalty * U
    return apart(swept, U + 2 * np.linalg.solve(A + 2 * penalty * np.eye(len(A)), ascent)), 1e-5


CHECKS = (pairs_by_scatter, closed_form, sweep_of_images)


class Case(NamedTuple):
    """A jitted function, its arguments, and the operations of its matrix products."""

    run: Callable[..., object]
    arguments: tuple[object, ...]  # if a call consumes the first one, its result begins with the next
    flops: float | None = None


def copied(tiny: bool, mesh: Mesh) -> Case:
    """`x + 1`: a number is read and one is written."""
    return Case(jax.jit(lambda x: x + 1), (jnp.zeros(1 << (10 if tiny else 28), jnp.float32),))


def multiplied(tiny: bool, mesh: Mesh) -> Case:
    """A product of square matrices in full precision: `2 n³` operations."""
    n = 16 if tiny else 8192 if mesh.devices.flat[0].platform != "cpu" else 2048
    A, B = jax.random.normal(jax.random.key(0), (2, n, n), jnp.float32)
    return Case(jax.jit(lambda A, B: jnp.matmul(A, B, precision="highest")), (A, B), 2 * n**3)


def scattered_pairs(tiny: bool, mesh: Mesh) -> Case:
    """Pairs of neighbours added to a table."""
    from jexplicit.counts import counting_step

    tokens, N = (512, 32) if tiny else (1 << 22, 8192)
    x = draw_stream(tokens, N)
    arguments = (jnp.zeros(N * N, jnp.int32),), x[None], np.array([len(x) - 1], np.int32)
    return Case(counting_step(mesh, 1, N), arguments)


def swept_images(tiny: bool, mesh: Mesh) -> Case:
    """A curvature-bound sweep, 784 features: `4 M D N + 2 D² N` operations."""
    from jexplicit.solvers.sweeps import curvature_problem, curvature_sweep

    M, D, N = 64 if tiny else 60_000, 784, 10
    rng = np.random.default_rng(0)
    H, Y = rng.normal(size=(M, D)).astype(np.float32), np.eye(N, dtype=np.float32)[rng.integers(0, N, M)]
    start = jnp.zeros((D, N), jnp.float32), jnp.zeros(N, jnp.float32)
    problem = curvature_problem(jnp.asarray(H), jnp.asarray(Y), 1e-4)
    return Case(curvature_sweep, (start, problem), 4 * M * D * N + 2 * D * D * N)


def transformer_step(tiny: bool, mesh: Mesh) -> Case:
    """A step of Adam on a transformer with windows of 256 tokens."""
    import optax

    from jexplicit.nn.networks import initial_state, training_step
    from jexplicit.nn.sequences import Transformer

    T, optimizer = 256, optax.adam(1e-3)
    N, width, layers, texts = (32, 8, 1, 1) if tiny else (8192, 512, 8, 32)
    model = Transformer(vocab_size=N, width=width, layers=layers, heads=max(1, width // 64), window=T)
    x = draw_stream(texts * T, N).astype(np.int32)[: texts * T].reshape(-1, T)
    state = initial_state({"batch_stats": {}, **jax.jit(model.init)(jax.random.key(0), x)}, optimizer)
    run = training_step(model, optax.softmax_cross_entropy_with_integer_labels, optimizer)
    return Case(run, (state, (x, np.roll(x, -1))), x.size * model.flops_per_token())


PARTS = (copied, multiplied, scattered_pairs, swept_images, transformer_step)


def name_missing_types() -> None:
    """Stand-ins for missing packages that are named and not called here."""
    any_type = type("AnyType", (), {"__class_getitem__": classmethod(lambda cls, shape: cls)})
    for name in ("jaxtyping", "sentencepiece", "safetensors", "safetensors.numpy"):
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__getattr__ = lambda name: any_type


def measure(make: Callable[[bool, Mesh], Case], tiny: bool, mesh: Mesh, where: str) -> Row:
    """A compiled part on a device: seconds, bytes and operations."""
    with jax.default_device(mesh.devices.flat[0]):
        case = make(tiny, mesh)
        arguments = jax.device_put(case.arguments, NamedSharding(mesh, PartitionSpec()))
        run = cast(jax.stages.Wrapped, case.run).lower(*arguments).compile()  # all of them are made by jax.jit
        moved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((arguments, run.out_info)))
        calls, seconds, out, until = 1, [], (), time.perf_counter() + _seconds * (not tiny)
        while len(seconds) < 4 or (len(seconds) <= _repetitions and time.perf_counter() < until):
            start = time.perf_counter()
            for _ in range(calls):
                out = run(*arguments)
                consumed = jax.tree.leaves(arguments)[0].is_deleted()
                arguments = (out[0], *arguments[1:]) if consumed else arguments
            jax.block_until_ready(out)
            seconds.append((time.perf_counter() - start) / calls)
            calls = max(1, min(100, int(0.05 / seconds[-1])))  # so many that waiting for the last one costs little
    median = statistics.median(seconds[1:])
    rates = {"bytes_per_second": moved / median, "flops_per_second": case.flops and case.flops / median}
    return {f"{where}_seconds": median, **{f"{where}_{name}": rate for name, rate in rates.items()}}


def run_check(check: Callable[[], tuple[float, float]]) -> Row:
    """A check's greatest difference, its tolerance, and whether it passed."""
    difference, tolerance = check()
    return {"passed": bool(difference <= tolerance), "difference": float(difference), "tolerance": tolerance}


def attempt(f: Callable[[], Row], until: float) -> Row:
    """What f returns, or why it did not: no failure ends the run."""
    if time.monotonic() > until:
        return {"error": "not started: the time is over"}
    try:
        return f()
    except Exception as error:  # a missing package, a full memory, a compiler that gives up
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 1 if a check failed or a part has an error."""
    parser = argparse.ArgumentParser(description="Checks of an accelerator, and times beside the CPU's.")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of gpu.json")
    parser.add_argument("--minutes", type=float, default=8, help="after which nothing more is started")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a test of the script")
    config = parser.parse_args(argv)
    until = time.monotonic() + 60 * config.minutes
    if (platforms := os.environ.get("JAX_PLATFORMS")) and "cpu" not in platforms.split(","):
        jax.config.update("jax_platforms", f"{platforms},cpu")  # the CPU is measured, too
    name_missing_types()
    from jexplicit.runs.devices import AXIS
    from jexplicit.runs.files import write_json

    config.out.mkdir(parents=True, exist_ok=True)
    device, cpu = jax.devices()[0], jax.devices("cpu")[0]
    about = {"device": device.device_kind, "platform": device.platform, "cpu_cores": os.cpu_count(), "jax": jax.__version__}
    jobs: list[tuple[str, Callable[[], Row]]] = [(check.__name__, functools.partial(run_check, check)) for check in CHECKS]
    for where, on in {"device": device, **({"cpu": cpu} if cpu != device else {})}.items():
        mesh = Mesh(np.array([on]), (AXIS,), axis_types=(AxisType.Auto,))
        jobs += [(part.__name__, functools.partial(measure, part, config.tiny, mesh, where)) for part in PARTS]
    rows: list[Row] = []
    for name, job in jobs:
        rows.append({"name": name} | attempt(job, until))
        write_json(config.out / "gpu.json", about | {"tiny": config.tiny, "rows": rows})
        print(rows[-1], file=sys.stderr, flush=True)
    failed = [str(row["name"]) for row in rows if "error" in row or row.get("passed") is False]
    print(f"failed: {', '.join(failed) or 'none'}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
