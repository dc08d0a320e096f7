"""Learning rules that are learned: meta-train a genome, run it elsewhere, take it apart, and find gradient descent in it.

python -m launch.blur train --out runs/blur
python -m launch.blur transfer --genome runs/blur/genome.json --out runs/blur_transfer
python -m launch.blur ablation --out runs/blur_ablation
python -m launch.blur sgd-check --out runs/blur_sgd
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tyro

from icl.blur.shipped import load_genome
from jexplicit.runs.command import run_command
from jexplicit.runs.devices import use_devices
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.blur import config as configs
from launch.blur.experiments import run_ablation, run_sgd_check, run_train, run_transfer
from launch.blur.report import blur_table, write_blur_report


class Command(NamedTuple):
    """A subcommand: its configuration, and what it measures into a run folder."""

    config: type
    measure: Callable[[Any, RunFolder], None]


COMMANDS: dict[str, Command] = {
    "train": Command(configs.TrainConfig, run_train),
    "transfer": Command(configs.TransferConfig, run_transfer),
    "ablation": Command(configs.AblationConfig, run_ablation),
    "sgd-check": Command(configs.SgdCheckConfig, run_sgd_check),
}


def run(name: str, config: Any) -> None:
    """The whole job of a subcommand: check, measure, table, figures, report."""
    start = time.perf_counter()
    configs.check(config)
    if hasattr(config, "genome"):
        load_genome(config.genome)  # refused before anything is written
    use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    COMMANDS[name].measure(config, folder)
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
        kinds = {name: command.config for name, command in COMMANDS.items()}
        about = f"{(__doc__ or '').splitlines()[0]}\n\n`python -m launch.blur COMMAND --help` explains the flags of one."
        tyro.extras.subcommand_cli_from_dict(kinds, args=argv, prog="python -m launch.blur", description=about)
        return 2
    config, presets = COMMANDS[name].config, configs.PRESETS[name]
    prog, about = f"python -m launch.blur {name}", config.__doc__ or ""
    return run_command(functools.partial(run, name), config, presets=presets, prog=prog, description=about, argv=argv[1:])


if __name__ == "__main__":
    sys.exit(main())
