"""Networks trained by gradients, for comparison.

python -m launch.networks mlp-lm --train names.txt --tokenizer char --out runs/names
python -m launch.networks transformer-lm --preset shakespeare-cpu --train input.txt --out runs/transformer
python -m launch.networks autoencoder --out runs/autoencoder
python -m launch.networks compare normalisation --out runs/normalisation
"""

import sys

from launch.kit.command import Command, run_subcommand
from launch.networks import config as configs
from launch.networks.config import PRESETS

COMMANDS = {
    name: Command(config, f"launch.networks.{module}", PRESETS[name])
    for name, config, module in (
        ("mlp-lm", configs.MLPConfig, "mlp_lm"),
        ("transformer-lm", configs.TransformerConfig, "sequence_lm"),
        ("autoencoder", configs.AutoencoderConfig, "autoencoder"),
        ("compare", configs.CompareConfig, "compare"),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: parse the subcommand's name and flags, then import JAX."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
