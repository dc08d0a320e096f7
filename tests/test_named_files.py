"""What settings and sentences name is there: files of pyproject.toml, mkdocs.yml and MANIFEST.in, targets of make, modules."""

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("launch/*.md")) if path.name != "CHANGELOG.md"
]
PROGRAMS = [path for name in ("icl", "jexplicit", "launch", "tests", "tools") for path in (ROOT / name).rglob("*.py")]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
GUARDS = {"notebooks/.ipynb_checkpoints"}  # what may be there and is left out


def missing(patterns: list[str], folder: Path = ROOT) -> list[str]:
    """The patterns that match no file and no folder."""
    return [pattern for pattern in patterns if pattern not in GUARDS and not any(folder.glob(pattern))]


def test_files_and_folders_of_pyproject_exist():
    tool, project = SETTINGS["tool"], SETTINGS["project"]
    named = [*tool["pytest"]["ini_options"]["testpaths"], *tool["pyright"]["include"], *tool["pyright"]["extraPaths"]]
    named += [*tool["ruff"]["extend-exclude"], *tool["ruff"]["lint"]["per-file-ignores"]]
    named += [project["readme"], *project["license-files"], *tool["setuptools"]["packages"]["find"]["include"]]
    assert not missing(named)
    for package, patterns in tool["setuptools"]["package-data"].items():
        assert patterns and not missing(patterns, ROOT / package.replace(".", "/")), package
    for target in project["scripts"].values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_files_of_the_source_archive_and_of_the_site_exist():
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines() if not line.startswith("#")]
    archive = [name for command, *names in lines if command in ("include", "graft", "prune") for name in names]
    assert len(archive) > 5 and not missing(archive)
    site = (ROOT / "mkdocs.yml").read_text()
    pages = re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", site.partition("\nnav:\n")[2], re.M)
    programs = re.findall(r"\btools/\w+\.py\b", site)
    assert len(pages) > 30 and not missing([f"docs/{page}" for page in pages])
    assert programs and not missing([*programs, *re.findall(r"^hooks: \[(.*)\]$", site, re.M)])
    assert not missing([f"docs/{name}" for name in re.findall(r"^extra_css: \[(.*)\]$", site, re.M)])


def commands_of_make() -> Iterator[tuple[str, str]]:
    """Every `make TARGET` in a span or a line of code, and where it stands."""
    for path in (*PAGES, *PROGRAMS, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"):
        text = path.read_text()
        for target in re.findall(
            r'`make ([a-z][a-z-]*)[^`\n]*`|^make ([a-z][a-z-]*)(?: +#.*)?$|@echo "make ([a-z-]+) ', text, re.M
        ):
            yield "".join(target), path.relative_to(ROOT).as_posix()


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    named = list(commands_of_make())
    assert len(named) > 20 and not [(target, where) for target, where in named if target not in targets]
    assert set(phony.split()) == targets


def is_there(name: str) -> bool:
    """Whether a dotted name is a module, or a name of one."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_names_that_pages_write_as_code_can_be_imported():
    spans = {
        (name, page.name) for page in PAGES for name in re.findall(r"`((?:icl|jexplicit|tools)(?:\.\w+)+)`", page.read_text())
    }
    assert len(spans) > 100
    assert not [span for span in spans if not is_there(span[0]) and not span[0].endswith((".md", ".py"))]
