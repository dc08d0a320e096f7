"""The architecture: which package may import which, and how modules, functions and classes are named.

Everything is read from the source by `ast`, imports inside functions included.

    6  launch     5  icl     4  jexplicit.lm, jexplicit.nn     3  jexplicit.counts, jexplicit.features, jexplicit.solvers, and
    jexplicit.sklearn on them
    2  jexplicit.data        1  jexplicit.runs

jexplicit.lm has floors of its own: what a model is, its kinds of rows, what is done with any model, ways to fit one.
"""

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("jexplicit", "icl", "launch")
FLOORS = {
    "jexplicit.runs": 1,
    "jexplicit.data": 2,
    "jexplicit.counts": 3,
    "jexplicit.features": 3,
    "jexplicit.solvers": 3,
    "jexplicit.sklearn": 3.5,
    "jexplicit.nn": 4.0,
    "jexplicit.lm.core.names": 4.1,
    "jexplicit.lm.core.tables": 4.0,
    "jexplicit.lm.core.model": 4.1,
    "jexplicit.lm.core.past": 4.1,
    "jexplicit.lm.core.softmax": 4.1,
    "jexplicit.lm.core.smoothing": 4.1,
    "jexplicit.lm.rows": 4.2,
    "jexplicit.lm.fits": 4.4,
    "jexplicit.lm": 4.3,
    "icl": 5,
    "launch": 6,
}
LONGEST = 700  # lines of a file
PARTICIPLES = (
    "chosen clipped combined cooled corrected counted damped drawn fare filled fitted found given held interleaved "
    "interpolated joined kept known loaded made mapped masked measured merged needed normalised padded placed primed "
    "reached rounded said sampled saved scaled scored seen shifted smoothed solved spread spread_out stacked summed "
    "swept taken timed told trained turned updated used wanted weighted wished written"
).split()

Graph = dict[str, set[str]]


