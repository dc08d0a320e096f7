"""Measure the kernels against named peers (CPU-time ratios on one thread), the scaling of counting, and compressors of text.

Ratios are medians of paired ratios over interleaved rounds, with quartiles.

python -m launch.bench counting --tokens 10_000_000 --radius 1 4
python -m launch.bench evaluation --positions 200_000
python -m launch.bench training --batch-size 1024 8192 --radius 1 4
python -m launch.bench icl --layers 1 5
python -m launch.bench blur --genomes 4 --unroll 10
python -m launch.bench scaling --devices 1 2 4 8 --processes 1 2
python -m launch.bench streaming --tokens 200_000_000 --memory 2GB
python -m launch.bench lm --peer kenlm
python -m launch.bench compressors --train input.txt
python -m launch.bench compile --platform h100
python -m launch.bench counting --preset tiny
"""

import os
import sys

for _threads in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # read when NumPy is imported; an idle BLAS thread spins and burns CPU time

from jexplicit.experiments.command import Command, run_subcommand  # noqa: E402
from launch.bench.config import PRESETS  # noqa: E402

COMMANDS = {name: Command(type(presets["tiny"].config), f"launch.bench.{name}", presets) for name, presets in PRESETS.items()}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the bench; JAX is imported once the arguments are read."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
