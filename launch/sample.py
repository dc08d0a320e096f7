"""Continue a prompt with a saved language model.

python -m launch.sample --run runs/demo --prompt "Return the"
"""

from dataclasses import dataclass
from typing import Any

from jexplicit.runs.files import NonNegativeFloat, NonNegativeInt, PositiveInt
from jexplicit.runs.progress import show
from launch.kit.command import entry_point
from launch.kit.text import ModelChoice, load_choice


@dataclass(frozen=True)
class Config(ModelChoice):
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
    saved, prompts = load_choice(config, config.prompt), [config.prompt] * config.count
    options: Any = {name: getattr(config, name) for name in ("length", "temperature", "top_k", "top_p", "seed")}
    texts = saved.generate(prompts, **options)
    show(*(config.prompt + text for text in texts))
    return {"prompt": config.prompt, "texts": texts}


main = entry_point(run, Config, __doc__, module=__name__)
