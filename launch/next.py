"""The likeliest next tokens of a prompt, with probabilities.

python -m launch.next --run runs/demo --prompt "Return the" --top 10
"""

import math
from dataclasses import dataclass
from typing import Any

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
    likeliest = load_choice(config, config.prompt).next_token(config.prompt, config.top)
    found = [{"token": token, "probability": p, "log_probability": math.log(p)} for token, p in likeliest if p > 0]
    show(rich_table(COLUMNS, found))
    return {"prompt": config.prompt, "next": found}


main = entry_point(run, Config, __doc__, module=__name__)
