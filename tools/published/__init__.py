"""The tables and numbers of README.md and docs/, by the names of their markers; a module for each page."""

from collections.abc import Mapping

from tools.declarations import Table, Value
from tools.published import (
    comparisons,
    networks,
)

_modules = (
    networks,
    comparisons,
)
TABLES: Mapping[str, Table] = {name: table for module in _modules for name, table in module.TABLES.items()}
VALUES: Mapping[str, Value] = {name: value for module in _modules for name, value in module.VALUES.items()}
