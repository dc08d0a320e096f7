"""The weight of the code: numbers that a commit may lower. One that raises a number says in CHANGELOG.md what it is for.

The plan is jexplicit 10,000, icl 5,500, launch 6,000, tools 400 and tests 10,000 lines, and no such sentence or name.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = {"jexplicit": 10_856, "icl": 4_823, "launch": 7_004, "tools": 438, "tests": 11_437, "notebooks": 807}
LONG_SENTENCES, INNER_NAMES = 0, 136
MOST_WORDS, UNCLEAR = 14, re.compile(r"\b(of which|those of|so many)\b|\bwhat\b.*\bof\b", re.I)
UNCLEAR_ON_PAGES = 2  # words without their noun, ", too" at an end, a predicative "is of", and scores that a model "has"
PATTERNS = re.compile(
    r"\b(of which|those of|so many|beside|what)\b|, too\b|\bin the place of\b|\b(is|are|was|were) of (the|a|one|two|shared)\b"
    r"|\b(has|have|had)\s(a (loss|perplexity) of )?\d+(\.\d+(?! M)|\s%)"
)
PAGES = [path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if path.name not in ("CHANGELOG.md", "SECURITY.md")]


def files(*folders: str) -> dict[Path, str]:
    return {path: path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}


def first_lines(source: str) -> Iterator[str]:
    """The first line of every docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    yield from (text.splitlines()[0] for text in found if text)


def is_plain(sentence: str) -> bool:
    return len(sentence.split()) <= MOST_WORDS and not UNCLEAR.search(sentence)


def inner_names(sources: dict[Path, str], pages: str) -> list[str]:
    """Public functions and classes that no other file and no page names."""
    words = {path: set(re.findall(r"\w+", text)) for path, text in sources.items() if path.name != "__init__.py"}
    named = set(re.findall(r"\w+", pages))
    return [
        f"{path.name}: {node.name}"
        for path, text in sources.items()
        if "notebooks" not in path.parts
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if node.name not in named and not any(node.name in found for other, found in words.items() if other != path)
    ]


@pytest.mark.parametrize("folder", LINES)
def test_a_folder_has_its_lines_at_most(folder):
    found = sum(len(text.splitlines()) for text in files(folder).values())
    assert found <= LINES[folder], f"{folder} has {found} lines: let something go, or say in CHANGELOG.md why it grows"


def test_first_sentences_are_short_and_plain():
    sentences = [line for text in files("jexplicit", "icl", "launch", "tools").values() for line in first_lines(text)]
    found = [line for line in sentences if not is_plain(line)]
    assert len(found) <= LONG_SENTENCES, f"first lines of docstrings over {MOST_WORDS} words or unclear: {len(found)}"
    assert not is_plain("The names of those of the models") and is_plain("The loss of a model.")


def test_pages_are_plain():
    made = re.compile(r"<!-- (table|commands): .*?<!-- /\1 -->|```.*?```|`[^`]*`", re.S)
    found = [(path.name, hit[0]) for path in PAGES for hit in PATTERNS.finditer(made.sub("", path.read_text()))]
    assert len(found) <= UNCLEAR_ON_PAGES, f"{len(found)} unclear phrases of pages: {found}"
    assert PATTERNS.search("It has 60.3.") and PATTERNS.search("times are of the fit") and not PATTERNS.search("reaches 60.3")


def test_names_that_nothing_else_uses_are_private():
    sources = files("jexplicit", "icl", "launch", "tools", "notebooks")
    found = inner_names(sources, "\n".join(path.read_text() for path in PAGES))
    assert len(found) <= INNER_NAMES, f"{len(found)} public names that no other file and no page has"
    a, b = Path("a.py"), Path("b.py")
    assert inner_names({a: "def f(): ...\ndef g(): ...\ndef h(): ...", b: "from a import f"}, "see g") == ["a.py: h"]
