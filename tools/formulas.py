"""Formulas of notebooks as MathML, which browsers show without a script."""

import html
import re

from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]

_verbatim = re.compile(r"(<(pre|code|script|style)\b.*?</\2>)", re.S)
_formula = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", re.S)


def render_formulas(page: str) -> str:
    """HTML in which $x$ and $$x$$ are MathML, but in code.

    Example:
        >>> render_formulas("<p>$K$</p><pre>$K$</pre>")
        '<p><math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>K</mi></mrow></math></p><pre>$K$</pre>'
    """
    parts = _verbatim.split(page)  # text, code, the name of its tag, text, ...
    return "".join(part if n % 3 else _formula.sub(_math, part) for n, part in enumerate(parts) if n % 3 < 2)


def _math(found: re.Match[str]) -> str:
    kind = "block" if found["block"] else "inline"
    return convert(html.unescape(found[kind]), display=kind)
