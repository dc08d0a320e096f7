"""Continue a prompt with a saved language model.

python -m launch.sample --run runs/demo --prompt "Return the"
"""

import sys
from dataclasses import dataclass
from typing import Literal

import jax

from jexplicit.lm.checkpoints import load_model
from jexplicit.lm.explicit import Features
from jexplicit.lm.generation import generate_text
from jexplicit.runs.command import run_command
from jexplicit.runs.progress import console


@dataclass(frozen=True)
class Config:
    """Continue a prompt with a saved language model."""

    run: str
    """Run folder of launch.lm, or an exported .safetensors file."""
    prompt: str = ""
    """Text to continue; empty for the start of a document."""
    length: int = 60
    """Tokens to generate; fewer where the model ends the document (--eos)."""
    count: int = 1
    """Continuations to draw."""
    temperature: float = 0.8
    """Divides the logits: below 1 safer, above 1 wilder, 0 always the likeliest token."""
    top_k: int | None = None
    """Keep only the k likeliest tokens."""
    top_p: float | None = None
    """Keep the fewest likeliest tokens that hold this much probability."""
    seed: int = 0
    """The same seed gives the same text."""
    method: Literal["explicit", "cold", "warm", "optimum"] | None = None
    """Which model of the run; default, the one with the lowest dev perplexity."""
    features: Features | None = None
    """Which model of the run; default likewise."""
    radius: int | None = None
    """Which model of the run; default likewise."""


def run(config: Config) -> None:
    """Load, generate, print to standard output."""
    if config.count < 1:
        raise ValueError(f"--count {config.count}: draw at least one continuation")
    model, tokenizer = load_model(config.run, method=config.method, features=config.features, radius=config.radius)
    unknown = tokenizer.unknown_symbols(config.prompt)
    if unknown:
        console.print(f"[yellow]warning:[/] the model has never seen {unknown!r} of the prompt and reads <unk> there")
    options = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    for key in jax.random.split(jax.random.key(config.seed), config.count):
        print(config.prompt + generate_text(key, model, tokenizer, config.prompt, config.length, **options))


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
