"""The Markdown pages: their links lead somewhere, and they name every command."""

import re
from pathlib import Path

import pytest

from launch.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("launch/*.md")])


def anchor(heading: str) -> str:
    """What a Markdown viewer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_and_headings(page):
    for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", page.read_text()):
        path = (page.parent / target) if target else page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if heading else []
        assert not heading or heading in map(anchor, headings), f"{target}#{heading}"


def test_the_page_of_commands_has_all_of_them():
    listed = re.findall(r"^\| `jexplicit ([a-z]+)", (ROOT / "docs/commands.md").read_text(), re.M)
    assert sorted(listed) == sorted(COMMANDS)


def test_every_page_and_figure_is_linked():
    text = "\n".join(page.read_text() for page in PAGES)
    unlinked = [path.name for path in (ROOT / "docs").iterdir() if not re.search(rf"[(/]{re.escape(path.name)}[)#]", text)]
    assert not unlinked
