"""The installed command: `jexplicit NAME ...` imports and runs the command NAME."""

import difflib
import importlib
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple


class Entry(NamedTuple):
    """A command: the module of its `main`, and its line of help."""

    module: str
    about: str


COMMANDS = {
    "lm": Entry("launch.lm", "fit language models from counts, evaluate and save them"),
    "runs": Entry("launch.runs", "list the models of runs"),
    "score": Entry("launch.score", "log-probabilities of a text"),
    "next": Entry("launch.next", "the likeliest next tokens of a prompt"),
    "sample": Entry("launch.sample", "continue a prompt"),
    "explain": Entry("launch.explain", "the part of each context token in a prediction"),
    "export": Entry("launch.export", "write a model to one file"),
    "judge": Entry("launch.judge", "accuracy on minimal pairs of sentences"),
    "compare": Entry("launch.compare", "compare language models on one text"),
    "combine": Entry("launch.combine", "counts and another model, alone and combined, on a test text"),
    "digits": Entry("launch.digits", "classify images with models fitted without SGD, and trained ones"),
    "classify": Entry("launch.classify", "classify images with a model of a run of digits"),
    "classify-text": Entry("launch.classify_text", "classify texts by the words of each label, solved and trained"),
    "networks": Entry("launch.networks", "networks trained by gradients, for comparison"),
    "feature-machine": Entry("launch.feature_machine", "features without backpropagation: a recursive kernel machine"),
    "icl": Entry("launch.icl.__main__", "does attention learn in context by gradient descent?"),
    "blur": Entry("launch.blur.__main__", "learned update rules, compared with gradient descent"),
    "shards": Entry("launch.shards", "tokenise text of any size into shards, for lm"),
    "beam": Entry("launch.beam", "tokenise and count text with Apache Beam, for lm"),
    "bench": Entry("launch.bench", "compare speed with named peers"),
    "data": Entry("launch.data", "check a folder of data against the files of the results"),
    "harness": Entry("launch.harness.__main__", "lm-evaluation-harness with models of this project"),
}
_help = """usage: jexplicit [-h] [--version] COMMAND ...

Models fitted without stochastic gradient descent, and the trained networks that they are compared with.

{commands}

Try first:
  jexplicit lm --preset demo --out runs/demo                  language models of an embedded text, in two minutes
  jexplicit next --run runs/demo --prompt "the return"        the next tokens that its best model expects

jexplicit COMMAND --help explains the flags of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the first argument names the command."""
    name, *rest = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    try:
        if name in ("-h", "--help", "help"):
            print(_help.format(commands="\n".join(f"  {name:15} {entry.about}" for name, entry in COMMANDS.items())))
        elif name == "--version":
            print(f"jexplicit {metadata.version('jexplicit')}")
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


if __name__ == "__main__":
    sys.exit(main())
