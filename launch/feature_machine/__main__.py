"""Features without backpropagation: a kernel machine with a metric from its gradients.

python -m launch.feature_machine modular --out runs/modular
python -m launch.feature_machine modular --modulus 31 --operation multiply --out runs/multiply
"""

import functools
import sys

from launch.feature_machine.config import COMMANDS
from launch.kit.command import run_subcommand

main = functools.partial(run_subcommand, COMMANDS, description=__doc__ or "")

if __name__ == "__main__":
    sys.exit(main())
