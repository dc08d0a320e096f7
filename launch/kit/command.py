"""The command line of a launcher: flags of a config, presets, and error messages.

    @dataclass(frozen=True)
    class Config:
        GROUPS: ClassVar = {"out": "run", "epochs": "training"}

        epochs: int = 32
        \"\"\"Maximum number of passes over the data. Training stops earlier with --patience.\"\"\"

GROUPS maps the first field of a group to its title. The first sentence of a field's docstring is its help in one line.
"""

import ast
import dataclasses
import errno
import functools
import inspect
import io
import logging
import os
import pkgutil
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro
from rich.markup import escape

from jexplicit.runs.bounds import check_bounds, config_of
from jexplicit.runs.files import check_experiment, experiment_of, local_path, read_config
from jexplicit.runs.progress import console, end_of_reader, json_line, quiet_output

C = TypeVar("C")
_first_group, _general = "command", "general"
_flat = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)  # --epochs, not --training.epochs
_alone = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # --quiet without --no-quiet


def command_name() -> str:
    """The command of this process: `python -m launch.lm` or `jexplicit lm`."""
    program = Path(sys.argv[0])
    if program.name.startswith("jexplicit "):
        return program.name
    return f"python -m launch.{program.parent.name if program.stem == '__main__' else program.stem}"


def as_installed(text: str) -> str:
    """A text with commands in the installed form, `jexplicit lm`."""
    return re.sub(r"(python -m )?\blaunch\.(?=[a-z])", "jexplicit ", text)


def as_started(text: str) -> str:
    """A text with commands in this process's form."""
    return as_installed(text) if command_name().startswith("jexplicit ") else text


def as_typed(text: str) -> str:
    """`as_started` for copying, with the path of this Python if needed."""
    python = sys.executable if shutil.which("python") != sys.executable else "python"
    return as_started(text).replace("python -m", f"{min(python, os.path.relpath(python), key=len)} -m")


class Preset(NamedTuple):
    """A named config, and a note on hardware, time and expected numbers."""

    config: Any
    note: str


class Command(NamedTuple):
    """A subcommand: config, function, presets, and name in config.json."""

    config: Any
    run: Callable[[Any], Any] | str
    presets: Mapping[str, Preset] = {}
    experiment: str | None = None


class Flag(NamedTuple):
    """A flag: group, field, type, help, default (MISSING if required)."""

    group: str
    name: str
    hint: Any
    help: str
    value: Any


def flags(config: Any, default: Any = None, presets: Iterable[str] = ()) -> list[Flag]:
    """The flags of a config in order, then those common to all."""
    helps, hints = _helps(config), typing.get_type_hints(config, include_extras=True)
    titles = {name: title for base in reversed(config.__mro__) for name, title in vars(base).get("GROUPS", {}).items()}
    found, title = [], _first_group
    for field in dataclasses.fields(config):
        title = titles.get(field.name, title)
        value = field.default if default is None else getattr(default, field.name)
        found.append(Flag(title, field.name, hints[field.name], helps.get(field.name, ""), value))
    if presets := tuple(presets):
        found.append(Flag(_general, "preset", Literal[*presets, None], "Start from the values of a preset above.", None))
    shown = {"quiet": "Print no progress.", "json": "Print the results as one JSON object on standard output."}
    return [*found, *(Flag(_general, name, _alone, text, False) for name, text in shown.items())]


@functools.cache
def _helps(config: type) -> dict[str, str]:
    """Docstrings of the fields of a dataclass and its bases."""
    helps = {}
    for base in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        statements = typing.cast(ast.ClassDef, body).body
        for field, text in zip(statements, statements[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(written))):
                    helps[name] = re.sub(r"(?<=[a-z)\]]\.) ", "\n", " ".join(written.split()), count=1)
    return helps


