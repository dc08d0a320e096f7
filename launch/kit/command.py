"""The command line of a launcher: flags, presets, and error messages."""

import dataclasses
import errno
import functools
import inspect
import io
import logging
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import tyro
from rich.markup import escape

from jexplicit.runs.bounds import check_bounds, config_of
from jexplicit.runs.files import local_path
from jexplicit.runs.progress import console, end_of_reader, json_line, quiet_output
from jexplicit.runs.results import check_experiment, experiment_of, read_config
from launch.kit.flags import parse
from launch.kit.program import as_started, command_name

C = TypeVar("C")


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


def run_subcommand(commands: Mapping[str, Command], *, description: str, argv: Sequence[str] | None = None) -> int:
    """Parse a command line with a subcommand, and run it."""
    argv, prog = list(sys.argv[1:] if argv is None else argv), command_name()
    name = argv[0].replace("_", "-") if argv else "--help"
    if command := commands.get(name):
        about = {"description": inspect.cleandoc(command.config.__doc__ or ""), "experiment": command.experiment}
        prog = f"{prog} {name}"
        return run_command(command.run, command.config, presets=command.presets, prog=prog, argv=argv[1:], **about)
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
        argv, prog: the arguments and the command; default, those of the process.
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
        if isinstance(error, OSError):
            resume = ", then continue with --resume" * ("resume" in known)
            full = f": make room{resume}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            error = ValueError(f"{error.filename or 'output'} cannot be written or read ({error.strerror or error}){full}")
        of_process = None  # the message of one process of several
        if "jax" in sys.modules:
            from jexplicit.runs.processes import message_of_process

            of_process = message_of_process(error)
        if isinstance(error, RuntimeError) and not of_process:
            raise
        console.quiet = False
        # library arguments as flags of the command: `data_dir=DIR` as `--data-dir DIR`
        flag, said = rf"(?<![\w-])({'|'.join(known)})=(?=\S)", as_started(of_process or str(error))
        said = re.sub(flag, lambda found: f"--{found[1].replace('_', '-')} ", said)
        console.print(f"[bold red]error:[/] {escape(said)}", soft_wrap=True)
        if of_process:  # JAX's exit handler would deadlock with the other processes
            sys.stderr.flush()
            os._exit(2)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted" + "; the same command with --resume continues" * ("resume" in known))
        return 130
    return 0


def _ready(run: Callable[[C], Any] | str) -> Callable[[C], Any]:
    """The function to run, with the compilation cache enabled if its module imports JAX."""
    found: Any = pkgutil.resolve_name(run) if isinstance(run, str) else run
    function = found if callable(found) else getattr(found, "run", None) or found.EXPERIMENT.run
    if "jax" in sys.modules:
        from jexplicit.runs.cache import keep_compiled

        keep_compiled()
    return function


def _defaults(argv: Sequence[str], config: type[C], presets: Mapping[str, Preset], experiment: str) -> C | None:
    """Defaults of flags: the run in --out with --resume, else --preset."""
    out, preset = _value(argv, "--out"), _value(argv, "--preset") if presets else None
    if preset not in (None, *presets):
        raise ValueError(f"preset {preset!r}: choose one of {', '.join(presets)}")
    if resumed := out if "--resume" in argv else None:
        check_experiment(local_path(resumed, "--out"), experiment, "choose another --out")
    if (stored := read_config(resumed) if resumed else None) is None:
        if resumed and "--quiet" not in argv:
            console.print(f"--resume: no run in {resumed}, so that a new one begins", markup=False, soft_wrap=True)
        return presets[preset].config if preset else None
    if set(stored) != {field.name for field in dataclasses.fields(config)}:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"{out} is a run of another subcommand or version: choose another --out")
    return config_of(config, stored, f"restore it in {out}, or choose another --out")


def _value(argv: Sequence[str], flag: str) -> str | None:
    """The value in `flag VALUE` or `flag=VALUE`."""
    found = re.search(rf"(?:^|\0){flag}[=\0]([^\0]+)", "\0".join(argv))
    return found[1] if found else None
