"""Learned update rules: meta-train or measure a genome, compared with gradient descent.

python -m launch.blur train --out runs/blur
python -m launch.blur train --genome runs/blur/genome.json --widths 256 128 --out runs/blur_elsewhere
python -m launch.blur tasks --out runs/blur_tasks
"""

import functools
import sys

from launch.blur.config import COMMANDS
from launch.kit.command import run_subcommand

main = functools.partial(run_subcommand, COMMANDS, description=__doc__ or "")

if __name__ == "__main__":
    sys.exit(main())
