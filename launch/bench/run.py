"""Measure the kernels against named peers (CPU-time ratios on one thread), and counting against its own scale.

Ratios are medians over interleaved rounds.

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
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

for _threads in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(_threads, "1")  # read when NumPy is imported; a BLAS thread that waits burns CPU time

import tyro  # noqa: E402

from jexplicit.runs.command import Preset, run_command  # noqa: E402
from launch.bench import blur, counting, evaluation, icl, scaling, streaming, training  # noqa: E402
from launch.bench.harness import Bench, run_bench  # noqa: E402

BENCHES: dict[str, Bench] = {
    "blur": blur.BENCH,
    "counting": counting.BENCH,
    "evaluation": evaluation.BENCH,
    "icl": icl.BENCH,
    "training": training.BENCH,
}


class Command(NamedTuple):
    """What a first argument stands for: its config, what to do with one, and named ones."""

    config: type
    run: Callable[[Any], None]
    presets: Mapping[str, Preset]


COMMANDS: dict[str, Command] = {
    **{
        name: Command(bench.config, functools.partial(run_bench, name, bench), bench.presets) for name, bench in BENCHES.items()
    },
    "scaling": Command(scaling.Scaling, scaling.run, scaling.PRESETS),
    "streaming": Command(streaming.Streaming, streaming.run, streaming.PRESETS),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the bench."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else ""
    if name not in COMMANDS:  # --help, nothing or a typo
        configs = {name: command.config for name, command in COMMANDS.items()}
        description = f"{(__doc__ or '').splitlines()[0]}\n\n`python -m launch.bench BENCH --help` explains the flags of one."
        tyro.extras.subcommand_cli_from_dict(configs, args=argv, prog="python -m launch.bench", description=description)
        return 2
    config, run, presets = COMMANDS[name]
    prog, about = f"python -m launch.bench {name}", config.__doc__ or ""
    return run_command(run, config, presets=presets, prog=prog, description=about, argv=argv[1:])


if __name__ == "__main__":
    sys.exit(main())
