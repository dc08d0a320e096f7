"""Code that the pages show: blocks of Python run, commands that take seconds run, and the flags of all commands are parsed."""

import contextlib
import importlib
import itertools
import json
import re
import shlex
import shutil
import sys
import types
from collections.abc import Callable, Iterator
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


class Invocation(NamedTuple):
    """A command of this project: its name and arguments, and the files that `<` and `>` name.

    whole: it stands in a block by itself, to be copied, and leaves nothing out.
    """

    name: str
    arguments: list[str]
    whole: bool
    stdin: str | None = None
    stdout: str | None = None


def read_page(path: Path) -> str:
    """The text of a page; of a notebook, its sentences and comments."""
    text = path.read_text()
    return re.sub(r"^(# ?)?(.*)$", lambda line: line[2] if line[1] else "", text, flags=re.M) if path.suffix == ".py" else text


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the text of each fenced block of a page."""
    for found in _fence.finditer(text):
        yield found[2], "".join(line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True))


def block_invocations(block: str) -> Iterator[Invocation]:
    """The commands of a block, a line each, or several that end in a backslash."""
    for line in block.replace("\\\n", " ").split("\n"):
        yield from read_invocation(line, whole=True)


def invocations(text: str) -> Iterator[Invocation]:
    """The commands of a page: of its blocks, but those of Python, and of its sentences."""
    for language, block in blocks(text):
        if language != "python":
            yield from block_invocations(block)
    for span in spans(text):
        yield from read_invocation(span, whole=False)


def spans(text: str) -> Iterator[str]:
    """The code in the sentences and tables of a page, without line breaks."""
    for found in _span.finditer(_fence.sub("\n", text)):
        yield " ".join(found[1].replace(r"\|", "|").split())


def read_invocation(line: str, *, whole: bool) -> Iterator[Invocation]:
    """The command that a line is, once for each choice in braces; nothing for other lines.

    Examples:
        >>> [found.arguments for found in read_invocation("jexplicit networks {compare,mlp-lm} --out DIR", whole=True)]
        [['compare', '--out', 'DIR'], ['mlp-lm', '--out', 'DIR']]
        >>> next(read_invocation("jexplicit score --text - < in.txt > out.txt  # to a file", whole=True))
        Invocation(name='score', arguments=['--text', '-'], whole=True, stdin='in.txt', stdout='out.txt')
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
        yield Invocation(name, list(arguments), whole and left == words[:end], **redirected)


QUICK = ("sample", "score", "next", "explain", "export", "compare", "classify")
MADE = {f"commands/{name}.md": name for name in cli.COMMANDS}  # the docstrings of commands
WITH_CODE = [page for page, path in PAGES.items() if re.search(r"```(python|sh)$", read_page(path), re.M)]
CHOSEN = {"WHAT": "objectives", "NAME": "tiny"}  # words in capitals where a name is chosen; "2" elsewhere, a file and a number
COMPUTING = ("docs/recipes/tasks.md",)  # pages whose blocks compute longer than they are compiled
SHORT = {name: text[:1500] for name, text in topics.items()}  # the text of most pages, in small
OF_OTHERS = ("--gres", "--ntasks-per-node", "--include_path", "--model", "--gen_kwargs")  # flags of SLURM and of lm_eval


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


def run_command(name: str, arguments: list[str], patch: pytest.MonkeyPatch) -> int:
    """The exit status of a command."""
    patch.setattr(sys, "argv", ["jexplicit"])
    return exit_status(lambda: cli.main([name, *arguments]))


def exit_status(call: Callable[[], Any]) -> int:
    """What a call returns or exits with, as a number; 0 for any other value."""
    try:
        returned = call()
    except SystemExit as end:
        returned = end.code if isinstance(end.code, int | None) else 1
    return returned if isinstance(returned, int) else 0


