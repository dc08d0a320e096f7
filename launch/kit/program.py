"""The name of the running program, as started by its user."""

import os
import re
import shutil
import sys
from pathlib import Path


def command_name() -> str:
    """The command of this process: `python -m launch.lm` or `jexplicit lm`."""
    program = Path(sys.argv[0])
    if program.name.startswith("jexplicit "):
        return program.name
    return f"python -m launch.{program.parent.name if program.stem == '__main__' else program.stem}"


def as_started(text: str) -> str:
    """A text with commands in this process's form."""
    return as_installed(text) if command_name().startswith("jexplicit ") else text


def as_typed(text: str) -> str:
    """`as_started` for copying, with the path of this Python if needed."""
    python = sys.executable if shutil.which("python") != sys.executable else "python"
    return as_started(text).replace("python -m", f"{min(python, os.path.relpath(python), key=len)} -m")


def as_installed(text: str) -> str:
    """A text with commands in the installed form, `jexplicit lm`."""
    return re.sub(r"(python -m )?\blaunch\.(?=[a-z])", "jexplicit ", text)
