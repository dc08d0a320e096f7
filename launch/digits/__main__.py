"""Classify images with networks that are solved instead of trained, and with the same networks trained.

python -m launch.digits --out runs/digits
python -m launch.digits --preset mnist --data-dir DIR --out runs/mnist
"""

import sys

from jexplicit.experiments.command import run_command
from launch.digits.config import PRESETS, Config


def main(argv: list[str] | None = None) -> int:
    """Entry point; JAX is imported once the arguments are read."""
    return run_command("launch.digits.run", Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
