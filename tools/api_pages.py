"""Pages of the Python interface, from the docstrings of modules."""

from pathlib import Path

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
