"""Iterations that are stopped as Ctrl-C stops them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def resumed_after(calls: int, run: Callable[..., Any], checkpoints: Path, callback: str = "on_evaluation") -> Any:
    """The result of an iteration that is interrupted in this call of its callback, and then run again."""
    left = [calls]

    def interrupt(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    saving = {"checkpoints": checkpoints, "checkpoint_seconds": -1.0}
    with pytest.raises(KeyboardInterrupt):
        run(**saving, **{callback: interrupt})
    return run(**saving)
