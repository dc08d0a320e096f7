"""The command line of a launcher: flags, presets and errors.

A config is a frozen dataclass. The docstrings of its fields are their help, and the first sentence is the line in `--help`.
A flag's title is its class, or what `GROUPS: ClassVar = {"epochs": "training"}` says of a field and those after it.
"""

import dataclasses
import errno
import functools
import inspect
import io
import itertools
import logging
import os
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro
from rich.markup import escape

from jexplicit.runs import files
from jexplicit.runs.files import NonNegativeInt, check_bounds, local_path, read_config
from jexplicit.runs.progress import console, end_of_reader, json_line, quiet_output

C = TypeVar("C")
_general = "general"
_after_sentence = re.compile(r"(?<=[\w)\]]\.) ")
_alone = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # --quiet without --no-quiet


def command_name() -> str:
    """The command of this process, such as `jexplicit lm`."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.stem == "__main__" else program.stem
    return program.name if program.name.startswith("jexplicit ") else f"jexplicit {name.replace('_', '-')}"


def as_installed(text: str) -> str:
    """A text with commands in the installed form, `jexplicit lm`."""
    return re.sub(r"(?:python -m )?\blaunch\.([a-z]\w*)", lambda found: f"jexplicit {found[1].replace('_', '-')}", text)


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
    """The flags of a config by group, then those common to all."""
    helps, hints, titles = _helps(config), typing.get_type_hints(config, include_extras=True), dict[str, str]()
    for base in reversed(config.__mro__):
        own = base.__name__.startswith("_") or base.__name__.endswith("Config")
        title = "command" if own else re.sub("(?<=[a-z])(?=[A-Z])", " ", base.__name__).lower()
        for name in inspect.get_annotations(base):
            titles[name] = title = vars(base).get("GROUPS", {}).get(name) or titles.get(name, title)
    found = []
    for field in dataclasses.fields(config):
        value = field.default if default is None else getattr(default, field.name)
        found.append(Flag(titles[field.name], field.name, hints[field.name], helps.get(field.name, ""), value))
    order = [flag.group for flag in found]
    found.sort(key=lambda flag: order.index(flag.group))
    if presets := tuple(presets):
        found.append(Flag(_general, "preset", Literal[*presets, None], "Start from the values of a preset above.", None))
    shown = {"quiet": "Print no progress.", "json": "Print the results as one JSON object on standard output."}
    return [*found, *(Flag(_general, name, _alone, text, False) for name, text in shown.items())]


@functools.cache
def _helps(config: type) -> dict[str, str]:
    """Docstrings of the fields of a dataclass, whose first sentence is a line."""
    sources = "\n".join(inspect.getsource(base) for base in reversed(config.__mro__[:-1]))
    found = re.findall(r'^ +(\w+): [^\n]*\n +"""(.*?)"""', sources, re.M | re.S)
    helps = {name: as_installed(" ".join(text.split())) for name, text in found}
    return {name: _after_sentence.sub("\n", text, count=1) for name, text in helps.items()}


def parse(config: type[C], argv: Sequence[str], *, default: C | None, prog: str, description: str, presets: Iterable[str]) -> C:
    """The config of a command line; `--help`, `--help-all` (tyro's) and errors end the process."""
    known = flags(config, default, presets)
    if any(re.match("--radius(=|$)", word) for word in argv):  # of version 0.2
        raise ValueError("--radius: this flag is --context now")
    if {"-h", "--help"} & {*argv}:
        titles = ["", *(flag.group for flag in known)]
        named = [title if title != before else "" for before, title in itertools.pairwise(titles)]
        lines = [f"{title:14}{_short_help(flag)}" for title, flag in zip(named, known, strict=True)]
        print(f"usage: {prog} [OPTIONS]", description.replace("\n\n", "\n"), "", *lines, sep="\n")
        raise SystemExit(0)
    hints = [Annotated[flag.hint, tyro.conf.arg(help=flag.help)] for flag in known]
    fields = [(flag.name, hint, dataclasses.field(default=flag.value)) for flag, hint in zip(known, hints, strict=True)]
    kind = dataclasses.make_dataclass(config.__name__, fields, kw_only=True, frozen=True)
    given = ["--help" if word == "--help-all" else word for word in argv]
    found: Any = tyro.cli(kind, prog=prog, args=given, description=description, config=(tyro.conf.HelptextFromCommentsOff,))
    return config(**{field.name: getattr(found, field.name) for field in dataclasses.fields(config)})  # pyright: ignore[reportArgumentType]


def _short_help(flag: Flag) -> str:
    """One line on a flag: its first sentence, choices and default."""
    given = flag.value if isinstance(flag.value, tuple) else (flag.value,)
    value = "required" if flag.value is MISSING else " ".join(str(one) for one in given if one not in (None, False))
    placed = tyro.conf.Positional[Any].__metadata__[0] in getattr(flag.hint, "__metadata__", ())
    name, hint = (flag.name.upper(), flag.hint.__origin__) if placed else (f"--{flag.name.replace('_', '-')}", flag.hint)
    choices = "|".join(map(str, typing.get_args(hint))) if typing.get_origin(hint) is Literal else ""
    text = flag.help.partition("\n")[0] + f" {choices}" * bool(choices) + f" ({value})" * bool(value)
    return f"{name:20} {text}"


def run_subcommand(commands: Mapping[str, Command], argv: Sequence[str] | None = None, *, description: str) -> int:
    """Parse a command line with a subcommand, and run it."""
    argv, prog = list(sys.argv[1:] if argv is None else argv), command_name()
    name = argv[0].replace("_", "-") if argv else "--help"
    if command := commands.get(name):
        about = {"presets": command.presets, "prog": f"{prog} {name}", "experiment": command.experiment}
        return entry_point(command.run, command.config, command.config.__doc__, **about)(argv[1:])
    if name in ("-h", "--help", "--help-all"):
        lines = [f"  {name:15} {command.config.__doc__.splitlines()[0]}" for name, command in commands.items()]
        print(f"usage: {prog} COMMAND [OPTIONS]", as_installed(description).strip(), "\n".join(lines), sep="\n\n")
        return 0
    console.print(f"[bold red]error:[/] {prog} {escape(name)}: choose one of {', '.join(commands)}", soft_wrap=True)
    return 2


def entry_point(
    run: Callable[[C], Any] | str,
    config: type[C],
    description: str | None,
    presets: Mapping[str, Preset] = types.MappingProxyType({}),
    *,
    module: str = "",
    prog: str = "",
    experiment: str | None = None,
) -> Callable[..., int]:
    """`main(argv=None)` of a command; it parses the flags, runs, and returns the status.

    run: prints by `jexplicit.runs.progress.show`, and returns a dict for `--json`. Or the name `module:NAME` of a function or
    an experiment, imported after the flags are parsed. module: where it is the program, the process ends with the status.
    experiment: the name in config.json; default, the launcher's.
    """
    known = [field.name for field in dataclasses.fields(config)]  # pyright: ignore[reportArgumentType]

    def call(argv: list[str]) -> None:
        default = _defaults(argv, config, presets, experiment or files.experiment_of(config))
        about = re.sub(r"\n(?=jexplicit )", "\n  ", as_installed(inspect.cleandoc(description or "")))  # lines of their own
        if presets:
            about += "\nPresets, whose values other flags override:"
            for name, (_, note) in presets.items():
                about += f"\n  --preset {name}: {note if '--help-all' in argv else _after_sentence.split(note)[0]}"
        chosen = parse(config, argv, default=default, prog=prog or command_name(), description=about, presets=presets)
        check_bounds(chosen)
        if (out := getattr(chosen, "out", None)) is not None:
            local_path(out, "--out")  # checked before any work
        with quiet_output(progress="--quiet" in argv, results="--json" in argv):
            found = _ready(run)(chosen)
        if "--json" in argv:
            print(json_line(found))
        if sys.stdout:  # None if closed from the start
            sys.stdout.flush()

    def main(argv: Sequence[str] | None = None) -> int:
        logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # results of long work are shown in any encoding
        try:
            call(list(sys.argv[1:] if argv is None else argv))
        except BrokenPipeError:
            end_of_reader()
        except (ValueError, FloatingPointError, RuntimeError, OSError) as error:
            return _refused(error, known)
        except KeyboardInterrupt:
            console.print("interrupted" + "; the same command with --resume continues" * ("resume" in known))
            return 130
        return 0

    if module == "__main__":
        sys.exit(main())
    return main


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
    flag, said = rf"(?<![\w-])({'|'.join(known)})=(?=\S)", as_installed(of_process or str(error))
    said = re.sub(flag, lambda found: f"--{found[1].replace('_', '-')} ", said)
    console.print(f"[bold red]error:[/] {escape(said)}", soft_wrap=True)
    if of_process:  # JAX's exit handler would deadlock with the other processes
        sys.stderr.flush()
        os._exit(2)
    return 2


def _ready(run: Callable[[C], Any] | str) -> Callable[[C], Any]:
    """The function to run, imported where it is named."""
    found: Any = pkgutil.resolve_name(run) if isinstance(run, str) else run
    return getattr(found, "run", found)


def _defaults(argv: Sequence[str], config: type[C], presets: Mapping[str, Preset], experiment: str) -> C | None:
    """Defaults of flags: the run in --out with --resume, else --preset."""
    words = "\0".join(argv)
    given = (re.search(rf"(?:^|\0){flag}[=\0]([^\0]+)", words) for flag in ("--out", "--preset"))
    out, preset = (found and found[1] for found in given)
    if presets and preset not in (None, *presets):
        raise ValueError(f"preset {preset!r}: choose one of {', '.join(presets)}")
    stored = None
    if out and "--resume" in argv:
        files.check_experiment(local_path(out, "--out"), experiment, "choose another --out")
        stored = read_config(out)
        if stored is None and "--quiet" not in argv:
            console.print(f"--resume: no run in {out}, so that a new one begins", markup=False, soft_wrap=True)
    if stored is None:
        return presets[preset].config if presets and preset else None
    if set(stored) != {field.name for field in dataclasses.fields(config)}:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"{out} is a run of another subcommand or version: choose another --out")
    return files.config_of(config, stored, f"restore it in {out}, or choose another --out")


# Flags that several commands share


@dataclass(frozen=True)
class Run:
    """The folder of a run, its seed, and whether it continues an earlier one."""

    out: str
    """Run folder to write. It gets config, results, metrics, figures, report.md and the models."""
    seed: NonNegativeInt = 0
    """Seed of every random choice."""
    resume: bool = False
    """Continue the interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class Images:
    """Labelled images."""

    data: str = "digits"
    """Image data set: digits (8x8, of scikit-learn), mnist or another name in --data-dir, or a path, such as ./shapes."""
    data_dir: str | None = None
    """Folder of train/LABEL and test/LABEL, of LABEL alone, or of idx files under MNIST's names; or an .npz file with x_train,
    y_train, x_test and y_test. Default: the folder named after the data set in $JEXPLICIT_DATA_DIR."""
