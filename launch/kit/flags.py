"""The flags of a config: fields of a frozen dataclass, in groups.

    @dataclass(frozen=True)
    class Config:
        GROUPS: ClassVar = {"out": "run", "epochs": "training"}

        out: str
        \"\"\"Run folder to write.\"\"\"
        seed: int = 0
        \"\"\"Seed of every random choice.\"\"\"
        epochs: int = 32
        \"\"\"Maximum number of passes over the data. Training stops earlier with --patience.\"\"\"

GROUPS maps the first field of a group to its title. The first sentence of a field's docstring is its help in one line; the rest
follows.
"""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from launch.kit.program import as_started

C = TypeVar("C")

_first_group, _general = "command", "general"
_flat = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)  # --epochs, not --training.epochs
_alone = tyro.conf.FlagCreatePairsOff  # --quiet without --no-quiet


def parse(config: type[C], argv: Sequence[str], *, default: C | None, prog: str, description: str, presets: Iterable[str]) -> C:
    """The config of a command line; `--help`, `--help-all` (tyro's) and errors end the process.

    default: of the flags, or None for that of the class.
    """
    if {"-h", "--help"} & {*argv}:
        print(f"usage: {prog} [OPTIONS]\n\n{description}\n\n{short_help(flags(config, default, presets))}")
        raise SystemExit(0)
    given = ["--help" if word == "--help-all" else word for word in argv]
    fields: dict[str, list[Any]] = {}  # of a dataclass for each group
    for flag in flags(config, default, presets):
        hint = Annotated[flag.hint, tyro.conf.arg(help=as_started(flag.help))]
        fields.setdefault(flag.group, []).append((flag.name, hint, dataclasses.field(default=flag.value)))
    parts = [(title, dataclasses.make_dataclass(title, own, kw_only=True, frozen=True)) for title, own in fields.items()]
    kind = dataclasses.make_dataclass(config.__name__, parts, frozen=True)
    groups: Any = tyro.cli(kind, prog=prog, args=given, description=description, config=_flat)
    values = {name: value for group in vars(groups).values() for name, value in vars(group).items()}
    return config(**{field.name: values[field.name] for field in dataclasses.fields(config)})  # pyright: ignore[reportArgumentType]


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
    return [
        *found,
        Flag(_general, "quiet", Annotated[bool, _alone], "Print no progress.", False),
        Flag(_general, "json", Annotated[bool, _alone], "Print the results as one JSON object on standard output.", False),
    ]


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
