"""Judge language models by minimal pairs: how often the acceptable sentence of a pair is the more probable one.

python -m launch.judge --run runs/demo --pairs blimp/*.jsonl --out runs/judge
python -m launch.judge --run runs/demo --method bigram explicit --pairs blimp --out runs/judge

Files of pairs are JSON lines with the keys sentence_good, sentence_bad, UID and field, as in BLiMP. Every sentence is scored on
its own: even with --history all, a model sees only that sentence.
"""

import sys

from jexplicit.runs.command import run_command
from launch.judge.config import Config


def main(argv: list[str] | None = None) -> int:
    """Entry point; JAX is imported once the arguments are read."""
    return run_command("launch.judge.run", Config, description=__doc__ or "", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
