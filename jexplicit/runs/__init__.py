"""Infrastructure of all programs: devices, processes, files, checkpoints and progress."""

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, table: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, from the names of its modules.

    table: module of the package -> its names, separated by blanks; "" -> modules that are names themselves.
    """
    modules = {name: f"{package}.{module or name}" for module, names in table.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(modules))}"
            raise AttributeError(f"module {package!r} has no attribute {name!r}: {remedy}")
        module = importlib.import_module(modules[name])
        found = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)  # so that it is looked up once
        return found

    return find, lambda: sorted(modules)
