"""Does attention learn in context by gradient descent? Layers are constructed, solved, and trained.

python -m launch.icl one-step --out runs/icl_one
python -m launch.icl multi-step --layers 2 --out runs/icl_two
python -m launch.icl depths --out runs/icl_depths
python -m launch.icl copy --preset tiny --out runs/icl_copy
"""

import sys
from collections.abc import Sequence

from launch.icl.config import COMMANDS
from launch.kit.command import run_subcommand


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: parse the experiment's name and flags, then import JAX."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
