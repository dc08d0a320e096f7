"""The name of the running program, as started by its user."""

import os
import re
import shutil
import sys
from pathlib import Path


def command_name() -> str:
    """The command that started this process, e.g. `python -m launch.lm`, or `jexplicit lm` (see launch.cli)."""
    program = Path(sys.argv[0])
    if program.name.startswith("jexplicit "):
        return program.name
    return f"python -m launch.{program.parent.name if program.stem == '__main__' else program.stem}"


def as_started(text: str) -> str:
    """A text with its commands in the form of the running one: `jexplicit lm`, or `python -m launch.lm`."""
    return as_installed(text) if command_name().startswith("jexplicit ") else text


def as_typed(text: str) -> str:
    """`as_started`, for commands to copy: with the path of this Python if `python` of a shell is another one, or missing."""
    python = sys.executable if shutil.which("python") != sys.executable else "python"
    return as_started(text).replace("python -m", f"{min(python, os.path.relpath(python), key=len)} -m")


def as_installed(text: str) -> str:
    """A text with its commands in the form of the installed program: `jexplicit lm` for `python -m launch.lm`."""
    return re.sub(r"(python -m )?\blaunch\.(?=[a-z])", "jexplicit ", text)
