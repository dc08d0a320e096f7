"""Searches that are stopped as Ctrl-C stops them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def resumed_after(step: int, run: Callable[..., Any], checkpoints: Path) -> Any:
    """The result of a search that is interrupted in its evaluation after this step, and then run again."""

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == step:
            raise KeyboardInterrupt

    saving = {"checkpoints": checkpoints, "checkpoint_seconds": -1.0}
    with pytest.raises(KeyboardInterrupt):
        run(**saving, on_evaluation=interrupt)
    return run(**saving)
