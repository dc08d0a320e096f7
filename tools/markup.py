"""Plain text of docstrings as Markdown."""

import html
import re
import textwrap

from launch.kit.program import as_installed

_command = re.compile(r"^\s*jexplicit |^\s*python -m ")


def inline(text: str) -> str:
    """A sentence of plain text: nothing in it is markup but code between backticks, and flags are code.

    Example:
        >>> inline("stops at <pad> (*.txt), see --out and `a|b`")
        'stops at &lt;pad&gt; (\\\\*.txt), see `--out` and `a\\\\|b`'
    """
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part.replace("|", r"\|") if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    text = re.sub(r"([*_|\[\]\\])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"(?<![\w-])--[a-z][\w-]*", lambda flag: f"`{flag[0]}`", text)


def prose(docstring: str) -> str:
    """The docstring of a command: paragraphs, and its lines of commands as code.

    Example:
        >>> print(prose("Fit.\\n\\npython -m launch.lm --out runs/demo"))
        Fit.
        <BLANKLINE>
        ```sh
        jexplicit lm --out runs/demo
        ```
    """
    blocks = re.split(r"\n\s*\n", as_installed(docstring).strip())
    return "\n\n".join(_code(block) if _command.match(block) else inline(block) for block in blocks)


def _code(block: str) -> str:
    return f"```sh\n{textwrap.dedent(block)}\n```"
