"""A griffe extension: docstrings in Google style for the API pages.

`Example:`, or a doctest without a heading, is a section `Examples:`. A literal block after `Example::` is code. The fields of a
class, each on a line `name: what it is`, are a section `Attributes:`.
"""

import re
import textwrap

import griffe  # pyright: ignore[reportMissingImports]

_field = re.compile(r"^[a-z_A-Z]\w*(?:, [a-zA-Z_]\w*)*: ")
_literal = re.compile(r"^Examples?::\n\n(    .*(?:\n+    .*)*)", re.M)


class Docstrings(griffe.Extension):
    """Rewrites every docstring once it is read, before its sections are parsed."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: object) -> None:
        """Called for each object of a package."""
        if obj.docstring is not None:
            names = set(obj.members) if obj.is_class else set()
            obj.docstring.value = google_style(obj.docstring.value, names)


def google_style(text: str, fields: set[str] | None = None) -> str:
    """A docstring in Google style.

    Args:
        text: the docstring.
        fields: of its class, whose lines become attributes.

    Example:
        >>> print(google_style("A sum.\\n\\na: the first.\\nb: the second.\\n\\nExample:\\n    f(1)", {"a", "b"}))
        A sum.
        <BLANKLINE>
        Attributes:
            a: the first.
            b: the second.
        <BLANKLINE>
        Examples:
            f(1)
    """
    text = _literal.sub(lambda found: f"Examples:\n    ```python\n{found[1]}\n    ```", text)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
    blocks = re.split(r"\n\n(?=\S)", text)
    return "\n\n".join(_section(block, fields or set()) for block in blocks)


def _section(block: str, fields: set[str]) -> str:
    """A paragraph as a section: a doctest or a list of fields."""
    if block.startswith(">>> "):
        return "Examples:\n" + textwrap.indent(block, "    ")
    lines = [line for line in block.splitlines() if not line.startswith(" ")]
    named = [found[0][:-2].split(", ") if (found := _field.match(line)) else [] for line in lines]
    if not all(names and set(names) <= fields for names in named):
        return block
    return "Attributes:\n" + textwrap.indent(block, "    ")
