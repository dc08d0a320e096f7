"""The method context-mixing: a counted model of a training text, see jexplicit.lm.counted."""

from typing import Any

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.counted.model import CONTEXTS, CountedModel, contexts_of, fit_counted, gates_of
from jexplicit.lm.training_text import Options, TrainingText, Watch


def contexts_name(contexts: str, kind: str | None) -> str:
    """The name of a set of contexts; of auto that for the kind of a tokenizer.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> contexts_name("auto", "char"), contexts_name("words", "bpe")
        ('characters', 'words')
    """
    name = contexts_of(kind) if contexts == "auto" else contexts
    if name not in CONTEXTS:
        raise ValueError(f"contexts {contexts!r}: choose auto, {' or '.join(CONTEXTS)}")
    return name


def contexts_radius(contexts: str, kind: str | None) -> int:
    """The token furthest back of those that contexts name by their distance: the radius of their model."""
    found = CONTEXTS[contexts_name(contexts, kind)]
    return max(column for context in found for column in context.columns if isinstance(column, int))


def fit_context_mixing(text: TrainingText, options: Options, watch: Watch) -> tuple[CountedModel, dict[str, Any]]:
    """Count a text and fit the weights of its evidence.

    Raises:
        ValueError: an unknown history, or contexts of an unknown name.
    """
    tokenizer: Tokenizer | None = text.tokenizer
    name = contexts_name(options.contexts, tokenizer and tokenizer.kind)
    shape: Any = {"contexts": CONTEXTS[name], "gates": gates_of(name)[: options.gates], "stages": options.stages}
    shape |= {"frozen": options.frozen, "eos": text.eos, "seed": options.seed, "history": options.history}
    done, in_all = 0, len(CONTEXTS[name]) * options.stages + options.gates
    with watch.stage(f"context mixing, history {options.history}", "contexts and gates") as progress:

        def log(**event: Any) -> None:
            nonlocal done
            done += 1
            watch.log(event="context_mixing", **event)
            progress(min(done, in_all), in_all)

        model = fit_counted(text.in_memory, text.vocab_size, tokenizer, **shape, log=log)
    return model, {"scalars": model.scalars, "contexts": len(model.parts)}
