"""One way to say that a call is refused."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(said: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The message of the ValueError of a call, which matches a pattern."""
    with pytest.raises(ValueError, match=said) as error:
        call(*arguments, **options)
    return str(error.value)
