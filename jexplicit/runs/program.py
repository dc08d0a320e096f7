"""The program that runs, by the name that its user gave it."""

import re
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
    return re.sub(r"(python -m )?\blaunch\.(?=[a-z])", "jexplicit ", text) if command_name().startswith("jexplicit ") else text
