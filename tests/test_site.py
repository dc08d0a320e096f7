"""What the documentation site is made of: pages of commands and of Python names, and docstrings as it renders them."""

import importlib
import json
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


def test_docstrings_are_rewritten_in_google_style():
    pytest.importorskip("griffe")
    from tools.docstrings import google_style

    assert google_style("One.\n\nx: first,\n    on two lines.\ny, z: others.\n\nSource: here.", {"x", "y", "z"}) == (
        "One.\n\nAttributes:\n    x: first,\n        on two lines.\n    y, z: others.\n\nSource: here."
    )
    assert google_style("One.\n\nx: no field.", {"y"}) == "One.\n\nx: no field."
    assert google_style("One.\n\nExample:\n    >>> 1\n    1") == "One.\n\nExamples:\n    >>> 1\n    1"
    assert google_style("One.\n\n>>> 1\n1") == "One.\n\nExamples:\n    >>> 1\n    1"
    literal = google_style("One.\n\nExample::\n\n    f(1)\n\n    g(2)\n\nSource: a.")
    assert literal == "One.\n\nExamples:\n    ```python\n    f(1)\n\n    g(2)\n    ```\n\nSource: a."


def test_formulas_of_notebooks_are_mathml_but_in_code():
    pytest.importorskip("latex2mathml")
    from tools.formulas import render_formulas

    page = render_formulas("<p>$a &lt; b$, 5 $</p><pre>$x$</pre>$$\\frac{a}{b}$$<code>$y$</code>")
    assert page.count("<math ") == 2 and "<mo>&#x0003C;</mo>" in page and 'display="block"' in page and "<mfrac>" in page
    assert "5 $</p><pre>$x$</pre>" in page and page.endswith("<code>$y$</code>")


def test_a_notebook_is_listed_by_its_first_heading(tmp_path):
    pytest.importorskip("mkdocs")
    from tools.site import title_of_notebook

    cells = [{"cell_type": "code", "source": ["# no\n"]}, {"cell_type": "markdown", "source": ["text\n", "# Digits\n"]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert title_of_notebook(tmp_path / "a.ipynb") == "Digits"


def test_the_addresses_of_the_site_are_those_of_the_package(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs")
    from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]

    from tools import site

    monkeypatch.setattr(site, "ROOT", tmp_path)
    for urls, expected in (("", ("", None)), ("[project.urls]\nDocumentation = 'd'\nRepository = 'r'", ("d", "r"))):
        (tmp_path / "pyproject.toml").write_text(f"[project]\n{urls}")
        config: Any = MkDocsConfig()
        site.on_config(config)
        assert (config.site_url, config.repo_url) == expected


def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    index = (tmp_path / "site/index.html").read_text()
    assert 'href="commands/lm.html"' in index and 'href="api/fits.html"' in index
    pages = "".join(path.read_text() for path in (tmp_path / "site").rglob("*.html"))
    assert 'src="http' not in pages and '<link href="http' not in pages  # nothing is read from the network
