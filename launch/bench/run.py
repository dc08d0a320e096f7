"""Measure the kernels against named peers (CPU-time ratios on one thread), and the scaling of counting.

Ratios are medians of paired ratios over interleaved rounds, with quartiles.

python -m launch.bench counting --tokens 10_000_000 --radius 1 4
python -m launch.bench evaluation --positions 200_000
python -m launch.bench training --batch-size 1024 8192 --radius 1 4
python -m launch.bench icl --layers 1 5
python -m launch.bench blur --genomes 4 --unroll 10
python -m launch.bench scaling --devices 1 2 4 8 --processes 1 2
python -m launch.bench streaming --tokens 200_000_000 --memory 2GB
python -m launch.bench counting --preset tiny
"""

import functools
import inspect
import os
import sys

for _threads in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # read when NumPy is imported; an idle BLAS thread spins and burns CPU time

import tyro  # noqa: E402

from jexplicit.runs.command import run_command  # noqa: E402
from launch.bench import blur, counting, evaluation, icl, scaling, streaming, training  # noqa: E402
from launch.bench.harness import run_bench  # noqa: E402

BENCHES = {module.BENCH.name: module.BENCH for module in (blur, counting, evaluation, icl, scaling, streaming, training)}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the bench."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else ""
    if name not in BENCHES:  # --help, nothing or a typo
        configs = {name: bench.config for name, bench in BENCHES.items()}
        description = f"{(__doc__ or '').splitlines()[0]}\n\nFlags of one bench: python -m launch.bench BENCH --help"
        tyro.extras.subcommand_cli_from_dict(configs, args=argv, prog="python -m launch.bench", description=description)
        return 2
    bench = BENCHES[name]
    run, prog = functools.partial(run_bench, bench), f"python -m launch.bench {name}"
    about = inspect.cleandoc(bench.config.__doc__ or "")
    return run_command(run, bench.config, presets=bench.presets, prog=prog, description=about, argv=argv[1:])


if __name__ == "__main__":
    sys.exit(main())
