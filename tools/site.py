"""Hooks of the documentation site: pages, navigation, formulas of notebooks as MathML."""

import html
import json
import logging
import re
import tomllib
from pathlib import Path

from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]
from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]
from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]

from tools.pages import ROOT, api_pages, command_pages

_verbatim = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.S)
_formula = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", re.S)


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
    notebooks = [file for file in sorted(files, key=lambda file: file.src_uri) if file.src_uri.endswith(".ipynb")]
    titled = [{title_of_notebook(Path(str(file.abs_src_path))): file.src_uri} for file in notebooks]
    for title, pages in {"Commands": commands, "API": names, "Notebooks": titled}.items():
        _section(config, title).extend(pages)
    return files


def on_page_content(content: str, *, page: Page, **kwargs: object) -> str:
    """Render formulas of notebooks; hide code of functions from the search."""
    source = '<details class="mkdocstrings-source"'
    content = content.replace(f"{source}>", f"{source} data-search-exclude>")
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    parts = _verbatim.split(content)  # text, code, the name of its tag, text, ...
    return "".join(part if n % 3 else _formula.sub(_math, part) for n, part in enumerate(parts) if n % 3 < 2)


def _math(found: re.Match[str]) -> str:
    kind = "block" if found["block"] else "inline"
    return convert(html.unescape(found[kind]), display=kind)


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
