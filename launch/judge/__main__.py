"""Judge language models by minimal pairs of sentences.

python -m launch.judge --run runs/demo --pairs blimp/*.jsonl --out runs/judge
python -m launch.judge --run runs/demo --method bigram explicit --pairs blimp --out runs/judge

Files of pairs are JSON lines with the keys sentence_good, sentence_bad, UID and field, as in BLiMP. Every sentence is scored on
its own: even with --history all, a model sees only that sentence.
"""

from launch.judge.config import Config
from launch.kit.command import entry_point

main = entry_point("launch.judge.run", Config, __doc__, module=__name__)
