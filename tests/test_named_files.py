"""What settings and sentences name is there: files of pyproject.toml, mkdocs.yml and MANIFEST.in, targets of make, modules."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("launch/*.md")) if path.name != "CHANGELOG.md"
]
PROGRAMS = [path for name in ("icl", "jexplicit", "launch", "tests", "tools") for path in (ROOT / name).rglob("*.py")]


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
