"""Does attention learn in context by gradient descent? Layers are constructed, solved, and trained.

python -m launch.icl one-step --out runs/icl_one
python -m launch.icl multi-step --layers 2 --out runs/icl_two
python -m launch.icl depths --out runs/icl_depths
python -m launch.icl copy --preset tiny --out runs/icl_copy
"""

import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch.kit.command import run_subcommand
from launch.kit.program import as_started, command_name

EXPERIMENTS = {  # where each is, and what it does in one line
    "one-step": ("linear_regression:ONE_STEP", "one layer against one step of gradient descent"),
    "multi-step": ("linear_regression:MULTI_STEP", "several layers against steps of GD and of GD++"),
    "depths": ("depths:EXPERIMENT", "the best 1, 2, .. layers, solved"),
    "curvature": ("curvature:EXPERIMENT", "the effect of GD++ on eigenvalues, by context length"),
    "nonlinear": ("nonlinear:EXPERIMENT", "sine waves, with an embedding and an MLP"),
    "copy": ("copying:EXPERIMENT", "x and y in separate tokens"),
    "softmax": ("variants:SOFTMAX", "one and two heads of softmax attention"),
    "deep-softmax": ("variants:DEEP_SOFTMAX", "layers of softmax attention, from random weights and from GD++"),
    "layernorm": ("variants:LAYERNORM", "layer normalisation"),
    "finite-data": ("variants:FINITE_DATA", "few training tasks"),
    "noisy": ("noisy:EXPERIMENT", "other covariances, noise, and noise levels that differ by task"),
    "function-classes": ("function_classes:EXPERIMENT", "a causal transformer on other classes of functions"),
    "task-diversity": ("task_diversity:EXPERIMENT", "few or many pretraining tasks"),
    "looped": ("looped:EXPERIMENT", "a recurrent layer, run for fewer and for more loops"),
    "newton": ("newton:EXPERIMENT", "how many steps of Newton's iteration a solved layer is worth"),
    "mesa": ("mesa:EXPERIMENT", "layers that estimate a regression online"),
    "markov": ("markov:EXPERIMENT", "Markov chains, whose transitions two layers count in context"),
}


class _Commands(Mapping[str, Any]):
    """The experiments by name. Each is imported, and JAX with it, when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return pkgutil.resolve_name(f"launch.icl.{EXPERIMENTS[name][0]}")

    def __iter__(self) -> Iterator[str]:
        return iter(EXPERIMENTS)

    def __len__(self) -> int:
        return len(EXPERIMENTS)


COMMANDS = _Commands()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: the first argument names the experiment."""
    argv, prog = list(sys.argv[1:] if argv is None else argv) or ["--help"], command_name()
    if argv[0] in ("-h", "--help"):
        lines = [f"  {name:18}{about}" for name, (_, about) in EXPERIMENTS.items()]
        usage = [f"usage: {prog} NAME [--flags] --out DIR", "", as_started(__doc__ or ""), *lines]
        print("\n".join([*usage, "", f"`{prog} NAME --help` explains the flags and presets of an experiment."]))
        return 0
    if argv[0].startswith("-"):
        print(
            f"error: {' '.join(argv[:2])}: name one experiment first, {prog} copy --out DIR; --help lists them", file=sys.stderr
        )
        return 2
    return run_subcommand(COMMANDS, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
