"""The pages: links, commands, figures and modules that they name are there; code that they show runs; flags are parsed."""

import contextlib
import importlib
import itertools
import json
import pkgutil
import re
import shlex
import shutil
import sys
import types
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import jax
import jaxtyping
import numpy as np
import pytest
from PIL import Image

from launch import cli
from launch.kit import command
from launch.kit.command import as_installed, flags
from tools.site import command_pages

ROOT = Path(__file__).parents[1]
# The changelog tells of flags that there were.
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for pattern in ("*.md", "docs/**/*.md", "launch/*.md", "notebooks/*.py")
    for path in sorted(ROOT.glob(pattern))
    if path.name != "CHANGELOG.md"
}
DOCS = [path for path in PAGES.values() if path.suffix == ".md"]
_fence = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```", re.M | re.S)
_span = re.compile(r"`((?:[^`\n]|\n(?!\s*\n))+)`")
_program = re.compile(r"(?:\w+=\S+ )*(?:\S*jexplicit |\S*python3? -m launch\.|launch\.)(?P<name>[a-z]+)(?P<rest> .*)?", re.S)
_script = re.compile(r"(?:\w+=\S+ |sbatch (?:-\S+ )*)*launch/\w+\.sh(?: \d+)?(?P<rest> .*)?", re.S)  # its flags are those of lm
_files = {"<": "stdin", ">": "stdout"}


class Invocation(NamedTuple):
    """A command of this project with the files of `<` and `>`; whole: a line of a block, to be copied."""

    name: str
    arguments: list[str]
    whole: bool
    stdin: str | None = None
    stdout: str | None = None


def read_page(path: Path) -> str:
    """The text of a page; of a notebook, its sentences and comments."""
    text = path.read_text()
    return re.sub(r"^(# ?)?(.*)$", lambda line: line[2] if line[1] else "", text, flags=re.M) if path.suffix == ".py" else text


def blocks(text: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block of a page."""
    return [(found[2], re.sub(f"(?m)^{found[1]}", "", found[3])) for found in _fence.finditer(text)]


def block_invocations(block: str) -> list[Invocation]:
    """The commands of a block, a line each, or several that end in a backslash."""
    found = [read_invocation(line, whole=True) for line in block.replace("\\\n", " ").split("\n")]
    return [one for one in found if one]


def invocations(text: str) -> list[Invocation]:
    """The commands of a page: of its blocks, but those of Python, and of its sentences and tables."""
    shown = [one for language, block in blocks(text) if language != "python" for one in block_invocations(block)]
    spans = [" ".join(found[1].replace(r"\|", "|").split()) for found in _span.finditer(_fence.sub("\n", text))]
    return shown + [found for span in spans if (found := read_invocation(span, whole=False))]


def read_invocation(line: str, *, whole: bool) -> Invocation | None:
    """The command that a line is; none for other lines."""
    found = _script.fullmatch(line.strip()) or _program.fullmatch(line.strip())
    if not found:
        return None
    words = shlex.split(found["rest"] or "", comments=whole)
    redirected = {_files[sign]: file for sign, file in itertools.pairwise(words) if sign in _files}
    own = list(itertools.takewhile(lambda word: word not in _files, words))
    left = [word for before, word in itertools.pairwise(["", *own]) if word != "..." or before.startswith("--")]
    return Invocation(found.groupdict().get("name", "lm"), left, whole and left == own, **redirected)


QUICK = ("sample", "score", "next", "explain", "export", "compare", "classify")
MADE = {f"commands/{name}.md": name for name in cli.COMMANDS}  # the docstrings of commands
WITH_CODE = [page for page, path in PAGES.items() if re.search(r"```(python|sh)$", read_page(path), re.M)]
CHOSEN = {"WHAT": "objectives", "NAME": "tiny"}  # words in capitals where a name is chosen; "2" elsewhere, a file and a number
COMPUTING = ("docs/recipes/tasks.md",)  # pages whose blocks compute longer than they are compiled
SHORT = {name: text[:1500] for name, text in topics.items()}  # the text of most pages, in small


def text_of(page: str) -> str:
    if page not in MADE:
        return read_page(PAGES[page])
    about = as_installed(importlib.import_module(cli.COMMANDS[MADE[page]].module).__doc__ or "")
    return re.sub(r"(?m)((?:^ *jexplicit .*(?:\\\n.*)*\n?)+)", r"```sh\n\1\n```\n", about)


@contextlib.contextmanager
def plain_jax(optimised: bool = False) -> Iterator[None]:
    """JAX with the settings that it has outside of tests, and no types checked; what computes for seconds is optimised."""
    jaxtyping.config.update("jaxtyping_disable", True)
    jax.config.update("jax_disable_most_optimizations", not optimised)
    try:
        with jax.enable_x64(False), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
        jax.config.update("jax_disable_most_optimizations", True)


def run_command(found: Invocation, patch: pytest.MonkeyPatch) -> int:
    """The exit status of a command, with its input and output redirected."""
    patch.setattr(sys, "argv", ["jexplicit"])
    with contextlib.ExitStack() as stack:
        if found.stdin:
            patch.setattr(sys, "stdin", stack.enter_context(open(found.stdin)))
        if found.stdout:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(found.stdout, "w"))))
        try:
            return cli.main([found.name, *found.arguments])
        except SystemExit as end:  # tyro's
            return end.code if isinstance(end.code, int) else int(end.code is not None)


# runs that pages read, in small: what `make demo` has, characters, and images
COMMANDS = """
jexplicit lm --preset tiny --train topics.txt --documents paragraph --features cat --samples 0 --out runs/demo
jexplicit export --run runs/demo --out model.safetensors
jexplicit lm --preset shakespeare --train input.txt --methods context-mixing --history window:256 --samples 0 \
  --out runs/shakespeare
jexplicit digits --methods explicit --layers 1 --limit 100 --out runs/shapes
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A folder with all files and runs that pages read."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "topics.txt").write_text("\n\n".join(SHORT.values()))
    (folder / "input.txt").write_text("\n\n".join(SHORT.values())[:20_000])
    for name in ("essay.txt", "new.txt"):
        (folder / name).write_text("The list is sorted.\nReturn the value of the function.\n")
    (folder / "names.txt").write_text("anna\nben\nclara\n")
    reviews = [{"id": n, "body": f"the {word} was as good as the last one"} for n, word in enumerate(("film", "book") * 20)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(review) + "\n" for review in reviews))
    (folder / "scans").mkdir()
    for name in ("new.png", "scans/1.png"):
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(folder / name)
    with pytest.MonkeyPatch.context() as patch, plain_jax():
        patch.chdir(folder)
        for found in block_invocations(COMMANDS):
            assert run_command(found, patch) == 0, found
    shutil.copytree(folder / "runs" / "demo", folder / "runs" / "mine")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [*WITH_CODE, *(page for page, name in MADE.items() if name in QUICK)])
def test_the_blocks_of_a_page_run(page, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(shown, tmp_path / "shown"))
    monkeypatch.setattr("pydoc_data.topics.topics", SHORT)
    module = types.ModuleType("page_" + re.sub(r"\W", "_", page))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with plain_jax(optimised=page in COMPUTING):
        for language, block in blocks(text_of(page)):
            if language == "python":
                exec(compile(block, str(PAGES[page]), "exec"), module.__dict__)
            elif language == "sh":
                for found in filter(takes_seconds, block_invocations(block)):
                    assert run_command(found, monkeypatch) == 0, found


def takes_seconds(found: Invocation) -> bool:
    """Whether a command is quick, and its runs are there."""
    after = itertools.dropwhile(lambda word: word != "--run", found.arguments)
    runs = itertools.takewhile(lambda word: not word.startswith("--"), itertools.islice(after, 1, None))
    return found.whole and found.name in QUICK and all(Path(run).exists() for run in runs)


KEPT = re.compile(r"<!-- (table|commands): .*?<!-- /\1 -->", re.S)  # commands as they ran, maybe of earlier versions


def test_the_commands_of_pages_have_flags_that_exist(monkeypatch, capsys):
    wrong: dict[tuple[str, ...], str] = {}  # command -> what it says, once where several pages have it
    for page in (*PAGES, *MADE):
        for found in invocations(KEPT.sub("", text_of(page))):
            command = (found.name, *found.arguments, str(found.whole))
            if command not in wrong:
                error = error_of(found, monkeypatch, capsys)
                wrong[command] = f"{page}: {found.name} {' '.join(found.arguments)}: {error}" if error else ""
    assert len(wrong) > 100 and not any(wrong.values()), "\n".join(filter(None, wrong.values()))


def error_of(found: Invocation, patch: pytest.MonkeyPatch, capsys) -> str:
    """What a command says of its arguments where it does not take them; it reads them, and does nothing."""
    if found.name == "harness" or not found.arguments and not found.whole:  # flags of lm_eval; or it is only named
        return "" if found.name in cli.COMMANDS else "no such command"
    capsys.readouterr()
    patch.setattr(command, "_ready", lambda run: lambda config: {})
    given = [CHOSEN.get(word, "2") if re.fullmatch(r"[A-Z][A-Z_]*", word) else word for word in found.arguments]
    needed = [] if found.whole else required(found.name, given)
    status = run_command(Invocation(found.name, given + needed, found.whole), patch)
    return " ".join("".join(capsys.readouterr()).split()) if status else ""


def required(name: str, arguments: list[str]) -> list[str]:
    """The flags that a sentence leaves out of a command, and that it needs."""
    module: Any = importlib.import_module(cli.COMMANDS[name].module) if name in cli.COMMANDS else None
    kind = getattr(module, "COMMANDS", {}).get(arguments[0])
    config = kind.config if kind else getattr(module, "Config", None)
    needed = [f"--{flag.name.replace('_', '-')}" for flag in flags(config) if flag.value is MISSING] if config else []
    return [word for option in needed if option not in arguments for word in (option, "2")]


# What pages name


def anchor(heading: str) -> str:
    """What a Markdown viewer makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_links_lead_to_files_and_headings():
    for page in DOCS:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", prose):
            path = (page.parent / target) if target else page
            assert path.exists(), (page, target)
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M) if heading else []
            assert not heading or heading in map(anchor, headings), f"{page}: {target}#{heading}"


def test_names_that_pages_write_as_code_can_be_imported():
    names = {name for page in DOCS for name in re.findall(r"`((?:icl|jexplicit|tools)(?:\.\w+)+)`", page.read_text())}
    assert len(names) > 80
    for name in names:
        assert name.endswith((".md", ".py")) or pkgutil.resolve_name(name) is not None, name


def test_the_site_has_the_help_of_commands_and_every_module_once():
    pages = command_pages()
    assert len(pages) == len(cli.COMMANDS) and not [page for page, text in pages.items() if "python -m launch" in text]
    for name in ("lm", "blur", "score"):
        module: Any = importlib.import_module(cli.COMMANDS[name].module)
        for kind in getattr(module, "COMMANDS", {"": module}).values():
            names = [flag.name.replace("_", "-") for flag in flags(getattr(kind, "config", None) or kind.Config)]
            assert not [flag for flag in names if f"--{flag}" not in pages[f"commands/{name}.md"]]
    shown = re.findall(r"^::: (\S+)$", "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md")), re.M)
    files = [path for package in ("jexplicit", "icl", "launch/kit") for path in (ROOT / package).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if path.stem != "__init__"]
    assert all(sum(name == one or name.startswith(f"{one}.") for one in shown) == 1 for name in names)
