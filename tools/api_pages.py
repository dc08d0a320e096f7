"""Pages of the Python interface: which names stand on which page is read from the sources, what they say from their docstrings.

The names of `jexplicit`, of its packages, of `icl` and of `icl.blur` are those that these import for type checkers. They stand
under the name that a user imports, in a section of the module that defines them. Modules that extensions and experiments are
made of have no short names, and stand there whole.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Where short names are imported, and the package that a user imports them from.
SHORT_NAMES = {
    "jexplicit/__init__.py": "jexplicit",
    **{f"jexplicit/{name}/__init__.py": f"jexplicit.{name}" for name in ("counts", "data", "features", "lm", "solvers")},
    "icl/__init__.py": "icl",
    "icl/blur/__init__.py": "icl.blur",
}


class Page(NamedTuple):
    """A page: its title, the packages whose short names stand there, and the modules that stand there whole."""

    title: str
    packages: tuple[str, ...]
    whole: tuple[str, ...] = ()


PAGES = {
    "data": Page("Text and images", ("jexplicit.data",)),
    "counts": Page("Counts", ("jexplicit.counts",)),
    "solvers": Page("Solvers of one layer", ("jexplicit.solvers",)),
    "features": Page("Features of images", ("jexplicit.features",)),
    "lm": Page(
        "Language models",
        ("jexplicit.lm",),
        ("jexplicit.lm.core.model", "jexplicit.lm.arpa.reading", "jexplicit.lm.measures", "jexplicit.lm.minimal_pairs"),
    ),
    "rows": Page("Kinds of rows", ("jexplicit.lm.rows",)),
    "counted": Page(
        "Context mixing",
        ("jexplicit.lm.counted",),
        ("jexplicit.lm.counted.model", "jexplicit.lm.counted.columns", "jexplicit.lm.counted.account"),
    ),
    "fits": Page("Fitting language models", ("jexplicit.lm.fits",)),
    "networks": Page("Networks", ("jexplicit.nn",), ("jexplicit.nn.*", "jexplicit.nn.studies.*")),
    "runs": Page(
        "Runs and commands",
        ("launch.kit", "jexplicit.runs"),
        ("launch.kit.*", "jexplicit.runs.iterate", "jexplicit.runs.progress"),
    ),
    "icl": Page("In-context learning", ("icl",)),
    "icl_models": Page("In-context models", ("icl.models",)),
    "icl_solvers": Page("In-context solvers", ("icl.solvers",)),
    "icl_problems": Page("In-context problems", ("icl.problems",), ("icl.problems.*",)),
    "blur": Page("Learned update rules", ("icl.blur",)),
}


def api_pages() -> dict[str, str]:
    """Page -> Markdown."""
    return {f"api/{slug}.md": api_page(page) for slug, page in PAGES.items()}


def api_page(page: Page) -> str:
    """A page of names, module by module."""
    parts = [f"# {page.title}", "", *(_first_sentence(package) for package in page.packages), ""]
    parts += ["The letters in shapes are those of [notation](../notation.md).", ""]
    for module, names in sorted(names_of_page(page).items()):
        title = re.sub(r"[._]", " ", _within(module, page)).capitalize()
        parts += [f"## {title}", "", docstring(module), "", *(f"::: {name}\n" for name in names)]
    return "\n".join(parts)


def names_of_page(page: Page) -> dict[str, list[str]]:
    """The modules of a page, and the names of each."""
    found = {module: names for module, names in short_names().items() if page_of(module) == page}
    for module in _modules(page.whole):
        short = {name.rpartition(".")[2] for name in found.get(module, [])}
        found.setdefault(module, []).extend(f"{module}.{name}" for name in _public(module) if name not in short)
    return {module: names for module, names in found.items() if names}


@functools.cache
def short_names() -> dict[str, list[str]]:
    """module -> its functions, classes and constants, by the names that a user imports."""
    found: dict[str, list[str]] = {}
    for path, package in SHORT_NAMES.items():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module not in (None, "typing", "jexplicit.runs.api"):
                names = found.setdefault(node.module, [])
                known = {name.rpartition(".")[2] for name in names}  # the shortest name stands
                names += [f"{package}.{alias.name}" for alias in node.names if alias.name not in {*known, "*"}]
    return {module: names for module, names in found.items() if names}


def page_of(module: str) -> Page:
    """The page of a module's short names: that of the innermost package that has one.

    Example:
        >>> page_of("jexplicit.lm.rows.sparse").title, page_of("icl.blur.judging").title
        ('Kinds of rows', 'Learned update rules')
    """
    pages = {package: page for page in PAGES.values() for package in page.packages}
    package = module
    while package not in pages:
        package, _, rest = package.rpartition(".")
        if not package:
            raise ValueError(f"{module} has public names and no page: add its package to tools.api_pages.PAGES")
    return pages[package]


@functools.cache
def documented() -> dict[str, str]:
    """All names that some page has, by each way to write them: that of the page, that of `jexplicit`, that of their module."""
    pages = [names_of_page(page) for page in PAGES.values()]
    names = [(module, name) for of_page in pages for module, names in of_page.items() for name in names]
    last = {name: name.rpartition(".")[2] for _, name in names}
    short = {f"jexplicit.{last[name]}": name for _, name in names if name.count(".") == 2}
    return {**short, **{f"{module}.{last[name]}": name for module, name in names}, **{name: name for _, name in names}}


def docstring(module: str) -> str:
    """The docstring of a module or a package."""
    return ast.get_docstring(_tree(module)) or ""


def _within(module: str, page: Page) -> str:
    """The name of a module below the package of its page; that of a package is its own."""
    return next((module[len(package) + 1 :] for package in page.packages if module.startswith(f"{package}.")), module)


def _first_sentence(package: str) -> str:
    return docstring(package).partition("\n\n")[0]


def _modules(patterns: Iterable[str]) -> Iterator[str]:
    """The modules that names or `package.*` stand for; those that only name things for command lines are left out."""
    for pattern in patterns:
        for path in sorted(ROOT.glob(f"{pattern.replace('.', '/')}.py")):
            if path.stem not in ("__init__", "names"):
                yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def _public(module: str) -> list[str]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in _tree(module).body if isinstance(node, kinds) and not node.name.startswith("_")]


@functools.cache
def _tree(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