# runs that pages read, in small: what `make demo` has, characters, and images
COMMANDS = """
lm --preset tiny --train topics.txt --documents paragraph --features cat --samples 0 --out runs/demo
export --run runs/demo --out model.safetensors
lm --preset shakespeare --train input.txt --methods context-mixing --history window:256 --samples 0 \
  --out runs/shakespeare
digits --methods explicit --layers 1 --limit 100 --out runs/shapes
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
        for line in COMMANDS.strip().splitlines():
            name, *arguments = line.split()
            assert run_command(name, [*arguments], patch) == 0, line
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
                    assert run_invocation(found, monkeypatch) == 0, found


def takes_seconds(found: Invocation) -> bool:
    """Whether a command is quick, and its runs are there."""
    return found.whole and found.name in QUICK and all(Path(run).exists() for run in values_of("--run", found.arguments))


def values_of(option: str, arguments: list[str]) -> list[str]:
    """What stands after an option, up to the next one."""
    after = arguments[arguments.index(option) + 1 :] if option in arguments else []
    end = next((n for n, word in enumerate(after) if word.startswith("--")), len(after))
    return after[:end]


def run_invocation(found: Invocation, patch: pytest.MonkeyPatch) -> int:
    """The exit status of a command of a page, with its input and output redirected."""
    with contextlib.ExitStack() as stack:
        if found.stdin:
            patch.setattr(sys, "stdin", stack.enter_context(open(found.stdin)))
        if found.stdout:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(found.stdout, "w"))))
        return run_command(found.name, found.arguments, patch)


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
    if not found.arguments and not found.whole:  # only named
        return "" if found.name in cli.COMMANDS else "no such command"
    capsys.readouterr()
    patch.setattr(command, "_ready", lambda run: lambda config: {})
    if found.name == "harness":  # its flags are those of lm_eval
        patch.setattr(sys, "argv", ["lm_eval", *found.arguments])
        status = exit_status(pytest.importorskip("lm_eval._cli.harness").HarnessCLI().parse_args)
    else:
        given = [CHOSEN.get(word, "2") if re.fullmatch(r"[A-Z][A-Z_]*", word) else word for word in found.arguments]
        status = run_command(found.name, given + ([] if found.whole else required(found.name, given)), patch)
    return " ".join("".join(capsys.readouterr()).split()) if status else ""


def required(name: str, arguments: list[str]) -> list[str]:
    """The flags that a sentence leaves out of a command, and that it needs."""
    kinds = configs(name)
    config, _ = kinds.get(arguments[0], kinds.get("", (None, ())))
    needed = [option_of(flag.name) for flag in flags(config) if flag.value is MISSING] if config else []
    return [word for option in needed if option not in arguments for word in (option, "2")]


def configs(name: str) -> dict[str, tuple[Any, Any]]:
    """subcommand -> its config and presets; "" where a command has none."""
    module = importlib.import_module(cli.COMMANDS[name].module) if name in cli.COMMANDS else None
    if kinds := getattr(module, "COMMANDS", None):
        return {kind: (command.config, command.presets) for kind, command in kinds.items()}
    return {"": (module.Config, getattr(module, "PRESETS", ()))} if module and hasattr(module, "Config") else {}


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_options_without_a_command_are_some_commands():
    kinds = [kind for name in cli.COMMANDS for kind in configs(name).values()]
    names = [flag.name for config, presets in kinds for flag in flags(config, presets=presets)]
    alone = {(page, span) for page in (*PAGES, *MADE) for span in spans(text_of(page)) if span.startswith("--")}
    given = {(page, word.split("=")[0]) for page, span in alone for word in span.split() if word.startswith("--")}
    known = {"--help", "--help-all", *OF_OTHERS, *(option_of(f"{no}{name}") for name in names for no in ("", "no_"))}
    assert len(given) > 50 and "--radius" in known and not {(page, option) for page, option in given if option not in known}


def test_a_wrong_flag_is_found(monkeypatch, capsys):
    for line, error in {
        "launch.networks compare WHAT --out DIR": "",
        "jexplicit lm --epochs 0": "--epochs 0: use at least 1",
        "jexplicit blurr train --out DIR": "no command 'blurr': did you mean blur?",
        "jexplicit harness run --tasks blimp --modell x": "unrecognized arguments: --modell",
        "launch/local.sh 2 --out DIR --radiuss 1": "Unrecognized options: --radiuss",
    }.items():
        (found,) = read_invocation(line, whole=False)
        said = error_of(found, monkeypatch, capsys)
        assert error in said if error else not said, line
