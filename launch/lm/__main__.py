"""Fit single-layer language models in closed form from one counting pass, and evaluate them.

python -m launch.lm --out runs/demo
python -m launch.lm --out runs/mine --train train/*.txt --dev dev.txt
"""

import sys

from jexplicit.runs.command import run_command
from launch.lm.config import PRESETS, Config


def main(argv: list[str] | None = None) -> int:
    """Entry point; JAX is imported once the arguments are read."""
    return run_command("launch.lm.run", Config, presets=PRESETS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
