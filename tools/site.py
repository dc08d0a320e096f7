"""Hooks of the documentation site: generated pages and their navigation.

`mkdocs build` calls them (see mkdocs.yml). What is generated is never on disk: a page for each command, from its `--help-all`;
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
    """Addresses come from pyproject.toml; warnings of figures are silenced."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    config.site_url = urls.get("Documentation", "")
    if "Repository" in urls:
        config.repo_url, config.repo_name = urls["Repository"], "Source"
    logging.getLogger("traitlets").setLevel(logging.ERROR)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated pages, and list them and the notebooks."""
    commands, names = command_pages(), api_pages()
    for page, text in (commands | names).items():
        files.append(File.generated(config, page, content=text))
    _section(config, "Commands").extend(commands)
    _section(config, "API").extend(names)
    _section(config, "Notebooks").extend(_notebooks(files))
    return files


def on_page_content(html: str, *, page: Page, **kwargs: object) -> str:
    """Render formulas of notebooks; hide code of functions from the search."""
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
