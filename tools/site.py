"""Hooks of the documentation site: pages that are made while it is built, and their place in the navigation.

`mkdocs build` calls them (see mkdocs.yml). What is generated is never on disk: a page for each command, from its `--help`;
pages of the Python interface, from its docstrings.
"""

import json
import logging
import tomllib
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]
from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]

from tools.api_pages import api_pages
from tools.command_pages import command_pages
from tools.formulas import render_formulas

ROOT = Path(__file__).parents[1]


def on_config(config: MkDocsConfig) -> None:
    """Addresses are those of pyproject.toml. Warnings of figures without a text are left out; the cell above has it."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    config.site_url = urls.get("Documentation", "")
    if "Repository" in urls:
        config.repo_url, config.repo_name = urls["Repository"], "Source"
    logging.getLogger("traitlets").setLevel(logging.ERROR)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and list them, and the notebooks that are there, in the navigation."""
    commands, names = command_pages(), api_pages()
    for page, text in (commands | names).items():
        files.append(File.generated(config, page, content=text))
    _section(config, "Commands").extend(commands)
    _section(config, "API").extend(names)
    _section(config, "Notebooks").extend(_notebooks(files))
    return files


def on_page_content(html: str, *, page: Page, **kwargs: object) -> str:
    """Formulas of notebooks are shown as such; other pages have theirs in code. The search leaves out the code of functions."""
    html = html.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" data-search-exclude>')
    return render_formulas(html) if page.file.src_uri.endswith(".ipynb") else html


def _notebooks(files: Files) -> Iterable[dict[str, str]]:
    """The notebooks, each by its first heading."""
    for file in sorted(files, key=lambda file: file.src_uri):
        if file.src_uri.endswith(".ipynb"):
            yield {title_of_notebook(Path(str(file.abs_src_path))): file.src_uri}


def title_of_notebook(path: Path) -> str:
    """The first heading of a notebook."""
    cells = json.loads(path.read_text())["cells"]
    lines = (line for cell in cells if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines())
    return next(line.removeprefix("# ") for line in lines if line.startswith("# "))


def _section(config: MkDocsConfig, title: str) -> list:
    """The entries of a section of the navigation, at any depth."""
    waiting = list(config.nav or [])
    while waiting:
        entry = waiting.pop()
        for name, entries in entry.items() if isinstance(entry, dict) else ():
            if name == title:
                return entries
            waiting += entries if isinstance(entries, list) else []
    raise ValueError(f"mkdocs.yml has no section {title!r} in its navigation: add one, as a list")
