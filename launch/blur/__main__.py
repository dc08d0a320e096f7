"""Learned update rules: meta-train or measure a genome, compared with gradient descent.

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
    """Entry point: parse the command's name and flags, then import JAX."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
