"""A whole subcommand of launch.networks: check the flags, measure, write report and figures, print the table."""

import time
from dataclasses import replace
from typing import Any

from jexplicit.runs.folder import RunFolder, present_run
from jexplicit.runs.tables import rich_table
from launch.networks import config as configs
from launch.networks.autoencoder import run_autoencoder
from launch.networks.checklist import run_check
from launch.networks.images import run_fcnn
from launch.networks.rates import run_lr_search
from launch.networks.report import COLUMNS, write_networks_report
from launch.networks.text import run_mlp_lm

MEASURE = {
    configs.MLPConfig: run_mlp_lm,
    configs.FCNNConfig: run_fcnn,
    configs.AutoencoderConfig: run_autoencoder,
    configs.RateConfig: run_lr_search,
    configs.CheckConfig: run_check,
}


def run(config: Any) -> dict[str, Any]:
    """A whole subcommand: check the flags, measure, write report and figures, print the table."""
    start = time.perf_counter()
    if getattr(config, "train", ()):
        config = replace(config, corpus="text")
    configs.check(config)
    folder = RunFolder(config.out, config, resume=config.resume)
    MEASURE[type(config)](config, folder)
    report = write_networks_report(folder.path)
    return present_run(folder, rich_table(COLUMNS, folder.rows(), title="losses in nats per example"), report, start)