def parse(config: type[C], argv: Sequence[str], *, default: C | None, prog: str, description: str, presets: Iterable[str]) -> C:
    """The config of a command line; `--help`, `--help-all` (tyro's) and errors end the process."""
    known = flags(config, default, presets)
    if {"-h", "--help"} & {*argv}:
        print(f"usage: {prog} [OPTIONS]\n\n{description}\n\n{short_help(known)}")
        raise SystemExit(0)
    given = ["--help" if word == "--help-all" else word for word in argv]
    fields: dict[str, list[Any]] = {}  # of a dataclass for each group
    for flag in known:
        hint = Annotated[flag.hint, tyro.conf.arg(help=as_started(flag.help))]
        fields.setdefault(flag.group, []).append((flag.name, hint, dataclasses.field(default=flag.value)))
    parts = [(title, dataclasses.make_dataclass(title, own, kw_only=True, frozen=True)) for title, own in fields.items()]
    kind = dataclasses.make_dataclass(config.__name__, parts, frozen=True)
    groups: Any = tyro.cli(kind, prog=prog, args=given, description=description, config=_flat)
    values = {name: value for group in vars(groups).values() for name, value in vars(group).items()}
    return config(**{field.name: values[field.name] for field in dataclasses.fields(config)})  # pyright: ignore[reportArgumentType]


def short_help(found: Sequence[Flag]) -> str:
    """A line for each flag; groups that begin after 20 flags are only named."""
    lines, named, count = [], [], 0
    for group in dict.fromkeys(flag.group for flag in found):
        own = [flag for flag in found if flag.group == group]
        if count >= 20 and group != _general:
            named += [f"--{flag.name.replace('_', '-')}" for flag in own]
            continue
        lines, count = [*lines, f"{group}:"], count + len(own)
        for flag in own:
            given = flag.value if isinstance(flag.value, tuple) else (flag.value,)
            value = "required" if flag.value is MISSING else " ".join(str(one) for one in given if one not in (None, False))
            choices = "|".join(map(str, typing.get_args(flag.hint))) if typing.get_origin(flag.hint) is Literal else ""
            text = as_started(flag.help.partition("\n")[0]) + f" {choices}" * bool(choices) + f" ({value})" * bool(value)
            lines.append(f"  --{flag.name.replace('_', '-'):18} {text}")
    more = ["--help-all explains all flags", *["also", *named] * bool(named)]
    return "\n".join([*lines, textwrap.fill(" ".join(more), 110, break_on_hyphens=False)])


def run_subcommand(commands: Mapping[str, Command], argv: Sequence[str] | None = None, *, description: str) -> int:
    """Parse a command line with a subcommand, and run it."""
    argv, prog = list(sys.argv[1:] if argv is None else argv), command_name()
    name = argv[0].replace("_", "-") if argv else "--help"
    if command := commands.get(name):
        about = {"description": inspect.cleandoc(command.config.__doc__ or ""), "experiment": command.experiment}
        return run_command(command.run, command.config, presets=command.presets, prog=f"{prog} {name}", argv=argv[1:], **about)
    if name in ("-h", "--help", "--help-all"):
        kinds = {name: command.config for name, command in commands.items()}
        about = f"{description.splitlines()[0]}\n\n`{prog} COMMAND --help` explains the flags of a command."
        tyro.extras.subcommand_cli_from_dict(kinds, args=["--help"], prog=prog, description=about)  # ends the process
    console.print(f"[bold red]error:[/] {prog} {escape(name)}: choose one of {', '.join(commands)}", soft_wrap=True)
    return 2


def entry_point(
    run: Callable[[C], Any] | str, config: type[C], description: str | None, presets: Mapping[str, Preset] | None = None
) -> Callable[..., int]:
    """`main(argv=None)` of a command's module; see `run_command`."""
    return functools.partial(run_command, run, config, presets=presets, description=description or "")