@functools.cache
def sources() -> dict[str, Path]:
    """module -> file."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text())


def is_package(module: str) -> bool:
    return sources()[module].name == "__init__.py"


def imported(source: ast.Module, package: str) -> Iterator[str]:
    """The modules of these packages that a file of a package imports, also inside functions."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *filter(None, [node.module])])
            # `from package import module` imports that module, `from module import name` the module that has the name
            names = [full if (full := f"{base}.{alias.name}") in sources() else base for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


@functools.cache
def imports() -> Graph:
    """module -> the modules that it imports."""
    packages = {module: module if is_package(module) else module.rpartition(".")[0] for module in sources()}
    return {module: set(imported(tree(module), package)) for module, package in packages.items()}


def floor(module: str) -> int:
    """The floor of a module; that of a package's own root is the top of the package."""
    return next((level for name, level in FLOORS.items() if f"{module}.".startswith(f"{name}.")), FLOORS["jexplicit.lm.fits"])


def folder(module: str) -> str:
    """The folder of a module's file, without those in it; a file of a package's root stands for itself."""
    parent = module if is_package(module) else module.rpartition(".")[0]
    return module if parent in PACKAGES else parent


def ways_from(graph: Mapping[str, Iterable[str]], start: str) -> dict[str, list[str]]:
    """The nodes that a node reaches, itself only if it lies on a circle, each with the shortest way there."""
    found: dict[str, list[str]] = {}
    ways = [[start]]
    for way in ways:
        for other in sorted(graph.get(way[-1], ())):
            if other not in found:
                found[other] = [*way, other]
                ways.append(found[other])
    return found


def circles(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle, "a -> b -> a", for each group of nodes that reach one another."""
    ways = {node: ways_from(graph, node) for node in sorted(graph)}
    found, done = [], set()
    for node, way in ways.items():
        if node in way and node not in done:
            found.append(" -> ".join(way[node]))
            done |= {other for other in way if node in ways.get(other, ())}
    return found


def public(module: str) -> list[str]:
    """The public functions and classes that a module defines at its top."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in tree(module).body if isinstance(node, kinds) and not node.name.startswith("_")]


def check(rule: str, violations: Iterable[str]) -> None:
    """Fail with a readable list of the violations."""
    if lines := [f"  {line}" for line in sorted(set(violations))]:
        pytest.fail("\n".join([f"{rule}:", *lines]), pytrace=False)


def test_a_floor_imports_only_from_its_own_and_lower_floors():
    violations = {
        f"{module} (floor {floor(module)}) imports {other} (floor {floor(other)})"
        for module, others in imports().items()
        if not is_package(module)  # these name what their users import, for type checkers
        for other in others
        if floor(other) > floor(module)
    }
    check("a floor imports only from its own floor or lower ones", violations)


def test_every_module_is_on_a_floor():
    unknown = [m for m in sources() if m not in PACKAGES and not any(f"{m}.".startswith(f"{name}.") for name in FLOORS)]
    check("every module lies in a folder that FLOORS names", unknown)


def test_nothing_inside_imports_from_the_root_of_a_package():
    violations = [
        f"{module} imports from {other}" for module, others in imports().items() for other in others if other in PACKAGES
    ]
    check("modules import from the module that defines a name, not from the package's root", violations)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_folders_have_no_circles(depth):
    graph: Graph = {}
    for module, others in imports().items():
        if not is_package(module):  # an __init__.py names what users of the package import
            names = {".".join(folder(other).split(".")[:depth]) for other in others if other not in PACKAGES}
            graph.setdefault(".".join(folder(module).split(".")[:depth]), set()).update(names)
    graph = {name: others - {name} for name, others in graph.items()}
    check("folders import each other in one direction only", circles(graph))


def test_files_have_no_circles():
    check("files import each other in one direction only", circles(imports()))


def test_no_module_is_shadowed_by_a_function_of_its_name():
    violations = [
        f"{package}.{name}"
        for package in sources()
        if is_package(package)
        for name in exports(package)
        if f"{package}.{name}" in sources()
    ]
    check("no function that a package exports has the name of one of its modules", violations)


def exports(package: str) -> list[str]:
    """The names that a package's root binds, other than by importing its modules."""
    names = public(package)
    for node in ast.walk(tree(package)):
        if isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names if f"{node.module}.{alias.name}" not in sources()]
    return names


def test_functions_and_classes_are_named_by_verbs_and_nouns():
    violations = [f"{module}:{name}" for module in sources() for name in public(module) if name.lower() in PARTICIPLES]
    check("public functions and classes are not bare participles", violations)


def test_files_are_short():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in sources().values()}
    long = [name for name, lines in lengths.items() if lines > LONGEST]
    check(f"a file has at most {LONGEST} lines; one that is longer has two concepts", long)


@pytest.mark.parametrize(
    "graph, expected",
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b -> c -> b"]),
        ({"a": {"a"}}, ["a -> a"]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, ["a -> c -> a", "d -> e -> d"]),
    ],
)
def test_circles_are_found(graph, expected):
    assert circles(graph) == expected


def test_violations_are_listed():
    with pytest.raises(pytest.fail.Exception, match="rule:\n  a\n  b$"):
        check("rule", ["b", "a"])
    check("rule", [])


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import launch.kit.folder as runs", {"launch.kit.folder"}),
        ("from jexplicit.runs import devices, files", {"jexplicit.runs.devices", "jexplicit.runs.files"}),
        ("from jexplicit import count", {"jexplicit"}),
        ("from . import files", {"jexplicit.runs.files"}),
        ("from .files import local_path", {"jexplicit.runs.files"}),
        ("from ..data.corpus.shards import read_shards", {"jexplicit.data.corpus.shards"}),
        ("def late():\n    if True:\n        import icl", {"icl"}),
    ],
)
def test_imports_of_every_form_are_seen(source, expected):
    assert set(imported(ast.parse(source), "jexplicit.runs")) == expected
