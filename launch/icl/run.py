"""Does attention learn in context by gradient descent? Constructed, solved in closed form, and trained.

python -m launch.icl --out runs/icl_one
python -m launch.icl --experiment multi-step --layers 2 --out runs/icl_two
python -m launch.icl --experiment all --out runs/icl
python -m launch.icl --experiment copy softmax --out runs/icl_copy
"""

import sys
import time

from jexplicit.runs.command import run_command
from jexplicit.runs.devices import use_devices
from jexplicit.runs.folder import RunFolder
from jexplicit.runs.progress import console
from launch.icl.config import PRESETS, Config, check, chosen, make_tasks
from launch.icl.experiments import RUN
from launch.icl.models import Job
from launch.icl.report import icl_table, write_icl_report


def run(config: Config) -> None:
    """The whole job: closed forms -> training -> comparison, figures, report."""
    start = time.perf_counter()
    check(config)
    mesh = use_devices(config.devices)
    folder = RunFolder(config.out, config, resume=config.resume)
    job = Job(config, folder, make_tasks(config))
    told = f"d = {config.dim}, N = {config.context}, on {mesh.size} x {mesh.devices.flat[0].device_kind}"
    console.print(f"[bold]in-context learning[/] {told}")
    for experiment in chosen(config):
        RUN[experiment](job)
    report = write_icl_report(folder.path)
    if (table := icl_table(folder.rows())).row_count:  # roll-outs and other tasks are curves, in the report
        console.print(table)
    seconds = time.perf_counter() - start
    folder.log(event="finished", seconds=seconds)
    console.print(f"report {report}, figures in {folder.path / 'figures'}, after {seconds:.0f} s", soft_wrap=True)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
