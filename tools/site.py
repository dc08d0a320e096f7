"""Hooks of the documentation site: generated pages, formulas of notebooks."""

import contextlib
import html
import importlib
import io
import logging
import os
import re
from typing import Any
from unittest import mock

from launch.cli import COMMANDS

_verbatim = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.S)
_formula = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", re.S)


def command_pages() -> dict[str, str]:
    """Page -> Markdown: the `--help-all` of a command and of its subcommands."""
    found = {}
    for name, entry in COMMANDS.items():
        module = importlib.import_module(entry.module)
        texts = [f"# jexplicit {name}\n\n{entry.about}: `jexplicit {name} --help` has its flags.\n"]  # of a program of others
        if hasattr(module, "COMMANDS") or hasattr(module, "Config"):
            texts = [_help(name, module.main, kind) for kind in ("", *getattr(module, "COMMANDS", ()))]
        found[f"commands/{name}.md"] = "\n".join(texts)
    return found


def _help(name: str, main: Any, kind: str) -> str:
    program, width = mock.patch("sys.argv", [f"jexplicit {name}"]), mock.patch.dict(os.environ, COLUMNS="110")
    with program, width, contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([*kind.split(), "--help-all"])
    title = f"## {name} {kind}" if kind else f"# jexplicit {name}"
    return f"{title}\n\n```text\n{printed.getvalue()}```\n"


def on_files(files: Any, *, config: Any) -> Any:
    """Add generated pages, which mkdocs.yml lists."""
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    logging.getLogger("traitlets").setLevel(logging.ERROR)  # warnings of figures
    for page, text in command_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_content(content: str, *, page: Any, **kwargs: object) -> str:
    """Render formulas of notebooks; hide code of functions from the search."""
    content = content.replace(' class="mkdocstrings-source">', ' class="mkdocstrings-source" data-search-exclude>')
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]

    kind = lambda found: "block" if found["block"] else "inline"  # noqa: E731
    math = lambda found: convert(html.unescape(found[kind(found)]), display=kind(found))  # noqa: E731
    parts = _verbatim.split(content)  # text, code, the name of its tag, text, ...
    return "".join(part if n % 3 else _formula.sub(math, part) for n, part in enumerate(parts) if n % 3 < 2)
