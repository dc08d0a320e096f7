"""The command line of a launcher: flags, presets and errors; groups of flags.

A config is a frozen dataclass. The docstrings of its fields are their help, of which the first sentence is the one-line help.
`GROUPS: ClassVar = {"out": "run", "epochs": "training"}` maps the first field of a group to its title.
"""

import ast
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
import shlex
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import tyro
from rich.markup import escape

from jexplicit.data.text import Unit, is_input
from jexplicit.lm.names import Features, History, Method
from jexplicit.runs.files import (
    NonNegativeInt,
    PositiveInt,
    check_bounds,
    check_experiment,
    config_of,
    experiment_of,
    local_path,
    read_config,
    refuses,
)
from jexplicit.runs.progress import console, end_of_reader, json_line, quiet_output

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel

C = TypeVar("C")
_general = "general"
_alone = Annotated[bool, tyro.conf.FlagCreatePairsOff]  # --quiet without --no-quiet


def command_name() -> str:
    """The command of this process, such as `jexplicit lm`."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.stem == "__main__" else program.stem
    return program.name if program.name.startswith("jexplicit ") else f"jexplicit {name.replace('_', '-')}"


def as_installed(text: str) -> str:
    """A text with commands in the installed form, `jexplicit lm`."""
    return re.sub(r"(python -m )?\blaunch\.(?=[a-z])", "jexplicit ", text)


def as_typed(text: str) -> str:
    """`as_installed` for copying, with the path of `jexplicit` if needed."""
    beside = Path(sys.executable).with_name("jexplicit")
    path = "jexplicit" if shutil.which("jexplicit") or not beside.exists() else shlex.quote(os.path.relpath(beside))
    return as_installed(text).replace("jexplicit ", f"{path} ")


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
    helps, hints = _helps(config), typing.get_type_hints(config, include_extras=True)
    titles = {name: title for base in reversed(config.__mro__) for name, title in vars(base).get("GROUPS", {}).items()}
    found, title = [], "command"
    for field in dataclasses.fields(config):
        title = titles.get(field.name, title)
        value = field.default if default is None else getattr(default, field.name)
        found.append(Flag(title, field.name, hints[field.name], helps.get(field.name, ""), value))
    order = [flag.group for flag in found]
    found.sort(key=lambda flag: order.index(flag.group))
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
        for field, text in itertools.pairwise(typing.cast(ast.ClassDef, body).body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(written))):
                    helps[name] = re.sub(r"(?<=[a-z)\]]\.) ", "\n", as_installed(" ".join(written.split())), count=1)
    return helps


def parse(config: type[C], argv: Sequence[str], *, default: C | None, prog: str, description: str, presets: Iterable[str]) -> C:
    """The config of a command line; `--help`, `--help-all` (tyro's) and errors end the process."""
    known = flags(config, default, presets)
    if {"-h", "--help"} & {*argv}:
        titles = ["", *(flag.group for flag in known)]
        named = [title if title != before else "" for before, title in itertools.pairwise(titles)]
        lines = [f"{title:13}{_short_help(flag)}" for title, flag in zip(named, known, strict=True)]
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

    run: called with the config; it prints by `jexplicit.runs.progress.show` and returns a dict for `--json`. Or the name of a
    module with a function `run` or an EXPERIMENT, or `module:NAME` of an experiment, imported after the arguments are parsed:
    `--help` does not import JAX. module: where it is the program, the process ends with the status. experiment: the name in
    config.json; default, the launcher that defines the config.
    """
    known = [field.name for field in dataclasses.fields(config)]  # pyright: ignore[reportArgumentType]

    def call(argv: list[str]) -> None:
        default = _defaults(argv, config, presets, experiment or experiment_of(config))
        about = re.sub(r"\n(?=jexplicit )", "\n  ", as_installed(inspect.cleandoc(description or "")))  # lines of their own
        if presets:
            end = "\0" if "--help-all" in argv else ". "
            names = [f"\n  --preset {name}: {preset.note.partition(end)[0]}" for name, preset in presets.items()]
            about += "\nPresets, whose values other flags override:" + "".join(names)
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


# Flags that several commands share, and the models that they choose


@dataclass(frozen=True, kw_only=True)
class ModelChoices:
    """Which models of runs: all that have one of the values of each flag."""

    GROUPS: ClassVar = {"method": "model"}

    method: tuple[Method | str, ...] = ()
    """Methods that fitted the models. Default: of a run, the model with the lowest dev perplexity, if one is wanted."""
    features: tuple[Features, ...] = ()
    """How the models combine context tokens: sum, cat or both."""
    radius: tuple[int, ...] = ()
    """Context lengths K of the models, in tokens."""
    history: tuple[History, ...] = ()
    """The models' --history: none, document, window:W, all, adaptive or adaptive:document."""


@dataclass(frozen=True, kw_only=True)
class ModelChoice(ModelChoices):
    """Which model of a run: the best on dev of those that match."""

    GROUPS: ClassVar = {"run": "model"}

    run: str
    """Run folder, exported file, or .arpa file.
    Runs of launch.lm and launch.networks have models; tokens of .arpa and .arpa.gz files are separated by white space."""


def load_choice(config: ModelChoice, text: str = "") -> "TextModel":
    """The chosen model, with unknown symbols of a text named."""
    from jexplicit.lm.text_model import model_name

    (saved,) = load_choices(config.run, config, best=True)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    if unknown := saved.tokenizer.unknown_symbols(text):
        seen = escape(repr([f"{symbol[:40]}..." if len(symbol) > 40 else symbol for symbol in unknown]))
        console.print(f"[yellow]warning:[/] the model has never seen {seen} and reads <unk> there", soft_wrap=True)
    return saved


def load_choices(run: str, choices: ModelChoices, *, best: bool = False) -> Iterator["TextModel"]:
    """The chosen models of a run or export; `best`: the best on dev."""
    from jexplicit.lm.text_model import load_model, load_row, model_rows

    wanted = {f.name: getattr(choices, f.name) for f in dataclasses.fields(ModelChoices) if getattr(choices, f.name)}
    if not is_input(run):
        rows = model_rows(run, **wanted)
        yield from (load_row(run, row) for row in (sorted(rows, key=lambda row: row["dev_perplexity"])[:1] if best else rows))
        return
    about = (saved := load_model(run)).about
    if other := [f"{name} {about.get(name)}" for name, values in wanted.items() if about.get(name) not in values]:
        remedy = f"leave out --{', --'.join(wanted)}, or give its run folder"
        raise ValueError(f"{run} holds one model, with {', '.join(other)}: {remedy}")
    yield saved


def visible(piece: str) -> str:
    """A token for tables and figures, with line breaks escaped.

    Example:
        >>> print(visible("\\n"), visible("▁the"))
        \\n ▁the
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)


@dataclass(frozen=True)
class Run:
    """The folder of a run, its seed, and whether it continues an earlier one."""

    GROUPS: ClassVar = {"out": "run"}

    out: str
    """Run folder to write. It gets config, results, metrics, figures, report.md and the models."""
    seed: NonNegativeInt = 0
    """Seed of every random choice."""
    resume: bool = False
    """Continue the interrupted run in --out, with its own configuration."""


@dataclass(frozen=True)
class Images:
    """Labelled images."""

    GROUPS: ClassVar = {"data": "images"}

    data: str = "digits"
    """Image data set. digits: the 8x8 digits of scikit-learn. mnist, fashion_mnist, or any name: the files in --data-dir. A
    path, such as ./shapes or mnist.npz: the files there."""
    data_dir: str | None = None
    """Folder or file of images, which become grey. It is a folder of train/LABEL and test/LABEL, or of LABEL alone; a folder of
    idx files with MNIST's file names, gzipped or not; or an .npz file with the arrays x_train, y_train, x_test, y_test.
    Default: the folder named after the data set in $JEXPLICIT_DATA_DIR."""


@dataclass(frozen=True, kw_only=True)
class Files:
    """Which text is read."""

    GROUPS: ClassVar = {"train": "text"}

    train: tuple[str, ...] = ()
    """Training text: files, pipes, globs or folders of plain text or records. Files may be compressed; see --field."""
    dev: tuple[str, ...] = ()
    """Validation text. Default: every tenth block of ten training documents."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    GROUPS: ClassVar = {"field": "text"}

    field: str | None = None
    """Field with the text, for records. Their files are .jsonl, .json, .csv, .tsv and .parquet."""
    documents: Unit = "line"
    """Unit of a document in plain text. line: every line that is not blank. paragraph: lines between blank lines. file: each
    file."""


@dataclass(frozen=True, kw_only=True)
class Text(Reading, Files):
    """Which text is read, and what its tokens are."""

    tokenizer: str = "bpe"
    """Kind of tokens: bpe, word, char, or the FILE of a tokenizer. bpe: subwords. word: words between white space. char:
    characters. Or FILE, an existing tokenizer: another run's folder or its tokenizer.model, or any SentencePiece model."""
    vocab_size: PositiveInt | None = None
    """Vocabulary size, <pad> and <unk> included. Default: 4098 = 2^12 + 2; with --tokenizer char, every character."""


@refuses
def check_text(config: Any) -> Iterator[tuple[Any, str]]:
    """Refuse text flags that exclude each other, and missing tokenizers."""
    from jexplicit.data.tokenizers import KINDS, make_tokenizer  # local import: --help does not need NumPy

    train = bool(config.train)
    yield train and config.corpus not in ("docs", "text"), f"--train with --corpus {config.corpus}: give one of the two"
    yield config.corpus == "text" and not train, "--corpus text without --train: name the training files, --train FILES"
    yield config.dev and not train, f"--dev with --corpus {config.corpus}: dev files go with --train FILES"
    if config.tokenizer not in KINDS:
        make_tokenizer(config.tokenizer, [], config.vocab_size)
    unread = "without --train: it says how the files of --train and --dev are read"
    files = train or bool(getattr(config, "test", ()))
    yield not files and config.field is not None, f"--field {config.field} {unread}"
    yield not files and config.documents != "line", f"--documents {config.documents} {unread}"
