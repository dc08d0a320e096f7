"""A whole subcommand of launch.blur: checks, measurements, report with figures, table."""

import time
from typing import Any

from icl.blur.genome_files import load_genome
from jexplicit.runs.devices import use_devices
from jexplicit.runs.folder import RunFolder, present_run
from launch.blur import config as configs
from launch.blur.experiments import run_ablation, run_grid, run_sgd_check, run_train, run_transfer
from launch.blur.measurements import make_rules
from launch.blur.report import blur_table, write_blur_report

MEASURE = {
    configs.TrainConfig: run_train,
    configs.TransferConfig: run_transfer,
    configs.AblationConfig: run_ablation,
    configs.GridConfig: run_grid,
    configs.SgdCheckConfig: run_sgd_check,
}


def run(config: Any) -> dict[str, Any]:
    """A whole subcommand: checks, measurements, report with figures, table."""
    start = time.perf_counter()
    configs.check(config)
    if isinstance(config, configs.MetaTrainingConfig):
        make_rules(config)  # checks the design
    if genome := getattr(config, "genome", None):
        load_genome(genome)  # errors come before anything is written
    use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    MEASURE[type(config)](config, folder)
    report = write_blur_report(folder.path)
    folder.log(event="finished", seconds=time.perf_counter() - start)
    return present_run(folder, blur_table(folder.rows()), report, start)
