"""Learned update rules: meta-train or measure a genome beside gradient descent, and judge it on 12 small tasks.

python -m launch.blur train --out runs/blur
python -m launch.blur train --genome runs/blur/genome.json --networks 16 256x128 --out runs/blur_elsewhere
python -m launch.blur tasks --out runs/blur_tasks
"""

import sys

from launch.blur.config import TASKS, TRAIN, TasksConfig, TrainConfig
from launch.kit.command import Command, run_subcommand

COMMANDS = {
    "train": Command(TrainConfig, "launch.blur.train", TRAIN),
    "tasks": Command(TasksConfig, "launch.blur.tasks", TASKS),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the command; JAX is imported once the arguments are read."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
