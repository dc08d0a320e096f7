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

import tyro

from icl.blur.genome_files import load_genome
from jexplicit.runs.command import run_command
from jexplicit.runs.devices import use_devices
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.blur import config as configs
from launch.blur.experiments import run_ablation, run_sgd_check, run_train, run_transfer
from launch.blur.report import blur_table, write_blur_report

COMMANDS: dict[str, tuple[type, Callable[[Any, RunFolder], None]]] = {
    "train": (configs.TrainConfig, run_train),
    "transfer": (configs.TransferConfig, run_transfer),
    "ablation": (configs.AblationConfig, run_ablation),
    "sgd-check": (configs.SgdCheckConfig, run_sgd_check),
}
"""The config of each subcommand, and the function that runs it in a run folder."""


def run_subcommand(name: str, config: Any) -> None:
    """Run a subcommand: checks, measurements, report with figures, table."""
    start = time.perf_counter()
    configs.check(config)
    if hasattr(config, "genome"):
        load_genome(config.genome)  # errors come before anything is written
    use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    COMMANDS[name][1](config, folder)
    report = write_blur_report(folder.path)
    console.print(blur_table(folder.rows()))
    seconds = time.perf_counter() - start
    folder.log(event="finished", seconds=seconds)
    console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else ""
    if name not in COMMANDS:  # --help, nothing or a typo
        kinds = {name: config for name, (config, _) in COMMANDS.items()}
        about = f"{(__doc__ or '').splitlines()[0]}\n\n`python -m launch.blur COMMAND --help` explains the flags of one."
        tyro.extras.subcommand_cli_from_dict(kinds, args=argv, prog="python -m launch.blur", description=about)
        return 2
    config, _ = COMMANDS[name]
    options: Any = {"presets": configs.PRESETS[name], "prog": f"python -m launch.blur {name}", "description": config.__doc__}
    return run_command(functools.partial(run_subcommand, name), config, **options, argv=argv[1:])


if __name__ == "__main__":
    sys.exit(main())
