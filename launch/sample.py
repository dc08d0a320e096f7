"""Continue a prompt with a saved language model.

python -m launch.sample --run runs/demo --prompt "Return the"
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from jexplicit.runs.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from jexplicit.runs.command import run_command
from jexplicit.runs.progress import show
from launch.choose import ModelChoice, load_choice, warn_unknown


@dataclass(frozen=True)
class Config(ModelChoice):
    """Continue a prompt with a saved language model."""

    GROUPS: ClassVar = {"prompt": "text"}

    prompt: str = ""
    """Text to continue; empty for the start of a document."""
    length: PositiveInt = 60
    """Tokens to generate; fewer where the model ends the document (--eos)."""
    count: PositiveInt = 1
    """Continuations to draw."""
    temperature: NonNegativeFloat = 0.8
    """Divides the logits: below 1 safer, above 1 wilder, 0 always the likeliest token."""
    top_k: PositiveInt | None = None
    """Keep only the k likeliest tokens."""
    top_p: float | None = None
    """Keep the fewest likeliest tokens that hold this much probability."""
    seed: NonNegativeInt = 0
    """The same seed gives the same text."""


def run(config: Config) -> dict[str, Any]:
    """Load, generate, print to standard output."""
    import jax

    from jexplicit.lm.generation import generate_text

    model, tokenizer, _ = load_choice(config)
    warn_unknown(tokenizer, config.prompt)
    options = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    prompts = [config.prompt] * config.count
    texts = generate_text(jax.random.key(config.seed), model, tokenizer, prompts, config.length, **options)
    show(*(config.prompt + text for text in texts))
    return {"prompt": config.prompt, "texts": texts}


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
