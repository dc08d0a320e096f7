"""What the Markdown pages and the notebooks show: blocks of code, and commands in blocks and in sentences, with their lines."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# The changelog tells of flags that there were.
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for pattern in ("*.md", "docs/**/*.md", "launch/*.md", "notebooks/*.py")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
}
_fence = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```", re.M | re.S)
_span = re.compile(r"`((?:[^`\n]|\n(?!\s*\n))+)`")
_program = re.compile(r"(?:\w+=\S+ )*(?:\S*jexplicit |\S*python3? -m launch\.|launch\.)([a-z]+)((?=[ ]).*)?", re.S)
_script = re.compile(r"(?:\w+=\S+ |sbatch (?:-\S+ )*)*launch/\w+\.sh(?: \d+)?((?= ).*)?", re.S)  # its flags are those of lm
_redirections = ("<", ">", ">>", "|", "&&", ";")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the line where the text begins."""

    language: str
    text: str
    line: int


class Invocation(NamedTuple):
    """A command of this project: its name and arguments, the files that `<` and `>` name, and its line.

    whole: it stands in a block by itself, to be copied, and leaves nothing out.
    """

    name: str
    arguments: list[str]
    line: int
    whole: bool
    stdin: str | None = None
    stdout: str | None = None


def read_page(path: Path) -> str:
    """The text of a page; of a notebook, its sentences and comments."""
    text = path.read_text()
    return re.sub(r"^(# ?)?(.*)$", lambda line: line[2] if line[1] else "", text, flags=re.M) if path.suffix == ".py" else text


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    for found in _fence.finditer(text):
        lines = [line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True)]
        yield Block(found[2], "".join(lines), text.count("\n", 0, found.start(3)) + 1)


def block_invocations(block: Block) -> Iterator[Invocation]:
    """The commands of a block, a line each, or several that end in a backslash."""
    joined = re.sub(r"\\\n", lambda _: " \0", block.text)  # \0 counts the lines
    for number, line in enumerate(joined.split("\n")):
        before = "\n".join(joined.split("\n")[:number])
        yield from read_invocation(line.replace("\0", ""), block.line + number + before.count("\0"), whole=True)


def invocations(text: str) -> Iterator[Invocation]:
    """The commands of a page: of its blocks, but those of Python, and of its sentences."""
    for block in blocks(text):
        if block.language != "python":
            yield from block_invocations(block)
    for line, span in spans(text):
        yield from read_invocation(span, line, whole=False)


def spans(text: str) -> Iterator[tuple[int, str]]:
    """The code in the sentences and tables of a page, without line breaks, and its lines."""
    prose = _fence.sub(lambda block: "\n" * block[0].count("\n"), text)
    for found in _span.finditer(prose):
        yield prose.count("\n", 0, found.start()) + 1, " ".join(found[1].replace(r"\|", "|").split())


def read_invocation(line: str, number: int, *, whole: bool) -> Iterator[Invocation]:
    """The command that a line is, once for each choice in braces; nothing for other lines.

    Example:
        >>> [found.arguments for found in read_invocation("jexplicit networks {fcnn,mlp-lm} --out DIR", 1, whole=True)]
        [['fcnn', '--out', 'DIR'], ['mlp-lm', '--out', 'DIR']]
    """
    if found := _script.fullmatch(line.strip()):
        name, rest = "lm", found[1] or ""
    elif found := _program.fullmatch(line.strip()):
        name, rest = found[1], found[2] or ""
    else:
        return
    words = shlex.split(rest, comments=whole)
    end = min([n for n, word in enumerate(words) if word in _redirections], default=len(words))
    files = {"<": "stdin", ">": "stdout"}
    redirected = {files[sign]: file for sign, file in itertools.pairwise(words) if sign in files}
    left = [word for before, word in itertools.pairwise(["", *words[:end]]) if word != "..." or before.startswith("--")]
    choices = [word[1:-1].split(",") if re.fullmatch(r"\{.*,.*\}", word) else [word] for word in left]
    for arguments in itertools.product(*choices):
        yield Invocation(name, list(arguments), number, whole and left == words[:end], **redirected)
