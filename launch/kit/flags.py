"""The flags of a config: fields of a flat frozen dataclass, listed by `--help` in titled groups.

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
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from launch.kit.program import as_started

C = TypeVar("C")

_first_group, _general = "command", "general"
_flat = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)  # --epochs, not --training.epochs
_alone = tyro.conf.FlagCreatePairsOff  # --quiet without --no-quiet


def parse(config: type[C], argv: Sequence[str], *, default: C | None, prog: str, description: str, presets: Iterable[str]) -> C:
    """The config of a command line; `--help` and errors end the process, as in tyro.

    default: of the flags, or None for that of the class.
    """
    fields: dict[str, list[Any]] = {}  # of a dataclass for each group
    for flag in flags(config, default, presets):
        hint = Annotated[flag.hint, tyro.conf.arg(help=as_started(flag.help))]
        fields.setdefault(flag.group, []).append((flag.name, hint, dataclasses.field(default=flag.value)))
    parts = [(title, dataclasses.make_dataclass(title, own, kw_only=True, frozen=True)) for title, own in fields.items()]
    kind = dataclasses.make_dataclass(config.__name__, parts, frozen=True)
    groups: Any = tyro.cli(kind, prog=prog, args=argv, description=description, config=_flat)
    values = {name: value for group in vars(groups).values() for name, value in vars(group).items()}
    return config(**{field.name: values[field.name] for field in dataclasses.fields(config)})  # pyright: ignore[reportArgumentType]


class Flag(NamedTuple):
    """A flag: group title, field, type, help (its first sentence is one line) and default (MISSING if required)."""

    group: str
    name: str
    hint: Any
    help: str
    value: Any


def flags(config: Any, default: Any = None, presets: Iterable[str] = ()) -> list[Flag]:
    """The flags of a config, in the order of its fields, and then those of all commands."""
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


@functools.cache
def _helps(config: type) -> dict[str, str]:
    """The docstrings of the fields of a dataclass and its bases, first sentence on a separate line."""
    helps = {}
    for base in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        statements = typing.cast(ast.ClassDef, body).body
        for field, text in zip(statements, statements[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(written))):
                    helps[name] = re.sub(r"(?<=[a-z)\]]\.) ", "\n", " ".join(written.split()), count=1)
    return helps
