"""Hooks of the documentation site: generated pages, formulas of notebooks."""

import contextlib
import html
import importlib
import io
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from launch.cli import COMMANDS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
    from mkdocs.structure.files import Files  # pyright: ignore[reportMissingImports]
    from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
PAGES = {  # page -> its title, and the folders whose modules it has, but those of folders within that another page has
    "data": ("Text and images", ("jexplicit/data",)),
    "solvers": ("Counts, solvers of one layer, and features", ("jexplicit",)),
    "lm": ("Language models", ("jexplicit/lm",)),
    "counted": ("Context mixing", ("jexplicit/lm/counted",)),
    "networks": ("Networks", ("jexplicit/nn",)),
    "runs": ("Runs and commands", ("jexplicit/runs", "launch/kit")),
    "icl": ("In-context learning", ("icl",)),
    "blur": ("Learned update rules", ("icl/blur",)),
}
_verbatim = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.S)
_formula = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", re.S)


def api_pages() -> dict[str, str]:
    """Page -> Markdown: every module of its folders, in the order of their names."""
    page_of = {ROOT / folder: slug for slug, (_, folders) in PAGES.items() for folder in folders}
    intro = "The letters in shapes are explained in [notation](../notation.md)."
    pages = {slug: [f"# {title}", intro] for slug, (title, _) in PAGES.items()}
    for file in sorted({file for folder in page_of for file in folder.rglob("*.py") if file.stem != "__init__"}):
        slug = page_of[next(folder for folder in file.parents if folder in page_of)]
        pages[slug].append(f"::: {'.'.join(file.relative_to(ROOT).with_suffix('').parts)}")
    return {f"api/{slug}.md": "\n\n".join(parts) + "\n" for slug, parts in pages.items()}


def command_pages() -> dict[str, str]:
    """Page -> Markdown: the `--help-all` of a command and of its subcommands."""
    found = {}
    for name, entry in COMMANDS.items():
        module = importlib.import_module(entry.module)
        if not hasattr(module, "COMMANDS") and not hasattr(module, "Config"):  # a program of others
            found[f"commands/{name}.md"] = f"# jexplicit {name}\n\n{entry.about}: `jexplicit {name} --help` has its flags.\n"
            continue
        texts = []
        for kind in ("", *getattr(module, "COMMANDS", ())):
            program, width = mock.patch("sys.argv", [f"jexplicit {name}"]), mock.patch.dict(os.environ, COLUMNS="110")
            with program, width, contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
                module.main([*([kind] if kind else []), "--help-all"])
            title = f"## {name} {kind}" if kind else f"# jexplicit {name}"
            texts.append(f"{title}\n\n```text\n{printed.getvalue()}```\n")
        found[f"commands/{name}.md"] = "\n".join(texts)
    return found


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add generated pages, which mkdocs.yml lists."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    logging.getLogger("traitlets").setLevel(logging.ERROR)  # warnings of figures
    for page, text in (command_pages() | api_pages()).items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_content(content: str, *, page: "Page", **kwargs: object) -> str:
    """Render formulas of notebooks; hide code of functions from the search."""
    source = '<details class="mkdocstrings-source"'
    content = content.replace(f"{source}>", f"{source} data-search-exclude>")
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    parts = _verbatim.split(content)  # text, code, the name of its tag, text, ...
    return "".join(part if n % 3 else _formula.sub(_math, part) for n, part in enumerate(parts) if n % 3 < 2)


def _math(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]

    kind = "block" if found["block"] else "inline"
    return convert(html.unescape(found[kind]), display=kind)
