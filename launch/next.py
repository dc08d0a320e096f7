"""The likeliest next tokens of a prompt, with probabilities.

python -m launch.next --run runs/demo --prompt "Return the" --top 10
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jexplicit.runs.files import PositiveInt
from jexplicit.runs.progress import show
from launch.kit.command import entry_point
from launch.kit.text import ModelChoice, load_choice, visible
from launch.kit.views import Column, rich_table


@dataclass(frozen=True)
class Config(ModelChoice):
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

    model, tokenizer, _ = load_choice(config, config.prompt)
    log_p = next_token(model, *prompt_ids(tokenizer, config.prompt))
    likeliest = [(int(i), log_p[i]) for i in np.argsort(-log_p, kind="stable")[: config.top] if np.isfinite(log_p[i])]
    numbers = [{"id": i, "probability": float(np.exp(p)), "log_probability": float(p)} for i, p in likeliest]
    found = [{"token": tokenizer.piece(row["id"]), **row} for row in numbers]
    show(rich_table(COLUMNS, found))
    return {"prompt": config.prompt, "next": found}


main = entry_point(run, Config, __doc__, module=__name__)
