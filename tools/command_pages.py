"""A page for each command: what it does, its flags by group, and its presets, from the config that parses the command line."""

import dataclasses
import importlib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from jexplicit.runs.bounds import Bounds
from launch.cli import COMMANDS
from launch.kit.command import Command
from launch.kit.flags import Flag, flags
from launch.kit.program import as_installed
from tools.markup import inline, prose

# In an explanation: the name of a choice, or several, at the start of a sentence that explains it.
_choice = re.compile(r"(^|(?<=[.;)] ))(?!default)([a-z][\w:+-]*(?:, [a-z][\w:+-]*)*): ")
_words = {int: "integer", float: "number", str: "text"}
_foreign = "Its flags are those of the program that it starts: `jexplicit {} --help` explains them."


def command_pages() -> dict[str, str]:
    """Page -> Markdown, for every command of launch.cli."""
    return {f"commands/{name}.md": command_page(name) for name in COMMANDS}


def command_page(name: str) -> str:
    """The page of one command."""
    module = importlib.import_module(COMMANDS[name].module)
    about = prose(module.__doc__ or "")
    parts = [f"# jexplicit {name}", "", about, ""]
    if kinds := getattr(module, "COMMANDS", None):
        for kind, command in kinds.items():
            parts += [f"## {name} {kind}", "", prose(command.config.__doc__), "", *_tables(command, "###")]
    elif config := getattr(module, "Config", None):
        parts += _tables(Command(config, "", getattr(module, "PRESETS", {})), "##")
    else:
        parts += [_foreign.format(name)]
    return "\n".join(parts) + "\n"


def _tables(command: Command, level: str) -> Iterator[str]:
    yield from (f"{level} Flags", "", "| flag | takes | |", "|---|---|---|")
    for group, members in _by_group(flags(command.config, presets=command.presets)).items():
        yield f"| **{group}** | | |"
        yield from map(_row, members)
    if command.presets:
        yield from ("", f"{level} Presets", "", "| `--preset` | | what it sets |", "|---|---|---|")
        for name, preset in command.presets.items():
            yield f"| `{name}` | {inline(as_installed(preset.note))} | {' '.join(_settings(preset.config))} |"
    yield ""


def _by_group(found: Iterable[Flag]) -> Mapping[str, list[Flag]]:
    groups: dict[str, list[Flag]] = {}
    for flag in found:
        groups.setdefault(flag.group, []).append(flag)
    return groups


def _row(flag: Flag) -> str:
    takes = [_takes(flag.hint), _default(flag.value)]
    return f"| `{_option(flag.name, flag.value)}` | {'<br>'.join(filter(None, takes))} | {_explanation(flag.help)} |"


def _default(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "*required*"
    return f"default {_code(text)}" if (text := _values(value)) else ""


def _explanation(help: str) -> str:
    """The help of a flag, with a line for each choice that it explains."""
    text = _choice.sub(lambda found: f"{'' if found.start() == 0 else '<br>'}`{found[2]}`: ", " ".join(help.split()))
    return inline(as_installed(text)).replace("&lt;br&gt;", "<br>")


def _option(name: str, value: Any) -> str:
    """A flag as it is typed; a switch that is on has only one that turns it off."""
    return f"--{'no-' if value is True else ''}{name.replace('_', '-')}"


def _settings(config: Any) -> Iterator[str]:
    """The flags by which a config differs from the defaults."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name != "out" and value != field.default:
            yield _code(f"{_option(field.name, value is False)} {_values(value)}".strip())


def _values(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _takes(hint: Any) -> str:
    """What a flag takes, in words: choices, or the type and the bounds of a number."""
    kind, inner = get_origin(hint), [part for part in get_args(hint) if part not in (..., type(None))]
    if kind is Annotated:
        bounds = [str(note) for note in inner[1:] if isinstance(note, Bounds)]
        return ", ".join([_takes(inner[0]), *bounds])
    if kind is Literal:
        return ", ".join(_code(str(choice)) for choice in inner if choice is not None)
    if kind is tuple:
        return f"several: {_takes(inner[0])}"
    if kind in (typing.Union, types.UnionType):
        return ", or ".join(filter(None, map(_takes, inner)))
    return _words.get(hint, "")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
