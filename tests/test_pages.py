"""The pages: links lead somewhere, and commands, figures, modules and targets of make that they name are there."""

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

from launch.cli import COMMANDS
from launch.kit.command import flags
from tools.site import api_pages, command_pages

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("launch/*.md")])
PROGRAMS = [path for name in ("icl", "jexplicit", "launch", "tests", "tools") for path in (ROOT / name).rglob("*.py")]


def anchor(heading: str) -> str:
    """What a Markdown viewer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings():
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", prose):
            path = (page.parent / target) if target else page
            assert path.exists(), (page, target)
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if heading else []
            assert not heading or heading in map(anchor, headings), f"{page}: {target}#{heading}"


def test_commands_pages_and_figures_are_shown():
    listed = re.findall(r"^\| `jexplicit ([a-z-]+)", (ROOT / "docs/commands.md").read_text(), re.M)
    assert sorted(listed) == sorted(COMMANDS)
    site = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert not [page for page in pages if not re.search(rf"[: ]{re.escape(page)}$", site, re.M)]
    shown = {name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\((?:docs/)?(\w+\.png)\)", page.read_text())}
    assert shown == {path.name for path in ROOT.glob("docs/*.png")}


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    files = [path for path in PAGES if path.name != "CHANGELOG.md"]
    files += [*PROGRAMS, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]
    pattern = r'`make ([a-z][a-z-]*)[^`\n]*`|^make ([a-z][a-z-]*)(?: +#.*)?$|@echo "make ([a-z-]+) '
    named = [("".join(target), path) for path in files for target in re.findall(pattern, path.read_text(), re.M)]
    assert len(named) > 20 and not [(target, where) for target, where in named if target not in targets]
    assert set(phony.split()) == targets


def test_names_that_pages_write_as_code_can_be_imported():
    pages = [page.read_text() for page in PAGES if page.name != "CHANGELOG.md"]
    names = {name for text in pages for name in re.findall(r"`((?:icl|jexplicit|tools)(?:\.\w+)+)`", text)}
    assert len(names) > 90
    for name in names:
        assert name.endswith((".md", ".py")) or pkgutil.resolve_name(name) is not None, name


def test_the_site_has_the_help_of_commands_and_every_module_once():
    pages = command_pages()
    assert len(pages) == len(COMMANDS) and not [page for page, text in pages.items() if "python -m launch" in text]
    for name in ("lm", "blur", "score"):
        module: Any = importlib.import_module(COMMANDS[name].module)
        for kind in getattr(module, "COMMANDS", {"": module}).values():
            names = [flag.name.replace("_", "-") for flag in flags(getattr(kind, "config", None) or kind.Config)]
            assert not [flag for flag in names if f"--{flag}" not in pages[f"commands/{name}.md"]]
    found = [line for text in api_pages().values() for line in text.splitlines() if line.startswith("::: ")]
    files = [path for package in ("jexplicit", "icl", "launch/kit") for path in (ROOT / package).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if path.stem != "__init__"]
    assert sorted(found) == sorted(f"::: {name}" for name in names)
