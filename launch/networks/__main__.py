"""Networks trained by gradients, for comparison.

python -m launch.networks mlp-lm --train names.txt --tokenizer char --out runs/names
python -m launch.networks transformer-lm --preset shakespeare-cpu --train input.txt --out runs/transformer
python -m launch.networks autoencoder --out runs/autoencoder
python -m launch.networks compare normalisation --out runs/normalisation
"""

import functools
import sys

from launch.kit.command import run_subcommand
from launch.networks.config import COMMANDS

main = functools.partial(run_subcommand, COMMANDS, description=__doc__ or "")

if __name__ == "__main__":
    sys.exit(main())
