"""Does attention learn in context by gradient descent? Layers are constructed, solved in closed form, and trained.

python -m launch.icl --out runs/icl_one
python -m launch.icl --experiment multi-step --layers 2 --out runs/icl_two
python -m launch.icl --experiment all --out runs/icl
python -m launch.icl --experiment copy softmax --out runs/icl_copy
"""

import sys

from jexplicit.runs.command import run_command
from launch.icl.config import PRESETS, Config


def main(argv: list[str] | None = None) -> int:
    """Entry point; JAX is imported once the arguments are read."""
    return run_command("launch.icl.run", Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
