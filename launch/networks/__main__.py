"""Networks trained by gradients: neural language models, fully connected networks and autoencoders, and their diagnostics.

python -m launch.networks mlp-lm --train names.txt --tokenizer char --out runs/names
python -m launch.networks fcnn --out runs/fcnn
python -m launch.networks autoencoder --out runs/autoencoder
python -m launch.networks check --preset tiny --out runs/check
"""

import sys

from jexplicit.runs.command import Command, run_subcommand
from launch.networks import config as configs

COMMANDS = {
    name: Command(config, "launch.networks.run", configs.PRESETS[name])
    for name, config in (
        ("mlp-lm", configs.MLPConfig),
        ("fcnn", configs.FCNNConfig),
        ("autoencoder", configs.AutoencoderConfig),
        ("lr-search", configs.RateConfig),
        ("initializers", configs.InitializersConfig),
        ("optimizers", configs.OptimizersConfig),
        ("check", configs.CheckConfig),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Entry point: the first argument names the subcommand; JAX is imported once the arguments are read."""
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
