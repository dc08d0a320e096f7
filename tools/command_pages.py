"""A page for each command: its `--help-all`, and its subcommands'."""

import contextlib
import importlib
import io
import os
from collections.abc import Callable, Sequence
from unittest import mock

from launch.cli import COMMANDS

_foreign = "Its flags are those of the program that it starts: `jexplicit {} --help` explains them."


def command_pages() -> dict[str, str]:
    """Page -> Markdown, for every command of launch.cli."""
    return {f"commands/{name}.md": command_page(name) for name in COMMANDS}


def command_page(name: str) -> str:
    """The page of one command."""
    module = importlib.import_module(COMMANDS[name].module)
    if not hasattr(module, "COMMANDS") and not hasattr(module, "Config"):
        return f"# jexplicit {name}\n\n{COMMANDS[name].about}\n\n{_foreign.format(name)}\n"
    kinds = [(f"## {name} {kind}", help_of(module.main, name, kind)) for kind in getattr(module, "COMMANDS", ())]
    parts = [(f"# jexplicit {name}", help_of(module.main, name)), *kinds]
    return "\n".join(f"{title}\n\n```text\n{text}```\n" for title, text in parts)


def help_of(main: Callable[[Sequence[str]], int], name: str, *kind: str) -> str:
    """The output of `jexplicit NAME --help-all`."""
    printed = io.StringIO()
    program, width = mock.patch("sys.argv", [f"jexplicit {name}"]), mock.patch.dict(os.environ, COLUMNS="110")
    with program, width, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*kind, "--help-all"])
    return printed.getvalue()
