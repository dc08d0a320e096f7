"""The installed command: `jexplicit NAME ...` runs the command NAME, whose module is imported only then."""

import difflib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, NamedTuple, Union


class Entry(NamedTuple):
    """A command: the module that has its `main`, and what it does."""

    module: str
    about: str


COMMANDS = {
    "lm": Entry("launch.lm.__main__", "fit language models in closed form, evaluate and save them"),
    "runs": Entry("launch.runs", "list the models of runs"),
    "score": Entry("launch.score", "log-probabilities of a text"),
    "next": Entry("launch.next", "the likeliest next tokens of a prompt"),
    "sample": Entry("launch.sample", "continue a prompt"),
    "explain": Entry("launch.explain", "what each context token contributes to a prediction"),
    "export": Entry("launch.export", "write a model to one file"),
    "judge": Entry("launch.judge.__main__", "accuracy on minimal pairs of sentences"),
    "harness": Entry("launch.harness.__main__", "lm-evaluation-harness with models of this project"),
    "compare": Entry("launch.compare", "compare language models on one text"),
    "digits": Entry("launch.digits.__main__", "classify images with solved and with trained networks"),
    "classify": Entry("launch.classify", "classify images with a model of a run of digits"),
    "networks": Entry("launch.networks.__main__", "networks trained by gradients, and their diagnostics"),
    "feature-machine": Entry("launch.feature_machine.__main__", "features without backpropagation: a recursive kernel machine"),
    "icl": Entry("launch.icl.__main__", "does attention learn in context by gradient descent?"),
    "blur": Entry("launch.blur.__main__", "learned update rules: meta-train, compare, judge"),
    "shards": Entry("launch.shards", "tokenise text of any size into shards, for lm"),
    "beam": Entry("launch.beam", "tokenise and count text with Apache Beam, for lm"),
    "bench": Entry("launch.bench", "measure speed against named peers"),
    "cache": Entry("launch.cache", "list or clear the cache of tokenised texts and compiled functions"),
}
COMPLETION = "--print-completion"
_help = f"""usage: jexplicit [-h] [--version] COMMAND ...

Language models and classifiers solved in closed form from co-occurrence counts, and the models they are compared with.

{{commands}}

jexplicit COMMAND --help explains the flags of a command.
jexplicit {COMPLETION} {{{{bash,zsh,tcsh,fish}}}} prints a completion script for a shell, such as
  jexplicit {COMPLETION} bash > ~/.local/share/bash-completion/completions/jexplicit"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the first argument names the command."""
    name, *rest = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    try:
        if name in ("-h", "--help", "help"):
            print(_help.format(commands="\n".join(f"  {name:15} {entry.about}" for name, entry in COMMANDS.items())))
        elif name == "--version":
            print(f"jexplicit {metadata.version('jexplicit')}")
        elif name == COMPLETION:
            print_completion(rest)
        elif name in COMMANDS:
            sys.argv = [f"jexplicit {name}", *rest]  # its name is a part of the program's
            return importlib.import_module(COMMANDS[name].module).main(rest)
        else:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"
            print(f"error: no command {name!r}: {remedy}", file=sys.stderr)
            return 2
    except KeyboardInterrupt:  # also while modules are imported
        print("interrupted", file=sys.stderr)
        return 130
    return 0


@dataclass(frozen=True)
class _ForeignFlags:
    """The flags of a command that passes them on: none that is known here."""


def print_completion(shell: list[str]) -> None:
    """Print what completes the names of commands and flags in a shell; tyro writes it."""
    import tyro

    from launch.kit.flags import FLAT, flag_groups

    commands = {}
    for name, entry in COMMANDS.items():
        module = importlib.import_module(entry.module)
        if kinds := getattr(module, "COMMANDS", None):
            flags = {kind: flag_groups(command.config, presets=command.presets) for kind, command in kinds.items()}
            commands[name] = Union[*(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in flags.items())]  # noqa: UP007
        else:
            config = getattr(module, "Config", _ForeignFlags)
            commands[name] = flag_groups(config, presets=getattr(module, "PRESETS", ()))
    arguments = ["--tyro-print-completion", *shell]
    tyro.extras.subcommand_cli_from_dict(commands, prog="jexplicit", args=arguments, config=FLAT)


if __name__ == "__main__":
    sys.exit(main())
