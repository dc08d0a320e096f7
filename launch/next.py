"""The likeliest next tokens of a prompt under a saved language model, with their probabilities.

python -m launch.next --run runs/demo --prompt "Return the" --top 10
"""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from jexplicit.runs.bounds import PositiveInt
from jexplicit.runs.command import run_command
from jexplicit.runs.progress import show
from jexplicit.runs.tables import Column, rich_table
from launch.choose import ModelChoice, load_choice, visible, warn_unknown


@dataclass(frozen=True)
class Config(ModelChoice):
    """The likeliest next tokens of a prompt under a saved language model, with their probabilities."""

    GROUPS: ClassVar = {"prompt": "text"}

    prompt: str = ""
    """Text to continue; empty: the start of a document."""
    top: PositiveInt = 10
    """Number of tokens to show, the most probable first."""


COLUMNS = (
    Column("token", lambda row: visible(row["token"])),
    Column("probability", "probability", ".4f"),
    Column("log-probability, nats", "log_probability", ".4f"),
)


def run(config: Config) -> dict[str, Any]:
    """Load, predict, print a table."""
    from jexplicit.lm.generation import next_token, prompt_ids

    model, tokenizer, _ = load_choice(config)
    warn_unknown(tokenizer, config.prompt)
    log_p = next_token(model, *prompt_ids(tokenizer, config.prompt))
    likeliest = np.argsort(-log_p, kind="stable")[: config.top]
    found = [
        {"token": tokenizer.piece(int(i)), "id": int(i), "probability": float(np.exp(p)), "log_probability": float(p)}
        for i, p in zip(likeliest, log_p[likeliest], strict=True)
        if np.isfinite(p)
    ]
    show(rich_table(COLUMNS, found))
    return {"prompt": config.prompt, "next": found}


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    return run_command(run, Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
