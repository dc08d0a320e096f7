"""Generated pages of the site: commands by their `--help-all`, and modules."""

import contextlib
import importlib
import io
import os
from pathlib import Path
from unittest import mock

from launch.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = {  # page -> its title, and the folders whose modules it has, but those of folders within that another page has
    "data": ("Text and images", ("jexplicit/data",)),
    "counts": ("Counts", ("jexplicit/counts",)),
    "solvers": ("Solvers of one layer", ("jexplicit", "jexplicit/solvers")),
    "features": ("Features of images", ("jexplicit/features",)),
    "lm": ("Language models", ("jexplicit/lm",)),
    "counted": ("Context mixing", ("jexplicit/lm/counted",)),
    "fits": ("Fitting language models", ("jexplicit/lm/fits",)),
    "networks": ("Networks", ("jexplicit/nn",)),
    "runs": ("Runs and commands", ("jexplicit/runs", "launch/kit")),
    "icl": ("In-context learning", ("icl",)),
    "blur": ("Learned update rules", ("icl/blur",)),
}


def api_pages() -> dict[str, str]:
    """Page -> Markdown: every module of its folders, in the order of their names."""
    page_of = {ROOT / folder: slug for slug, (_, folders) in PAGES.items() for folder in folders}
    intro = "The letters in shapes are explained in [notation](../notation.md)."
    pages = {slug: [f"# {title}", intro] for slug, (title, _) in PAGES.items()}
    for file in sorted(file for folder in page_of for file in folder.rglob("*.py") if file.stem != "__init__"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        page = pages[page_of[next(folder for folder in file.parents if folder in page_of)]]
        page += [f"::: {name}"] if f"::: {name}" not in page else []
    return {f"api/{slug}.md": "\n\n".join(parts) + "\n" for slug, parts in pages.items()}


def command_pages() -> dict[str, str]:
    """Page -> Markdown: a command and its subcommands."""
    found = {}
    for name, entry in COMMANDS.items():
        module = importlib.import_module(entry.module)
        if not hasattr(module, "COMMANDS") and not hasattr(module, "Config"):  # a program of others
            found[f"commands/{name}.md"] = f"# jexplicit {name}\n\n{entry.about}: `jexplicit {name} --help` has its flags.\n"
            continue
        parts = [(f"# jexplicit {name}", [])]
        parts += [(f"## {name} {kind}", [kind]) for kind in getattr(module, "COMMANDS", ())]
        texts = []
        for title, kind in parts:
            program, width = mock.patch("sys.argv", [f"jexplicit {name}"]), mock.patch.dict(os.environ, COLUMNS="110")
            with program, width, contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
                module.main([*kind, "--help-all"])
            texts.append(f"{title}\n\n```text\n{printed.getvalue()}```\n")
        found[f"commands/{name}.md"] = "\n".join(texts)
    return found
