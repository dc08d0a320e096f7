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
from typing import Any

from jexplicit.runs.command import Command, run_subcommand
from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.tables import rich_table
from launch.networks import config as configs
from launch.networks.autoencoder import run_autoencoder
from launch.networks.checklist import run_check
from launch.networks.images import run_fcnn, run_initializers, run_optimizers
from launch.networks.rates import run_lr_search
from launch.networks.report import COLUMNS, write_networks_report
from launch.networks.text import run_mlp_lm


def run(measure: Callable[[Any, RunFolder], None], config: Any) -> dict[str, Any]:
    """A whole subcommand: check the flags, measure, write report and figures, print the table."""
    start = time.perf_counter()
    if getattr(config, "train", ()):
        config = replace(config, corpus="text")
    configs.check(config)
    folder = RunFolder(config.out, config, resume=config.resume)
    measure(config, folder)
    report = write_networks_report(folder.path)
    return present_run(folder, rich_table(COLUMNS, folder.rows(), title="losses in nats per example"), report, start)


COMMANDS = {
    name: Command(config, functools.partial(run, measure), configs.PRESETS[name])
    for name, config, measure in (
        ("mlp-lm", configs.MLPConfig, run_mlp_lm),
        ("fcnn", configs.FCNNConfig, run_fcnn),
        ("autoencoder", configs.AutoencoderConfig, run_autoencoder),
        ("lr-search", configs.RateConfig, run_lr_search),
        ("initializers", configs.InitializersConfig, run_initializers),
        ("optimizers", configs.OptimizersConfig, run_optimizers),
        ("check", configs.CheckConfig, run_check),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
