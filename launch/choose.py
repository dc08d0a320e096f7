"""Which language model a command uses: the same flags for launch.sample, score, explain and export.

JAX is imported where a model is loaded, so that `--help` does without.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.markup import escape

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.names import Features, History, Method
from jexplicit.runs.compiled import keep_compiled
from jexplicit.runs.progress import console

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel


@dataclass(frozen=True)
class ModelChoice:
    """Which model of a run."""

    GROUPS: ClassVar = {"run": "model"}

    run: str
    """Run folder of launch.lm or launch.networks mlp-lm, an exported .safetensors file, or any n-gram model as .arpa or
    .arpa.gz, whose tokens white space separates."""
    method: Method | str | None = None
    """How the model was fitted; default, the model with the lowest dev perplexity among those that match the other flags."""
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


def visible(piece: str) -> str:
    """A token as a table and a figure show it: line breaks and other characters without a form of their own are escaped.

    Example:
        >>> print(visible("\\n"), visible("▁the"))
        \\n ▁the
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)


@dataclass(frozen=True)
class ModelChoices:
    """Which models of runs: all that have one of the values of each flag."""

    GROUPS: ClassVar = {"method": "model"}

    method: tuple[Method | str, ...] = ()
    """How the models were fitted."""
    features: tuple[Features, ...] = ()
    """sum or cat."""
    radius: tuple[int, ...] = ()
    """K, the tokens of a context."""
    history: tuple[History, ...] = ()
    """What a mixture may see beyond its context: none, or all of the text before."""


def load_choices(run: str, choices: ModelChoices, *, best: bool = False) -> Iterator["TextModel"]:
    """The models of a run folder, or of an exported file, that the flags choose, one after the other.

    Args:
        run: the folder or the file.
        choices: the flags.
        best: only the model with the lowest dev perplexity, where no flag is given.

    Raises:
        ValueError: no such model.
    """
    from jexplicit.lm.checkpoints import load_model, load_row, model_rows

    keep_compiled()
    wanted = {f.name: getattr(choices, f.name) for f in fields(ModelChoices) if getattr(choices, f.name)}
    if Path(run).expanduser().is_file() or (best and not wanted):
        saved = load_model(run)
        other = [f"{name} {saved.about.get(name)}" for name, values in wanted.items() if saved.about.get(name) not in values]
        if other:
            raise ValueError(f"{run} holds one model, with {', '.join(other)}: leave out {', '.join(wanted)}, or give its run")
        yield saved
        return
    for row in model_rows(run, **wanted):
        yield load_row(run, row)


def load_choice(config: ModelChoice) -> "TextModel":
    """The model that the flags choose, named on the terminal.

    Raises:
        ValueError: no such model.
    """
    from jexplicit.lm.checkpoints import load_model, model_name

    keep_compiled()
    saved = load_model(config.run, method=config.method, features=config.features, radius=config.radius, history=config.history)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    return saved
