"""Learned update rules: meta-train a genome, transfer it, compare designs, and check that gradient descent is one.

python -m launch.blur train --out runs/blur
python -m launch.blur transfer --genome runs/blur/genome.json --out runs/blur_transfer
python -m launch.blur ablation --out runs/blur_ablation
python -m launch.blur sgd-check --out runs/blur_sgd
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from icl.blur.genome_files import load_genome
from jexplicit.runs.command import Command, run_subcommand
from jexplicit.runs.devices import use_devices
from jexplicit.runs.folder import RunFolder, present_run
from launch.blur import config as configs
from launch.blur.experiments import run_ablation, run_sgd_check, run_train, run_transfer
from launch.blur.report import blur_table, write_blur_report


def run(measure: Callable[[Any, RunFolder], None], config: Any) -> dict[str, Any]:
    """A whole subcommand: checks, measurements, report with figures, table."""
    start = time.perf_counter()
    configs.check(config)
    if hasattr(config, "genome"):
        load_genome(config.genome)  # errors come before anything is written
    use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    measure(config, folder)
    report = write_blur_report(folder.path)
    folder.log(event="finished", seconds=time.perf_counter() - start)
    return present_run(folder, blur_table(folder.rows()), report, start)


COMMANDS = {
    name: Command(config, functools.partial(run, measure), configs.PRESETS[name])
    for name, config, measure in (
        ("train", configs.TrainConfig, run_train),
        ("transfer", configs.TransferConfig, run_transfer),
        ("ablation", configs.AblationConfig, run_ablation),
        ("sgd-check", configs.SgdCheckConfig, run_sgd_check),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
