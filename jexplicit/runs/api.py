"""The public names of a package, imported where the first one is asked for."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def public_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names are those of its module `api`.

    Importing the package, or a part of it, imports none of them; its folders are names, too.

    Example:
        >>> names, listed = public_names("icl")
        >>> names("Tasks").__name__, "Tasks" in listed()
        ('Tasks', True)
    """

    def names() -> dict[str, Any]:
        return vars(importlib.import_module(f"{package}.api")) | vars(sys.modules[package])

    def find(name: str) -> Any:
        if name == "__version__":
            from importlib import metadata  # takes 20 ms

            return metadata.version("jexplicit")
        if not name.startswith("_") and name in (found := names()):
            return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(names())
