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
import logging
import os
import pkgutil
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import tyro
from rich.markup import escape

from jexplicit.data.corpora import Unit
from jexplicit.data.inputs import is_input
from jexplicit.lm.names import Features, History, Method
from jexplicit.runs.bounds import NonNegativeInt, PositiveInt, check_bounds, config_of, refuses
from jexplicit.runs.files import check_experiment, experiment_of, local_path, read_config
from jexplicit.runs.progress import console, end_of_reader, json_line, quiet_output

if TYPE_CHECKING:
    from jexplicit.lm.text_model import TextModel

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
        print(f"usage: {prog} [OPTIONS]\n\n{description}\n\n{_short_help(known)}")
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


def _short_help(found: Sequence[Flag]) -> str:
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
    run: Any,
    config: Any,
    description: str | None,
    presets: Mapping[str, Preset] | None = None,
    *,
    module: str = "",
    **about: Any,
) -> Callable[..., int]:
    """`main(argv=None)` of a command; ends the process where its module is the program.

    module: its `__name__`. The other arguments are those of `run_command`.
    """
    main = functools.partial(run_command, run, config, presets=presets, description=description or "", **about)
    if module == "__main__":
        sys.exit(main())
    return main


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

    An error is one line, and the exit status 2. run: called with the config; it prints by `jexplicit.runs.progress.show` and
    returns a dict for `--json`. Or the name of a module with a function `run` or an EXPERIMENT, or `module:NAME` of an
    experiment, imported after the arguments are parsed, so that `--help` does not import JAX. experiment: the name in
    config.json; default, the launcher that defines the config.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # results of long work are shown in any encoding
    argv, prog, presets = list(sys.argv[1:] if argv is None else argv), prog or command_name(), presets or {}
    known = [field.name for field in dataclasses.fields(config)]  # pyright: ignore[reportArgumentType]
    description = as_started(description).replace(f"\n{prog}", f"\n  {prog}")  # --help joins lines that are not indented
    if presets:
        end = "\0" if "--help-all" in argv else ". "
        names = "\n".join(f"  --preset {name}: {preset.note.partition(end)[0]}" for name, preset in presets.items())
        description = f"{description}\nPresets, whose values other flags override:\n{names}"
    try:
        default = _defaults(argv, config, presets, experiment or experiment_of(config))
        chosen = parse(config, argv, default=default, prog=prog, description=description, presets=presets)
        check_bounds(chosen)
        if (out := getattr(chosen, "out", None)) is not None:
            local_path(out, "--out")  # checked before any work
        with quiet_output(progress="--quiet" in argv, results="--json" in argv):
            found = _ready(run)(chosen)
        if "--json" in argv:
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


# Flags that several commands share, and the models that they choose


@dataclass(frozen=True)
class ModelChoice:
    """Which model of a run."""

    GROUPS: ClassVar = {"run": "model"}

    run: str
    """Run folder, exported file, or .arpa file.
    Runs of launch.lm and launch.networks have models; tokens of .arpa and .arpa.gz files are separated by white space."""
    method: Method | str | None = None
    """Method that fitted the model. Default: the model with the lowest dev perplexity of those that match the other flags."""
    features: Features | None = None
    """How the model combines context tokens: sum or cat."""
    radius: int | None = None
    """Context length K of the model, in tokens."""
    history: History | None = None
    """The model's --history: none, document, window:W, all, adaptive or adaptive:document."""


@dataclass(frozen=True)
class ModelChoices:
    """Which models of runs: all that have one of the values of each flag."""

    GROUPS: ClassVar = {"method": "model"}

    method: tuple[Method | str, ...] = ()
    """Methods that fitted the models."""
    features: tuple[Features, ...] = ()
    """How the models combine context tokens: sum, cat or both."""
    radius: tuple[int, ...] = ()
    """Context lengths K of the models, in tokens."""
    history: tuple[History, ...] = ()
    """The models' --history: none, document, window:W, all, adaptive or adaptive:document."""


def load_choice(config: ModelChoice, text: str = "") -> "TextModel":
    """The chosen model, with unknown symbols of a text named."""
    from jexplicit.lm.files import model_name
    from jexplicit.lm.text_model import load_model

    saved = load_model(config.run, method=config.method, features=config.features, radius=config.radius, history=config.history)
    perplexity = saved.about.get("dev_perplexity")
    quality = f", dev perplexity {perplexity:.2f}" if perplexity is not None else ""
    console.print(f"model {model_name(saved.about)} of {config.run}{quality}", soft_wrap=True)
    if unknown := saved.tokenizer.unknown_symbols(text):
        seen = escape(repr([f"{symbol[:40]}..." if len(symbol) > 40 else symbol for symbol in unknown]))
        console.print(f"[yellow]warning:[/] the model has never seen {seen} and reads <unk> there", soft_wrap=True)
    return saved


def load_choices(run: str, choices: ModelChoices, *, best: bool = False) -> Iterator["TextModel"]:
    """The chosen models of a run or export; `best`: one without flags."""
    from jexplicit.lm.files import model_rows
    from jexplicit.lm.text_model import load_model, load_row

    wanted = {f.name: getattr(choices, f.name) for f in dataclasses.fields(ModelChoices) if getattr(choices, f.name)}
    if not is_input(run) and (wanted or not best):
        yield from (load_row(run, row) for row in model_rows(run, **wanted))
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
    path, such as ./shapes or mnist.npz: the files there. tfds:NAME or tfds:DIR: a data set of TensorFlow Datasets."""
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
    characters. Or FILE, an existing tokenizer: another run's folder or its tokenizer.model, any SentencePiece model, or a
    Hugging Face tokenizer.json."""
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
