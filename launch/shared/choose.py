"""The flags that choose language models, shared by several commands.

JAX is imported where a model is loaded, so that `--help` does without.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from rich.markup import escape

from jexplicit.data.inputs import is_input
from jexplicit.lm.core.names import Features, History, Method
from jexplicit.runs.cache import keep_compiled
from jexplicit.runs.progress import console

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel


@dataclass(frozen=True)
class ModelChoice:
    """Which model of a run."""

    GROUPS: ClassVar = {"run": "model"}

    run: str
    """Run folder, exported file or folder, or .arpa file.
    Runs of launch.lm and launch.networks have models; tokens of .arpa and .arpa.gz files are separated by white space."""
    method: Method | str | None = None
    """Method that fitted the model. Default: the model with the lowest dev perplexity of those that match the other flags."""
    features: Features | None = None
    """How the model combines context tokens: sum or cat."""
    radius: int | None = None
    """Context length K of the model, in tokens."""
    history: History | None = None
    """The model's --history: none, document, window:W, all, adaptive or adaptive:document."""


@dataclass(frozen=True)
class ModelChoices:
    """Which models of runs: all that have one of the values of each flag."""

    GROUPS: ClassVar = {"method": "model"}

    method: tuple[Method | str, ...] = ()
    """Methods that fitted the models."""
    features: tuple[Features, ...] = ()
    """How the models combine context tokens: sum, cat or both."""
    radius: tuple[int, ...] = ()
    """Context lengths K of the models, in tokens."""
    history: tuple[History, ...] = ()
    """The models' --history: none, document, window:W, all, adaptive or adaptive:document."""


def load_choice(config: ModelChoice, text: str = "") -> "TextModel":
    """The chosen model, with unknown symbols of a text named.

    Raises:
        ValueError: no such model.
    """
    from jexplicit.lm.checkpoints import load_model, model_name

    keep_compiled()
    saved = load_model(config.run, method=config.method, features=config.features, radius=config.radius, history=config.history)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    if unknown := saved.tokenizer.unknown_symbols(text):
        seen = escape(repr([f"{symbol[:40]}..." if len(symbol) > 40 else symbol for symbol in unknown]))
        console.print(f"[yellow]warning:[/] the model has never seen {seen} and reads <unk> there", soft_wrap=True)
    return saved


def load_choices(run: str, choices: ModelChoices, *, best: bool = False) -> Iterator["TextModel"]:
    """The chosen models of a run or export, one by one.

    Args:
        run: the folder or the file.
        choices: the flags.
        best: only the model with the lowest dev perplexity, where no flag is given.

    Raises:
        ValueError: no such model.
    """
    from jexplicit.lm.checkpoints import load_model, load_row, model_file, model_rows

    keep_compiled()
    wanted = {f.name: getattr(choices, f.name) for f in fields(ModelChoices) if getattr(choices, f.name)}
    if not is_input(model_file(run)) and (wanted or not best):
        yield from (load_row(run, row) for row in model_rows(run, **wanted))
        return
    saved = load_model(run)
    if other := [f"{name} {saved.about.get(name)}" for name, values in wanted.items() if saved.about.get(name) not in values]:
        flags = ", --".join(wanted)
        raise ValueError(f"{run} holds one model, with {', '.join(other)}: leave out --{flags}, or give its run folder")
    yield saved


def visible(piece: str) -> str:
    """A token for tables and figures, with line breaks escaped.

    Example:
        >>> print(visible("\\n"), visible("▁the"))
        \\n ▁the
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)
