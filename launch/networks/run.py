"""Networks trained by gradients: neural language models, fully connected networks and autoencoders, and their diagnostics.

python -m launch.networks mlp-lm --train names.txt --tokenizer char --out runs/names
python -m launch.networks fcnn --out runs/fcnn
python -m launch.networks autoencoder --out runs/autoencoder
python -m launch.networks check --preset tiny --out runs/check
"""

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import tyro

from jexplicit.runs.command import run_command
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from jexplicit.runs.tables import rich_table
from launch.networks import config as configs
from launch.networks.autoencoder import run_autoencoder
from launch.networks.checklist import run_check
from launch.networks.images import run_fcnn, run_initializers, run_optimizers
from launch.networks.rates import run_lr_search
from launch.networks.report import COLUMNS, write_networks_report
from launch.networks.text import run_mlp_lm


class Command(NamedTuple):
    """A subcommand: its configuration, and the function that writes its rows into a run folder."""

    config: type
    measure: Callable[[Any, RunFolder], None]


COMMANDS: dict[str, Command] = {
    "mlp-lm": Command(configs.MLPConfig, run_mlp_lm),
    "fcnn": Command(configs.FCNNConfig, run_fcnn),
    "autoencoder": Command(configs.AutoencoderConfig, run_autoencoder),
    "lr-search": Command(configs.RateConfig, run_lr_search),
    "initializers": Command(configs.InitializersConfig, run_initializers),
    "optimizers": Command(configs.OptimizersConfig, run_optimizers),
    "check": Command(configs.CheckConfig, run_check),
}


def run(name: str, config: Any) -> None:
    """A whole subcommand: check the flags, measure, write report and figures, print the table."""
    start = time.perf_counter()
    if getattr(config, "train", ()):
        config = replace(config, corpus="text")
    configs.check(config)
    folder = RunFolder(config.out, config, resume=config.resume)
    COMMANDS[name].measure(config, folder)
    report = write_networks_report(folder.path)
    console.print(rich_table(COLUMNS, folder.rows(), title="losses in nats per example"))
    seconds = time.perf_counter() - start
    console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else ""
    if name not in COMMANDS:  # --help, nothing or a typo
        kinds = {name: command.config for name, command in COMMANDS.items()}
        about = f"{(__doc__ or '').splitlines()[0]}\n\n`python -m launch.networks COMMAND --help` explains the flags of one."
        tyro.extras.subcommand_cli_from_dict(kinds, args=argv, prog="python -m launch.networks", description=about)
        return 2
    config, presets = COMMANDS[name].config, configs.PRESETS[name]
    prog, about = f"python -m launch.networks {name}", config.__doc__ or ""
    return run_command(functools.partial(run, name), config, presets=presets, prog=prog, description=about, argv=argv[1:])


if __name__ == "__main__":
    sys.exit(main())
