"""Classify images with networks fitted without SGD, and with trained ones.

python -m launch.digits --out runs/digits
python -m launch.digits --preset mnist --data-dir DIR --out runs/mnist
"""

import sys

from launch.digits.config import PRESETS, Config
from launch.kit.command import entry_point

main = entry_point("launch.digits.run", Config, __doc__, PRESETS)

if __name__ == "__main__":
    sys.exit(main())