def run_command(
    run: Callable[[C], Any] | str,
    config: type[C],
    argv: Sequence[str] | None = None,
    *,
    presets: Mapping[str, Preset] | None = None,
    prog: str | None = None,
    description: str,
    experiment: str | None = None,
) -> int:
    """Parse the command line into a config and run it.

    `--preset NAME` sets the defaults of the flags; `--resume` with `--out DIR` takes them from that run. Numbers outside their
    bounds, and an `--out` that is not a local path, are refused before anything runs. A ValueError or a FloatingPointError
    becomes one line on the terminal and exit status 2; Ctrl-C prints how to resume.

    Args:
        run: called with the config; it prints by `jexplicit.runs.progress.show` and returns a dict for `--json`. Or the name of
            a module with a function `run` or an EXPERIMENT, or `module:NAME` of an experiment, imported after the arguments are
            parsed, so that `--help` does not import JAX.
        config: a frozen dataclass whose field docstrings become `--help`.
        experiment: the name in config.json; default, the launcher that defines the config.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # results of long work are shown in any encoding
    argv = list(sys.argv[1:] if argv is None else argv)
    prog, presets, whole = prog or command_name(), presets or {}, "--help-all" in argv
    known = [field.name for field in dataclasses.fields(config)]  # pyright: ignore[reportArgumentType]
    description = as_started(description).replace(f"\n{prog}", f"\n  {prog}")  # --help joins lines that are not indented
    if presets:
        notes = {name: preset.note if whole else preset.note.partition(". ")[0] for name, preset in presets.items()}
        names = "\n".join(f"  --preset {name}: {note}" for name, note in notes.items())
        description = f"{description}\nPresets, whose values other flags override:\n{names}"
    quiet, as_json = "--quiet" in argv, "--json" in argv
    try:
        default = _defaults(argv, config, presets, experiment or experiment_of(config))
        chosen = parse(config, argv, default=default, prog=prog, description=description, presets=presets)
        check_bounds(chosen)
        if (out := getattr(chosen, "out", None)) is not None:
            local_path(out, "--out")  # checked before any work
        with quiet_output(progress=quiet, results=as_json):
            found = _ready(run)(chosen)
        if as_json:
            print(json_line(found))
        if sys.stdout:  # None if closed from the start
            sys.stdout.flush()
    except BrokenPipeError:
        end_of_reader()
    except (ValueError, FloatingPointError, RuntimeError, OSError) as error:
        return _refused(error, known)
    except KeyboardInterrupt:
        console.print("interrupted" + "; the same command with --resume continues" * ("resume" in known))
        return 130
    return 0


def _refused(error: Exception, known: Sequence[str]) -> int:
    """Print an error of a command with these fields in one line."""
    if isinstance(error, OSError):
        full = ": make room" + ", then continue with --resume" * ("resume" in known)
        full *= error.errno in (errno.ENOSPC, errno.EDQUOT)
        error = ValueError(f"{error.filename or 'output'} cannot be written or read ({error.strerror or error}){full}")
    of_process = None  # the message of one process of several
    if "jax" in sys.modules:
        from jexplicit.runs.devices import message_of_process

        of_process = message_of_process(error)
    if isinstance(error, RuntimeError) and not of_process:
        raise error
    console.quiet = False
    # library arguments as flags of the command: `data_dir=DIR` as `--data-dir DIR`
    flag, said = rf"(?<![\w-])({'|'.join(known)})=(?=\S)", as_started(of_process or str(error))
    said = re.sub(flag, lambda found: f"--{found[1].replace('_', '-')} ", said)
    console.print(f"[bold red]error:[/] {escape(said)}", soft_wrap=True)
    if of_process:  # JAX's exit handler would deadlock with the other processes
        sys.stderr.flush()
        os._exit(2)
    return 2


def _ready(run: Callable[[C], Any] | str) -> Callable[[C], Any]:
    """The function to run, imported where it is named."""
    found: Any = pkgutil.resolve_name(run) if isinstance(run, str) else run
    return found if callable(found) else getattr(found, "run", None) or found.EXPERIMENT.run


def _defaults(argv: Sequence[str], config: type[C], presets: Mapping[str, Preset], experiment: str) -> C | None:
    """Defaults of flags: the run in --out with --resume, else --preset."""
    words = "\0".join(argv)
    out, preset = (found[1] if (found := re.search(rf"(?:^|\0){flag}[=\0]([^\0]+)", words)) else None for flag in _read_first)
    if presets and preset not in (None, *presets):
        raise ValueError(f"preset {preset!r}: choose one of {', '.join(presets)}")
    if resumed := out if "--resume" in argv else None:
        check_experiment(local_path(resumed, "--out"), experiment, "choose another --out")
    if (stored := read_config(resumed) if resumed else None) is None:
        if resumed and "--quiet" not in argv:
            console.print(f"--resume: no run in {resumed}, so that a new one begins", markup=False, soft_wrap=True)
        return presets[preset].config if presets and preset else None
    if set(stored) != {field.name for field in dataclasses.fields(config)}:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"{out} is a run of another subcommand or version: choose another --out")
    return config_of(config, stored, f"restore it in {out}, or choose another --out")


_read_first = ("--out", "--preset")  # flags that decide on the defaults of others
