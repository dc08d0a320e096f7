"""The public names: each costs the import of its own module, and type checkers see the same ones."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import jexplicit

LAZY = ("jexplicit", "jexplicit.data", "jexplicit.lm", "icl", "icl.blur")


def modules_after(statement: str) -> set[str]:
    """The modules of a new process after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_a_name_imports_its_own_module_alone():
    assert not {"jax", "numpy"} & modules_after(f"import {', '.join(LAZY)}")
    loaded = modules_after("import jexplicit; jexplicit.explicit_solution; jexplicit.solvers.solve_layers")
    assert "jexplicit.solvers.explicit" in loaded
    assert not {"scipy.optimize", "orbax", "flax", "sentencepiece", "PIL", "jexplicit.lm.fits.fit"} & loaded


@pytest.mark.parametrize("package", [name for name in LAZY if not name.startswith("icl")])  # which has all names of modules
def test_type_checkers_see_the_names_of_the_table(package):
    module = importlib.import_module(package)
    block = next(node for node in ast.parse(Path(str(module.__file__)).read_text()).body if isinstance(node, ast.If))
    imports = [(node.module, alias) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for _, alias in imports)
    assert sorted(alias.name for _, alias in imports) == dir(module)
    assert all(getattr(module, a.name) is getattr(importlib.import_module(str(m)), a.name) for m, a in imports)


def test_an_unknown_name_is_an_attribute_error():
    for module in (jexplicit, jexplicit.solvers, importlib.import_module("icl")):
        with pytest.raises(AttributeError, match="nonesuch"):
            module.nonesuch  # noqa: B018
