"""The program that runs, by the name that its user gave it."""

import os
import re
import shutil
import sys
from pathlib import Path


def command_name() -> str:
    """The command that started this process, such as `python -m launch.lm`, or `jexplicit lm` (see launch.cli)."""
    program = Path(sys.argv[0])
    if program.name.startswith("jexplicit "):
        return program.name
    return f"python -m launch.{program.parent.name if program.stem == '__main__' else program.stem}"


def as_started(text: str) -> str:
    """A text with the commands in it as they were started: as `jexplicit lm`, or as `python -m launch.lm`."""
    return as_installed(text) if command_name().startswith("jexplicit ") else text


def as_typed(text: str) -> str:
    """`as_started`, for commands to copy: `python` is the path of this Python where a shell has another one, or none."""
    python = sys.executable if shutil.which("python") != sys.executable else "python"
    return as_started(text).replace("python -m", f"{min(python, os.path.relpath(python), key=len)} -m")


def as_installed(text: str) -> str:
    """A text with the commands in it as the installed program runs them.

    Example:
        >>> as_installed("python -m launch.lm, and the runs of launch.lm")
        'jexplicit lm, and the runs of jexplicit lm'
    """
    return re.sub(r"(python -m )?\blaunch\.(?=[a-z])", "jexplicit ", text)
