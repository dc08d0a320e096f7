"""The method context-mixing: a counted model of a training text, see jexplicit.lm.counted."""

from typing import Any

from jexplicit.data.tokenizers import Tokenizer
from jexplicit.lm.core.names import window_of
from jexplicit.lm.counted.columns import Context
from jexplicit.lm.counted.model import CHARACTERS, GATES, CountedModel, Inputs, fit_counted
from jexplicit.lm.training_text import Options, TrainingText, Watch

INPUTS: dict[str, Inputs] = {"characters": CHARACTERS}
"""Sets of contexts, by name."""


def choose_inputs(contexts: str, tokenizer: Tokenizer | None = None) -> Inputs:
    """The set of contexts of a name; that of a tokenizer where none is given.

    Raises:
        ValueError: an unknown name.
    """
    if contexts == "auto":
        kind = tokenizer.kind if tokenizer else "char"
        contexts = {"char": "characters", "word": "words"}.get(kind, "subwords")
        contexts = contexts if contexts in INPUTS else "characters"
    if contexts not in INPUTS:
        raise ValueError(f"contexts {contexts!r}: choose auto or one of {', '.join(INPUTS)}")
    return INPUTS[contexts]


def inputs_radius(inputs: Inputs) -> int:
    """The token furthest back of those that contexts name by their distance."""
    contexts: tuple[Context, ...] = inputs.chain + inputs.others
    return max((column for context in contexts for column in context.columns if isinstance(column, int)), default=1)


def fit_context_mixing(text: TrainingText, options: Options, watch: Watch) -> tuple[CountedModel, dict[str, Any]]:
    """Count a text and fit the weights of its evidence.

    Raises:
        ValueError: an unknown history, or contexts of an unknown name.
    """
    window_of(options.history)
    inputs = choose_inputs(options.contexts, text.tokenizer)
    done, in_all = 0, len(inputs.chain) + len(inputs.others) + len(inputs.recent) + options.gates
    with watch.stage(f"context mixing, history {options.history}", "contexts and gates") as progress:

        def log(*_: Any) -> None:
            nonlocal done
            done += 1
            progress(min(done, in_all), in_all)

        model = fit_counted(
            text.in_memory, text.vocab_size, text.tokenizer, history=options.history, inputs=inputs,
            gates=GATES[: options.gates], eos=text.eos, seed=options.seed, log=log,
        )  # fmt: skip
    return model, {"scalars": model.scalars, "contexts": len(model.parts)}
