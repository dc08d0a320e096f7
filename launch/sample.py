"""Continue a prompt with a saved language model.

python -m launch.sample --run runs/demo --prompt "Return the"
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from jexplicit.runs.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from jexplicit.runs.progress import show
from launch.kit.command import entry_point
from launch.shared.flags import ModelChoice, load_choice


@dataclass(frozen=True)
class Config(ModelChoice):
    """Continue a prompt with a saved language model."""

    GROUPS: ClassVar = {"prompt": "text"}

    prompt: str = ""
    """Text to continue; empty: the start of a document."""
    length: PositiveInt = 60
    """Number of tokens to generate. There are fewer if the model was fitted with --eos and ends the document."""
    count: PositiveInt = 1
    """Number of continuations to sample."""
    temperature: NonNegativeFloat = 0.8
    """Sampling temperature; 0 takes the likeliest token. It divides the logits: lower is less random."""
    top_k: PositiveInt | None = None
    """Sample only from the k most probable tokens. Default: all tokens."""
    top_p: float | None = None
    """Sample only from the fewest most probable tokens whose total probability reaches this. Default: all tokens."""
    seed: NonNegativeInt = 0
    """Random seed; the same seed gives the same text."""


def run(config: Config) -> dict[str, Any]:
    """Load, generate, print to standard output."""
    from jexplicit.lm.generation import generate_text
    from jexplicit.runs.checks import key_of_seed

    model, tokenizer, _ = load_choice(config, config.prompt)
    options = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    prompts = [config.prompt] * config.count
    texts = generate_text(key_of_seed(config.seed), model, tokenizer, prompts, config.length, **options)
    show(*(config.prompt + text for text in texts))
    return {"prompt": config.prompt, "texts": texts}


main = entry_point(run, Config, __doc__)

if __name__ == "__main__":
    sys.exit(main())
