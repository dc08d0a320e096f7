"""The architecture: which package may import which, how long files are, and what an import of a public name costs.

Everything but the last is read from the source by `ast`, imports inside functions included.

    6  launch     5  icl     4  jexplicit.lm, jexplicit.nn     3  jexplicit.counts, jexplicit.features, jexplicit.solvers, and
    jexplicit.sklearn on them
    2  jexplicit.data        1  jexplicit.runs
"""

import ast
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import jexplicit

ROOT = Path(__file__).parents[1]
PACKAGES = ("jexplicit", "icl", "launch")
FLOORS = {
    **{"jexplicit.runs": 1, "jexplicit.data": 2, "jexplicit.sklearn": 3.5, "jexplicit.nn": 4, "icl": 5, "launch": 6},
    **dict.fromkeys(("jexplicit.beam", "jexplicit.counts", "jexplicit.features", "jexplicit.solvers"), 3),
    "jexplicit.lm": 4,
}
LONGEST = 700  # lines of a file
FILES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
SOURCES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
INITS = {module for module, path in SOURCES.items() if path.name == "__init__.py"}  # they name what their users import
LAZY = ("jexplicit", "jexplicit.data", "jexplicit.lm", "icl", "icl.blur")


def imported(source: ast.Module) -> Iterator[str]:
    """The modules of these packages that a file imports, also inside functions."""
    for node in ast.walk(source):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            # `from package import module` imports that module, `from module import name` the module that has the name
            names = [f if (f := f"{node.module}.{a.name}") in SOURCES else str(node.module) for a in node.names]
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


IMPORTS = {module: set(imported(ast.parse(path.read_text()))) for module, path in SOURCES.items()}


def floor(module: str) -> float:
    """The floor of a module; that of a package's own root is the top of the package."""
    return next((level for name, level in FLOORS.items() if f"{module}.".startswith(f"{name}.")), FLOORS["jexplicit.lm"])


def folder(module: str) -> str:
    """The folder of a module's file, without those in it; a file of a package's root stands for itself."""
    parent = module if module in INITS else module.rpartition(".")[0]
    return module if parent in PACKAGES else parent


def circle(graph: dict[str, set[str]]) -> str:
    """A circle of a graph, "a -> b -> a"; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " -> ".join(error.args[1])
    return ""


def check(rule: str, violations: Iterable[str]) -> None:
    """Fail with a readable list of the violations."""
    if lines := [f"  {line}" for line in sorted(set(violations))]:
        pytest.fail("\n".join([f"{rule}:", *lines]), pytrace=False)


def test_a_floor_imports_only_from_its_own_and_lower_floors():
    pairs = [(module, other) for module, others in IMPORTS.items() for other in others]
    above = (f"{module} imports {other}" for module, other in pairs if module not in INITS and floor(other) > floor(module))
    check("a floor imports only from its own floor or lower ones", above)
    unknown = [m for m in SOURCES if m not in PACKAGES and not any(f"{m}.".startswith(f"{name}.") for name in FLOORS)]
    check("every module lies in a folder that FLOORS names", unknown)
    from_root = (f"{module} imports {other}" for module, other in pairs if other in PACKAGES)
    check("modules import from the module that defines a name, not from the package's root", from_root)


def test_files_and_folders_have_no_circles():
    assert not circle(IMPORTS)
    for depth in (2, 3, 4):
        graph: dict[str, set[str]] = {}
        for module, others in IMPORTS.items():
            if module not in INITS:
                names = {".".join(folder(other).split(".")[:depth]) for other in others if other not in PACKAGES}
                graph.setdefault(own := ".".join(folder(module).split(".")[:depth]), set()).update(names - {own})
        assert not circle(graph), depth
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == "b -> c -> b" and not circle({"a": {"b"}})


def test_files_are_short():
    long = (module for module, path in SOURCES.items() if len(path.read_text().splitlines()) > LONGEST)
    check(f"a file has at most {LONGEST} lines; one that is longer has two concepts", long)


def modules_after(statement: str) -> set[str]:
    """The modules of a new process after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_a_name_imports_its_own_module_alone():
    assert not {"jax", "numpy"} & modules_after(f"import {', '.join(LAZY)}")
    loaded = modules_after("import jexplicit; jexplicit.explicit_solution; jexplicit.solvers.solve_layers")
    assert "jexplicit.solvers.explicit" in loaded
    assert not {"scipy.optimize", "orbax", "flax", "sentencepiece", "PIL", "jexplicit.lm.fit"} & loaded
    for module in (jexplicit, jexplicit.solvers, importlib.import_module("icl")):
        with pytest.raises(AttributeError, match="nonesuch"):
            module.nonesuch  # noqa: B018


@pytest.mark.parametrize("package", [name for name in LAZY if not name.startswith("icl")])  # which has all names of modules
def test_type_checkers_see_the_names_of_the_table(package):
    module = importlib.import_module(package)
    block = next(node for node in ast.parse(Path(str(module.__file__)).read_text()).body if isinstance(node, ast.If))
    imports = [(node.module, alias) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for _, alias in imports)
    assert sorted(alias.name for _, alias in imports) == dir(module)
    assert all(getattr(module, a.name) is getattr(importlib.import_module(str(m)), a.name) for m, a in imports)
