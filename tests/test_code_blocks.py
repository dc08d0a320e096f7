"""Code that the pages show: blocks of Python run, commands that take seconds run, and the flags of all commands are parsed."""

import contextlib
import functools
import importlib
import json
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, Literal, get_args, get_origin

import jax
import jaxtyping
import numpy as np
import pytest
from pages import PAGES, Block, Invocation, block_invocations, blocks, invocations, read_invocation, read_page, spans
from PIL import Image

from launch import cli
from launch.kit import command
from launch.kit.flags import flags
from launch.kit.program import as_installed

QUICK = ("sample", "score", "next", "explain", "export", "compare", "classify", "cache")
MADE = {f"commands/{name}.md": name for name in cli.COMMANDS}  # the docstrings of commands
WITH_CODE = [page for page, path in PAGES.items() if re.search(r"```(python|sh)$", read_page(path), re.M)]
CHOSEN = {"WHAT": "dropout", "NAME": "tiny"}  # words in capitals where a name is chosen; "2" elsewhere, a file and a number
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
        patch.setenv("JEXPLICIT_CACHE_DIR", str(folder / "cache"))
        for line in COMMANDS.strip().splitlines():
            name, *arguments = line.split()
            assert run_command(name, [*arguments], patch) == 0, line
    shutil.copytree(folder / "runs" / "demo", folder / "runs" / "mine")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [*WITH_CODE, *(page for page, name in MADE.items() if name in QUICK)])
def test_the_blocks_of_a_page_run(page, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(shown, tmp_path / "shown"))
    monkeypatch.setenv("JEXPLICIT_CACHE_DIR", str(tmp_path / "shown" / "cache"))
    monkeypatch.setattr("pydoc_data.topics.topics", SHORT)
    module = types.ModuleType("page_" + re.sub(r"\W", "_", page))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with plain_jax(optimised=page in COMPUTING):
        for block in blocks(text_of(page)):
            if block.language == "python":
                run_python(block, page, module)
            elif block.language == "sh":
                for found in filter(takes_seconds, block_invocations(block)):
                    assert run_invocation(found, monkeypatch) == 0, f"{page}:{found.line}"


def run_python(block: Block, page: str, module: types.ModuleType) -> None:
    """Run a block of Python; a traceback shows the lines of the page."""
    exec(compile("\n" * (block.line - 1) + block.text, str(PAGES[page]), "exec"), module.__dict__)


def takes_seconds(found: Invocation) -> bool:
    """Whether a command is quick, and its runs are there."""
    quick = found.name in QUICK
    return found.whole and quick and all(Path(run).exists() for run in values_of("--run", found.arguments))


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


KEPT = re.compile(
    r"<!-- (table|commands): .*?<!-- /\1 -->", re.S
)  # of results: commands as they ran, maybe of earlier versions


def test_the_commands_of_pages_have_flags_that_exist(monkeypatch, capsys):
    wrong: dict[tuple[str, ...], str] = {}  # command -> what it says, once where several pages have it
    for page in (*PAGES, *MADE):
        for found in invocations(KEPT.sub(lambda kept: "\n" * kept[0].count("\n"), text_of(page))):
            command = (found.name, *found.arguments, str(found.whole))
            if command not in wrong:
                error = error_of(found, monkeypatch, capsys)
                wrong[command] = f"{page}:{found.line}: {found.name} {' '.join(found.arguments)}: {error}" if error else ""
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


@functools.cache
def options() -> dict[str, list[Any]]:
    """Every option of every command -> the types that it has."""
    found: dict[str, list[Any]] = {"--help": [bool]}
    for name in cli.COMMANDS:
        for config, presets in configs(name).values():
            for flag in flags(config, presets=presets):
                found.setdefault(option_of(flag.name), []).append(flag.hint)
                found.setdefault(option_of(f"no_{flag.name}"), []).append(flag.hint)
    return found


def test_options_without_a_command_are_some_commands():
    alone = [(page, *span) for page in (*PAGES, *MADE) for span in spans(text_of(page)) if span[1].startswith("--")]
    wrong = [f"{page}:{line}: {span}" for page, line, span in alone if not is_known(span.split())]
    assert alone and not wrong, "\n".join(wrong)


def is_known(words: list[str]) -> bool:
    """Whether every option is one of some command, and takes the values that stand after it."""
    given = [word for word in words if word.startswith("--") and word.split("=")[0] not in OF_OTHERS]
    return all(option in options() and has_values(option, values_of(option, words)) for option in given)


def has_values(option: str, values: list[str]) -> bool:
    """Whether the values are choices of the option; placeholders are, and all of an option that takes any value."""
    parts = {part for value in values for part in value.strip("{}").split(",")}
    chosen = {part for part in parts if not re.fullmatch(r"[A-Z][A-Z_]*|\.\.\.", part)}
    return any(allowed is None or chosen <= allowed for allowed in map(choices, options()[option]))


def choices(hint: Any) -> set[str] | None:
    """The values that a type chooses from; None where it takes others, too.

    Example:
        >>> choices(tuple[Literal["sum", "cat"], ...]) == {"sum", "cat"}, choices(Literal["sum"] | int)
        (True, None)
    """
    if get_origin(hint) is Literal:
        return {str(value) for value in get_args(hint)}
    found: set[str] = set()
    for part in get_args(hint):
        if part not in (..., type(None)):
            if (inner := choices(part)) is None:
                return None
            found |= inner
    return found or None


LINES = {
    "jexplicit lm --preset tiny --radius 1 2 --train FILES": "",
    "launch.networks compare WHAT --out DIR": "",
    "jexplicit lm --radiuss 1": "Unrecognized options: --radiuss",
    "jexplicit lm --epochs 0": "--epochs 0: use at least 1",
    "jexplicit blurr train --out DIR": "no command 'blurr': did you mean blur?",
    "jexplicit harness run --tasks blimp --modell x": "unrecognized arguments: --modell",
    "launch/local.sh 2 --out DIR --radiuss 1": "Unrecognized options: --radiuss",
}


def test_a_wrong_flag_is_found(monkeypatch, capsys):
    for line, error in LINES.items():
        (found,) = read_invocation(line, 1, whole=False)
        said = error_of(found, monkeypatch, capsys)
        assert error in said if error else not said, line


def test_a_wrong_option_without_a_command_is_found():
    assert is_known([*"--features cat --radius 4 --preset tiny --methods A B".split()])
    assert not any(is_known([*wrong.split()]) for wrong in ("--featuress cat", "--features {sum,dog}", "--preset huge"))


def test_a_command_of_a_block_is_whole_and_is_read_with_its_redirections():
    lines = ["a", "", "```sh", "jexplicit score \\", "  --run DIR --text - < essay.txt > out.jsonl  # to a file"]
    text = "\n".join([*lines, "jexplicit lm ... --out DIR", "```", ""])
    first, second = invocations(text)
    assert first == Invocation("score", ["--run", "DIR", "--text", "-"], 4, True, "essay.txt", "out.jsonl")
    assert second == Invocation("lm", ["--out", "DIR"], 6, False)
