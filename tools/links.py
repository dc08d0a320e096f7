"""Links that pages do not spell out: names of the Python interface and commands, where they stand in code.

The pages stay plain text that reads well anywhere; on the site each of these leads to what is said of it.
"""

import re
from collections.abc import Callable

from launch.cli import COMMANDS
from tools.api_pages import documented

_name = re.compile(r"(?<![\[`])`((?:jexplicit|icl)\.[\w.]+)`(?![\]`])")
_command = re.compile(rf"(?<![\[`])`(jexplicit ({'|'.join(COMMANDS)}))`(?![\]`])")
_fence = re.compile(r"(^```.*?^```$)", re.M | re.S)


def link_names(text: str) -> str:
    """Markdown in which every name in code that some page explains is a link to it.

    Example:
        >>> link_names("`jexplicit.fit` and `jexplicit.nonesuch`")
        '[`jexplicit.fit`][jexplicit.fit] and `jexplicit.nonesuch`'
    """
    return _outside_fences(lambda part: _name.sub(_to_name, part), text)


def link_commands(text: str) -> str:
    """Markdown in which every command without flags is a link to its page.

    Example:
        >>> link_commands("`jexplicit lm` and `jexplicit lm --help`")
        '[`jexplicit lm`][jexplicit-lm] and `jexplicit lm --help`'
    """
    return _outside_fences(lambda part: _command.sub(r"[`\1`][jexplicit-\2]", part), text)


def _to_name(found: re.Match[str]) -> str:
    return f"[`{found[1]}`][{place}]" if (place := documented().get(found[1])) else found[0]


def _outside_fences(replace: Callable[[str], str], text: str) -> str:
    return "".join(part if part.startswith("```") else replace(part) for part in _fence.split(text))
