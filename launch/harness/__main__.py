"""lm-evaluation-harness with models of this project: --model jexplicit is registered.

python -m launch.harness run --model jexplicit --model_args run=runs/demo,method=bigram --tasks blimp
python -m launch.harness run --model jexplicit --model_args run=model.safetensors --tasks my_task --include_path tasks

lm_eval has no entry points for models of other packages, so `lm_eval` alone does not find this one.
"""

import sys

from rich.markup import escape

from jexplicit.runs.progress import console


def main(argv: list[str] | None = None) -> int:
    """Entry point: lm_eval's own arguments."""
    sys.argv[1:] = sys.argv[1:] if argv is None else argv
    try:
        from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

        from launch.harness import model  # noqa: F401  (registers it)

        cli_evaluate()
    except ModuleNotFoundError as error:  # also of lm_eval's default model, hf, and of some tasks
        name = (error.name or "").partition(".")[0]
        remedy = "'jexplicit[eval]'" if name == "lm_eval" else f"{name}, or choose --model jexplicit --model_args run=DIR"
        console.print(f"[bold red]error:[/] {name} is missing: pip install {escape(remedy)}", soft_wrap=True)
        return 2
    except ValueError as error:  # of a task that is not known, or of a model
        console.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
