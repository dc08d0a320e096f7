"""The public names of a package, imported lazily from their modules."""

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


def public_names(package: str, parts: Sequence[str] = ()) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names are the imports of its `if TYPE_CHECKING:` block, loaded lazily.

    Names of the packages in `parts` are available as well, but not listed.
    """
    modules: dict[str, str] = {}

    def names() -> dict[str, str]:
        if not modules:
            modules.update(_type_checking_imports(str(sys.modules[package].__file__)))
        return modules

    def find(name: str) -> Any:
        if name == "__version__":
            from importlib import metadata  # takes 20 ms

            return metadata.version("jexplicit")
        if module := names().get(name):
            return getattr(importlib.import_module(module), name)
        if not name.startswith("_"):
            for part in parts:
                if name == part.rpartition(".")[2]:
                    return importlib.import_module(part)
                if hasattr(found := importlib.import_module(part), name) and name in dir(found):
                    return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*names(), *(part.rpartition(".")[2] for part in parts)})


def _type_checking_imports(path: str) -> Iterator[tuple[str, str]]:
    """The names that a file imports under `if TYPE_CHECKING:`, each with its module."""
    for block in ast.parse(Path(path).read_text()).body:
        if isinstance(block, ast.If):
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module and node.names[0].name != "*":
                    yield from ((alias.name, node.module) for alias in node.names)
