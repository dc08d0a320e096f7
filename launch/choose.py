"""Which language model a command uses: the same flags for launch.sample, score, explain and export."""

from dataclasses import dataclass
from typing import ClassVar

from rich.markup import escape

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.checkpoints import SavedModel, load_model, model_name
from jexplicit.lm.fits.fit import Method
from jexplicit.lm.model import Features, History
from jexplicit.runs.progress import console


@dataclass(frozen=True)
class ModelChoice:
    """Which model of a run."""

    GROUPS: ClassVar = {"run": "model"}

    run: str
    """Run folder of launch.lm or launch.networks mlp-lm, or an exported .safetensors file."""
    method: Method | str | None = None
    """How the model was fitted; default, the model with the lowest dev perplexity of those that the other flags leave."""
    features: Features | None = None
    """sum or cat."""
    radius: int | None = None
    """K, the tokens of a context."""
    history: History | None = None
    """What a mixture may see beyond its context: none, or all of the text before."""


def warn_unknown(tokenizer: Tokenizer, text: str) -> None:
    """Say which symbols of a text the model has never seen."""
    if unknown := tokenizer.unknown_symbols(text):
        seen = escape(repr(unknown))
        console.print(f"[yellow]warning:[/] the model has never seen {seen} and reads <unk> there", soft_wrap=True)


def load_choice(config: ModelChoice) -> SavedModel:
    """The model that the flags choose, named on the terminal.

    Raises:
        ValueError: no such model.
    """
    saved = load_model(config.run, method=config.method, features=config.features, radius=config.radius, history=config.history)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    return saved
