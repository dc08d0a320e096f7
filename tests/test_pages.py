"""The Markdown pages: their links lead somewhere, they name every command and show every figure."""

import re
from pathlib import Path

import pytest

from launch.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("launch/*.md")])
SITE = (ROOT / "mkdocs.yml").read_text()


def anchor(heading: str) -> str:
    """What a Markdown viewer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_to_files_and_headings(page):
    for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", prose(page)):
        path = (page.parent / target) if target else page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if heading else []
        assert not heading or heading in map(anchor, headings), f"{target}#{heading}"


def test_the_page_of_commands_has_all_of_them():
    listed = re.findall(r"^\| `jexplicit ([a-z-]+)", (ROOT / "docs/commands.md").read_text(), re.M)
    assert sorted(listed) == sorted(COMMANDS)


def test_every_page_is_in_the_navigation():
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert not [page for page in pages if not re.search(rf"[: ]{re.escape(page)}$", SITE, re.M)]


def test_every_figure_stands_on_a_page():
    shown = {name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\((?:docs/)?(\w+\.png)\)", page.read_text())}
    assert shown == {path.name for path in ROOT.glob("docs/*.png")}
