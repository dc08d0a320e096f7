"""Does attention learn in context by gradient descent? Layers are constructed, solved, and trained.

python -m launch.icl --out runs/icl_one
python -m launch.icl --experiment multi-step --layers 2 --out runs/icl_two
python -m launch.icl --experiment all --out runs/icl
python -m launch.icl --experiment copy softmax --out runs/icl_copy
"""

import sys

from launch.icl.shared.config import PRESETS, Config
from launch.kit.command import entry_point

main = entry_point("launch.icl.run", Config, __doc__, PRESETS)

if __name__ == "__main__":
    sys.exit(main())
