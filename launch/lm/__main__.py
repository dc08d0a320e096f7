"""Fit language models from counts, and evaluate them.

python -m launch.lm --out runs/demo
python -m launch.lm --out runs/mine --train train/*.txt --dev dev.txt
"""

from launch.kit.command import entry_point
from launch.lm.config import PRESETS, Config

main = entry_point("launch.lm.run", Config, __doc__, PRESETS, module=__name__)
