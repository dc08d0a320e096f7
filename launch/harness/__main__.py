"""lm-evaluation-harness with models of this project: --model jexplicit is registered.

python -m launch.harness run --model jexplicit --model_args run=runs/demo,method=bigram --tasks blimp
python -m launch.harness run --model jexplicit --model_args run=model.safetensors --tasks my_task --include_path tasks

lm_eval has no entry points for models of other packages, so `lm_eval` alone does not find this one.
"""

import importlib.util
import sys

from rich.markup import escape

from jexplicit.runs.files import keep_compiled
from jexplicit.runs.progress import console

_remedy = "pip install 'jexplicit[eval]'"


def main(argv: list[str] | None = None) -> int:
    """Entry point: lm_eval's own arguments."""
    sys.argv[1:] = sys.argv[1:] if argv is None else argv
    if importlib.util.find_spec("lm_eval") is None:
        console.print(f"[bold red]error:[/] lm_eval is missing: {escape(_remedy)}", soft_wrap=True)
        return 2
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    from launch.harness import model  # noqa: F401  (registers it)

    keep_compiled()
    try:
        cli_evaluate()
    except ModuleNotFoundError as error:  # of lm_eval's default model, hf, and of some tasks
        remedy = f"pip install {error.name}, or choose --model jexplicit --model_args run=DIR"
        console.print(f"[bold red]error:[/] lm_eval needs {error.name} for this model or task: {remedy}", soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
