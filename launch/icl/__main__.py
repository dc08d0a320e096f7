"""Does attention learn in context by gradient descent? Layers are constructed, solved, and trained.

python -m launch.icl one-step --out runs/icl_one
python -m launch.icl multi-step --layers 2 --out runs/icl_two
python -m launch.icl depths --out runs/icl_depths
python -m launch.icl newton --preset tiny --out runs/icl_newton
"""

import functools
import sys

from launch.icl.config import COMMANDS
from launch.kit.command import run_subcommand

main = functools.partial(run_subcommand, COMMANDS, description=__doc__ or "")

if __name__ == "__main__":
    sys.exit(main())
