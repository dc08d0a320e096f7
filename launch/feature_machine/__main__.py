"""Features without backpropagation: a kernel machine with a metric from its gradients.

python -m launch.feature_machine modular --out runs/modular
python -m launch.feature_machine modular --modulus 31 --operation multiply --out runs/multiply
"""

import sys

from launch.feature_machine import config as configs
from launch.kit.command import Command, run_subcommand

COMMANDS = {
    "modular": Command(configs.ModularConfig, "launch.feature_machine.modular", configs.PRESETS["modular"]),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
