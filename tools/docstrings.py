"""A griffe extension: docstrings in Google style for the API pages."""

import re
import textwrap

import griffe  # pyright: ignore[reportMissingImports]

_field = re.compile(r"^[a-z_A-Z]\w*(?:, [a-zA-Z_]\w*)*: ")


class Docstrings(griffe.Extension):
    """Rewrites every docstring once it is read, before its sections are parsed."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: object) -> None:
        """Called for each object of a package."""
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value, set(obj.members) if obj.is_class else set())


def google_style(text: str, fields: set[str]) -> str:
    """Doctests are `Examples:`, and lines `field: text` of classes `Attributes:`."""
    blocks = []
    for block in re.split(r"\n\n(?=\S)", re.sub(r"^Example:$", "Examples:", text, flags=re.M)):
        lines = [line for line in block.splitlines() if not line.startswith(" ")]
        named = [found[0][:-2].split(", ") if (found := _field.match(line)) else [] for line in lines]
        title = "Attributes" if all(names and set(names) <= fields for names in named) else ""
        title = "Examples" if block.startswith(">>> ") else title
        blocks.append(f"{title}:\n{textwrap.indent(block, '    ')}" if title else block)
    return "\n\n".join(blocks)
