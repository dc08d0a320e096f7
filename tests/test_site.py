"""What the documentation site is made of: pages of commands and of Python names, and docstrings as it renders them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icl.blur
from launch.cli import COMMANDS
from launch.kit.command import Command
from launch.kit.flags import flags
from tools.api_pages import PAGES, api_pages, documented, names_of_page, page_of, short_names
from tools.command_pages import command_page, command_pages
from tools.links import link_commands, link_names
from tools.markup import inline, prose

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


def parts(name: str) -> list[tuple[str, Command]]:
    """The parts of a command's page that have flags, each with the command that they are of."""
    module, page = importlib.import_module(COMMANDS[name].module), command_page(name)
    if kinds := getattr(module, "COMMANDS", None):
        return list(zip(page.split("\n## ")[1:], kinds.values(), strict=True))
    return [(page, Command(module.Config, "", getattr(module, "PRESETS", {})))] if hasattr(module, "Config") else []


def test_the_page_of_a_command_has_all_its_flags_and_presets():
    for part, command in (part for name in COMMANDS for part in parts(name)):
        for flag in flags(command.config):
            assert f"--{'no-' if flag.value is True else ''}{flag.name.replace('_', '-')}`" in part, flag.name
        assert all(f"\n| `{preset}` | " in part for preset in command.presets)


def test_commands_are_named_as_the_installed_program_has_them():
    assert not [page for page, text in command_pages().items() if "python -m launch" in text or "`launch." in text]


def test_what_a_flag_takes_is_in_words():
    page = command_page("lm")
    assert "| `--vocab-size` | integer, at least 1 |" in page
    assert "| `--radius` | several: integer, at least 1<br>default `1 2 4` |" in page
    assert "| `--split` | `blocks`, `end`, `dev-test`<br>default `blocks` | How the training text is split without" in page
    assert "without `--dev`. <br>`blocks`: " in page
    assert "| `--out` | text<br>*required* |" in page
    assert "| `starts` | docs, " in page and "`--learning-rate 0.1`" in page and "`--paper`" in page


def test_every_public_name_is_on_one_page():
    names = [name for page in PAGES.values() for of_module in names_of_page(page).values() for name in of_module]
    assert len(names) == len(set(names))
    assert set(names) <= set(documented())
    public = {name for of_module in short_names().values() for name in of_module}
    assert public <= set(documented()) and {"jexplicit.fit", "icl.Tasks", "icl.blur.learner"} <= public
    assert {f"icl.blur.{name}" for name in dir(icl.blur)} <= public


def test_short_names_can_be_imported():
    for name in (name for names in short_names().values() for name in names):
        package, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(package), attribute), name


def test_a_page_has_its_modules_with_what_they_say_of_themselves():
    page = api_pages()["api/fits.md"]
    assert page.startswith("# Fitting language models\n\nWays to fit a language model")
    assert "\n## Estimator\n\nOne call from texts to a language model.\n\n::: jexplicit.fit\n" in page


def test_a_module_without_a_page_is_refused():
    with pytest.raises(ValueError, match="launch.lm has public names and no page: add its package"):
        page_of("launch.lm")


def test_names_and_commands_in_code_are_links_but_in_blocks():
    text = "`jexplicit.fit`, `jexplicit lm` and `jexplicit lm --out x`\n\n```python\n`jexplicit.fit` `jexplicit lm`\n```\n"
    linked = "[`jexplicit.fit`][jexplicit.fit], [`jexplicit lm`][jexplicit-lm] and `jexplicit lm --out x`"
    assert link_commands(link_names(text)) == text.replace("`jexplicit.fit`, `jexplicit lm` and `jexplicit lm --out x`", linked)
    assert link_names(linked) == linked


def test_plain_text_stays_plain_text():
    texts = {
        "a | b, *c* <pad>": r"a \| b, \*c\* &lt;pad&gt;",
        "see --out-file.": "see `--out-file`.",
        "two - three -- four": "two - three -- four",
        "`a|b` of `<unk>`": r"`a\|b` of `<unk>`",
    }
    assert {text: inline(text) for text in texts} == texts


def test_the_commands_of_a_docstring_are_a_block():
    assert prose("A | b.\n\n    python -m launch.lm --out x\n    python -m launch.icl\n\nSee launch.lm.") == (
        "A \\| b.\n\n```sh\njexplicit lm --out x\njexplicit icl\n```\n\nSee jexplicit lm."
    )


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
