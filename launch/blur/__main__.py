"""Learned update rules: meta-train a genome, transfer it, evaluate it on 54 tasks, compare designs, check gradient descent.

python -m launch.blur train --out runs/blur
python -m launch.blur transfer --genome runs/blur/genome.json --out runs/blur_transfer
python -m launch.blur ablation --out runs/blur_ablation
python -m launch.blur grid --out runs/blur_grid
python -m launch.blur sgd-check --out runs/blur_sgd
python -m launch.blur tasks --out runs/blur_tasks
"""

import sys

from launch.blur.presets import PRESETS
from launch.kit.command import Command, run_subcommand

COMMANDS = {
    name: Command(type(presets["tiny"].config), f"launch.blur.{name.replace('-', '_')}", presets)
    for name, presets in PRESETS.items()
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand; JAX is imported once the arguments are read."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
