"""What the documentation site is made of: pages of commands and of Python names, and docstrings as it renders them."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.cli import COMMANDS
from launch.kit.command import flags
from tools.api_pages import api_pages
from tools.command_pages import command_pages

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def test_the_page_of_a_command_is_its_help():
    pages = command_pages()
    assert len(pages) == len(COMMANDS) and not [page for page, text in pages.items() if "python -m launch" in text]
    for name in ("lm", "blur", "score"):
        module: Any = importlib.import_module(COMMANDS[name].module)
        for kind in getattr(module, "COMMANDS", {"": module}).values():
            names = [flag.name.replace("_", "-") for flag in flags(getattr(kind, "config", None) or kind.Config)]
            assert not [flag for flag in names if f"--{flag}" not in pages[f"commands/{name}.md"]]


def test_pages_of_the_interface_have_every_module_once():
    found = [line for text in api_pages().values() for line in text.splitlines() if line.startswith("::: ")]
    files = [path for package in ("jexplicit", "icl", "launch/kit") for path in (ROOT / package).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if path.stem != "__init__"]
    assert sorted(found) == sorted(f"::: {name}" for name in names)


def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    index = (tmp_path / "site/index.html").read_text()
    assert 'href="commands/lm.html"' in index and 'href="api/fits.html"' in index
    pages = "".join(path.read_text() for path in (tmp_path / "site").rglob("*.html"))
    assert 'src="http' not in pages and '<link href="http' not in pages  # nothing is read from the network
